"""The placement of a plan as an SVG picture: per memory the matrix of ops and steps, and what it holds under a budget.

The same bytes for the same figures. After Figures 3 and 10 of XEngine (Schuler et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.base.units import format_bytes
from remat_cli.report.devices import MemoryReport, PlacementMatrix
from remat_cli.report.inspection import InspectReport
from remat_cli.report.style import shorten
from remat_cli.report.svg_chart import (
    BUDGET,
    INK,
    MIB,
    Curve,
    draw_budget,
    draw_curve,
    figure_svg,
    inspect_svg,
    undress,
)

COLORS = ("#2f81f7", "#3fb950", "#a371f7", "#39c5cf", "#db61a2")
AGAIN = "#d29922"
MOST_NAMES = 28
WIDTH_INCHES, CURVE_INCHES = 8.4, 1.5
LEAST_INCHES, MOST_INCHES, ROW_INCHES = 1.1, 4.4, 0.19
FEW_STEPS = 100
EDGE_POINTS = {"compute": (0.4, 1.3), "recompute": (1.6, 1.6)}  # where steps are few and where many: then seen by it


def inspect_picture(report: InspectReport) -> bytes:
    """The picture of whatever was inspected: a placement where there is one, else memory over time.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    return inspect_svg(report) if report.placement is None else placement_svg(report, report.placement)


def placement_svg(report: InspectReport, matrix: PlacementMatrix) -> bytes:
    """Draw a plan that spans devices, steps to the right.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    return figure_svg(lambda: draw_placement(report, matrix))


def draw_placement(report: InspectReport, matrix: PlacementMatrix) -> Any:
    """The figure: two panels per memory."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = [_rows(matrix, memory) for memory in range(len(matrix.memories))]
    heights = [height for rows in shown for height in (_inches(len(rows)), CURVE_INCHES)]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 1.3), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    for memory, rows in enumerate(shown):
        _draw_matrix(axes[2 * memory][0], matrix, memory, rows)
        _draw_curve(axes[2 * memory + 1][0], report.memories[memory])
    axes[-1][0].set_xlabel("step")
    axes[-1][0].set_xlim(0, max(1, len(matrix.steps)))
    axes[-1][0].xaxis.set_major_locator(MaxNLocator(integer=True))
    name = report.path.replace("\\", "/").rpartition("/")[2]
    _draw_legend(figure, matrix, f"Placement: {name}")
    return figure


def _draw_legend(figure: Any, matrix: PlacementMatrix, title: str) -> None:
    """Title and legend above the panels, one box, so that they never overlap."""
    figure.legend(
        handles=_legend(matrix),
        loc="outside upper left",
        ncols=4,
        title=title,
        alignment="left",
        title_fontproperties={"size": 12, "weight": "bold"},
        frameon=False,
        fontsize=10,
        columnspacing=1.4,
        borderaxespad=0.3,
    )


def _inches(rows: int) -> float:
    return min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * rows))


def _rows(matrix: PlacementMatrix, memory: int) -> list[int]:
    """The ops that have to do with a memory, all of them where there are too many to name."""
    if len(matrix.rows) > MOST_NAMES:
        return list(range(len(matrix.rows)))
    return sorted({life.row for life in matrix.lives if life.memory == memory})


def _draw_matrix(axes: Any, matrix: PlacementMatrix, memory: int, rows: Sequence[int]) -> None:
    """What is kept as light bars, what is computed as full cells, copies as arrows."""
    place = {op: number for number, op in enumerate(rows)}
    users = [device for device, used in enumerate(matrix.memory_of) if used == memory]
    kept_color = COLORS[users[0] % len(COLORS)] if len(users) == 1 else INK
    kept = [(place[life.row], life.first, life.last) for life in matrix.lives if life.memory == memory]
    _draw_cells(axes, kept, kept_color, 0.28, 0.0)
    for device in users:
        for kind, edge in (("compute", COLORS[device % len(COLORS)]), ("recompute", AGAIN)):
            cells = [
                (place[step.row], number, number)
                for number, step in enumerate(matrix.steps)
                if step.kind == kind and step.device == device
            ]
            points = EDGE_POINTS[kind][len(matrix.steps) > FEW_STEPS]
            _draw_cells(axes, cells, COLORS[device % len(COLORS)], 1.0, points, edge)
    _draw_copies(axes, matrix, memory, place)
    _dress_matrix(axes, matrix, memory, rows)


