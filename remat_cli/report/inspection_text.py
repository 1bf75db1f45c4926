"""Where the memory goes, for people: verdict, picture, tensors at the peak, recomputes; memory by memory."""

from __future__ import annotations

from remat_cli.base.units import format_bytes
from remat_cli.core.budget import describe_bytes
from remat_cli.report.devices import MemoryReport
from remat_cli.report.devices_text import device_table, estimate_lines, link_lines, single_time
from remat_cli.report.explain import live_tensor_lines, recompute_lines
from remat_cli.report.inspection import InspectReport
from remat_cli.report.placement_picture import placement_lines
from remat_cli.report.regions import obstacle_lines, region_lines
from remat_cli.report.style import Style, columns, duration, percent, plural
from remat_cli.report.terminal_chart import Band, Rule, memory_chart


def inspect_lines(report: InspectReport, style: Style) -> list[str]:
    """Everything about one model or plan, the verdict first."""
    where = f"{plural(report.ops, 'op')} on {report.device}"
    lines = [style.paint(report.path, "strong") + f"  ({report.kind}, {where})", *_figures(report, style), ""]
    lines += memory_chart(
        report.memory_bytes, fixed_bytes=report.fixed_bytes, rules=_rules(report), bands=_bands(report), style=style
    )
    lines += ["", f"alive at the peak, step {report.peak_step} ({report.peak_op}):"]
    lines += live_tensor_lines(report.alive, style)
    if report.workspace_bytes:
        lines += [f"  and {format_bytes(report.workspace_bytes)} of workspace inside {report.peak_op}"]
    if report.gate_bytes:
        lines += [f"  and {format_bytes(report.gate_bytes)} held by gates"]
    if report.regions or report.split_obstacle:
        lines += ["", *region_lines(report.regions), *obstacle_lines(report.split_obstacle, report.regions)]
    return lines + _closing(report, style)


def _figures(report: InspectReport, style: Style) -> list[str]:
    """Peak, floor, budget and bound, each in bytes and a readable unit."""
    rows = [["peak", describe_bytes(report.peak_bytes)], ["fixed", describe_bytes(report.fixed_bytes)]]
    rows += _floor_rows(report)
    if report.baseline_peak_bytes is not None:
        rows += [["original peak", describe_bytes(report.baseline_peak_bytes)]]
    if report.time is not None:
        rows += [["time", duration(report.time)]]
    if report.overhead_percent is not None:
        bound = f"proved least {percent(report.lower_bound_percent)}"
        rows += [["overhead", f"{percent(report.overhead_percent)}, {bound}, space {report.space or 'unknown'}"]]
    if report.budget_bytes is not None:
        text = f"{report.budget} = " if report.budget else ""
        rows += [["budget", f"{text}{describe_bytes(report.budget_bytes)}: {_verdict(report)}"]]
    lines = columns(rows, "<<")
    if report.fits is not None:
        lines[-1] = style.paint(lines[-1], "good" if report.fits else "bad")
    return lines


def _floor_rows(report: InspectReport) -> list[list[str]]:
    """The floor of whole ops and, where it is known, that with splitting."""
    cause = f", caused by {report.blocking_op}" if report.blocking_op else ""
    whole = describe_bytes(report.floor_bytes) + cause
    if report.floor_with_splitting_bytes is None:
        return [["floor of whole ops" if report.regions else "floor", whole]]
    return [["floor of whole ops", whole], ["floor with splitting", describe_bytes(report.floor_with_splitting_bytes)]]


def _verdict(report: InspectReport) -> str:
    """Whether it fits and, if not, whether a plan could make it."""
    if report.fits:
        return "fits"
    if report.budget_bytes is not None and report.budget_bytes < report.floor_bytes:
        if report.regions:
            return "does not fit with whole ops; `remat compile` may split them"
        return "impossible with whole ops, below the floor"
    return "does not fit as it is; `remat compile` may find a plan"


def _rules(report: InspectReport) -> list[Rule]:
    rules = [] if report.budget_bytes is None else [Rule("budget", report.budget_bytes)]
    if report.baseline_peak_bytes is not None:
        rules.append(Rule("original peak", report.baseline_peak_bytes, "faint"))
    return rules


def _bands(report: InspectReport) -> list[Band]:
    """Where each region runs, under its number in the table."""
    return [
        Band(str(number), *run, f"{'would run' if region.is_estimate else 'runs'} in tiles, numbered as below")
        for number, region in enumerate(report.regions, 1)
        for run in region.steps
    ]


def device_inspect_lines(report: InspectReport, style: Style) -> list[str]:
    """Everything about one plan on several devices, the verdict first."""
    where = f"{plural(report.ops, 'op')} on {report.device}, {plural(report.segments, 'session')}"
    verdict = style.paint("fits", "good") if report.fits else style.paint("does not fit", "bad")
    lines = [style.paint(report.path, "strong") + f"  ({where}): {verdict}", *_device_figures(report), ""]
    lines += [*device_table(report.devices, is_run=False), "", *link_lines(report.links)]
    lines += estimate_lines(report.devices, report.links)
    if report.placement is not None:
        lines += ["", *placement_lines(report.placement, style)]
    for memory in report.memories:
        lines += ["", *_memory_lines(memory, style)]
    return lines + _closing(report, style)


def _device_figures(report: InspectReport) -> list[str]:
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


def _closing(report: InspectReport, style: Style) -> list[str]:
    """Recomputes and warnings, where there are any."""
    lines: list[str] = []
    if report.recomputes:
        lines += ["", "recomputes, the costliest first:", *recompute_lines(report.recomputes)]
    if report.warnings:
        lines += ["", *(style.paint(f"warning: {warning}", "warn") for warning in report.warnings)]
    return lines
