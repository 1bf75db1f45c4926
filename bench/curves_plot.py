"""Overhead against peak memory of one training step as an SVG picture: one line per solver, and the proved bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remat_cli.contest.report.bench_plot import COLORS
from remat_cli.report.pictures.svg_chart import BEFORE, INK, draw_svg, undress

MIB = 2**20
BEST = "auto"
MARKERS = "osD^vP"
FIXED, FLOOR = "#8b949e", "#e5534b"

Row = Mapping[str, Any]


def compiled_of(rows: Sequence[Row], network: str) -> Sequence[Row]:
    """The plans of a network that were written and measured."""
    return [one for row in rows if (row["part"], row["network"]) == ("measured", network) for one in row["compiled"]]


def curve_svg(row: Row, compiled: Sequence[Row]) -> bytes:
    """Draw a curve and plans that were measured; a solver's colour goes by its place in the row, `auto` first.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        _draw_limits(axes, row)
        for number, solver in reversed(list(enumerate(solvers_of(row)))):
            _draw_solver(axes, row, solver, number)
        _draw_bound(axes, row["points"])
        _draw_measured(axes, compiled)
        axes.plot(row["baseline_bytes"] / MIB, 0, "*", color=INK, markersize=13, label="keep-all")
        _dress(axes, row)

    return draw_svg((8.4, 4.6), draw)


def solvers_of(row: Row) -> list[str]:
    """Solvers of a row, in order; `auto` first."""
    names = list(dict.fromkeys(point["solver"] for point in row["points"]))
    return sorted(names, key=lambda name: name != BEST)


def floor_of(row: Row) -> int:
    """The highest floor that was proved, in bytes: the working set of one op, or what a solver showed beyond it."""
    return int(max([row["floor_bytes"], *(point.get("floor_bytes") or 0 for point in row["points"])]))


def frontier(points: Sequence[Row], solver: str) -> list[tuple[float, float]]:
    """Peak in MiB and overhead of each plan of a solver that no other plan of it beats in both, by peak."""
    plans = sorted(
        (point["peak_bytes"], point["overhead_percent"])
        for point in points
        if point["solver"] == solver and point.get("peak_bytes") is not None
    )
    best: list[tuple[float, float]] = []
    for peak, overhead in plans:
        if not best or overhead < best[-1][1]:
            best.append((peak / MIB, overhead))
    return best


def _draw_solver(axes: Any, row: Row, solver: str, number: int) -> None:
    """One line per solver, `auto` on top: a plan serves until the next one fits."""
    found = frontier(row["points"], solver)
    peaks, overheads = [peak for peak, _ in found], [overhead for _, overhead in found]
    label = solver if found else f"{solver}: no plan"
    style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 8 if number else 5, "alpha": 0.6 if number else 1}
    style["linewidth"] = 3.5 if number else 1.6
    axes.step(peaks, overheads, where="post", color=COLORS[number % len(COLORS)], label=label, **style)


def _draw_bound(axes: Any, points: Sequence[Row]) -> None:
    """What no plan can beat: a bound that was proved for a budget holds for all smaller ones."""
    known = sorted(
        (point["budget_bytes"] / MIB, point["lower_bound_percent"])
        for point in points
        if point["solver"] == BEST and point.get("lower_bound_percent") is not None and point["space"] == "free"
    )
    if known:
        budgets, bounds = zip(*known, strict=True)
        highest = [max(bounds[place:]) for place in range(len(bounds))]
        style = {"color": COLORS[0], "linewidth": 1.2, "linestyle": (0, (4, 2))}
        axes.step(budgets, highest, where="pre", label="proved bound", **style)


def _draw_measured(axes: Any, compiled: Sequence[Row]) -> None:
    """Plans that were written, verified and run."""
    done = [one for one in compiled if one.get("measured_peak_bytes") and one["measured_overhead_percent"] is not None]
    peaks = [one["measured_peak_bytes"] / MIB for one in done]
    overheads = [one["measured_overhead_percent"] for one in done]
    if done:
        style = {"markersize": 9, "markeredgewidth": 2.2, "linestyle": "none"}
        axes.plot(peaks, overheads, "x", color=INK, label="auto, compiled and measured", **style)


def _draw_limits(axes: Any, row: Row) -> None:
    """The part that no plan changes, and the peak that no plan of whole ops goes below."""
    for count, color, words in ((row["fixed_bytes"], FIXED, "constant part"), (floor_of(row), FLOOR, "proved floor")):
        style = {"color": color, "linewidth": 1.4, "linestyle": (0, (1, 2))}
        axes.axvline(count / MIB, label=f"{words}: {count / MIB:.1f} MiB", **style)


def _dress(axes: Any, row: Row) -> None:
    """Axes, legend and title."""
    axes.axhline(0, color=BEFORE, linewidth=0.6)
    axes.set_xlabel("peak memory of the step, MiB")
    axes.set_ylabel("overhead, %")
    axes.set_xlim(left=0)
    undress(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, borderaxespad=0)
    title = f"{row['network']}: training step, {sizes_text(row['sizes'])}"
    axes.set_title(title, loc="left", pad=10, fontsize=12, fontweight="bold")


def sizes_text(sizes: Mapping[str, Any]) -> str:
    """How large a network is, in words."""
    return ", ".join(f"{key} {_size(value)}" for key, value in sizes.items())


def _size(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else f"{value:g}"
