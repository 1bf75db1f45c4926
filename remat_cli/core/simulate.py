"""THE judge: decides what a schedule needs and costs. Plain on purpose, exact to the byte, knows no solver.

The rules are ONNX Runtime's own: a value exists from the start of the step that makes it to the end of the last step
that reads it; model outputs stay to the end; all inputs and outputs of a step exist during it; a view shares the
storage of the instance it was made from; an op that may work in place does so when it is the only reader left of that
storage; workspace is held during its step. Views and in-place results are never model outputs' storage: the runtime
gives every model output a buffer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_cli.core.errors import InvalidSchedule
from remat_cli.core.plan import Instance, Plan
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute, Copy, Schedule, Step


@dataclass
class _Value:
    """An instance while the judge follows it: `last_read` is its birth until somebody reads it."""

    tensor: int
    memory: int
    birth: int
    last_read: int
    kept: bool = False
    storage: int = -1


@dataclass
class _Trace:
    """Who reads and makes what, before storage is known."""

    values: list[_Value] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    makes: list[tuple[int, ...]] = field(default_factory=list)


def simulate(problem: Problem, schedule: Schedule) -> Plan:
    """Judge a schedule: every instance with birth and death, memory over time, peaks and time.

    Linear in the number of steps and instances. A budget is not checked here; compare `peak_bytes` with it.

    Raises:
        InvalidSchedule: a step reads a value that is not there, runs where it cannot, repeats what must not be
            repeated, or an op never runs.
    """
    trace = _follow(problem, schedule)
    sizes = _assign_storage(problem, schedule, trace)
    deaths, births = _storage_lives(trace, len(sizes), len(schedule.steps))
    live = _memory_curves(problem, trace, sizes, births, deaths, len(schedule.steps))
    total = tuple(
        tuple(held + _workspace(problem, step, memory) for held, step in zip(curve, schedule.steps, strict=True))
        for memory, curve in enumerate(live)
    )
    return Plan(
        schedule=schedule,
        instances=tuple(
            Instance(v.tensor, v.memory, v.birth, _death(v, len(schedule.steps)), v.storage) for v in trace.values
        ),
        reads=tuple(trace.reads),
        makes=tuple(trace.makes),
        memory_bytes=total,
        live_bytes=live,
        peak_bytes=tuple(max(c, default=m.fixed_bytes) for c, m in zip(total, problem.memories, strict=True)),
        time_ns=sum(_step_ns(problem, step) for step in schedule.steps),
    )


def baseline(problem: Problem) -> Plan:
    """Every op once in baseline order on the first device: what everything is compared with."""
    return simulate(problem, Schedule.of_ops(range(len(problem.ops))))  # type: ignore[arg-type]


def _follow(problem: Problem, schedule: Schedule) -> _Trace:
    """Find which instance each read takes: the newest of that tensor in the device's memory."""
    trace = _Trace()
    newest: list[dict[int, int]] = [{} for _ in problem.memories]
    ran: set[int] = set()
    for number, step in enumerate(schedule.steps):
        wanted, made, source, target = _step_values(problem, step, number, ran)
        found = tuple(newest[source].get(tensor, -1) for tensor in wanted)
        for tensor, value in zip(wanted, found, strict=True):
            if value < 0:
                raise InvalidSchedule(f"step {number} ({_name(step)}) reads tensor {tensor}, which is not there")
            trace.values[value].last_read = number
        trace.reads.append(found)
        first = len(trace.values)
        for tensor in made:
            newest[target][tensor] = len(trace.values)
            trace.values.append(_Value(tensor, target, number, number))
        trace.makes.append(tuple(range(first, len(trace.values))))
    missing = [op for op in range(len(problem.ops)) if op not in ran]
    if missing:
        raise InvalidSchedule(f"op {missing[0]} never runs ({len(missing)} such ops)")
    _mark_kept(problem, trace)
    return trace


