"""Writes a run as a trace for ui.perfetto.dev or chrome://tracing: the plan and the measurement, as two processes.

Each device and each link has a track, each memory a counter, and arrows lead from what makes a value to its copy and on
to what reads that, and from an op to where it runs again.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from remat_cli.base.chrome_trace import Event, arrow_events, counter_event, name_event, slice_event, trace_file
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
REPEAT: Final = "/remat_"
"""Stands between the name of an op and the number of a repeat of it."""


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
            events += [slice_event(op, PLANNED, track, span, {}) for op, span in action.planned_ops_ns.items()]
            events += [
                counter_event(f"memory {program.memories[0]}", PLANNED, action.planned_ops_ns[op][0], held_bytes)
                for op, held_bytes in action.planned_ops_bytes.items()
                if op in action.planned_ops_ns
            ]
    if program.spill is not None:
        # Transfers to and from a file, each direction on a track of its own, and how much lies there.
        spill = program.spill
        moves, first = [], len(program.devices)
        for process, spans in ((PLANNED, [move.planned_ns for move in spill.moves]), (MEASURED, run.moves)):
            for row, direction in enumerate(DIRECTIONS, first):
                moves.append(name_event("thread_name", process, row, f"{direction}s {spill.name}"))
            for move, span in zip(spill.moves, spans, strict=True):
                row = first + DIRECTIONS.index(move.direction)
                about = {"bytes": move.size_bytes, "offset": move.offset}
                moves.append(slice_event(f"{move.direction} {move.value}", process, row, span, about))
        events += moves
    events += _copies(program, PLANNED, [action.planned_ns for action in program.actions])
    events += _copies(program, MEASURED, [(record.start_ns, record.end_ns) for record in run.actions])
    return trace_file([*events, *_repeats(program)])


def _action(program: Program, action: ProgramAction, process: int, span: Span, held: tuple[int, ...]) -> list[Event]:
    """The action on its track, and what memories hold meanwhile."""
    known = isinstance(action, SessionAction) and process == PLANNED and bool(action.planned_ops_bytes)
    counters = [
        counter_event(f"memory {name}", process, span[0], bytes_)
        for name, bytes_ in list(zip(program.memories, held, strict=True))[known:]  # its ops say it of the first memory
    ]
    if isinstance(action, CopyAction):
        size = program.values[action.target].size_bytes
        return [
            slice_event(f"copy {action.source}", process, _link_track(program, action), span, {"bytes": size}),
            *counters,
        ]
    if isinstance(action, LoadAction):
        device = program.sessions[action.session].device
        return [slice_event(f"open session {action.session + 1}", process, device, span, {}), *counters]
    about = {"ops": len(action.segment.ops), "reads": action.segment.reads, "makes": action.segment.makes}
    name = f"{action.segment.ops[0]} ... {action.segment.ops[-1]}"
    return [slice_event(name, process, action.device, span, about), *counters]


def _copies(program: Program, process: int, spans: Sequence[Span]) -> Iterator[Event]:
    """Arrows from the session that makes a value to its copy, and from there to the session that reads it first."""
    for number, action in enumerate(program.actions):
        if not isinstance(action, CopyAction):
            continue
        copy = process, _link_track(program, action), spans[number]
        sessions = [(place, one) for place, one in enumerate(program.actions) if isinstance(one, SessionAction)]
        makers = [place for place, one in sessions if place < number and action.source in one.segment.makes]
        readers = [place for place, one in sessions if place > number and action.target in one.segment.reads]
        devices = {place: one.device for place, one in sessions}
        for place in makers[-1:]:
            yield from arrow_events("copy", 4 * number, (process, devices[place], spans[place]), copy)
        for place in readers[:1]:
            yield from arrow_events("copy", 4 * number + 1, copy, (process, devices[place], spans[place]))


def _repeats(program: Program) -> Iterator[Event]:
    """Arrows from each run of an op to the next one, as planned."""
    runs = [
        (name, (PLANNED, action.device, span))
        for action in program.actions
        if isinstance(action, SessionAction)
        for name, span in action.planned_ops_ns.items()
    ]
    last: dict[str, tuple[int, int, Span]] = {}
    for number, (name, place) in enumerate(sorted(runs, key=lambda run: run[1][2])):
        op = name.rpartition(REPEAT)[0] or name
        if op in last and op != name:
            yield from arrow_events("run again", 4 * number + 2, last[op], place)
        last[op] = place


def _names(program: Program, process: int, title: str) -> list[Event]:
    tracks = {number: spec.name for number, spec in enumerate(program.devices)}
    for action in program.actions:
        if isinstance(action, CopyAction):
            tracks[_link_track(program, action)] = " -> ".join(program.memories[m] for m in _link(program, action))
    named = [name_event("thread_name", process, track, name) for track, name in tracks.items()]
    return [name_event("process_name", process, 0, title), *named]


def _link(program: Program, action: CopyAction) -> tuple[int, int]:
    return program.memory_of[action.source_device], program.memory_of[action.target_device]


def _link_track(program: Program, action: CopyAction) -> int:
    """Links come after devices."""
    source, target = _link(program, action)
    return len(program.devices) + source * len(program.memories) + target
