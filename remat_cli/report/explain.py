"""Why a plan needs what it needs, as values: who is alive at the peak, what recomputes buy, what devices are asked."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Compute, Instance, Plan
from remat_cli.core.schedule.problem import Problem, device_tensor_ids, tensor_ids
from remat_cli.report.style import Style, columns, duration, plural, shorten

MOST_ROWS = 12


class LiveTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that is held at some step. `shares_with` names the tensor whose storage it uses (bytes then 0)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    producer: str | None
    shares_with: str | None = None


class Recompute(msgspec.Struct, frozen=True, kw_only=True):
    """An op that runs more than once, and why.

    `runs` is how often it runs in all, `time` what the repeats add. `tensor` is the largest result whose life was cut:
    absent from step `dropped_after` + 1 to `made_again_at` - 1. `freed_bytes` is what that frees there, and
    `peak_without_bytes` what the fullest of these steps would hold if the tensor had stayed. With several devices,
    `memory` is where it was absent and `devices` is where each run takes place; `freed_bytes` is 0 where nothing was
    dropped, so that running again only saves a copy.
    """

    op: str
    op_type: str
    runs: int
    time: int
    tensor: str
    freed_bytes: int
    dropped_after: int
    made_again_at: int
    peak_without_bytes: int
    memory: str | None = None
    devices: tuple[str, ...] = ()


def fullest_step(memory_bytes: Sequence[int]) -> int | None:
    """The first step at which most is held; None without steps, as where all outputs are constants."""
    return memory_bytes.index(max(memory_bytes)) if memory_bytes else None


def step_name(graph: Graph, plan: Plan, step: int) -> str:
    """The name of the op that a step runs, or what it copies."""
    what = plan.schedule.steps[step]
    if isinstance(what, Compute):
        return graph.ops[what.op].name
    return f"copy of {graph.tensors[tensor_ids(graph)[what.tensor]].name}"


def alive_at(graph: Graph, problem: Problem, plan: Plan, step: int) -> tuple[LiveTensor, ...]:
    """The tensors held in the first memory during a step, largest first; sharers after the owner of their storage.

    A storage whose owner is no longer read itself is still held by its sharers, and is listed under the owner's name.
    """
    ids = tensor_ids(graph)
    found = sorted(held_at(plan, 0, step), key=lambda pair: -graph.tensors[ids[pair[1].tensor]].size_bytes)
    return tuple(live_tensor(graph, problem, *pair) for pair in found)


def held_at(plan: Plan, memory: int, step: int) -> list[tuple[Instance, Instance]]:
    """The instances that a memory holds during a step, each with the owner of its storage, in the plan's order."""
    owners: dict[int, Instance] = {}
    ends: dict[int, int] = defaultdict(int)
    for instance in plan.instances:
        owners.setdefault(instance.storage, instance)
        ends[instance.storage] = max(ends[instance.storage], instance.death)
    pairs = ((i, owners[i.storage]) for i in plan.instances if i.memory == memory and i.birth <= step)
    return [(i, owner) for i, owner in pairs if step <= (ends[i.storage] if owner is i else i.death)]


def live_tensor(graph: Graph, problem: Problem, instance: Instance, owner: Instance) -> LiveTensor:
    """Describe one instance; one that lives in another's storage, or in a model input's, takes no bytes of its own."""
    ids = device_tensor_ids(graph, problem)
    tensor, size = graph.tensors[ids[instance.tensor]], problem.tensors[instance.tensor].size_bytes
    shares = None if owner is instance else graph.tensors[ids[owner.tensor]].name
    if owner is instance and size == 0 and tensor.view_of is not None and not tensor.kept:
        shares = graph.tensors[tensor.view_of].name  # a view of a model input: the caller owns that storage
    return LiveTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        bytes=0 if shares else size,
        producer=None if tensor.producer is None else graph.ops[tensor.producer].name,
        shares_with=shares,
    )


