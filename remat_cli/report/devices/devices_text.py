"""Several devices as text: what was placed where, beside what each device could do alone, planned and measured."""

from collections.abc import Callable, Mapping, Sequence

from remat_cli.base.units import format_bytes
from remat_cli.core.values.profile import Reference
from remat_cli.core.values.verification import SessionsSeen
from remat_cli.report.compile import (
    delivery_lines,
    recomputed,
    solver_line,
    verdict_lines,
    warning_lines,
)
from remat_cli.report.devices.sessions import SessionsReport, SessionsVerifyReport
from remat_cli.report.explain import DeviceReport, LinkReport
from remat_cli.report.runs_on import runs_on_lines
from remat_cli.report.screen import compile_screen, outputs_row, refused_screen
from remat_cli.report.solution import AMONG, is_too_dear, no_verdict_lines
from remat_cli.report.style import Style, columns, duration, percent, plural, shorten

MARK, NOTE = "~", "note: "
MOST_MEMORIES = 2
MARK_LINE = f"  {MARK} estimated from a description, never run there"


def device_compile_lines(report: SessionsReport, style: Style) -> list[str]:
    """What runs where, what that gains as planned and as measured, and how to run it."""
    return placed_lines(report, link_lines(report.links), (), style)


def placed_lines(
    report: SessionsReport, moved_lines: Sequence[str], seen_lines: Sequence[str], style: Style
) -> list[str]:
    """A report on a plan that says where ops run, with lines of what moves and what verification showed of that."""
    if style.is_short:
        return _short_lines(report, style)
    seen = report.verification
    budgets = ", ".join(f"{memory} {format_bytes(size)}" for memory, size in _by_memory(report.devices).items())
    if report.solution.time is None:
        placed = f"  ({plural(report.ops, 'op')}) on {', '.join(device.name for device in report.devices)}: no plan"
    else:
        placed = f" placed on {_where(report)}"
    heading = style.paint(report.model, "strong") + placed
    lines = [report.verdict_parts.line(style), heading, f"budget {report.budget}: {budgets}"]
    if report.solution.time is None:
        lines += ["", *_no_plan_lines(report, style)]
    else:
        lines += [*_gain_lines(report, style), "", *device_table(report.devices, is_run=seen is not None), ""]
        lines += [*moved_lines, "", *_time_table(report), ""]
        lines += [solver_line(report.solution, f"time against every op once on {report.baseline_device}")]
        lines += [recomputed(report) if report.solution.recomputed_ops else "nothing is recomputed"]
        lines += estimate_lines(report.devices, report.links)
    if seen is not None:
        lines += ["", *device_verification_lines(seen, seen_lines, style)]
    lines += warning_lines(report.warnings, () if seen is None else (*seen.notes, *seen.failures), style)
    absent = [device.name for device in report.devices if not device.is_measured]
    return lines + delivery_lines(report, f"Run it where {_joined(absent)} is:" if absent else "Run it:", style)


def _short_lines(report: SessionsReport, style: Style) -> list[str]:
    """The same on a screen of a few lines."""
    if report.solution.time is None:
        return refused_screen(report, _no_plan_lines(report, style), style)
    seen, plain = report.verification, Style()
    planned, *gains = _gain_lines(report, plain)
    rows = [("placed", _where(report)), ("time", planned)]
    rows += [("", line) for line in gains if not line.startswith(NOTE)]
    cautions = [line.removeprefix(NOTE) for line in gains if line.startswith(NOTE)]
    owners = {device.memory: device for device in report.devices}
    for memory, device in list(owners.items())[:MOST_MEMORIES]:
        held = f"{_planned_peak(device, report.devices)} of {format_bytes(device.budget_bytes)} planned"
        measured = "" if seen is None else f", {_peak(device.measured_peak_bytes)} measured"
        rows.append((memory, f"{held}{measured}"))
    rows.append(outputs_row(seen, "the model" if seen is None else seen.reference))
    absent = [device.name for device in report.devices if not device.is_measured]
    cautions += [f"estimated from a description, never run there: {_joined(absent)}"] if absent else []
    return compile_screen(report, rows, cautions, style)


