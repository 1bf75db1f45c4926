"""What `solve` found for an abstract instance, and the solvers that there are, and how people read both."""

from typing import Any, ClassVar

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.report.compile_text import budget_line, nearest_bytes
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE, SolutionReport
from remat_cli.report.style import Style, columns, percent, plural


class SolveReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """An abstract instance solved. Its JSON is the solution's fields with `instance`, `ops` and `budget` in front."""

    instance: str
    ops: int
    budget: str
    solution: SolutionReport

    @property
    def exit_code(self) -> int:
        """The solution's."""
        return self.solution.exit_code

    def lines(self, style: Style) -> list[str]:
        """The answer to an abstract instance."""
        solution = self.solution
        smallest = None if solution.peak_bytes else nearest_bytes(solution)
        status = style.paint(solution.status.replace("_", " "), "good" if solution.exit_code == 0 else "bad")
        peak = "unknown" if solution.peak_bytes is None else describe_bytes(solution.peak_bytes)
        to_best = "" if solution.seconds_to_best is None else f" (best after {solution.seconds_to_best:.2f})"
        options = "".join(f" {name}={value}" for name, value in solution.options.items())
        # What goes to another memory and comes back, where something does.
        out, back = (solution.facts.get(name) for name in ("written_bytes", "read_bytes"))
        moved = []
        if out is not None and back is not None:
            stall = _count_or_unknown(solution.facts.get("stall"))
            moved = [["pages", f"{format_bytes(out)} out, {format_bytes(back)} back, stalls of {stall}"]]
        rows = [
            ["status", f"{status} (space {solution.space})"],
            ["peak", peak],
            *([] if smallest is None else [["smallest plan tried", describe_bytes(smallest)]]),
            ["baseline peak", describe_bytes(solution.baseline_peak_bytes)],
            ["floor", describe_bytes(solution.floor_bytes)],
            ["time", f"{_count_or_unknown(solution.time)} (baseline {solution.baseline_time:,})"],
            ["overhead", percent(solution.overhead_percent)],
            ["proved least overhead", percent(solution.lower_bound_percent)],
            ["gap", percent(solution.gap_percent)],
            ["recomputed ops", _count_or_unknown(solution.recomputed_ops)],
            *moved,
            ["seconds", f"{solution.seconds:.2f}{to_best}"],
            ["solver", f"{solution.solver}{options}, seed {solution.seed}"],
        ]
        heading = style.paint(self.instance, "strong") + f"  ({plural(self.ops, 'op')})"
        return [heading, budget_line(self.budget, solution), *columns(rows, "<<")]


def _count_or_unknown(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


class OptionEntry(msgspec.Struct, frozen=True):
    """One option of a solver: name, type as text, and default."""

    name: str
    type: str
    default: Any


class SolverEntry(msgspec.Struct, frozen=True):
    """One solver of the registry. `supports` and `proves` are sentences."""

    name: str
    summary: str
    supports: str
    proves: str
    options: tuple[OptionEntry, ...]


class SolversReport(Shown, msgspec.Struct, frozen=True):
    """The registries of solvers; `pagers` plan with a memory to page to (`--spill`)."""

    exit_code: ClassVar[int] = EXIT_DONE
    solvers: tuple[SolverEntry, ...]
    pagers: tuple[SolverEntry, ...] = ()

    def lines(self, style: Style) -> list[str]:
        """Each solver with what it takes, what it proves and its options."""
        lines = [line for entry in self.solvers for line in _entry_lines(entry, style)]
        if self.pagers:
            lines += [style.paint("with --spill disk:DIR:", "strong"), ""]
            lines += [line for entry in self.pagers for line in _entry_lines(entry, style)]
        return lines[:-1]


def _entry_lines(entry: SolverEntry, style: Style) -> list[str]:
    lines = [style.paint(entry.name, "strong") + f"  {entry.summary}"]
    lines += [f"  supports: {entry.supports}", f"  proves: {entry.proves}"]
    rows = [[f"--option {option.name}={option.default}", option.type] for option in entry.options]
    return [*lines, *columns(rows, "<<"), ""]
