"""Overhead against budget of one network as an SVG picture: one line per method, as a figure of Jain et al. 2020."""

from __future__ import annotations

from typing import Any

from bench.classics_stats import BEST, FREE, RATIO, Rows, labels_of, of_suite, optimum, place_of
from remat_cli.contest.report.compare_plot import COLORS, MARKS
from remat_cli.report.pictures.svg_chart import INK, draw_svg, undress

LINES = ("-", "--")
LINEAR_PERCENT = 1.0  # below, the scale is linear, so that an overhead of nothing has a place

Line = tuple[list[float], list[float]]


def ratio_svg(rows: Rows, network: str) -> bytes:
    """Draw what every method reached under every budget.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        _draw_methods(axes, rows, network)
        _draw_optimum(axes, rows, network)
        _dress(axes, network)

    return draw_svg((8.4, 4.6), draw)


def line_of(rows: Rows, network: str, label: str, suite: str = RATIO) -> Line:
    """Budgets in percent of the peak, and a method's overhead under each for which it has a plan."""
    mine = [row for row in of_suite(rows, suite) if (row.instance, row.label) == (network, label)]
    points = sorted((100 * float(row.budget), row.overhead_percent) for row in mine if row.overhead_percent is not None)
    return [budget for budget, _ in points], [overhead for _, overhead in points]


def _draw_methods(axes: Any, rows: Rows, network: str) -> None:
    """Colours and marks go by a method's place in the bench, so that it looks the same in every picture."""
    for number, label in enumerate(labels_of(of_suite(rows, RATIO))):
        _draw(axes, line_of(rows, network, label), label, number)
    _draw(axes, line_of(rows, network, BEST, FREE), f"{BEST}, free order", len(labels_of(of_suite(rows, RATIO))))


def _draw(axes: Any, line: Line, label: str, number: int) -> None:
    if line[0]:
        style = {"color": COLORS[number % len(COLORS)], "marker": MARKS[number % len(MARKS)], "alpha": 0.8}
        axes.plot(*line, label=label, linestyle=LINES[number // len(COLORS) % 2], markersize=5, **style)


def _draw_optimum(axes: Any, rows: Rows, network: str) -> None:
    places = dict.fromkeys(place_of(row) for row in of_suite(rows, RATIO) if row.instance == network)
    proved = [(100 * float(place[1]), best) for place in places if (best := optimum(rows, place)) and best.is_proved]
    if proved:
        points = [budget for budget, _ in proved], [best.overhead_percent for _, best in proved]
        style = {"marker": "*", "markersize": 13, "markerfacecolor": "none", "linestyle": "none"}
        axes.plot(*points, color=INK, label="proved optimum", **style)


def _dress(axes: Any, network: str) -> None:
    axes.set_yscale("symlog", linthresh=LINEAR_PERCENT)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("budget, % of the peak that keeps everything")
    axes.set_ylabel("overhead, %")
    undress(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, borderaxespad=0)
    axes.set_title(network, loc="left", pad=10, fontsize=12, fontweight="bold")
