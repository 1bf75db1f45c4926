"""THE judge: decides what a schedule needs and costs. Plain on purpose, exact to the byte, knows no solver.

The rules are ONNX Runtime's own: a value exists from the start of the step that makes it to the end of the last step
that reads it; model outputs stay to the end; all inputs and outputs of a step exist during it; a view shares the
storage of the instance it was made from; an op that may work in place does so when it is the only reader left of that
storage; workspace is held during its step. Views and in-place results are never model outputs' storage: the runtime
gives every model output a buffer of its own. Each of several memories holds the weights of the ops that are computed
there. Where copies run beside computes, the source of a copy is held until a compute begins after the copy's end.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.placing import best_device, one_device_schedule
from remat_cli.core.schedule.plan import Compute, Copy, Instance, Plan, Schedule, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.timeline import energy_of, time_of, timeline


@dataclass
class _Trace:
    """Who reads and makes what: a list entry per instance, then per step.

    `last_use` is the last step that reads an instance, its birth if none does, and one past the last step of all for
    what is kept.
    """

    tensor: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    birth: list[int] = field(default_factory=list)
    last_use: list[int] = field(default_factory=list)
    storage: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    makes: list[tuple[int, ...]] = field(default_factory=list)


@dataclass
class _Storages:
    """A list entry per storage: what the instances in it amount to, together.

    `first_birth` and `newest_birth` are steps; `last_use` is as in the trace.
    """

    size_bytes: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    first_birth: list[int] = field(default_factory=list)
    newest_birth: list[int] = field(default_factory=list)
    last_use: list[int] = field(default_factory=list)


def simulate(problem: Problem, schedule: Schedule) -> Plan:
    """Judge a schedule: every instance with birth and death, memory over time, peaks and time.

    Linear in the number of steps, instances and reads. A budget is not checked here; compare `peak_bytes` with it.

    Raises:
        InvalidSchedule: a step reads a value that is not there, runs where it cannot, repeats what must not be
            repeated, or an op never runs.
    """
    trace = _follow(problem, schedule)
    if problem.overlap:
        _hold_sources(problem, schedule, trace)
    # A kept tensor's newest instance, wherever it is, is in use when all steps are over.
    newest = {tensor: value for value, tensor in enumerate(trace.tensor)}
    for tensor, value in newest.items():
        if problem.tensors[tensor].kept:
            trace.last_use[value] = len(schedule.steps)
    storages = _assign_storage(problem, schedule, trace)
    fixed = fixed_bytes_of(problem, schedule)
    live = _live_curves(fixed, storages, len(schedule.steps))
    total = [list(curve) for curve in live]
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Compute):
            workspace_bytes = problem.ops[step.op].workspace_bytes[step.device]
            total[problem.devices[step.device].memory][number] += workspace_bytes
    last = len(schedule.steps) - 1
    deaths = [min(use, last) for use in trace.last_use]
    return Plan(
        schedule=schedule,
        instances=tuple(map(Instance, trace.tensor, trace.memory, trace.birth, deaths, trace.storage)),
        reads=tuple(trace.reads),
        makes=tuple(trace.makes),
        memory_bytes=tuple(map(tuple, total)),
        live_bytes=live,
        peak_bytes=tuple(max(curve, default=held) for curve, held in zip(total, fixed, strict=True)),
        time_ns=time_of(problem, schedule),
        energy_nj=energy_of(problem, schedule),
    )


def baseline(problem: Problem) -> Plan:
    """Every op once in baseline order on the best single device: what everything is compared with."""
    return simulate(problem, one_device_schedule(problem, best_device(problem)))


def fixed_bytes_of(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """What each memory holds all through a run of this schedule."""
    fixed = [memory.fixed_bytes for memory in problem.memories]
    if len(fixed) > 1:
        steps = [step for step in schedule.steps if isinstance(step, Compute)]
        for memory, weight in {
            (problem.devices[step.device].memory, weight) for step in steps for weight in problem.ops[step.op].weights
        }:
            fixed[memory] += problem.weight_bytes[weight]
    return tuple(fixed)


def _follow(problem: Problem, schedule: Schedule) -> _Trace:
    """Find which instance each read takes: the newest of that tensor in the device's memory."""
    trace = _Trace()
    newest: list[dict[int, int]] = [{} for _ in problem.memories]
    ran: set[int] = set()
    for number, step in enumerate(schedule.steps):
        wanted, made, source, target = _step_values(problem, step, number, ran)
        try:
            found = tuple(map(newest[source].__getitem__, wanted))
        except KeyError as absent:
            what = f"copy of {step.tensor}" if isinstance(step, Copy) else f"op {step.op}"
            raise InvalidSchedule(f"step {number} ({what}) reads tensor {absent}, which is not there") from None
        for value in found:
            trace.last_use[value] = number
        trace.reads.append(found)
        first = len(trace.tensor)
        for value, tensor in enumerate(made, first):
            newest[target][tensor] = value
            trace.tensor.append(tensor)
            trace.memory.append(target)
            trace.birth.append(number)
            trace.last_use.append(number)
        trace.makes.append(tuple(range(first, len(trace.tensor))))
    missing = [op for op in range(len(problem.ops)) if op not in ran]
    if missing:
        raise InvalidSchedule(f"op {missing[0]} never runs ({len(missing)} such ops)")
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


