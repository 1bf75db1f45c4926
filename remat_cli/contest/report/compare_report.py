"""All solvers on one problem at several budgets: what each reached, why some did not take part, and the table."""

from collections.abc import Iterable
from textwrap import TextWrapper

import msgspec

from remat_cli.base.errors import EXIT_ERROR, EXIT_INTERRUPTED
from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.spill import SpillMemory
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE, SolutionReport
from remat_cli.report.style import Style, columns, percent, plural

BEST = "auto"  # goes first among equals
VALID_SPACES = {"free": frozenset({"free"}), "keep": frozenset({"free", "first_in_order"})}


class CompareRun(SolutionReport, frozen=True, kw_only=True):
    """One solver at one budget; `budget` is what the user wrote. Plans of those that `may_page` let values wait."""

    budget: str
    may_page: bool = False

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


class CompareReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A comparison; one of `model` and `instance` names the file. Runs are in the order of budgets and solvers.

    Each run had `run_threads` threads and `time_limit_seconds`; `threads` is what all that ran at once had together.
    `floor_bytes` is the highest floor that was proved, by the working sets of single ops or by a solver. `missing_runs`
    had not ended when the user stopped the command. `spill` is the memory that values may wait in. `picture` is the
    file that was written, and `picture_error` why it could not be: the figures took minutes, so they are told all the
    same.
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
    spill: SpillMemory | None = None
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
        return compare_lines(self, style)

    def runs_at(self, budget: str) -> list[CompareRun]:
        """The runs at one budget: least time first (`auto` among equals), then those without a plan."""
        runs = [run for run in self.runs if run.budget == budget]
        return sorted(runs, key=lambda run: (not run.has_plan, run.time or 0, run.solver != BEST))

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
        """The runs at one budget whose proofs hold for the plans of all: where values may page, those that know it."""
        runs = [run for run in self.runs if run.budget == budget and run.space in VALID_SPACES[self.order]]
        return [run for run in runs if run.may_page] if self.spill is not None else runs


HEAD = ["", "solver", "status", "peak", "overhead", "bound", "space", "seconds"]
BEST_MARK = "*"
NONE = "-"
SPACES = {
    "free": "all schedules",
    "first_in_order": "first computations in the baseline's order",
    "staged": "first computations in the baseline's order, no op twice between two of them",
}


def compare_lines(report: CompareReport, style: Style) -> list[str]:
    """What was compared, a table per budget, and the solvers that do not apply."""
    name = report.model or report.instance or ""
    ops = f"({plural(report.ops, 'op')} on {report.device}, order {report.order})"
    each = f"{report.time_limit_seconds:g} s and {plural(report.run_threads, 'thread')} for each run"
    fixed = f", of which {format_bytes(report.fixed_bytes)} fixed" if report.fixed_bytes else ""
    spilling = []
    if (spill := report.spill) is not None:
        there, back = (f"{rate / 1e9:.2f} GB/s" for rate in (spill.write_bytes_per_second, spill.read_bytes_per_second))
        spilling = [f"values may wait in {spill.name}, {there} out, {back} back"]
    lines = [
        f"{style.paint(name, 'strong')}  {ops}",
        f"baseline peak {describe_bytes(report.baseline_peak_bytes)}{fixed}",
        *spilling,
        f"{plural(len(report.runs), 'run')} in {report.seconds:.1f} s: at most {each}, seed {report.seed}",
    ]
    for budget in report.budgets:
        lines += ["", *_budget_lines(report, budget, style)]
    if report.not_applicable:
        entries = [(entry.solver, entry.reason) for entry in report.not_applicable]
        lines += ["", "does not apply:", *_grouped(entries, style)]
    spaces = dict.fromkeys(_space(run) for run in report.runs if run.budget_bytes >= report.floor_bytes)
    if spaces:  # else there is no table whose columns mean something
        meaning = "overhead: extra time over every op once; bound: no schedule of that space has less"
        words = []
        for space in spaces:
            if space != NONE:
                kind, _, most = space.partition("_c")  # `staged_c2`: that of `staged`, each op at most twice
                often = f"; no op more than {most} times" if most else ""
                words.append(f"space {space}: {SPACES.get(kind, 'see docs/solvers.md')}{often}")
        lines += ["", *_wrapped([f"{BEST_MARK} least time; {meaning}", *words], style, "")]
    if report.picture is not None:
        lines += [f"picture {report.picture}"]
    if report.picture_error is not None:
        lines += [style.paint(f"no picture: {report.picture_error}", "bad")]
    if report.missing_runs:
        cut = f"interrupted: {plural(report.missing_runs, 'run')} had not ended"
        lines += [style.paint(cut, "warn")]
    return lines


def _grouped(entries: Iterable[tuple[str, str]], style: Style) -> list[str]:
    """Each reason once, after the solvers whom it concerns."""
    solvers: dict[str, list[str]] = {}
    for solver, reason in entries:
        solvers.setdefault(reason, []).append(solver)
    texts = [f"{', '.join(names)}: {reason}" for reason, names in solvers.items()]
    return _wrapped(texts, style, "  ")


def _wrapped(texts: Iterable[str], style: Style, indent: str) -> list[str]:
    """Each text on as few lines as it needs; what follows the first is indented more."""
    wrapper = TextWrapper(style.width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def _budget_lines(report: CompareReport, budget: ComparedBudget, style: Style) -> list[str]:
    heading = style.paint(f"budget {budget.text}", "strong") + f" = {describe_bytes(budget.bytes)}"
    runs = report.runs_at(budget.text)
    if budget.bytes < report.floor_bytes:
        floor = f"no schedule of whole ops needs less than {describe_bytes(report.floor_bytes)}"
        return [heading, "  " + style.paint("infeasible", "bad") + f": {floor}"]
    if not runs:
        return [heading, "  no run had ended"]
    rows, unfound = [HEAD], []
    for run in runs:
        rows.append(
            [
                BEST_MARK if run.has_plan and run.time == runs[0].time else "",
                run.solver,
                run.status.replace("_", " "),
                NONE if run.peak_bytes is None else format_bytes(run.peak_bytes),
                NONE if not run.has_plan else percent(run.overhead_percent),
                NONE if run.lower_bound_percent is None else percent(run.lower_bound_percent),
                _space(run),
                f"{run.seconds:.2f}",
            ]
        )
        if run.status == "not_found":  # as far as the solver says why
            least = run.facts.get("least_peak_bytes")
            if (reason := run.facts.get("unfinished")) is not None:
                unfound.append((run.solver, str(reason)))
            elif least is not None:
                unfound.append((run.solver, f"the schedules it tried need {format_bytes(least)} or more"))
    table, reasons = columns(rows, "<<<>>><>", indent=" "), _grouped(unfound, style)
    return [heading, *table, *(["    no plan:"] if reasons else []), *(f"    {line}" for line in reasons)]


def _space(run: CompareRun) -> str:
    """Where what the solver says holds, if it says anything."""
    return run.space if run.status != "not_found" or run.lower_bound_percent is not None else NONE
