"""A run of a plan as text."""

from __future__ import annotations

from remat_cli.base.units import format_bytes
from remat_cli.report.run_report import RanDevice, RanLink, RanMemory, RunReport
from remat_cli.report.style import Style, columns, duration, percent, plural

TIMES = ("", "planned", "measured", "difference", "")
BYTES = ("memory", "budget", "planned peak", "measured peak", "difference", "")


def run_lines(report: RunReport, style: Style) -> list[str]:
    """Time and memory, planned beside measured, and what does not hold."""
    sessions = sum(device.sessions for device in report.devices)
    heading = style.paint(report.plan, "strong") + f"  {plural(sessions, 'session')}, {plural(report.repeat, 'run')}"
    lines = [heading, "", *_time_table(report), "", *columns([BYTES, *map(_memory_row, report.memories)], "<>>>><")]
    lines += [style.paint(f"warning: {line}", "warn") for line in _notes(report)]
    lines += ["", *_verdict(report, style)]
    if report.output is not None:
        lines.append(f"outputs {report.output}")
    if report.trace is not None:
        lines.append(f"trace   {report.trace} (open it in ui.perfetto.dev)")
    return lines


def _time_table(report: RunReport) -> list[str]:
    rows = [TIMES, *(_device_row(d) for d in report.devices if d.sessions), *map(_link_row, report.links)]
    rows.append(_row("whole run", report.planned_ns, report.measured_min_ns, _spread(report)))
    return columns(rows, "<>>><")


def _spread(report: RunReport) -> str:
    """The median, and that copies hide behind computes."""
    beside = ", copies beside computes" if report.is_overlapped and report.links else ""
    return f"median {duration(report.measured_median_ns)}{beside}"


def _device_row(device: RanDevice) -> tuple[str, ...]:
    count = f"{plural(device.sessions, 'session')}, {plural(device.ops, 'op')}"
    return _row(device.device, device.planned_ns, device.measured_ns, count)


def _link_row(link: RanLink) -> tuple[str, ...]:
    count = "1 copy" if link.copies == 1 else f"{link.copies} copies"
    name = f"{link.source} -> {link.target}"
    return _row(name, link.planned_ns, link.measured_ns, f"{count}, {format_bytes(link.size_bytes)}")


def _row(name: str, planned_ns: int, measured_ns: int, note: str) -> tuple[str, ...]:
    change = percent(100 * (measured_ns - planned_ns) / planned_ns) if planned_ns else ""
    return (name, duration(planned_ns), duration(measured_ns), change, note)


def _memory_row(memory: RanMemory) -> tuple[str, ...]:
    change = memory.measured_peak_bytes - memory.planned_peak_bytes
    return (
        memory.memory,
        format_bytes(memory.budget_bytes),
        format_bytes(memory.planned_peak_bytes),
        ("at least " if memory.is_hidden else "") + format_bytes(memory.measured_peak_bytes),
        f"{change:+,} bytes" if change else "none",
        "" if memory.is_within_budget else "over budget",
    )


def _notes(report: RunReport) -> list[str]:
    """What was not measured, and what does not hold here."""
    hidden = [memory.memory for memory in report.memories if memory.is_hidden]
    note = f"a device on memory {', '.join(hidden)} does not tell what it holds while it computes"
    return [*report.warnings, *([note] if hidden else [])]


def _verdict(report: RunReport, style: Style) -> list[str]:
    over = [memory.memory for memory in report.memories if not memory.is_within_budget]
    lines = [style.paint(f"the measured peak of {name} is above its budget", "bad") for name in over]
    if not report.is_repeatable:
        lines.append(style.paint("runs on the same inputs gave different outputs", "bad"))
    if not lines:
        is_seen = not any(memory.is_hidden for memory in report.memories)
        kept = (
            "within every budget"
            + ("" if is_seen else ", as far as it shows")
            + (", which the runtime was held to" if report.is_capped else "")
        )
        lines.append(style.paint(f"{kept}; every run gave the same bits", "good"))
    return lines
