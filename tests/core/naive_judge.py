"""The judge again, straight from the definition of memory, without any bookkeeping: quadratic, for small problems."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_cli.core.schedule.plan import Compute, Copy, Instance, Plan, Schedule, Step
from remat_cli.core.schedule.problem import Problem


@dataclass
class Value:
    """One production of a tensor; `uses` are the steps that read it, its birth and, when kept, the end included."""

    tensor: int
    memory: int
    birth: int
    uses: list[int] = field(default_factory=list)
    kept: bool = False
    storage: int = -1


def judge(problem: Problem, schedule: Schedule) -> Plan:
    """What `simulate` must say of a legal schedule."""
    steps = schedule.steps
    values = [
        Value(tensor, target_of(problem, step), number, [number])
        for number, step in enumerate(steps)
        for tensor in made_by(problem, step)
    ]
    reads = tuple(
        tuple(newest(values, t, number, source_of(problem, step)) for t in read_by(problem, step))
        for number, step in enumerate(steps)
    )
    makes = tuple(tuple(i for i, v in enumerate(values) if v.birth == number) for number in range(len(steps)))
    for number, taken in enumerate(reads):
        for value in taken:
            values[value].uses.append(number)
    spans = moments(problem, schedule, reads, makes)
    if problem.overlap:
        for number, step in enumerate(steps):
            if isinstance(step, Copy):
                over = spans[number][1]
                later = [n for n in range(number, len(steps)) if isinstance(steps[n], Compute) and spans[n][0] >= over]
                values[reads[number][0]].uses.append(later[0] - 1 if later else len(steps) - 1)
    for tensor, spec in enumerate(problem.tensors):
        if spec.kept:
            last = values[max(i for i, v in enumerate(values) if v.tensor == tensor)]
            last.kept = True
            last.uses.append(len(steps) - 1)
    for value in values:
        place(problem, value, values, steps[value.birth], reads[value.birth])
    memories = range(len(problem.memories))
    live = tuple(
        tuple(fixed(problem, schedule, m) + held(problem, values, n, m) for n in range(len(steps))) for m in memories
    )
    total = tuple(
        tuple(bytes_ + workspace(problem, step, m) for bytes_, step in zip(live[m], steps, strict=True))
        for m in memories
    )
    return Plan(
        schedule=schedule,
        instances=tuple(Instance(v.tensor, v.memory, v.birth, max(v.uses), v.storage) for v in values),
        reads=reads,
        makes=makes,
        memory_bytes=total,
        live_bytes=live,
        peak_bytes=tuple(map(max, total)),
        time_ns=max(end for _, end in spans),
        energy_nj=tuple(energy(problem, schedule, d) for d in range(len(problem.devices))),
    )


def made_by(problem: Problem, step: Step) -> tuple[int, ...]:
    return (step.tensor,) if isinstance(step, Copy) else problem.ops[step.op].outputs


def read_by(problem: Problem, step: Step) -> tuple[int, ...]:
    return (step.tensor,) if isinstance(step, Copy) else problem.ops[step.op].inputs


def source_of(problem: Problem, step: Step) -> int:
    return problem.devices[step.source if isinstance(step, Copy) else step.device].memory


def target_of(problem: Problem, step: Step) -> int:
    return problem.devices[step.target if isinstance(step, Copy) else step.device].memory


def workspace(problem: Problem, step: Step, memory: int) -> int:
    if isinstance(step, Copy) or target_of(problem, step) != memory:
        return 0
    return problem.ops[step.op].workspace_bytes[step.device]


def fixed(problem: Problem, schedule: Schedule, memory: int) -> int:
    """The fixed part, and of several memories the weights of what is computed there."""
    total = problem.memories[memory].fixed_bytes
    if len(problem.memories) == 1:
        return total
    here = [s for s in schedule.steps if isinstance(s, Compute) and target_of(problem, s) == memory]
    return total + sum(problem.weight_bytes[w] for w in {w for s in here for w in problem.ops[s.op].weights})


def moments(
    problem: Problem, schedule: Schedule, reads: tuple[tuple[int, ...], ...], makes: tuple
) -> list[tuple[int, int]]:
    """When each step begins and ends."""
    spans: list[tuple[int, int]] = []
    done: dict[int, int] = {}
    free: dict[tuple[int, int], int] = {}
    turn, last = 0, None
    for number, step in enumerate(schedule.steps):
        start = max([turn, *(done[value] for value in reads[number])])
        if isinstance(step, Copy):
            link = (source_of(problem, step), target_of(problem, step))
            start = max(start, free.get(link, 0)) if problem.overlap else start
            end = free[link] = start + problem.copy_ns[step.source][step.target][step.tensor]
            turn = turn if problem.overlap else end
        else:
            is_called = last is not None and last != step.device
            call = problem.devices[step.device].call_ns if is_called else 0
            end = turn = start + call + problem.ops[step.op].time_ns[step.device]
            last = step.device
        done.update(dict.fromkeys(makes[number], end))
        spans.append((start, end))
    return spans


def energy(problem: Problem, schedule: Schedule, device: int) -> int:
    total = 0
    for step in schedule.steps:
        if isinstance(step, Compute) and step.device == device and problem.ops[step.op].energy_nj:
            total += problem.ops[step.op].energy_nj[device]
        if isinstance(step, Copy) and step.source == device and problem.copy_energy_nj:
            total += problem.copy_energy_nj[step.source][step.target][step.tensor]
    return total


def newest(values: list[Value], tensor: int, step: int, memory: int) -> int:
    """The last made in a memory before a step."""
    return max(i for i, v in enumerate(values) if v.tensor == tensor and v.birth < step and v.memory == memory)


def place(problem: Problem, value: Value, values: list[Value], step: Step, taken: tuple[int, ...]) -> None:
    """Share the storage of an input as a view or in place, or open a new one."""
    value.storage = 1 + max(v.storage for v in values)
    if value.kept or isinstance(step, Copy):
        return
    spec = problem.ops[step.op]
    made = {t: values[number].storage for t, number in zip(spec.inputs, taken, strict=True)}
    base = problem.tensors[value.tensor].view_of
    sources = [made[source] for source, result in spec.in_place if result == value.tensor]
    free = [storage for storage in sources if is_free(storage, value.birth, values, list(made.values()))]
    if base is not None:
        value.storage = made[base]
    elif free:
        value.storage = free[0]


def is_free(storage: int, step: int, values: list[Value], read: list[int]) -> bool:
    """Whether nothing but one read of this step uses a storage from now on."""
    members = [v for v in values if v.storage == storage]
    is_needed = any(v.kept or max(v.uses) > step or v.birth == step for v in members)
    return not is_needed and read.count(storage) == 1


def held(problem: Problem, values: list[Value], step: int, memory: int) -> int:
    """Bytes of the storages in use at a step, each once, as large as what was made in it first."""
    total = 0
    for storage in {v.storage for v in values if v.memory == memory}:
        members = [v for v in values if v.storage == storage]
        if members[0].birth <= step <= max(use for v in members for use in v.uses):
            total += problem.tensors[members[0].tensor].size_bytes
    return total
