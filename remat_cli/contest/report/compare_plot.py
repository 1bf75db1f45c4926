"""Overhead against budget as an SVG picture, one line per solver: the figure of the Checkmate paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from remat_cli.base.units import format_bytes
from remat_cli.contest.report.compare_report import BEST, CompareReport
from remat_cli.report.pictures.svg_chart import INK, draw_svg, undress
from remat_cli.report.style import percent

# Each has a contrast of at least 3 to 1 on white and on a dark page; neighbours in the list differ for colour-blind
# readers too, and a mark and a label at its line's end say again which solver it is.
COLORS = ("#2f81f7", "#c4620a", "#0f8f73", "#bf4b8a", "#8a63d2", "#a07a00", "#d1495b")
MARKS = "os^DvPX*"
LEAST_STEP = 0.048  # between two labels, as a share of the picture's height
LINEAR_PERCENT = 1.0  # a line up to here, logarithmic above: one solver at 2000 % would flatten all others to nothing
TICKS = (0, 0.5, *(digit * 10**power for power in range(7) for digit in (1, 2, 5)))
MIB = 2**20


@dataclass(frozen=True)
class PlotLine:
    """What a solver reached: budgets in MiB and overheads in percent, from the smallest budget on."""

    solver: str
    budgets: tuple[float, ...]
    overheads: tuple[float, ...]
    color: str
    mark: str


def compare_svg(report: CompareReport) -> bytes:
    """Draw a comparison; budgets at which a solver has no plan are left out of its line.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    return draw_svg((9.2, 4.8), lambda axes: draw_overheads(axes, report))


def lines_of(report: CompareReport) -> list[PlotLine]:
    """A line for each solver that has a plan; its looks go by its place among all that were compared."""
    solvers = list(dict.fromkeys(run.solver for run in report.runs))
    lines = []
    for place, solver in enumerate(solvers):
        found = sorted(
            (run.budget_bytes / MIB, run.overhead_percent)
            for run in report.runs
            if run.solver == solver and run.overhead_percent is not None
        )
        if found:
            budgets, overheads = zip(*found, strict=True)
            looks = (COLORS[place % len(COLORS)], MARKS[place % len(MARKS)])
            lines.append(PlotLine(solver, budgets, overheads, *looks))
    return lines


def bound_line(report: CompareReport) -> tuple[list[float], list[float]]:
    """Budgets in MiB and what every plan needs there; what was proved for a budget holds for all smaller ones."""
    known = [(budget.bytes / MIB, report.bound_percent(budget.text)) for budget in report.budgets]
    proved = sorted((size, bound) for size, bound in known if bound is not None)
    return [size for size, _ in proved], [max(bound for _, bound in proved[place:]) for place in range(len(proved))]


def spread(heights: Sequence[float], step: float) -> list[float]:
    """The heights, moved upwards as little as keeps them `step` apart, then down from 1 where the last are above it."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    moved = list(heights)
    for below, place in pairwise(order):
        moved[place] = max(moved[place], moved[below] + step)
    for number, place in enumerate(reversed(order)):
        moved[place] = min(moved[place], 1 - number * step)
    return moved


def draw_overheads(axes: Any, report: CompareReport) -> None:
    """Draw the lines of all solvers, the proved bound, and what stands at the axes."""
    lines = lines_of(report)
    for line in reversed(lines):
        look = {"linewidth": 2.4, "zorder": 4} if line.solver == BEST else {"linewidth": 1.4, "alpha": 0.9}
        axes.plot(line.budgets, line.overheads, color=line.color, marker=line.mark, markersize=6, **look)
    sizes, bounds = bound_line(report)
    if sizes:
        style: dict[str, Any] = {"color": INK, "linewidth": 1.3, "linestyle": (0, (5, 3)), "zorder": 5}
        axes.plot(sizes, bounds, label="proved bound (dashed): no plan is below", **style)
        axes.legend(loc="upper left", bbox_to_anchor=(0, 1.09), frameon=False, fontsize=9, borderaxespad=0)
    # Axes and title; each budget is a tick, as the user wrote it and in bytes, the smallest last.
    undress(axes)
    axes.set_ylabel("overhead, %")
    # Overheads from 0 on; where some are above `LINEAR_PERCENT`, those on a logarithmic scale.
    top = axes.dataLim.y1
    if top > LINEAR_PERCENT:
        axes.set_yscale("symlog", linthresh=LINEAR_PERCENT)
        ticks = [tick for tick in TICKS if tick <= top]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)
        axes.set_ylim(top=top * 1.15)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("budget (less memory to the right)")
    axes.set_xticks(
        [budget.bytes / MIB for budget in report.budgets],
        [f"{budget.text}\n{format_bytes(budget.bytes)}" for budget in report.budgets],
    )
    axes.margins(x=0.04)
    axes.invert_xaxis()
    name = (report.model or report.instance or "").replace("\\", "/").rpartition("/")[2]
    title = f"Overhead against budget: {name}"
    axes.set_title(title, loc="left", pad=28, fontsize=12, fontweight="bold")
    _label(axes, lines)


def _label(axes: Any, lines: Sequence[PlotLine]) -> None:
    """Each solver's name beside the end of its line, at the smallest budget, where lines are farthest apart."""
    place_of = axes.transData + axes.transAxes.inverted()
    ends = [place_of.transform((line.budgets[0], line.overheads[0]))[1] for line in lines]
    heights = spread(ends, LEAST_STEP)
    for line, height in zip(lines, heights, strict=True):
        axes.annotate(
            f"{line.solver} {percent(line.overheads[0])}",
            (line.budgets[0], line.overheads[0]),
            xytext=(1.02, height),
            textcoords="axes fraction",
            color=line.color,
            fontsize=9,
            fontweight="bold" if line.solver == BEST else "normal",
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": line.color,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkB": 4,
                "relpos": (0, 0.5),  # from the left end of the name: from its middle it would cross other names
            },
        )
