"""What verification is asked: two models, what is fed to them, and what the plan promises of the second."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from remat_cli.core.values.verification import VerifyMode
from remat_cli.ort_rules.forecast import SessionForecast
from remat_cli.runtime.measure.turns import RunFigures
from remat_cli.runtime.sessions._ort import LONGEST_RUN_SECONDS, Array, PackedArray, pack_all
from remat_cli.runtime.sessions.feeds import Feeds
from remat_cli.runtime.sessions.session import Level, SessionSettings

MOST_RUNS = 13


@dataclass(frozen=True)
class Beyond:
    """That this machine cannot run the original at all sizes: it did at `runnable`, and not at `failed`.

    `twin` is the same model in other tiles, which stands in for it at the others (None: there is none).
    """

    twin: Path | None
    runnable: Mapping[str, int]
    failed: Mapping[str, int]


@dataclass(frozen=True)
class ManySizes:
    """Sizes that a model is also run at, the plan's own first, what is fed at the others, and what is promised of all.

    `original` is the user's model, `promised_bytes` a total for any size. `beyond`: the original does not run here at
    all of them (None: it does).
    """

    original: Path
    all_sizes: tuple[Mapping[str, int], ...]
    other_feeds: tuple[Feeds, ...]
    promised_bytes: int
    beyond: Beyond | None = None


@dataclass(frozen=True)
class VerifyRequest:
    """Two models and what the plan promises of the second.

    `reference` is the optimised original, whose memory is measured, `rewritten` what the plan made of it. `original` is
    the user's file, whose outputs and time count in default sessions, and which `compared_with` names (None:
    `reference` stands for it). `expected_order` are the names of its ops in plan order, without the `gate_ops`. Bytes:
    `predicted_live_peak_bytes` are activations alone; `fixed_bytes` is the fixed part (weights as kept, and inputs)
    predicted for the rewritten model, gate constants included, and `reference_fixed_bytes` that of the original.
    `outside_bytes` is what of `fixed_bytes` lies outside the session's arena: weights that are not packed, and inputs;
    what was packed beforehand too, of which `largest_copy_bytes` must find a place in it while the model is loaded.
    `workspace` is by op name, of both models, `budget_bytes` a total. `level` is up to which sessions by default
    optimise. `more_feeds` are further inputs on which the outputs are compared. A `portable` model is optimised again
    when a default session loads it, so only exact sessions are held to the promise; where it `is_left` to sessions to
    bring into a layout, outputs and memory of a default one are promised too, memory not where it `is_elsewhere`, for
    processors of another kind. `original_cap_bytes` is the smallest cap of `reference` with default options where an
    earlier verification found it; it is then not searched again. With `may_reassociate` outputs need not be identical,
    only close. `mode` says how much is run. With `forecast`, what is predicted of the rewritten model's every op, it is
    said where the runs left it. `has_block`: later runs take a block for all tensors, which the steady form keeps them
    from. A process that shows no progress for `run_seconds` is ended. Sessions on `reference` alone whose figures are
    `known_alone` are not opened again. With `sizes` both models run at all of them in a session each, the largest once
    more under exact options.
    """

    reference: Path
    rewritten: Path
    feeds: Mapping[str, Array]
    expected_order: tuple[str, ...]
    predicted_live_peak_bytes: int
    fixed_bytes: int
    reference_fixed_bytes: int
    outside_bytes: int
    budget_bytes: int
    gate_ops: frozenset[str] = frozenset()
    workspace: Mapping[str, int] = field(default_factory=dict)
    more_feeds: tuple[Mapping[str, Array], ...] = ()
    predicted_overhead_percent: float | None = None
    capped: bool = True
    timed: bool = True
    portable: bool = False
    is_left: bool = False
    is_elsewhere: bool = False
    intra_op_threads: int = 0
    device: str = "cpu"
    level: Level = "all"
    mode: VerifyMode = "on"
    custom_ops: tuple[str, ...] = ()
    original_cap_bytes: int | None = None
    largest_copy_bytes: int = 0
    may_reassociate: bool = False
    has_block: bool = True
    forecast: SessionForecast | None = None
    run_seconds: float = LONGEST_RUN_SECONDS
    sizes: ManySizes | None = None
    original: Path | None = None
    compared_with: str = ""
    known_alone: tuple[RunFigures, ...] | None = None

    def settings(self, *, exact: bool) -> SessionSettings:
        """Settings of a session on either model."""
        return SessionSettings(
            exact=exact,
            intra_op_threads=self.intra_op_threads,
            device=self.device,
            level=self.level,
            custom_ops=self.custom_ops,
            run_seconds=self.run_seconds,
        )

    @property
    def is_beyond(self) -> bool:
        """Whether the original does not run here at all sizes."""
        return self.sizes is not None and self.sizes.beyond is not None

    @property
    def most_runs(self) -> int:
        """Of both models together, unless verification is thorough; short ones are timed more often."""
        return MOST_RUNS - (self.original is None)

    @property
    def packed_feeds(self) -> tuple[PackedArray, ...]:
        """The inputs, ready for another process."""
        return pack_all(self.feeds)

    @property
    def all_packed_feeds(self) -> tuple[tuple[PackedArray, ...], ...]:
        """Every set of inputs, ready for another process."""
        return (self.packed_feeds, *(pack_all(group) for group in self.more_feeds))
