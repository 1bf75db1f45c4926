"""What `train` and `max-batch` found out, as plain values that become JSON."""

from __future__ import annotations

import msgspec

from remat_cli.core.training import StepFacts
from remat_cli.report.compile import CompileReport
from remat_cli.report.solution import EXIT_DONE, EXIT_NOT_FOUND


class TrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `train` wrote: the step, its first state, and with a budget what compiling it gave."""

    model: str
    step: str
    state: str
    facts: StepFacts
    snippet: str
    compiled: CompileReport | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """That of compiling, where it was asked for."""
        return EXIT_DONE if self.compiled is None else self.compiled.exit_code


class BatchProbe(msgspec.Struct, frozen=True):
    """What was found for one batch. `fits` is None where no plan was looked for; `forward_ns` is the forward pass."""

    batch: int
    baseline_peak_bytes: int
    baseline_ns: int
    forward_ns: int
    fits: bool | None = None
    peak_bytes: int | None = None
    overhead_percent: float | None = None


class MaxBatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batches that fit: keeping everything, and with at most one forward pass computed again.

    None where not even one sample fits. `best` is the probe of `max_batch`; `probes` are all, by batch.
    """

    model: str
    budget: str
    budget_bytes: int
    keep_all_batch: int | None
    max_batch: int | None
    best: BatchProbe | None
    probes: tuple[BatchProbe, ...]
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Not found where no batch fits: no proof that none could."""
        return EXIT_DONE if self.max_batch else EXIT_NOT_FOUND
