"""A plan that spans devices, for people: verdict, devices, links, the placement as a picture, memory by memory."""

from __future__ import annotations

from remat_cli.base.units import format_bytes
from remat_cli.report.placement_picture import placement_lines
from remat_cli.report.report import InspectReport, MemoryReport, Recompute
from remat_cli.report.style import Style, columns, duration, percent, plural, shorten
from remat_cli.report.terminal_chart import Rule, memory_chart
from remat_cli.report.text_devices import device_table, estimate_lines, link_lines, single_time
from remat_cli.report.text_inspect import MOST_ROWS, live_tensor_lines


def device_inspect_lines(report: InspectReport, style: Style) -> list[str]:
    """Everything about one plan on several devices, the verdict first."""
    where = f"{plural(report.ops, 'op')} on {report.device}, {plural(report.segments, 'session')}"
    verdict = style.paint("fits", "good") if report.fits else style.paint("does not fit", "bad")
    lines = [style.paint(report.path, "strong") + f"  ({where}): {verdict}", *_figures(report), ""]
    lines += [*device_table(report.devices, is_run=False), "", *link_lines(report.links)]
    lines += estimate_lines(report.devices, report.links)
    if report.placement is not None:
        lines += ["", *placement_lines(report.placement, style)]
    for memory in report.memories:
        lines += ["", *_memory_lines(memory, style)]
    if report.recomputes:
        lines += ["", "recomputes, the costliest first:", *_recompute_lines(report)]
    if report.warnings:
        lines += ["", *(style.paint(f"warning: {warning}", "warn") for warning in report.warnings)]
    return lines


def _figures(report: InspectReport) -> list[str]:
    """Time and what it is compared with."""
    rows = []
    estimated = {device.name for device in report.devices if not device.is_measured}
    if report.time is not None:
        against = f"{percent(report.overhead_percent)} against every op once on {report.baseline_device or 'unknown'}"
        rows += [["time", f"{'~' if estimated else ''}{duration(report.time)}, planned: {against}"]]
    if report.single:
        alone = ", ".join(f"{reference.device} {single_time(reference, estimated)}" for reference in report.single)
        rows += [["one device alone", f"{alone} (same budgets)"]]
    rows += [["proved least", f"{percent(report.lower_bound_percent)}, space {report.space or 'unknown'}"]]
    return columns(rows, "<<")


def _memory_lines(memory: MemoryReport, style: Style) -> list[str]:
    """The curve of one memory under its budget, and what is there when it is fullest."""
    users = ", ".join(name for name in memory.devices if name != memory.name)
    lines = [style.paint(f"memory {memory.name}", "strong") + (f" of {users}" if users else "")]
    rules = [Rule("budget", memory.budget_bytes)]
    if memory.peak_bytes > max(memory.memory_bytes):
        rules.append(Rule("needed as cut into sessions", memory.peak_bytes, "faint"))
    lines += memory_chart(memory.memory_bytes, fixed_bytes=memory.fixed_bytes, rules=rules, rows=6, style=style)
    lines += [f"  alive at step {memory.peak_step} ({memory.peak_op}):", *live_tensor_lines(memory.alive, style)]
    if memory.workspace_bytes:
        lines.append(f"  and {format_bytes(memory.workspace_bytes)} of workspace")
    if memory.fixed_bytes:
        lines.append(f"  and {format_bytes(memory.fixed_bytes)} fixed")
    return lines


def _recompute_lines(report: InspectReport) -> list[str]:
    """One line per recomputed op: its cost, where it runs, and what that frees or saves."""
    rows = [
        [f"+{duration(r.time)}", f"{shorten(r.op, 28)} ({r.op_type})", "on " + _places(r), _why(r)]
        for r in report.recomputes[:MOST_ROWS]
    ]
    left = len(report.recomputes) - MOST_ROWS
    return columns(rows, "><<<") + ([f"  and {plural(left, 'more op')}"] if left > 0 else [])


def _places(recompute: Recompute) -> str:
    """Where each run takes place: one name where it is always the same."""
    names = dict.fromkeys(recompute.devices)
    if len(names) == 1:
        return f"{next(iter(names))}, {recompute.runs} times"
    return ", then ".join(shorten(name, 16) for name in recompute.devices)


def _why(recompute: Recompute) -> str:
    if not recompute.freed_bytes:
        return "nothing is freed: it saves a copy"
    steps = f"from step {recompute.dropped_after + 1} to {recompute.made_again_at - 1}"
    return f"frees {format_bytes(recompute.freed_bytes)} in {recompute.memory} {steps}"
