"""One run of a solver in a bench, as one line of a results file, and the file itself."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.style import Style, lines_of

Flat = TypeVar("Flat", bound=msgspec.Struct)
BenchStatus = Literal["optimal", "feasible", "infeasible", "not_found", "error", "crashed", "overran"]
FAILED: frozenset[str] = frozenset({"error", "crashed", "overran"})
LIST_FORMS = "a results file of `remat bench` has one JSON object per line"

TracePoint: TypeAlias = tuple[float, float | None, float | None]
"""Seconds since the start, overhead of the best plan in percent, proved bound in percent; None: none yet."""


class BenchCase(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked in one run.

    `probe` marks a run that only asks whether there is a plan: it ends at the first one. `label` tells apart runs of
    one solver with other options. `budget` is what the bench file says, such as `0.9`. `work` limits the search steps
    instead of the time. `target_percent` is an overhead to be reached (a published result), `reference` the label of
    the solver that the times are compared with. `instance_path` is relative to the bench file.
    """

    suite: str
    probe: bool = False
    instance: str
    instance_path: str
    instance_sha256: str
    budget: str
    order: Literal["free", "keep"]
    solver: str
    label: str
    options: dict[str, Any] = {}
    seed: int
    threads: int
    time_limit_seconds: float
    gap_percent_asked: float = 0.0
    work: int | None = None
    target_percent: float | None = None
    reference: str | None = None


class BenchRun(BenchCase, frozen=True, kw_only=True):
    """What came of it: the judge's figures, and what the run cost.

    Seconds count from a problem in memory to the judged plan, in a process that has loaded everything before;
    `cpu_seconds` is what the process and those it started spent on it, on all cores. `start_rss_mib` is the memory of
    the process when the clock started. `peak_rss_mib` is its peak, as far as the system tells it from that of the
    process that started it, else its memory at the end; or that of all its processes together, looked at four times a
    second, if that was more. `status` is `error` where remat itself refused, `crashed` where
    the process died, `overran` where it had to be killed long after its time limit; `message` then says why.
    """

    status: BenchStatus
    message: str = ""
    space: str | None = None
    ops: int | None = None
    edges: int | None = None
    budget_bytes: int | None = None
    budget_fraction: float | None = None
    baseline_peak_bytes: int | None = None
    baseline_time: int | None = None
    floor_bytes: int | None = None
    peak_bytes: int | None = None
    time: int | None = None
    overhead_percent: float | None = None
    lower_bound_percent: float | None = None
    gap_percent: float | None = None
    recomputed_ops: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    seconds_to_first: float | None = None
    seconds_to_best: float | None = None
    trace: tuple[TracePoint, ...] = ()
    start_rss_mib: float | None = None
    peak_rss_mib: float | None = None
    facts: dict[str, Any] = {}
    versions: dict[str, Any] = {}

    @property
    def has_plan(self) -> bool:
        """Whether a plan within the budget was found."""
        return self.time is not None


class BenchReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A results file, and what became of it: `skipped` are instances that an optional suite did not find."""

    results: str
    runs: tuple[BenchRun, ...]
    new_runs: int = 0
    skipped: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 when a run failed, which is not the same as finding no plan."""
        return 1 if any(run.status in FAILED for run in self.runs) else 0

    def lines(self, style: Style) -> list[str]:
        """The tables, and what was left out."""
        return lines_of("remat_cli.contest.report.bench_table:bench_lines", self, style)


def joined(kind: type[Flat], *parts: msgspec.Struct, **fields: Any) -> Flat:
    """One flat value from the fields that others share with it; the later win, and those by name over all."""
    found = {name: value for part in parts for name, value in msgspec.structs.asdict(part).items()}
    shared = {name: value for name, value in found.items() if name in kind.__struct_fields__}
    return kind(**(shared | fields))


def case_key(case: BenchCase) -> bytes:
    """What makes two runs the same run; what only the tables use does not count."""
    asked = joined(BenchCase, case, target_percent=None, reference=None)
    return msgspec.json.encode(asked, order="deterministic")


def read_runs(path: Path) -> tuple[BenchRun, ...]:
    """The runs of a results file; a last line that was cut off while it was written does not count.

    Raises:
        ModelError: the file cannot be read, or a line is no run.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ModelError(f"results {path} cannot be read: {error.strerror}") from None
    runs = []
    for number, line in enumerate(lines[:-1], 1):
        if line.strip():
            try:
                runs.append(msgspec.json.decode(line, type=BenchRun))
            except msgspec.MsgspecError as error:
                raise ModelError(f"results {path} line {number}: {error}; {LIST_FORMS}") from None
    return tuple(runs)


def encode_run(run: BenchRun) -> bytes:
    """One line of a results file, with its newline."""
    return msgspec.json.encode(run, enc_hook=str) + b"\n"


def of_suites(runs: Iterable[BenchRun], names: tuple[str, ...]) -> tuple[BenchRun, ...]:
    """The runs of these suites; all when no names are given."""
    return tuple(run for run in runs if not names or run.suite in names)
