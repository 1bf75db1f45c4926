"""Memory over time and placements as SVG pictures; the same bytes for the same figures.

The same bytes for the same figures. After Figures 3 and 10 of XEngine (Schuler et al. 2022).
"""

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import msgspec

from remat_cli.base.errors import MissingDependency
from remat_cli.base.units import format_bytes
from remat_cli.report.devices.placed_inspection import PlacedInspectReport
from remat_cli.report.explain import MemoryReport, PlacementMatrix
from remat_cli.report.inspection import InspectReport
from remat_cli.report.style import shorten

MIB = 2**20

# Mid greys and saturated colours that read on white and on GitHub's dark page alike; the background is transparent.
INK = "#8b949e"
BEFORE = "#8b949e"
AFTER = "#2f81f7"
BUDGET = "#e5534b"
BAND = "#d29922"

SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "remat",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}


class Curve(msgspec.Struct, frozen=True):
    """Bytes held during each step; `times_ns` is how long each takes, empty where steps are drawn equally wide."""

    label: str
    values: Sequence[int]
    times_ns: Sequence[int] = ()

    @property
    def edges(self) -> list[float]:
        """Where steps begin, and the end of the last: in milliseconds, or step numbers."""
        if not self.times_ns:
            return [float(edge) for edge in range(len(self.values) + 1)]
        return [edge / 1e6 for edge in accumulate(self.times_ns, initial=0)]


class Shading(msgspec.Struct, frozen=True):
    """Stretches of steps of the last curve: a mark, first and last step of each; `label` says what they are."""

    label: str
    runs: Sequence[tuple[str, int, int]]


def require_matplotlib() -> None:
    """Check that pictures can be drawn, before any work.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency("--svg needs matplotlib: pip install 'remat_cli[svg]'")


def inspect_svg(report: InspectReport) -> bytes:
    """The picture of an inspected model, or of a plan beside its original; regions that run in tiles are shaded.

    With splits the horizontal axis is time: before and after have steps of their own.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    name = report.path.replace("\\", "/").rpartition("/")[2]
    curves = []
    if report.baseline_memory_bytes:
        curves.append(Curve("before", report.baseline_memory_bytes, report.baseline_step_times_ns))
    curves.append(Curve("after" if curves else "memory", report.memory_bytes, report.step_times_ns))
    runs = [(str(number), *run) for number, region in enumerate(report.regions, 1) for run in region.steps]
    label = "would be in tiles" if any(region.is_estimate for region in report.regions) else "in tiles"
    return memory_svg(curves, report.budget_bytes, f"Memory over time: {name}", Shading(label, runs) if runs else None)


def memory_svg(
    curves: Sequence[Curve], budget_bytes: int | None = None, title: str = "", shading: Shading | None = None
) -> bytes:
    """Draw one or two labelled curves of bytes per step: the last in colour, what comes before it in grey.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        for curve in curves:
            draw_curve(axes, curve, *((AFTER, 0.28) if curve is curves[-1] else (BEFORE, 0.18)))
        if budget_bytes is not None:
            draw_budget(axes, budget_bytes)
        if shading is not None:
            # A band from top to bottom behind each stretch, its mark above it; one entry in the legend for all.
            edges = curves[-1].edges
            for number, (mark, first, last) in enumerate(shading.runs):
                start, stop = edges[first], edges[last + 1]
                axes.axvspan(
                    start, stop, color=BAND, alpha=0.16, linewidth=0, zorder=0, label=None if number else shading.label
                )
                place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 9}
                axes.text((start + stop) / 2, 1.005, mark, color=BAND, **place)
        # Axes, legend and title, without anything that needs no ink.
        across = "time, ms (predicted)" if curves[-1].times_ns else "step (one op each)"
        axes.set_xlabel(across)
        axes.set_ylabel("memory held, MiB")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.02)
        axes.margins(x=0)
        undress(axes)
        place = {"loc": "upper left", "bbox_to_anchor": (0, 1.16), "borderaxespad": 0}
        axes.legend(**place, ncols=4, columnspacing=1.4, handlelength=1.6, frameon=False, fontsize=10)
        if title:
            axes.set_title(title, loc="left", pad=32, fontsize=12, fontweight="bold")

    return draw_svg((8.4, 3.6), draw)


def draw_svg(inches: tuple[float, float], draw: Callable[[Any], None]) -> bytes:
    """A picture of that size with one pair of axes; the same bytes for the same strokes.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def make() -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=inches, layout="constrained")
        draw(figure.add_subplot())
        return figure

    return figure_svg(make)


