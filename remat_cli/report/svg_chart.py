"""Memory over time as an SVG picture, before and after; the same bytes for the same figures."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from remat_cli.base.errors import MissingDependency
from remat_cli.base.units import format_bytes
from remat_cli.report.inspection import InspectReport

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
            _draw_shading(axes, shading, curves[-1].edges)
        _dress(axes, title, "time, ms (predicted)" if curves[-1].times_ns else "step (one op each)")

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
    heights = [value / MIB for value in (*curve.values, curve.values[-1])]
    label = f"{curve.label}: peak {format_bytes(max(curve.values))}"
    axes.fill_between(curve.edges, heights, step="post", color=color, alpha=alpha, linewidth=0)
    axes.step(curve.edges, heights, where="post", color=color, linewidth=width, label=label)


def _draw_shading(axes: Any, shading: Shading, edges: Sequence[float]) -> None:
    """A band from top to bottom behind each stretch, its mark above it; one entry in the legend for all."""
    for number, (mark, first, last) in enumerate(shading.runs):
        start, stop = edges[first], edges[last + 1]
        axes.axvspan(
            start, stop, color=BAND, alpha=0.16, linewidth=0, zorder=0, label=None if number else shading.label
        )
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 9}
        axes.text((start + stop) / 2, 1.005, mark, color=BAND, **place)


def draw_budget(axes: Any, budget_bytes: int) -> None:
    """A dashed line across."""
    label = f"budget: {format_bytes(budget_bytes)}"
    axes.axhline(budget_bytes / MIB, color=BUDGET, linewidth=1.4, linestyle=(0, (5, 3)), label=label)


def _dress(axes: Any, title: str, across: str) -> None:
    """Axes, legend and title, without anything that needs no ink."""
    axes.set_xlabel(across)
    axes.set_ylabel("memory held, MiB")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.02)
    axes.margins(x=0)
    undress(axes)
    place = {"loc": "upper left", "bbox_to_anchor": (0, 1.16), "borderaxespad": 0}
    axes.legend(**place, ncols=4, columnspacing=1.4, handlelength=1.6, frameon=False, fontsize=10)
    if title:
        axes.set_title(title, loc="left", pad=32, fontsize=12, fontweight="bold")
