"""Where the memory goes, for people: verdict, picture, tensors at the peak, recomputes."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.base.units import format_bytes
from remat_cli.core.budget import describe_bytes
from remat_cli.report.report import InspectReport, LiveTensor, Recompute
from remat_cli.report.style import Style, columns, duration, percent, plural, shorten
from remat_cli.report.terminal_chart import Band, Rule, memory_chart
from remat_cli.report.text_regions import obstacle_lines, region_lines

MOST_ROWS = 12


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
    if report.recomputes:
        lines += ["", "recomputes, the costliest first:", *recompute_lines(report.recomputes, style)]
    if report.warnings:
        lines += ["", *(style.paint(f"warning: {warning}", "warn") for warning in report.warnings)]
    return lines


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


def live_tensor_lines(tensors: Sequence[LiveTensor], style: Style) -> list[str]:
    """A table of tensors: bytes, type, shape, name and producer."""
    room = max(16, (style.width - 46) // 2)
    rows = [
        [
            f"= {shorten(t.shares_with, 20)}" if t.shares_with else format_bytes(t.bytes),
            t.dtype,
            "x".join(str(size) for size in t.shape) or "scalar",
            shorten(t.name, room),
            shorten(f"from {t.producer}" if t.producer else "model input", room),
        ]
        for t in tensors[:MOST_ROWS]
    ]
    left = tensors[MOST_ROWS:]
    more = [f"  and {plural(len(left), 'more tensor')}, {format_bytes(sum(t.bytes for t in left))}"] if left else []
    return columns(rows, "><<<<") + more


def recompute_lines(recomputes: Sequence[Recompute], style: Style) -> list[str]:
    """One line per recomputed op: its cost, and what would be too much without it."""
    rows = [
        [
            f"+{duration(r.time)}",
            f"{shorten(r.op, 28)} ({r.op_type})",
            f"{r.runs} runs",
            f"frees {format_bytes(r.freed_bytes)} from step {r.dropped_after + 1} to {r.made_again_at - 1},"
            f" which would need {format_bytes(r.peak_without_bytes)}",
        ]
        for r in recomputes[:MOST_ROWS]
    ]
    left = len(recomputes) - MOST_ROWS
    return columns(rows, "><<<") + ([f"  and {plural(left, 'more op')}"] if left > 0 else [])
