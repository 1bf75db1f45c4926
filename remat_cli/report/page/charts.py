"""Charts of a page as Vega-Lite specifications: values in, JSON out. Colours are those of the page around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat_cli.report.page.values import Bar, Course, Point

MIB = 2**20
INK = "currentColor"
CONFIG: dict[str, Any] = {
    "axis": {"labelColor": INK, "titleColor": INK, "gridColor": INK, "gridOpacity": 0.15, "domainColor": INK},
    "legend": {"labelColor": INK, "titleColor": INK, "orient": "top", "title": None},
    "view": {"stroke": None},
    "font": "system-ui, sans-serif",
}
BEFORE, PROMISED, AFTER = "#9aa4b2", "#7aa6ff", "#2f7d5b"


def _chart(description: str, height: int, **rest: Any) -> dict[str, Any]:
    """What all charts have: as wide as the page, and a description for who cannot see it."""
    return {"description": description, "width": "container", "height": height, "background": None} | {
        "config": CONFIG,
        **rest,
    }


def memory_chart(course: Course, most_bytes: int) -> dict[str, Any]:
    """What is held during each step, all of them; charts of one page reach up to the same `most_bytes`."""
    values = [{"step": step, "MiB": round(held / MIB, 3)} for step, held in enumerate(course.memory_bytes)]
    values += [{"step": len(values), "MiB": values[-1]["MiB"]}] if values else []
    domain, height = [0, max(1, len(course.memory_bytes))], [0, max(most_bytes, course.budget_bytes or 0) / MIB]
    layers: list[dict[str, Any]] = [
        {
            "mark": {
                "type": "area",
                "interpolate": "step-after",
                "color": AFTER,
                "opacity": 0.55,
                "line": {"color": AFTER},
            },
            "encoding": {
                "x": {"field": "step", "type": "quantitative", "scale": {"domain": domain, "nice": False}},
                "y": {"field": "MiB", "type": "quantitative", "title": "memory, MiB", "scale": {"domain": height}},
            },
        }
    ]
    if course.budget_bytes is not None:
        rule = {"type": "rule", "color": "#c0392b", "strokeDash": [6, 4]}
        layers.append({"mark": rule, "encoding": {"y": {"datum": round(course.budget_bytes / MIB, 3)}}})
    return _chart(f"memory over time, {course.title}", 240, data={"values": values}, layer=layers)


def phase_chart(bars: Sequence[Bar]) -> dict[str, Any]:
    """What a process holds in each phase, beside what was promised."""
    kinds = list(dict.fromkeys(bar.kind for bar in bars))
    phases = list(dict.fromkeys(bar.phase for bar in bars))
    colors = dict(zip(("original", "promised", "measured"), (BEFORE, PROMISED, AFTER), strict=True))
    encoding = {
        "y": {"field": "phase", "type": "nominal", "sort": phases, "title": None},
        "yOffset": {"field": "kind", "type": "nominal", "sort": kinds},
        "x": {"field": "MiB", "type": "quantitative", "title": "process, MiB"},
        "color": {
            "field": "kind",
            "type": "nominal",
            "scale": {"domain": kinds, "range": [colors.get(kind, AFTER) for kind in kinds]},
        },
        "tooltip": [{"field": name} for name in ("phase", "kind", "MiB")],
    }
    values = [{"phase": bar.phase, "kind": bar.kind, "MiB": round(bar.bytes / MIB, 2)} for bar in bars]
    height = 22 * len(bars) + 20
    return _chart("process memory by phase", height, data={"values": values}, mark="bar", encoding=encoding)


def curve_chart(points: Sequence[Point]) -> dict[str, Any]:
    """What less memory costs in time."""
    values = [
        {"MiB": round(point.bytes / MIB, 2), "time, %": round(point.overhead_percent, 2), "plan": point.label}
        for point in points
    ]
    encoding = {
        "x": {"field": "MiB", "type": "quantitative", "scale": {"zero": False}},
        "y": {"field": "time, %", "type": "quantitative", "title": "extra time, %"},
        "tooltip": [{"field": name} for name in ("plan", "MiB", "time, %")],
    }
    mark = {"type": "line", "point": {"color": AFTER, "size": 60}, "color": AFTER, "interpolate": "step-after"}
    return _chart("what less memory costs in time", 240, data={"values": values}, mark=mark, encoding=encoding)
