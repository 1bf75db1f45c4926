"""The judge again, straight from the definition of memory, without any bookkeeping: quadratic, for small problems."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_cli.core.plan import Instance, Plan
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule


@dataclass
class Value:
    """One production of a tensor; `uses` are the steps that read it, its birth and, when kept, the end included."""

    tensor: int
    birth: int
    uses: list[int] = field(default_factory=list)
    kept: bool = False
    storage: int = -1


def judge(problem: Problem, schedule: Schedule) -> Plan:
    """What `simulate` must say of a legal one-device schedule."""
    ops = schedule.op_ids()
    values = [Value(tensor, step, [step]) for step, op in enumerate(ops) for tensor in problem.ops[op].outputs]
    reads = tuple(tuple(newest(values, t, step) for t in problem.ops[op].inputs) for step, op in enumerate(ops))
    for step, taken in enumerate(reads):
        for number in taken:
            values[number].uses.append(step)
    for tensor, spec in enumerate(problem.tensors):
        if spec.kept:
            last = values[newest(values, tensor, len(ops))]
            last.kept = True
            last.uses.append(len(ops) - 1)
    for value in values:
        place(problem, value, values, ops[value.birth], reads[value.birth])
    live = tuple(problem.memories[0].fixed_bytes + held(problem, values, step) for step in range(len(ops)))
    total = tuple(bytes_ + problem.ops[op].workspace_bytes[0] for bytes_, op in zip(live, ops, strict=True))
    return Plan(
        schedule=schedule,
        instances=tuple(Instance(v.tensor, 0, v.birth, max(v.uses), v.storage) for v in values),
        reads=reads,
        makes=tuple(tuple(i for i, v in enumerate(values) if v.birth == step) for step in range(len(ops))),
        memory_bytes=(total,),
        live_bytes=(live,),
        peak_bytes=(max(total),),
        time_ns=sum(problem.ops[op].time_ns[0] or 0 for op in ops),
    )


def newest(values: list[Value], tensor: int, step: int) -> int:
    """The last made before a step."""
    return max(number for number, v in enumerate(values) if v.tensor == tensor and v.birth < step)


def place(problem: Problem, value: Value, values: list[Value], op: int, taken: tuple[int, ...]) -> None:
    """Share the storage of an input as a view or in place, or open a new one."""
    spec = problem.ops[op]
    made = {t: values[number].storage for t, number in zip(spec.inputs, taken, strict=True)}
    base = problem.tensors[value.tensor].view_of
    sources = [made[source] for source, result in spec.in_place if result == value.tensor]
    free = [storage for storage in sources if is_free(storage, value.birth, values, list(made.values()))]
    if not value.kept and base is not None:
        value.storage = made[base]
    elif not value.kept and free:
        value.storage = free[0]
    else:
        value.storage = 1 + max(v.storage for v in values)


def is_free(storage: int, step: int, values: list[Value], read: list[int]) -> bool:
    """Whether nothing but one read of this step uses a storage from now on."""
    members = [v for v in values if v.storage == storage]
    is_needed = any(v.kept or max(v.uses) > step or v.birth == step for v in members)
    return not is_needed and read.count(storage) == 1


def held(problem: Problem, values: list[Value], step: int) -> int:
    """Bytes of the storages in use at a step, each once, as large as what was made in it first."""
    total = 0
    for storage in {v.storage for v in values}:
        members = [v for v in values if v.storage == storage]
        if members[0].birth <= step <= max(use for v in members for use in v.uses):
            total += problem.tensors[members[0].tensor].size_bytes
    return total