def working_set(graph: Graph, op: int, held: tuple[int, ...] = ()) -> tuple[LiveTensor, ...]:
    """Inputs and outputs of an op and what else is held then, largest first (model inputs are fixed)."""
    spec = graph.ops[op]
    tensors = [graph.tensors[t] for t in dict.fromkeys((*spec.inputs, *spec.outputs, *held))]
    live = [
        LiveTensor(
            name=t.name,
            dtype=t.dtype,
            shape=t.shape,
            bytes=t.size_bytes,
            producer=None if t.producer is None else graph.ops[t.producer].name,
            shares_with=None if t.view_of is None else graph.tensors[t.view_of].name,
        )
        for t in tensors
    ]
    return tuple(sorted(live, key=lambda tensor: -tensor.bytes))


def recomputes(graph: Graph, problem: Problem, plan: Plan) -> tuple[Recompute, ...]:
    """Every op that runs more than once, the costliest first."""
    lives, ids = lives_of(plan), tensor_ids(graph)
    found = []
    for op, places in repeats(plan).items():
        # Explained by the gap in its results' lives that frees most.
        spec = problem.ops[op]
        _, tensor, dropped, again = max(
            gaps_of(lives, spec.outputs, {step for step, _ in places[1:]}),
            key=lambda gap: (problem.tensors[gap[1]].size_bytes, gap[3] - gap[2]),
        )
        freed = problem.tensors[tensor].size_bytes
        held = plan.memory_bytes[0][dropped + 1 : again]
        one = Recompute(
            op=graph.ops[op].name,
            op_type=graph.ops[op].op_type,
            runs=len(places),
            time=(spec.time_ns[0] or 0) * (len(places) - 1),
            tensor=graph.tensors[ids[tensor]].name,
            freed_bytes=freed,
            dropped_after=dropped,
            made_again_at=again,
            peak_without_bytes=max(held, default=0) + freed,
        )
        found.append(one)
    return tuple(sorted(found, key=lambda r: (-r.time, r.op)))


def repeats(plan: Plan) -> dict[int, list[tuple[int, int]]]:
    """Step and device of each run of the ops that run more than once."""
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, step in enumerate(plan.schedule.steps):
        if isinstance(step, Compute):
            runs[step.op].append((number, step.device))
    return {op: places for op, places in runs.items() if len(places) > 1}


def lives_of(plan: Plan) -> dict[int, list[Instance]]:
    """The instances of each tensor, in order."""
    lives: dict[int, list[Instance]] = defaultdict(list)
    for instance in plan.instances:
        lives[instance.tensor].append(instance)
    return lives


def gaps_of(
    lives: dict[int, list[Instance]], outputs: tuple[int, ...], births: set[int]
) -> list[tuple[int, int, int, int]]:
    """Memory, tensor, last step before and first step after, for each result that a repeat makes.

    Where the memory did not hold it before, both steps are the repeat's: nothing was dropped.
    """
    gaps = []
    for tensor in outputs:
        last: dict[int, int] = {}
        for instance in lives[tensor]:
            if instance.birth in births:
                gaps.append((instance.memory, tensor, last.get(instance.memory, instance.birth), instance.birth))
            last[instance.memory] = instance.death
    return gaps


def live_tensor_lines(tensors: Sequence[LiveTensor], style: Style) -> list[str]:
    """A table of tensors: bytes, type, shape, name and producer."""
    rows = [
        [
            f"= {t.shares_with}" if t.shares_with else format_bytes(t.bytes),
            t.dtype,
            "x".join(str(size) for size in t.shape) or "scalar",
            t.name,
            f"from {t.producer}" if t.producer else "model input",
        ]
        for t in tensors[:MOST_ROWS]
    ]
    left = tensors[MOST_ROWS:]
    more = [f"  and {plural(len(left), 'more tensor')}, {format_bytes(sum(t.bytes for t in left))}"] if left else []
    return columns(rows, "><<<<") + more


