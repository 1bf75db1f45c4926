"""What `inspect` reports of a plan on several devices, as people read it."""

from collections.abc import Sequence

from remat_cli.base.units import format_bytes
from remat_cli.report.devices.devices_text import device_table, estimate_lines, link_lines, single_time
from remat_cli.report.devices.placed_inspection import PlacedInspectReport
from remat_cli.report.explain import live_tensor_lines
from remat_cli.report.inspection import closing_lines, inspect_verdict
from remat_cli.report.pictures.placement_picture import placement_lines
from remat_cli.report.pictures.terminal_chart import ChartRule, memory_chart
from remat_cli.report.solution import AMONG
from remat_cli.report.style import Style, columns, duration, percent, plural


def device_inspect_lines(report: PlacedInspectReport, style: Style) -> list[str]:
    """Everything about one plan on several devices, the verdict first."""
    return placed_inspect_lines(report, link_lines(report.links), style)


def placed_inspect_lines(report: PlacedInspectReport, moved_lines: Sequence[str], style: Style) -> list[str]:
    """The lines of an inspected placement, with those of what moves."""
    where = f"{plural(report.ops, 'op')} on {report.device}, {plural(report.segments, 'session')}"
    lines = [inspect_verdict(report).line(style), style.paint(report.path, "strong") + f"  ({where})"]
    # Time and what it is compared with.
    rows = []
    estimated = {device.name for device in report.devices if not device.is_measured}
    if report.time is not None:
        against = f"{percent(report.overhead_percent)} against every op once on {report.baseline_device or 'unknown'}"
        rows += [["time", f"{'~' if estimated else ''}{duration(report.time)}, planned: {against}"]]
    if report.single:
        alone = ", ".join(f"{reference.device} {single_time(reference, estimated)}" for reference in report.single)
        rows += [["one device alone", f"{alone} (same budgets)"]]
    rows += [["proved least", f"{percent(report.lower_bound_percent)} {AMONG.get(report.space or '', '')}".rstrip()]]
    device_figures = columns(rows, "<<")
    lines += [*device_figures, ""]
    lines += [*device_table(report.devices, is_run=False), "", *moved_lines]
    lines += [*estimate_lines(report.devices, report.links), "", *placement_lines(report.placement, style)]
    for memory in report.memories:
        # The curve of one memory under its budget, and what is there when it is fullest.
        users = ", ".join(name for name in memory.devices if name != memory.name)
        memory_lines = [style.paint(f"memory {memory.name}", "strong") + (f" of {users}" if users else "")]
        rules = [ChartRule("budget", memory.budget_bytes)]
        if memory.peak_bytes > max(memory.memory_bytes, default=0):
            rules.append(ChartRule("needed as cut into sessions", memory.peak_bytes, "faint"))
        memory_lines += memory_chart(
            memory.memory_bytes, fixed_bytes=memory.fixed_bytes, rules=rules, rows=6, style=style
        )
        if memory.peak_op is not None:
            memory_lines += [
                f"  alive at step {memory.peak_step} ({memory.peak_op}):",
                *live_tensor_lines(memory.alive, style),
            ]
        if memory.workspace_bytes:
            memory_lines.append(f"  and {format_bytes(memory.workspace_bytes)} of workspace")
        if memory.fixed_bytes:
            memory_lines.append(f"  and {format_bytes(memory.fixed_bytes)} fixed")
        lines += ["", *memory_lines]
    return lines + closing_lines(report, style)
