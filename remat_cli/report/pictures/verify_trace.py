"""A verification as a trace for ui.perfetto.dev: ops and memory as planned, processes measured."""

from collections.abc import Iterator, Sequence
from typing import Final

from remat_cli.base.chrome_trace import Event, Span, arrow_events, counter_event, name_event, slice_event, trace_file
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.resident import ProcessSeen
from remat_cli.report.regions import step_times_ns

ORIGINAL, REWRITTEN, ORIGINAL_PROCESS, REWRITTEN_PROCESS = 1, 2, 3, 4
TITLES: Final = {
    ORIGINAL: "original, planned",
    REWRITTEN: "this model, planned",
    ORIGINAL_PROCESS: "original, its process measured",
    REWRITTEN_PROCESS: "this model, its process measured",
}


def verify_trace(plan: PlanFile, seen: ProcessSeen) -> bytes:
    """The trace of a plan that is one model, with the processes that were measured."""
    profile = plan.profile if plan.splitting is None else plan.splitting.whole_profile
    before = [(cost.name, cost.time_ns) for cost in profile.ops]
    after = list(zip(plan.promise.order, step_times_ns(plan), strict=True))
    events = [name_event("process_name", process, 0, title) for process, title in TITLES.items()]
    events += _steps(plan, ORIGINAL, before, plan.promise.baseline_memory_bytes)
    events += _steps(plan, REWRITTEN, after, plan.promise.memory_bytes)
    # An arrow from each run of an op to the next one.
    gates, ops, last = set(plan.promise.gates), iter(plan.schedule.op_ids()), dict[int, Span]()
    for number, ((name, _), span) in enumerate(zip(after, _spans(after), strict=True)):
        if name not in gates:
            op = next(ops)
            if op in last:
                events += arrow_events("run again", number, (REWRITTEN, 1, last[op]), (REWRITTEN, 1, span))
            last[op] = span
    for process, trace in zip((ORIGINAL_PROCESS, REWRITTEN_PROCESS)[-len(seen.traces) :], seen.traces, strict=True):
        # Loading and each run, and resident memory over time.
        events.append(name_event("thread_name", process, 1, "phases"))
        begins = (0.0, *trace.marks[:-1])
        for number, (begin, end) in enumerate(zip(begins, trace.marks, strict=True)):
            span = round(begin * 1e9), round(end * 1e9)
            events.append(slice_event(f"run {number}" if number else "loading", process, 1, span, {}))
        for seconds, held in zip(trace.seconds, trace.resident_bytes, strict=True):
            events.append(counter_event("resident memory", process, round(seconds * 1e9), max(0, held)))
    return trace_file(events)


def _spans(steps: Sequence[tuple[str, int]]) -> list[Span]:
    """When each step runs, one after another; one that takes no time is told as a nanosecond."""
    found, clock = list[Span](), 0
    for _, time_ns in steps:
        found.append((clock, clock + max(1, time_ns)))
        clock = found[-1][1]
    return found


def _steps(
    plan: PlanFile, process: int, steps: Sequence[tuple[str, int]], memory_bytes: Sequence[int]
) -> Iterator[Event]:
    """Each op in its turn, and what is held meanwhile."""
    yield name_event("thread_name", process, 1, plan.device)
    for (name, _), span, held in zip(steps, _spans(steps), memory_bytes, strict=True):
        yield slice_event(plan.names.op(name), process, 1, span, {"op": name, "bytes": held})
        yield counter_event(f"memory {plan.device}", process, span[0], held)