def _hold_sources(problem: Problem, schedule: Schedule, trace: _Trace) -> None:
    """What is copied stays up to the first compute that is planned to begin when the copy is over, and waits for it."""
    spans = timeline(problem, schedule)
    begins = [(number, spans[number][0]) for number, step in enumerate(schedule.steps) if isinstance(step, Compute)]
    starts = [start for _, start in begins]
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Copy):
            after = bisect_left(begins, (number,))
            first = bisect_left(starts, spans[number][1], after)
            held = begins[first][0] - 1 if first < len(begins) else len(schedule.steps) - 1
            source = trace.reads[number][0]
            trace.last_use[source] = max(trace.last_use[source], held)


def _assign_storage(problem: Problem, schedule: Schedule, trace: _Trace) -> _Storages:
    """Give each instance its storage, its own or one that it shares."""
    storages = _Storages()
    for number, step in enumerate(schedule.steps):
        for value in trace.makes[number]:
            shared = _shared_storage(problem, step, value, trace, storages)
            if shared < 0:
                trace.storage.append(len(storages.size_bytes))
                storages.size_bytes.append(problem.tensors[trace.tensor[value]].size_bytes)
                storages.memory.append(trace.memory[value])
                storages.first_birth.append(number)
                storages.newest_birth.append(number)
                storages.last_use.append(trace.last_use[value])
            else:
                trace.storage.append(shared)
                storages.newest_birth[shared] = number
                storages.last_use[shared] = max(storages.last_use[shared], trace.last_use[value])
    return storages


def _shared_storage(problem: Problem, step: Step, value: int, trace: _Trace, storages: _Storages) -> int:
    """Storage of an input that this result shares, or -1: its own. Model outputs never share."""
    is_kept = trace.last_use[value] == len(trace.reads)
    if isinstance(step, Copy) or is_kept:
        return -1
    op, tensor, number = problem.ops[step.op], trace.tensor[value], trace.birth[value]
    base = problem.tensors[tensor].view_of
    if base is not None:
        return _read_storage(op.inputs, base, number, trace)
    for source, result in op.in_place:
        if result == tensor:
            storage = _read_storage(op.inputs, source, number, trace)
            # In place where this step is the only use left of the storage, and reads it once.
            is_used_later = storages.last_use[storage] > number
            is_born_here = storages.newest_birth[storage] == number
            times_read = sum(trace.storage[read] == storage for read in trace.reads[number])
            if not is_used_later and not is_born_here and times_read == 1:
                return storage
    return -1


def _read_storage(inputs: tuple[int, ...], tensor: int, number: int, trace: _Trace) -> int:
    """Storage of the instance that step `number` reads of a tensor."""
    return trace.storage[trace.reads[number][inputs.index(tensor)]]


def _live_curves(fixed: tuple[int, ...], storages: _Storages, steps: int) -> tuple[tuple[int, ...], ...]:
    """Fixed and live bytes of each memory during each step."""
    change = [[held] + [0] * steps for held in fixed]
    for size, memory, birth, last_use in zip(
        storages.size_bytes, storages.memory, storages.first_birth, storages.last_use, strict=True
    ):
        change[memory][birth] += size
        if last_use < steps:
            change[memory][last_use + 1] -= size
    return tuple(tuple(accumulate(deltas[:-1])) for deltas in change)
