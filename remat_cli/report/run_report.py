"""What running a plan showed, beside what was planned: time and memory per device, link and memory."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.schedule.program import CopyAction, Program, RunRecord, SeenMemory, SessionAction, Span
from remat_cli.core.values.promises import fits
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE, EXIT_UNVERIFIED
from remat_cli.report.style import Style, columns, duration, percent, plural

TIMES = ("", "planned", "measured", "difference", "")
BYTES = ("memory", "budget", "planned peak", "measured peak", "difference", "")


class RanDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of one device; times are sums over them, measured in the fastest run."""

    device: str
    memory: str
    sessions: int
    ops: int
    planned_ns: int
    measured_ns: int


class RanLink(msgspec.Struct, frozen=True, kw_only=True):
    """The copies from one memory to another; times are sums, measured in the fastest run."""

    source: str
    target: str
    copies: int
    size_bytes: int
    planned_ns: int
    measured_ns: int


class RanMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory held at most, in total bytes; `fixed` is its part that is held all through.

    `is_hidden`: a device does not tell what its sessions hold inside, so that the measured peak is only what passes
    between sessions, and weights.
    """

    memory: str
    budget_bytes: int
    planned_peak_bytes: int
    measured_peak_bytes: int
    planned_fixed_bytes: int
    measured_fixed_bytes: int
    is_hidden: bool = False

    @property
    def is_within_budget(self) -> bool:
        """Whether the measured peak is within the budget."""
        return fits(self.measured_peak_bytes, self.budget_bytes)


class RanPages(msgspec.Struct, frozen=True, kw_only=True):
    """Transfers in the fastest run: their times are sums, stalls those in which no session ran."""

    memory: str
    moves: int
    size_bytes: int
    planned_ns: int
    measured_ns: int
    planned_stall_ns: int
    measured_stall_ns: int


class RunReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was run. Times are in nanoseconds.

    `is_repeatable`: all runs gave the same bits; `is_capped`: budgets were enforced while they were timed.
    """

    plan: str
    model: str
    devices: tuple[RanDevice, ...]
    links: tuple[RanLink, ...]
    memories: tuple[RanMemory, ...]
    repeat: int
    planned_ns: int
    measured_min_ns: int
    measured_median_ns: int
    is_overlapped: bool
    is_repeatable: bool
    pages: RanPages | None = None
    is_capped: bool = False
    output: str | None = None
    trace: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or 5 where a measured peak is above its budget or runs differ."""
        is_kept = self.is_repeatable and all(memory.is_within_budget for memory in self.memories)
        return EXIT_DONE if is_kept else EXIT_UNVERIFIED

    def lines(self, style: Style) -> list[str]:
        """Time and memory, planned beside measured, and what does not hold."""
        sessions = sum(device.sessions for device in self.devices)
        heading = style.paint(self.plan, "strong") + f"  {plural(sessions, 'session')}, {plural(self.repeat, 'run')}"
        memories: list[tuple[str, ...]] = [BYTES]
        for memory in self.memories:
            change = memory.measured_peak_bytes - memory.planned_peak_bytes
            measured = ("at least " if memory.is_hidden else "") + format_bytes(memory.measured_peak_bytes)
            sizes = (format_bytes(memory.budget_bytes), format_bytes(memory.planned_peak_bytes), measured)
            fate = "" if memory.is_within_budget else "over budget"
            memories.append((memory.memory, *sizes, f"{change:+,} bytes" if change else "none", fate))
        lines = [heading, "", *_time_table(self), "", *columns(memories, "<>>>><")]
        # What was not measured, and what does not hold here.
        hidden = [memory.memory for memory in self.memories if memory.is_hidden]
        note = f"a device on memory {', '.join(hidden)} does not tell what it holds while it computes"
        notes = [*self.warnings, *([note] if hidden else [])]
        lines += [style.paint(f"warning: {line}", "warn") for line in notes]
        over = [memory.memory for memory in self.memories if not memory.is_within_budget]
        verdict = [style.paint(f"the measured peak of {name} is above its budget", "bad") for name in over]
        if not self.is_repeatable:
            verdict.append(style.paint("runs on the same inputs gave different outputs", "bad"))
        if not verdict:
            is_seen = not any(memory.is_hidden for memory in self.memories)
            kept = (
                "within every budget"
                + ("" if is_seen else ", as far as it shows")
                + (", which the runtime was held to" if self.is_capped else "")
            )
            verdict.append(style.paint(f"{kept}; every run gave the same bits", "good"))
        lines += ["", *verdict]
        if self.output is not None:
            lines.append(f"outputs {self.output}")
        if self.trace is not None:
            lines.append(f"trace   {self.trace} (open it in ui.perfetto.dev)")
        return lines


def run_report(
    plan: str, model: str, program: Program, seen: SeenMemory, runs: Sequence[RunRecord], *, is_repeatable: bool
) -> RunReport:
    """Put planned and measured side by side; files, limits and warnings are for the caller to add."""
    fastest = min(runs, key=lambda run: run.total_ns)
    totals = [run.total_ns for run in runs]
    by_pair: dict[tuple[int, int], list[tuple[CopyAction, Span]]] = {}
    for action, record in zip(program.actions, fastest.actions, strict=True):
        if isinstance(action, CopyAction):
            pair = (program.memory_of[action.source_device], program.memory_of[action.target_device])
            by_pair.setdefault(pair, []).append((action, (record.start_ns, record.end_ns)))
    links = tuple(
        RanLink(
            source=program.memories[source],
            target=program.memories[target],
            copies=len(copies),
            size_bytes=sum(program.values[action.target].size_bytes for action, _ in copies),
            planned_ns=_total(action.planned_ns for action, _ in copies),
            measured_ns=_total(span for _, span in copies),
        )
        for (source, target), copies in sorted(by_pair.items())
    )
    return RunReport(
        plan=plan,
        model=model,
        devices=_devices(program, fastest),
        links=links,
        memories=tuple(
            RanMemory(
                memory=name,
                budget_bytes=program.budgets[m],
                planned_peak_bytes=program.planned_peak_bytes[m],
                measured_peak_bytes=seen.peak_bytes[m],
                planned_fixed_bytes=program.planned_fixed_bytes[m],
                measured_fixed_bytes=seen.fixed_bytes[m],
                is_hidden=seen.is_hidden[m],
            )
            for m, name in enumerate(program.memories)
        ),
        repeat=len(totals),
        planned_ns=program.planned_ns,
        measured_min_ns=min(totals),
        measured_median_ns=round(statistics.median(totals)),
        is_overlapped=program.overlap,
        is_repeatable=is_repeatable,
        pages=None
        if (spill := program.spill) is None
        else RanPages(
            memory=spill.name,
            moves=len(spill.moves),
            size_bytes=sum(move.size_bytes for move in spill.moves),
            planned_ns=_total(move.planned_ns for move in spill.moves),
            measured_ns=_total(fastest.moves),
            planned_stall_ns=spill.stall_ns,
            measured_stall_ns=fastest.stall_ns,
        ),
    )


def _devices(program: Program, run: RunRecord) -> tuple[RanDevice, ...]:
    found = []
    for number, spec in enumerate(program.devices):
        mine = [
            (action, record)
            for action, record in zip(program.actions, run.actions, strict=True)
            if isinstance(action, SessionAction) and action.device == number
        ]
        found.append(
            RanDevice(
                device=spec.name,
                memory=program.memories[program.memory_of[number]],
                sessions=len(mine),
                ops=sum(len(action.segment.ops) for action, _ in mine),
                planned_ns=_total(action.planned_ns for action, _ in mine),
                measured_ns=_total((record.start_ns, record.end_ns) for _, record in mine),
            )
        )
    return tuple(found)


def _total(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def _time_table(report: RunReport) -> list[str]:
    """What devices, links and pages took, planned beside measured, and the whole run."""
    rows: list[tuple[str, ...]] = [TIMES]
    for device in report.devices:
        if device.sessions:
            count = f"{plural(device.sessions, 'session')}, {plural(device.ops, 'op')}"
            rows.append(_row(device.device, device.planned_ns, device.measured_ns, count))
    for link in report.links:
        moved = f"{'1 copy' if link.copies == 1 else f'{link.copies} copies'}, {format_bytes(link.size_bytes)}"
        rows.append(_row(f"{link.source} -> {link.target}", link.planned_ns, link.measured_ns, moved))
    if (pages := report.pages) is not None:
        moved = f"{plural(pages.moves, 'transfer')}, {format_bytes(pages.size_bytes)}, beside sessions"
        rows.append(_row("pages", pages.planned_ns, pages.measured_ns, moved))
        rows.append(_row("stalls", pages.planned_stall_ns, pages.measured_stall_ns, ""))
    beside = ", copies beside computes" if report.is_overlapped and report.links else ""
    spread = f"median {duration(report.measured_median_ns)}{beside}"
    rows.append(_row("whole run", report.planned_ns, report.measured_min_ns, spread))
    return columns(rows, "<>>><")


def _row(name: str, planned_ns: int, measured_ns: int, note: str) -> tuple[str, ...]:
    change = percent(100 * (measured_ns - planned_ns) / planned_ns) if planned_ns else ""
    return (name, duration(planned_ns), duration(measured_ns), change, note)