def _draw_cells(
    axes: Any, cells: Sequence[tuple[int, int, int]], color: str, alpha: float, edge_points: float, edge: str = "none"
) -> None:
    """Rectangles from a first to a last step in a row."""
    from matplotlib.collections import PolyCollection

    corners = [[(a, r), (b + 1, r), (b + 1, r + 1), (a, r + 1)] for r, a, b in cells]
    look: dict[str, Any] = {"facecolors": color, "alpha": alpha, "edgecolors": edge, "linewidths": edge_points}
    axes.add_collection(PolyCollection(corners, zorder=4 if edge == AGAIN else 2, **look), autolim=False)


def _draw_copies(axes: Any, matrix: PlacementMatrix, memory: int, place: dict[int, int]) -> None:
    """A triangle for each copy: downwards where a value comes in, upwards where it leaves."""
    size = 26 if len(matrix.steps) <= FEW_STEPS else 6
    copies = [(n, step) for n, step in enumerate(matrix.steps) if step.kind == "copy" and step.target is not None]
    coming = [(n, step.row) for n, step in copies if matrix.memory_of[step.target or 0] == memory]
    leaving = [(n, step.row) for n, step in copies if matrix.memory_of[step.device] == memory]
    for found, marker in ((coming, "v"), (leaving, "^")):
        across, down = [n + 0.5 for n, _ in found], [place[row] + 0.5 for _, row in found]
        axes.scatter(across, down, s=size, marker=marker, color=BUDGET, linewidths=0, zorder=3)


def _dress_matrix(axes: Any, matrix: PlacementMatrix, memory: int, rows: Sequence[int]) -> None:
    axes.set_ylim(max(1, len(rows)), 0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    if len(rows) <= MOST_NAMES:
        names = [shorten(matrix.rows[row], 22) for row in rows]
        axes.set_yticks([number + 0.5 for number in range(len(rows))], names, fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=INK, alpha=0.18, linewidth=0.5)
    else:
        axes.set_ylabel("op")
        axes.grid(color=INK, alpha=0.18, linewidth=0.5)
    axes.set_axisbelow(True)
    name = matrix.memories[memory]
    users = [matrix.devices[device] for device, used in enumerate(matrix.memory_of) if used == memory]
    text = f"memory {name}" + ("" if users == [name] else f" of {', '.join(users)}")
    axes.set_title(text, loc="left", fontsize=10)


def _draw_curve(axes: Any, memory: MemoryReport) -> None:
    """Bytes held during each step under the budget, with the peak in words."""
    peak = max(memory.memory_bytes)
    draw_curve(axes, Curve("held", memory.memory_bytes), INK, 0.25, 1.4)
    if memory.peak_bytes > peak:
        label = f"needed as cut into sessions: {format_bytes(memory.peak_bytes)}"
        axes.axhline(memory.peak_bytes / MIB, color=INK, linewidth=1.1, linestyle=(0, (1, 2)), label=label)
    draw_budget(axes, memory.budget_bytes)
    axes.set_ylabel("MiB")
    axes.set_ylim(0, max(memory.budget_bytes, memory.peak_bytes, peak) / MIB * 1.08)
    undress(axes)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.1}
    axes.legend(**place, ncols=3, frameon=False, fontsize=9, columnspacing=1.4, handlelength=1.6)


def _legend(matrix: PlacementMatrix) -> list[Any]:
    """One entry per device, and one per mark that occurs."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {step.kind for step in matrix.steps}
    handles: list[Any] = [
        Patch(facecolor=COLORS[device % len(COLORS)], label=f"computed on {name}")
        for device, name in enumerate(matrix.devices)
    ]
    if "recompute" in kinds:
        handles.append(Patch(facecolor="none", edgecolor=AGAIN, linewidth=1.6, label="computed again"))
    handles.append(Patch(facecolor=INK, alpha=0.35, label="light: kept"))
    if "copy" in kinds:
        mark: dict[str, Any] = {"linestyle": "none", "color": BUDGET, "markeredgewidth": 0}
        handles.append(Line2D([], [], marker="v", label="copied in", **mark))
        handles.append(Line2D([], [], marker="^", label="copied out", **mark))
    return handles