def figure_svg(make: Callable[[], Any]) -> bytes:
    """A figure as a picture, made and written in our look.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = make()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": "remat"})
    return buffer.getvalue()


def undress(axes: Any) -> None:
    """Two sides of the frame and light lines across are enough."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def draw_curve(axes: Any, curve: Curve, color: str, alpha: float, width: float = 1.6) -> None:
    """A step line over a light fill; the value of a step spans from its own edge to the next."""
    if not curve.values:
        axes.plot([], [], color=color, label=f"{curve.label}: no steps")
        return
    heights = [value / MIB for value in (*curve.values, curve.values[-1])]
    label = f"{curve.label}: peak {format_bytes(max(curve.values))}"
    axes.fill_between(curve.edges, heights, step="post", color=color, alpha=alpha, linewidth=0)
    axes.step(curve.edges, heights, where="post", color=color, linewidth=width, label=label)


def draw_budget(axes: Any, budget_bytes: int) -> None:
    """A dashed line across."""
    label = f"budget: {format_bytes(budget_bytes)}"
    axes.axhline(budget_bytes / MIB, color=BUDGET, linewidth=1.4, linestyle=(0, (5, 3)), label=label)


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
    return PICTURES[report.picture](report)


def placement_svg(report: PlacedInspectReport) -> bytes:
    """Draw a plan that spans devices, steps to the right.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    return figure_svg(lambda: draw_placement(report, report.placement))


def draw_placement(report: InspectReport, matrix: PlacementMatrix) -> Any:
    """The figure: two panels per memory."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # The ops that have to do with a memory, all of them where there are too many to name.
    are_named, everything = len(matrix.rows) <= MOST_NAMES, list(range(len(matrix.rows)))
    shown = [
        sorted({life.row for life in matrix.lives if life.memory == memory}) if are_named else everything
        for memory in range(len(matrix.memories))
    ]
    inches = (min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * len(rows))) for rows in shown)
    heights = [height for matrix_inches in inches for height in (matrix_inches, CURVE_INCHES)]
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights) + 1.3), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    for memory, rows in enumerate(shown):
        _draw_matrix(axes[2 * memory][0], matrix, memory, rows)
        _draw_curve(axes[2 * memory + 1][0], report.memories[memory])
    axes[-1][0].set_xlabel("step")
    axes[-1][0].set_xlim(0, max(1, len(matrix.steps)))
    axes[-1][0].xaxis.set_major_locator(MaxNLocator(integer=True))
    name = report.path.replace("\\", "/").rpartition("/")[2]
    # Title and legend above the panels, one box, so that they never overlap.
    title = f"Placement: {name}"
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
    return figure


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
    # A triangle for each copy: downwards where a value comes in, upwards where it leaves.
    size = 26 if len(matrix.steps) <= FEW_STEPS else 6
    copies = [(n, step) for n, step in enumerate(matrix.steps) if step.kind == "copy" and step.target is not None]
    coming = [(n, step.row) for n, step in copies if matrix.memory_of[step.target or 0] == memory]
    leaving = [(n, step.row) for n, step in copies if matrix.memory_of[step.device] == memory]
    for found, marker in ((coming, "v"), (leaving, "^")):
        across, down = [n + 0.5 for n, _ in found], [place[row] + 0.5 for _, row in found]
        axes.scatter(across, down, s=size, marker=marker, color=BUDGET, linewidths=0, zorder=3)
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
    owners = [matrix.devices[device] for device in users]
    text = f"memory {name}" + ("" if owners == [name] else f" of {', '.join(owners)}")
    axes.set_title(text, loc="left", fontsize=10)


def _draw_cells(
    axes: Any, cells: Sequence[tuple[int, int, int]], color: str, alpha: float, edge_points: float, edge: str = "none"
) -> None:
    """Rectangles from a first to a last step in a row."""
    from matplotlib.collections import PolyCollection

    corners = [[(a, r), (b + 1, r), (b + 1, r + 1), (a, r + 1)] for r, a, b in cells]
    look: dict[str, Any] = {"facecolors": color, "alpha": alpha, "edgecolors": edge, "linewidths": edge_points}
    axes.add_collection(PolyCollection(corners, zorder=4 if edge == AGAIN else 2, **look), autolim=False)


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


PICTURES: Final[Mapping[str, Callable[[Any], bytes]]] = MappingProxyType(
    {"memory": inspect_svg, "placement": placement_svg}
)
"""What is drawn of a report, by what it says is its picture."""
