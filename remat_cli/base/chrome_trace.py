"""Events of a trace for ui.perfetto.dev or chrome://tracing, in Chrome's "Trace Event Format".

Complete events (ph X, `ts` and `dur` in microseconds) on tracks of processes, counters (C), names (M), and arrows from
one event to another (s, f).
"""

import json
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
Span = tuple[int, int]
"""Start and end in nanoseconds."""


def slice_event(name: str, process: int, track: int, span: Span, about: Event) -> Event:
    """Something that lasts."""
    start, end = span
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"name": name, "ph": "X", "pid": process, "tid": track, **times, "args": about}


def counter_event(name: str, process: int, time_ns: int, count: int) -> Event:
    """How many bytes there are from a time on."""
    return {"name": name, "ph": "C", "pid": process, "tid": 0, "ts": time_ns / 1000, "args": {"bytes": count}}


def name_event(kind: str, process: int, track: int, name: str) -> Event:
    """What a process or a track is called: `process_name`, `thread_name`."""
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def arrow_events(name: str, number: int, source: tuple[int, int, Span], target: tuple[int, int, Span]) -> list[Event]:
    """An arrow from one event to a later one, each given by its process, its track and when it is there.

    A viewer finds the event of each end by a time within it: the middle of the first, the beginning of the second.
    """
    kinds = {"name": name, "cat": name, "id": number, "args": {}}
    process, track, (start, end) = source
    leaves = {**kinds, "ph": "s", "pid": process, "tid": track, "ts": (start + end) / 2000}
    process, track, (start, _) = target
    arrives = {**kinds, "ph": "f", "bp": "e", "pid": process, "tid": track, "ts": start / 1000}
    return [leaves, arrives]


def trace_file(events: Iterable[Event]) -> bytes:
    """The file of a trace."""
    return json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}, separators=(",", ":")).encode()
