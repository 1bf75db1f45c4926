"""All solvers on one problem at several budgets: what each reached, and why some did not take part."""

from __future__ import annotations

import msgspec

from remat_cli.report.solution import EXIT_DONE, SolutionReport
from remat_cli.report.style import Style

BEST = "auto"  # goes first among equals
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
VALID_SPACES = {"free": frozenset({"free"}), "keep": frozenset({"free", "first_in_order"})}


class CompareRun(SolutionReport, frozen=True, kw_only=True):
    """One solver at one budget; `budget` is what the user wrote."""

    budget: str

    @property
    def has_plan(self) -> bool:
        """Whether a plan within the budget was found."""
        return self.time is not None


class NotApplicable(msgspec.Struct, frozen=True):
    """A solver that does not take the problem, and why."""

    solver: str
    reason: str


class ComparedBudget(msgspec.Struct, frozen=True):
    """A budget as the user wrote it, and its total bytes."""

    text: str
    bytes: int


class CompareReport(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison; one of `model` and `instance` names the file. Runs are in the order of budgets and solvers.

    Each run had `run_threads` threads and `time_limit_seconds`; `threads` is what all that ran at once had together.
    `floor_bytes` is the highest floor that was proved, by the working sets of single ops or by a solver. `missing_runs`
    had not ended when the user stopped the command. `picture` is the file that was written, and `picture_error` why it
    could not be: the figures took minutes, so they are told all the same.
    """

    model: str | None = None
    instance: str | None = None
    device: str
    ops: int
    order: str
    budgets: tuple[ComparedBudget, ...]
    time_limit_seconds: float
    threads: int
    run_threads: int
    seed: int
    baseline_peak_bytes: int
    baseline_time: int
    fixed_bytes: int
    floor_bytes: int
    runs: tuple[CompareRun, ...]
    not_applicable: tuple[NotApplicable, ...] = ()
    missing_runs: int = 0
    picture: str | None = None
    picture_error: str | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 for a whole comparison, whatever it says; 1 without its picture; 130 for one that Ctrl-C cut short."""
        if self.missing_runs:
            return EXIT_INTERRUPTED
        return EXIT_DONE if self.picture_error is None else EXIT_ERROR

    def lines(self, style: Style) -> list[str]:
        """A table per budget, best first, and who did not take part."""
        from remat_cli.report.compare_text import compare_lines

        return compare_lines(self, style)

    def runs_at(self, budget: str) -> list[CompareRun]:
        """The runs at one budget, best first."""
        return sorted((run for run in self.runs if run.budget == budget), key=_rank)

    def bound_percent(self, budget: str) -> float | None:
        """The highest overhead that every plan compared here needs, proved by any of the solvers.

        A bound holds in its space: those of smaller spaces do not count.
        """
        bounds = [run.lower_bound_percent for run in self._valid_at(budget)]
        return max((bound for bound in bounds if bound is not None), default=None)

    def is_impossible(self, budget: str) -> bool:
        """Whether a solver proved that no plan of those compared here meets the budget."""
        return any(run.status == "infeasible" for run in self._valid_at(budget))

    def _valid_at(self, budget: str) -> list[CompareRun]:
        """The runs at one budget whose proofs hold for the plans of all."""
        return [run for run in self.runs if run.budget == budget and run.space in VALID_SPACES[self.order]]


def _rank(run: CompareRun) -> tuple[bool, int, bool]:
    """Least time first, without a plan last; `auto` first among equals, then the order of the registry."""
    return (not run.has_plan, run.time or 0, run.solver != BEST)