def recompute_lines(recomputes: Sequence[Recompute]) -> list[str]:
    """One line per recomputed op: its cost, where it runs, and what that frees or saves."""
    rows = []
    for one in recomputes[:MOST_ROWS]:
        op = shorten(one.op, 40) if has_own_type(one) else f"{shorten(one.op, 28)} ({one.op_type})"
        names, freed = one.devices, format_bytes(one.freed_bytes)
        if len(set(names)) > 1:
            where = "on " + ", then ".join(shorten(name, 16) for name in names)
        else:
            where = f"on {names[0]}, {one.runs} times" if names else f"{one.runs} runs"
        steps = f"from step {one.dropped_after + 1} to {one.made_again_at - 1}"
        if one.memory is None:
            why = f"frees {freed} {steps}; kept there, the peak would be {format_bytes(one.peak_without_bytes)}"
        else:
            why = f"frees {freed} in {one.memory} {steps}" if one.freed_bytes else "nothing is freed: it saves a copy"
        rows.append([f"+{duration(one.time)}", op, where, why])
    left = len(recomputes) - MOST_ROWS
    return columns(rows, "><<<") + ([f"  and {plural(left, 'more op')}"] if left > 0 else [])


def has_own_type(recompute: Recompute) -> bool:
    """Whether the name of an op has its type, as names of modules do."""
    return recompute.op.endswith(f"({recompute.op_type})")


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan asks of one device, and what was seen there.

    Bytes are those of its `memory`, which other devices may share. `is_measured` is False where its costs come from a
    description. `ops` counts computes, repeats included; `time_ns` is what they take as planned, with changes to this
    device. `measured_peak_bytes` is None where the provider hides it. `unsupported` counts ops that it cannot run.
    """

    name: str
    provider: str
    memory: str
    is_measured: bool
    budget_bytes: int
    baseline_peak_bytes: int
    predicted_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    ops: int = 0
    time_ns: int = 0
    measured_time_ns: int | None = None
    energy_nj: int | None = None
    unsupported: int = 0


class LinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan copies from one memory to another; `is_measured` as in a device."""

    source: str
    target: str
    copies: int
    bytes: int
    time_ns: int
    is_measured: bool


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one of several memories holds, and the devices that use it.

    `memory_bytes` is the total during each step of the schedule, fullest at `peak_step`, where `alive` are held (None:
    there are no steps).
    `run_memory_bytes` is the total during each session and copy that the plan is cut into to be run, where that is
    known, and `peak_bytes` its largest: it may be above what the schedule alone needs.
    """

    name: str
    devices: tuple[str, ...]
    budget_bytes: int
    fixed_bytes: int
    peak_bytes: int
    peak_step: int | None
    peak_op: str | None
    memory_bytes: tuple[int, ...]
    run_memory_bytes: tuple[int, ...] = ()
    alive: tuple[LiveTensor, ...] = ()
    workspace_bytes: int = 0


StepKind = Literal["given", "compute", "recompute", "copy"]


class PlacedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a placement, at its planned time: what is computed, or copied to the memory of device `target`.

    `row` is the op, or the op that makes the tensor; `given` is a model input, which the caller holds.
    """

    kind: StepKind
    row: int
    device: int
    start_ns: int
    end_ns: int
    target: int | None = None


class PlacedLife(msgspec.Struct, frozen=True):
    """A result of the op `row` is in a memory from one step to another, both inclusive."""

    row: int
    memory: int
    first: int
    last: int


class PlacementMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when every op is computed, copied and kept: the matrices R and S of XEngine, one pair per device.

    `rows` are names of ops in baseline order, those of model inputs in front where they may have to be copied.
    `memory_of[d]` is the memory of device d, an index into `memories`.
    """

    rows: tuple[str, ...]
    devices: tuple[str, ...]
    memories: tuple[str, ...]
    memory_of: tuple[int, ...]
    steps: tuple[PlacedStep, ...]
    lives: tuple[PlacedLife, ...]