def device_verify_lines(report: SessionsVerifyReport, style: Style) -> list[str]:
    """The verdict of a verification, and the figures behind it."""
    return placed_verify_lines(report, (), style)


def placed_verify_lines(report: SessionsVerifyReport, seen_lines: Sequence[str], style: Style) -> list[str]:
    """The verdict of a verification, with lines of what it showed of what moves."""
    seen = report.verification
    return [
        report.verdict_parts.line(style),
        style.paint(report.model, "strong") + f"  against {report.source}",
        "",
        *device_verification_lines(seen, seen_lines, style),
        *measured_table(seen),
        *warning_lines(report.warnings, seen.notes, style),
        *runs_on_lines(report.runs_on),
    ]


def _where(report: SessionsReport) -> str:
    """`cpu (20 ops) and cuda:0 (14 ops), 3 sessions, 4 copies`."""
    used = [f"{device.name} ({plural(device.ops, 'op')})" for device in report.devices if device.ops]
    copies = sum(link.copies for link in report.links)
    sessions = "one session for both" if report.way == "one_session" else plural(report.segments, "session")
    parts = [_joined(used), sessions]
    if copies:
        parts.append("1 copy" if copies == 1 else f"{copies} copies")
    return ", ".join(parts)


def _joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else "".join(names)


def _by_memory(devices: Sequence[DeviceReport]) -> Mapping[str, int]:
    return {device.memory: device.budget_bytes for device in devices}


def _gain_lines(report: SessionsReport, style: Style) -> list[str]:
    """How the plan compares with the best single device, and a note where running it shows no gain."""
    seen, used = report.verification, [device.name for device in report.devices if device.ops]
    time, mark = report.solution.time, _mark(_is_estimated(report))
    if time is not None and len(used) == 1 and not any(link.copies for link in report.links):
        # the plan is that of the best single device, or of the only one
        more = f", all on {used[0]}: no plan found on several devices is faster" if len(report.devices) > 1 else ""
        planned = f"planned: {mark}{duration(time)}{more}"
    else:
        planned = f"planned: {planned_gain(time, report.single, mark)}"
    if seen is None:
        return [f"{planned}; not measured"]
    if not seen.passed:
        return [planned, "what was measured does not count: verification failed"]
    if not seen.measured_single_time_ns:
        return [f"{planned}; measured: {duration(seen.measured_time_ns)}"]
    best, best_ns = min(seen.measured_single_time_ns.items(), key=lambda item: item[1])
    change = 100 * (seen.measured_time_ns - best_ns) / best_ns
    lines = [planned, f"measured: {gain(change, best)}"]
    if change >= 0 and len(used) > 1:
        note = f"{NOTE}measured, several devices are not faster here: {best} alone takes {duration(best_ns)}"
        lines.append(style.paint(note, "warn"))
    return lines


def planned_gain(time_ns: int | None, single: Sequence[Reference], mark: str) -> str:
    """`~12.30 % faster than the best single device (cpu)`, by plans within the same budgets, or that there is none."""
    times = {reference.device: reference.time_ns for reference in single if reference.time_ns}
    if time_ns is None or not times:
        return f"{mark}{_time(time_ns)}; no single device can run the model within these budgets"
    best = min(times, key=lambda device: times[device])
    return f"{mark}{gain(100 * (time_ns - times[best]) / times[best], best)}"


def gain(overhead_percent: float, device: str) -> str:
    """`12.30 % faster than the best single device (cpu)`, or how much slower."""
    against = f"the best single device ({device})"
    if abs(overhead_percent) < 0.005:
        return f"as fast as {against}"
    return (
        f"{-overhead_percent:.2f} % faster than {against}"
        if overhead_percent < 0
        else (f"{percent(overhead_percent)} over {against}")
    )


