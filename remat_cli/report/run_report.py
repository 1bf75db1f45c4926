"""What running a plan showed, beside what was planned: time and memory per device, link and memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from remat_cli.core.program import CopyAction, Program, SessionAction, Span
from remat_cli.core.program_run import RunRecord, SeenMemory
from remat_cli.report.solution import EXIT_DONE, EXIT_UNVERIFIED


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
        return self.measured_peak_bytes <= self.budget_bytes


class RunSource(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a run, and what to know of it."""

    plan: str
    model: str
    output: str | None = None
    trace: str | None = None
    warnings: tuple[str, ...] = ()
    is_capped: bool = False


class RunTimes(msgspec.Struct, frozen=True):
    """Every timed run; `is_repeatable`: all gave the same bits."""

    runs: tuple[RunRecord, ...]
    is_repeatable: bool


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was run. Times are in nanoseconds; `is_capped`: budgets were enforced while runs were timed."""

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
    is_capped: bool
    output: str | None = None
    trace: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or 5 where a measured peak is above its budget or runs differ."""
        is_kept = self.is_repeatable and all(memory.is_within_budget for memory in self.memories)
        return EXIT_DONE if is_kept else EXIT_UNVERIFIED


def run_report(source: RunSource, program: Program, seen: SeenMemory, times: RunTimes) -> RunReport:
    """Put planned and measured side by side."""
    fastest = min(times.runs, key=lambda run: run.total_ns)
    totals = [run.total_ns for run in times.runs]
    return RunReport(
        plan=source.plan,
        model=source.model,
        devices=_devices(program, fastest),
        links=_links(program, fastest),
        memories=_memories(program, seen),
        repeat=len(totals),
        planned_ns=program.planned_ns,
        measured_min_ns=min(totals),
        measured_median_ns=round(statistics.median(totals)),
        is_overlapped=program.overlap,
        is_repeatable=times.is_repeatable,
        is_capped=source.is_capped,
        output=source.output,
        trace=source.trace,
        warnings=source.warnings,
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


def _links(program: Program, run: RunRecord) -> tuple[RanLink, ...]:
    by_pair: dict[tuple[int, int], list[tuple[CopyAction, Span]]] = {}
    for action, record in zip(program.actions, run.actions, strict=True):
        if isinstance(action, CopyAction):
            pair = (program.memory_of[action.source_device], program.memory_of[action.target_device])
            by_pair.setdefault(pair, []).append((action, (record.start_ns, record.end_ns)))
    return tuple(_link(program, pair, copies) for pair, copies in sorted(by_pair.items()))


def _link(program: Program, pair: tuple[int, int], copies: Sequence[tuple[CopyAction, Span]]) -> RanLink:
    return RanLink(
        source=program.memories[pair[0]],
        target=program.memories[pair[1]],
        copies=len(copies),
        size_bytes=sum(program.values[action.target].size_bytes for action, _ in copies),
        planned_ns=_total(action.planned_ns for action, _ in copies),
        measured_ns=_total(span for _, span in copies),
    )


def _memories(program: Program, seen: SeenMemory) -> tuple[RanMemory, ...]:
    return tuple(
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
    )


def _total(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)
