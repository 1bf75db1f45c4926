"""What two processes hold over time as an SVG picture: loading, and run after run."""

from typing import Any

from remat_cli.base.units import format_bytes
from remat_cli.core.values.resident import ProcessSeen, ProcessTrace
from remat_cli.report.pictures.svg_chart import AFTER, BEFORE, INK, MIB, draw_budget, draw_svg, undress

INCHES = (8.4, 3.6)
LOOKS = ((BEFORE, 0.18, "before"), (AFTER, 0.28, "after"))


def process_svg(seen: ProcessSeen) -> bytes:
    """Resident memory of both models above an empty session, from measurement; phases are told along the bottom.

    Time is told in phases: each takes the same width, whichever model it is, so that both lie under each other.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def draw(axes: Any) -> None:
        for trace, (color, alpha, label) in zip(seen.traces, LOOKS, strict=True):
            heights = [count / MIB for count in trace.resident_bytes]
            text = f"{label}: {format_bytes(max(trace.resident_bytes, default=0))}"
            places = phases_of(trace)
            axes.fill_between(places, heights, color=color, alpha=alpha, linewidth=0)
            axes.plot(places, heights, color=color, linewidth=1.6, label=text)
        if seen.budget_bytes is not None:
            draw_budget(axes, seen.budget_bytes)
        # Axes, legend and the names of the phases.
        phases = len(seen.traces[0].marks)
        undress(axes)
        axes.set_xlim(0, phases)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.02)
        axes.set_ylabel("resident memory, MiB")
        axes.set_xticks([phase + 0.5 for phase in range(phases)], ["load", *(f"run {n}" for n in range(1, phases))])
        axes.tick_params(axis="x", length=0)
        for edge in range(1, phases):
            axes.axvline(edge, color=INK, alpha=0.25, linewidth=0.6)
        place = {"loc": "upper left", "bbox_to_anchor": (0, 1.16), "borderaxespad": 0}
        axes.legend(**place, ncols=4, columnspacing=1.4, handlelength=1.6, frameon=False, fontsize=10)

    return draw_svg(INCHES, draw)


def phases_of(trace: ProcessTrace) -> list[float]:
    """Where each point lies: 0 to 1 while loading, 1 to 2 in the first run, and so on."""
    places, phase, start = [], 0, 0.0
    for seconds in trace.seconds:
        while phase < len(trace.marks) - 1 and seconds > trace.marks[phase]:
            start, phase = trace.marks[phase], phase + 1
        length = trace.marks[phase] - start
        places.append(phase + min(1.0, (seconds - start) / length if length > 0 else 1.0))
    return places