def _is_estimated(report: SessionsReport) -> bool:
    return any(not device.is_measured for device in report.devices) or _has_estimated_link(report.links)


def _has_estimated_link(links: Sequence[LinkReport]) -> bool:
    return any(not link.is_measured and link.copies for link in links)


def _mark(is_estimated: bool) -> str:
    return MARK if is_estimated else ""


def estimate_lines(devices: Sequence[DeviceReport], links: Sequence[LinkReport]) -> list[str]:
    """What the mark means, where one was written."""
    is_needed = any(not device.is_measured for device in devices) or _has_estimated_link(links)
    return ["", MARK_LINE] if is_needed else []


def device_table(devices: Sequence[DeviceReport], *, is_run: bool) -> list[str]:
    """A row per device; columns that say nothing are left out. Devices of one memory share budget and peak."""
    is_timed = any(device.measured_time_ns is not None for device in devices)
    cells: list[tuple[str, str, Callable[[DeviceReport], str], bool]] = [
        ("device", "<", lambda device: shorten(device.name, 28), True),
        ("budget", ">", lambda device: format_bytes(device.budget_bytes), True),
        ("peak, planned", ">", lambda device: _planned_peak(device, devices), True),
        ("measured", ">", lambda device: _peak(device.measured_peak_bytes), is_run),
        ("ops", ">", lambda device: str(device.ops), True),
        ("cannot run", ">", lambda device: str(device.unsupported), any(device.unsupported for device in devices)),
        ("time, planned", ">", lambda device: _mark(not device.is_measured) + duration(device.time_ns), True),
        ("measured", ">", lambda device: _time(device.measured_time_ns), is_timed),
        ("energy", ">", _energy, any(device.energy_nj is not None for device in devices)),
    ]
    shown = [cell for cell in cells if cell[3]]
    rows = [[heading for heading, _, _, _ in shown]]
    for device in devices:
        owner = next(other for other in devices if other.memory == device.memory)
        row = [text(device) for _, _, text, _ in shown]
        if owner is not device:  # one budget, one peak for all devices of a memory
            row[1:3] = [f"with {shorten(owner.name, 18)}", ""]
            row[3:4] = [""] if is_run else row[3:4]
        rows.append(row)
    return columns(rows, "".join(align for _, align, _, _ in shown))


def _planned_peak(device: DeviceReport, devices: Sequence[DeviceReport]) -> str:
    """Marked where any device of this memory is estimated, whose workspace is then a guess."""
    if device.predicted_peak_bytes is None:
        return ""
    is_guess = any(not other.is_measured for other in devices if other.memory == device.memory)
    return _mark(is_guess) + format_bytes(device.predicted_peak_bytes)


def _peak(size_bytes: int | None) -> str:
    """A measured peak; a provider may not tell what its sessions hold."""
    return "hidden" if size_bytes is None else format_bytes(size_bytes)


def _energy(device: DeviceReport) -> str:
    if device.energy_nj is None:
        return "unknown"
    for unit, size in (("J", 1e9), ("mJ", 1e6), ("uJ", 1e3)):
        if device.energy_nj >= size:
            return f"{device.energy_nj / size:.2f} {unit}"
    return f"{device.energy_nj} nJ"


def link_lines(links: Sequence[LinkReport]) -> list[str]:
    """A row per link, or that nothing needs to be copied."""
    if not links:
        return ["  one memory: nothing is copied"]
    rows = [["link", "copies", "bytes", "time, planned"]]
    for link in links:
        time = _mark(not link.is_measured) + duration(link.time_ns)
        rows.append([f"{link.source} -> {link.target}", str(link.copies), format_bytes(link.bytes), time])
    return columns(rows, "<>>>")


