"""Memory over time as an SVG picture, before and after; the same bytes for the same figures."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from remat_cli.core.errors import MissingDependency
from remat_cli.core.units import format_bytes
from remat_cli.report.report import InspectReport

MIB = 2**20

# Mid greys and saturated colours that read on white and on GitHub's dark page alike; the background is transparent.
INK = "#8b949e"
BEFORE = "#8b949e"
AFTER = "#2f81f7"
BUDGET = "#e5534b"

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


def require_matplotlib() -> None:
    """Check that pictures can be drawn, before any work.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency("--svg needs matplotlib: pip install 'remat_cli[svg]'")


def inspect_svg(report: InspectReport) -> bytes:
    """The picture of an inspected model, or of a plan beside its original.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    name = report.path.replace("\\", "/").rpartition("/")[2]
    curves = [("before", report.baseline_memory_bytes)] if report.baseline_memory_bytes else []
    curves.append(("after" if curves else "memory", report.memory_bytes))
    return memory_svg(curves, report.budget_bytes, f"Memory over time: {name}")


def memory_svg(curves: Sequence[tuple[str, Sequence[int]]], budget_bytes: int | None = None, title: str = "") -> bytes:
    """Draw one or two labelled curves of bytes per step: the last in colour, what comes before it in grey.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for number, (label, values) in enumerate(curves):
            _draw_curve(axes, f"{label}: peak {format_bytes(max(values))}", values, number == len(curves) - 1)
        if budget_bytes is not None:
            _draw_budget(axes, budget_bytes)
        _dress(axes, title)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": "remat"})
    return buffer.getvalue()


def _draw_curve(axes: Any, label: str, values: Sequence[int], is_last: bool) -> None:
    """A step line over a light fill; the value of step s spans from s to s + 1."""
    color = AFTER if is_last else BEFORE
    edges = list(range(len(values) + 1))
    heights = [value / MIB for value in values]
    heights.append(heights[-1])
    axes.fill_between(edges, heights, step="post", color=color, alpha=0.28 if is_last else 0.18, linewidth=0)
    axes.step(edges, heights, where="post", color=color, linewidth=1.6, label=label)


def _draw_budget(axes: Any, budget_bytes: int) -> None:
    label = f"budget: {format_bytes(budget_bytes)}"
    axes.axhline(budget_bytes / MIB, color=BUDGET, linewidth=1.4, linestyle=(0, (5, 3)), label=label)


def _dress(axes: Any, title: str) -> None:
    """Axes, legend and title, without anything that needs no ink."""
    axes.set_xlabel("step (one op each)")
    axes.set_ylabel("memory held, MiB")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.02)
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=3, frameon=False, fontsize=10, borderaxespad=0)
    if title:
        axes.set_title(title, loc="left", pad=32, fontsize=12, fontweight="bold")
