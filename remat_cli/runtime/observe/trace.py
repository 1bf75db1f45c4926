"""Writes a run as a trace for ui.perfetto.dev or chrome://tracing: the plan and the measurement, as two processes.

Format: "Trace Event Format" of Chrome: complete events (ph X, `ts` and `dur` in microseconds), counters (C) and names
(M). Each device and each link has a track, and each memory a counter.
"""

from typing import Any, Final

import msgspec

from remat_cli.core.paging.paging import DIRECTIONS
from remat_cli.core.schedule.program import (
    CopyAction,
    LoadAction,
    Program,
    ProgramAction,
    RunRecord,
    SeenMemory,
    SessionAction,
    Span,
)

PLANNED: Final = 1
MEASURED: Final = 2
Event = dict[str, Any]


def chrome_trace(program: Program, run: RunRecord, seen: SeenMemory) -> bytes:
    """The trace of a run as JSON; ops are known inside planned sessions only."""
    events = [*_names(program, PLANNED, "planned"), *_names(program, MEASURED, "measured")]
    fixed = seen.fixed_bytes
    for number, (action, record) in enumerate(zip(program.actions, run.actions, strict=True)):
        measured = (record.start_ns, record.end_ns)
        held = tuple(a + b for a, b in zip(fixed, seen.action_bytes[number], strict=True))
        events += _action(program, action, PLANNED, action.planned_ns, action.planned_bytes)
        events += _action(program, action, MEASURED, measured, held)
        if isinstance(action, SessionAction):
            track = action.device
            events += [_event(op, PLANNED, track, span, {}) for op, span in action.planned_ops_ns.items()]
    if program.spill is not None:
        # Transfers to and from a file, each direction on a track of its own, and how much lies there.
        spill = program.spill
        moves, first = [], len(program.devices)
        for process, spans in ((PLANNED, [move.planned_ns for move in spill.moves]), (MEASURED, run.moves)):
            for row, direction in enumerate(DIRECTIONS, first):
                moves.append(_meta("thread_name", process, row, f"{direction}s {spill.name}"))
            for move, span in zip(spill.moves, spans, strict=True):
                row = first + DIRECTIONS.index(move.direction)
                about = {"bytes": move.size_bytes, "offset": move.offset}
                moves.append(_event(f"{move.direction} {move.value}", process, row, span, about))
        events += moves
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _action(program: Program, action: ProgramAction, process: int, span: Span, held: tuple[int, ...]) -> list[Event]:
    """The action on its track, and what memories hold meanwhile."""
    counter = {"ph": "C", "pid": process, "tid": 0, "ts": span[0] / 1000}
    counters = [
        {"name": f"memory {name}", **counter, "args": {"bytes": bytes_}}
        for name, bytes_ in zip(program.memories, held, strict=True)
    ]
    if isinstance(action, CopyAction):
        size = program.values[action.target].size_bytes
        return [
            _event(f"copy {action.source}", process, _link_track(program, action), span, {"bytes": size}),
            *counters,
        ]
    if isinstance(action, LoadAction):
        device = program.sessions[action.session].device
        return [_event(f"open session {action.session + 1}", process, device, span, {}), *counters]
    about = {"ops": len(action.segment.ops), "reads": action.segment.reads, "makes": action.segment.makes}
    name = f"{action.segment.ops[0]} ... {action.segment.ops[-1]}"
    return [_event(name, process, action.device, span, about), *counters]


def _event(name: str, process: int, track: int, span: Span, about: Event) -> Event:
    start, end = span
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"name": name, "ph": "X", "pid": process, "tid": track, **times, "args": about}


def _names(program: Program, process: int, title: str) -> list[Event]:
    tracks = {number: spec.name for number, spec in enumerate(program.devices)}
    for action in program.actions:
        if isinstance(action, CopyAction):
            tracks[_link_track(program, action)] = " -> ".join(program.memories[m] for m in _link(program, action))
    named = [_meta("thread_name", process, track, name) for track, name in tracks.items()]
    return [_meta("process_name", process, 0, title), *named]


def _meta(kind: str, process: int, track: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _link(program: Program, action: CopyAction) -> tuple[int, int]:
    return program.memory_of[action.source_device], program.memory_of[action.target_device]


def _link_track(program: Program, action: CopyAction) -> int:
    """Links come after devices."""
    source, target = _link(program, action)
    return len(program.devices) + source * len(program.memories) + target
