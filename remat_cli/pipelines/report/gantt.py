"""A period of a pipeline as a picture: what each device does when, and what it holds; as text and as SVG."""

from collections.abc import Sequence
from typing import Any

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.pipelines.plan.schedule_file import DeviceLoad, LinkLoad
from remat_cli.report.pictures.svg_chart import BUDGET, INK, MIB, figure_svg, undress
from remat_cli.report.style import Role, Style, duration, painted

FORWARD, BACKWARD = "#2f81f7", "#3fb950"
ROW_INCHES, LEAST_INCHES = 0.34, 1.6


class PeriodPicture(msgspec.Struct, frozen=True):
    """What devices and links do in a period, and what devices hold over it: (nanoseconds, bytes from then on)."""

    period_ns: int
    memory_bytes: int
    devices: tuple[DeviceLoad, ...]
    links: tuple[LinkLoad, ...]
    held: tuple[tuple[tuple[int, int], ...], ...]


def period_lines(picture: PeriodPicture, style: Style) -> list[str]:
    """A row per device, time to the right: stages by their numbers, forward and backward in two colours."""
    width = max(20, style.width - 14)
    idle = "·" if style.has_unicode else "."
    lines = [f"one period of {duration(picture.period_ns)}; digits: forward of that stage, letters: backward"]
    for number, device in enumerate(picture.devices):
        cells: list[tuple[str, Role | None]] = [(idle, "faint")] * width
        for task in device.order:
            letter = chr(ord("a") + (task.stage - 1) % 26)
            mark: tuple[str, Role | None] = (str(task.stage % 10), "accent") if task.kind == "F" else (letter, "good")
            first = task.offset_ns * width // picture.period_ns
            count = max(1 if task.duration_ns else 0, task.duration_ns * width // picture.period_ns)
            for cell in range(first, first + count):
                cells[cell % width] = mark
        lines.append(f"  device {number:<3}{painted(cells, style)}")
    return lines


def period_svg(picture: PeriodPicture, title: str) -> bytes:
    """Two panels: who does what when, links included; and what each device holds under its limit.

    Raises:
        MissingDependency: matplotlib is not installed.
    """

    def make() -> Any:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

        rows = [f"device {number}" for number in range(len(picture.devices))]
        rows += [f"link {link.devices[0]}-{link.devices[1]}" for link in picture.links]
        above = max(LEAST_INCHES, ROW_INCHES * len(rows))
        figure = Figure(figsize=(8.4, above + 2.6), layout="constrained")
        upper, lower = figure.subplots(2, 1, gridspec_kw={"height_ratios": (above, 1.6)})
        for row, device in enumerate(picture.devices):
            _draw(upper, row, [(t.offset_ns, t.duration_ns, t.kind, str(t.stage)) for t in device.order], picture)
        for row, link in enumerate(picture.links, len(picture.devices)):
            _draw(upper, row, [(t.offset_ns, t.duration_ns, t.kind, "") for t in link.order], picture)
        upper.set_yticks(range(len(rows)), rows, fontsize=9)
        upper.set_ylim(len(rows) - 0.5, -0.5)
        upper.set_xlim(0, picture.period_ns / 1e6)
        upper.set_xlabel("time in the period, ms")
        upper.spines[["top", "right"]].set_visible(False)
        upper.set_title(title, loc="left", fontsize=12, fontweight="bold")
        handles = [Patch(facecolor=FORWARD, label="forward")]
        if any(task.kind == "B" and task.duration_ns for device in picture.devices for task in device.order):
            handles.append(Patch(facecolor=BACKWARD, label="backward"))
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1.0), "borderaxespad": 0}
        upper.legend(handles=handles, **place, ncols=2, frameon=False, fontsize=9)
        _draw_memory(lower, picture)
        return figure

    return figure_svg(make)


def _draw(axes: Any, row: int, tasks: Sequence[tuple[int, int, str, str]], picture: PeriodPicture) -> None:
    """Bars of a row; what runs over the end of the period goes on at its beginning."""
    for offset, takes, kind, text in tasks:
        period = picture.period_ns
        if offset + takes <= period:
            wrapped = [(offset, offset + takes)] if takes else []
        else:
            wrapped = [(offset, period), (0, offset + takes - period)]
        for start, stop in wrapped:
            bar = [(start / 1e6, (stop - start) / 1e6)]
            axes.broken_barh(bar, (row - 0.4, 0.8), facecolors=FORWARD if kind == "F" else BACKWARD, linewidth=0)
            if text and stop - start > picture.period_ns / 30:
                middle = (start + stop) / 2e6
                axes.text(middle, row, text, ha="center", va="center", fontsize=9, color="white")


def _draw_memory(axes: Any, picture: PeriodPicture) -> None:
    """A bar per device: weights, buffers, and what micro-batches take at the peak."""
    for number, device in enumerate(picture.devices):
        parts = (device.static_bytes, device.buffer_bytes)
        rest = device.peak_bytes - sum(parts)
        base = 0.0
        for size, alpha in zip((*parts, rest), (0.9, 0.55, 0.3), strict=True):
            axes.bar(number, size / MIB, bottom=base, color=FORWARD, alpha=alpha, width=0.6, linewidth=0)
            base += size / MIB
    limit = picture.memory_bytes
    if limit / MIB < 4 * axes.get_ylim()[1]:
        axes.axhline(limit / MIB, color=BUDGET, linewidth=1.4, linestyle=(0, (5, 3)))
    axes.set_xticks(range(len(picture.devices)), [f"device {number}" for number in range(len(picture.devices))])
    axes.set_ylabel("MiB")
    axes.set_title(
        f"memory: weights, buffers, micro-batches (light); limit {format_bytes(limit)}",
        loc="left",
        fontsize=10,
        color=INK,
    )
    undress(axes)