def _time_table(report: SessionsReport) -> list[str]:
    """The whole run beside each device alone within the same budgets."""
    seen = report.verification
    single = seen.measured_single_time_ns if seen is not None else {}
    planned = _mark(_is_estimated(report)) + _time(report.solution.time)
    rows = [["time of a run", "planned", "measured"]]
    rows.append(["this plan", planned, _time(None if seen is None else seen.measured_time_ns)])
    estimated = {device.name for device in report.devices if not device.is_measured}
    rows += [
        [f"{reference.device} alone", single_time(reference, estimated), _time(single.get(reference.device))]
        for reference in report.single
    ]
    return columns(rows if seen is not None else [row[:2] for row in rows], "<>>" if seen is not None else "<>")


def single_time(reference: Reference, estimated: set[str]) -> str:
    """What a device takes alone; none was found where it cannot run an op, or memory or time did not suffice."""
    if reference.time_ns is None:
        return "no plan found"
    return _mark(reference.device in estimated) + duration(reference.time_ns)


def _time(time_ns: int | None) -> str:
    return "" if time_ns is None else duration(time_ns)


def _no_plan_lines(report: SessionsReport, style: Style) -> list[str]:
    """What was proved or not, and what each device would need."""
    solution = report.solution
    if solution.interrupted or is_too_dear(solution):
        return no_verdict_lines(solution, style)
    if solution.status == "infeasible":
        verdict = style.paint("impossible: no schedule stays within these budgets", "bad")
        lines = [f"{verdict} ({AMONG[solution.space]})"]
    else:
        lines = [style.paint(f"no plan within these budgets was found in {solution.seconds:.1f} s", "bad")]
        is_short = report.asked.search_was_cut
        lines.append(f"try {'a longer --time-limit or ' if is_short else ''}larger budgets")
    if len(_by_memory(report.devices)) == 1:
        lines.append(f"proved: none needs less than {style.size(solution.floor_bytes)}")
    if report.obstacle is not None:
        # `op conv_5 (Conv) needs 13.54 MiB in cpu or 12.79 MiB in cuda:0 while it runs, whatever else is dropped`
        op, needed = report.obstacle, report.obstacle.needs.items()
        needs = " or ".join(f"{style.size(size)} in {memory}" for memory, size in needed)
        lines.append(f"op {op.op} ({op.op_type}) needs {needs} while it runs, whatever else is dropped")
    lines += ["", f"every op once on {report.baseline_device} needs:"]
    peaks = {device.memory: device.baseline_peak_bytes for device in report.devices}
    rows = [[memory, style.size(size)] for memory, size in peaks.items() if size]
    return [*lines, *columns(rows, "<<")]


def device_verification_lines(seen: SessionsSeen, more: Sequence[str], style: Style) -> list[str]:
    """One line of verdict, broken promises if any, what was compared, then the notes."""
    if seen.outputs_identical:
        outputs = f"outputs identical to those of {seen.reference}"
    else:
        most = seen.largest_difference
        size = "" if most is None else f", largest relative difference {most:.1e}"
        verdict = "within tolerance of" if seen.outputs_close else "too far from"
        outputs = f"outputs {verdict} those of {seen.reference}{size}"
    lines = verdict_lines(seen, style, f": {outputs}")
    lines += [] if seen.passed else [f"  {outputs}"]
    return [*lines, *more] + [f"  note: {note}" for note in seen.notes]


def measured_table(seen: SessionsSeen) -> list[str]:
    """Peaks and times as predicted and as measured."""
    rows = [["", "predicted", "measured"]]
    for memory, (size, found) in seen.peaks.items():
        rows.append([f"peak of {memory}", format_bytes(size), _peak(found)])
    rows.append(["time of a run", duration(seen.predicted_time_ns), duration(seen.measured_time_ns)])
    rows += [[f"{device} alone", "", duration(time)] for device, time in seen.measured_single_time_ns.items()]
    return columns(rows, "<>>")