def _step_values(
    problem: Problem, step: Step, number: int, ran: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """What a step reads and makes, and the memories it reads from and writes to."""
    if isinstance(step, Copy):
        source, target = problem.devices[step.source].memory, problem.devices[step.target].memory
        if source == target or problem.copy_ns[step.source][step.target][step.tensor] is None:
            raise InvalidSchedule(f"step {number}: tensor {step.tensor} cannot be copied {step.source}->{step.target}")
        return (step.tensor,), (step.tensor,), source, target
    if not 0 <= step.op < len(problem.ops) or not 0 <= step.device < len(problem.devices):
        raise InvalidSchedule(f"step {number}: no op {step.op} or no device {step.device}")
    op = problem.ops[step.op]
    if op.time_ns[step.device] is None:
        raise InvalidSchedule(f"step {number}: device {step.device} cannot run op {step.op}")
    if step.op in ran and not op.repeatable:
        raise InvalidSchedule(f"step {number}: op {step.op} must not be repeated")
    ran.add(step.op)
    memory = problem.devices[step.device].memory
    return op.inputs, op.outputs, memory, memory


def _mark_kept(problem: Problem, trace: _Trace) -> None:
    """A kept tensor's newest instance, wherever it is, lives to the end."""
    newest = {value.tensor: value for value in trace.values}
    for tensor, value in newest.items():
        value.kept = problem.tensors[tensor].kept


def _assign_storage(problem: Problem, schedule: Schedule, trace: _Trace) -> list[int]:
    """Give each instance its storage; returns the bytes of each storage."""
    sizes: list[int] = []
    members: list[list[_Value]] = []
    for number, step in enumerate(schedule.steps):
        for made in trace.makes[number]:
            value = trace.values[made]
            value.storage = _shared_storage(problem, step, number, value, trace, members)
            if value.storage < 0:
                value.storage = len(sizes)
                sizes.append(problem.tensors[value.tensor].size_bytes)
                members.append([])
            members[value.storage].append(value)
    return sizes


def _shared_storage(
    problem: Problem, step: Step, number: int, value: _Value, trace: _Trace, members: list[list[_Value]]
) -> int:
    """Storage of an input that this result shares, or -1: its own. Model outputs never share."""
    if isinstance(step, Copy) or value.kept:
        return -1
    op = problem.ops[step.op]
    read = dict(zip(op.inputs, trace.reads[number], strict=True))
    base = problem.tensors[value.tensor].view_of
    if base is not None:
        return trace.values[read[base]].storage
    for source, result in op.in_place:
        storage = trace.values[read[source]].storage
        if result == value.tensor and _is_last_reader(number, trace, members[storage], storage):
            return storage
    return -1


def _is_last_reader(number: int, trace: _Trace, members: list[_Value], storage: int) -> bool:
    """Whether step `number` is the only use left of a storage, and reads it once."""
    used_later = any(v.kept or v.last_read > number for v in members)
    born_here = any(v.birth == number for v in members)
    times_read = sum(trace.values[i].storage == storage for i in trace.reads[number])
    return not used_later and not born_here and times_read == 1


def _death(value: _Value, steps: int) -> int:
    return steps - 1 if value.kept else value.last_read


def _storage_lives(trace: _Trace, count: int, steps: int) -> tuple[list[int], list[int]]:
    """Last and first step of each storage: those of the instances that share it, together."""
    deaths, births = [-1] * count, [steps] * count
    for value in trace.values:
        births[value.storage] = min(births[value.storage], value.birth)
        deaths[value.storage] = max(deaths[value.storage], _death(value, steps))
    return deaths, births


def _memory_curves(
    problem: Problem, trace: _Trace, sizes: list[int], births: list[int], deaths: list[int], steps: int
) -> tuple[tuple[int, ...], ...]:
    """Fixed and live bytes of each memory during each step."""
    change = [[0] * (steps + 1) for _ in problem.memories]
    memory_of = {value.storage: value.memory for value in trace.values}
    for storage, size in enumerate(sizes):
        change[memory_of[storage]][births[storage]] += size
        change[memory_of[storage]][deaths[storage] + 1] -= size
    return tuple(
        _running_sum(memory.fixed_bytes, deltas[:-1]) for memory, deltas in zip(problem.memories, change, strict=True)
    )


def _running_sum(start: int, deltas: list[int]) -> tuple[int, ...]:
    total, sums = start, []
    for delta in deltas:
        total += delta
        sums.append(total)
    return tuple(sums)


def _workspace(problem: Problem, step: Step, memory: int) -> int:
    if isinstance(step, Copy) or problem.devices[step.device].memory != memory:
        return 0
    return problem.ops[step.op].workspace_bytes[step.device]


def _step_ns(problem: Problem, step: Step) -> int:
    if isinstance(step, Compute):
        return problem.ops[step.op].time_ns[step.device] or 0
    return problem.copy_ns[step.source][step.target][step.tensor] or 0


def _name(step: Step) -> str:
    return f"copy of {step.tensor}" if isinstance(step, Copy) else f"op {step.op}"
