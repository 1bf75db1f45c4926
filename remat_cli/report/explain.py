"""Why a plan needs what it needs: who is alive at the peak, and what each recompute buys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.device_problem import device_tensor_ids
from remat_cli.core.graph import Graph
from remat_cli.core.plan import Instance, Plan
from remat_cli.core.problem import Problem, tensor_ids
from remat_cli.core.schedule import Compute
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


def peak_step(plan: Plan) -> int:
    """The first step at which the first memory is fullest."""
    curve = plan.memory_bytes[0]
    return curve.index(max(curve))


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
    runs: dict[int, int] = defaultdict(int)
    for op in plan.schedule.op_ids():
        runs[op] += 1
    lives: dict[int, list[Instance]] = defaultdict(list)
    for instance in plan.instances:
        lives[instance.tensor].append(instance)
    found = [_recompute(graph, problem, plan, (op, count), lives) for op, count in runs.items() if count > 1]
    return tuple(sorted(found, key=lambda r: (-r.time, r.op)))


def _recompute(
    graph: Graph, problem: Problem, plan: Plan, op_runs: tuple[int, int], lives: dict[int, list[Instance]]
) -> Recompute:
    """Explain one repeated op by the gap in its results' lives that frees most."""
    op, count = op_runs
    spec = problem.ops[op]
    tensor, before, after = max(
        ((t, one, two) for t in spec.outputs for one, two in zip(lives[t], lives[t][1:], strict=False)),
        key=lambda gap: (problem.tensors[gap[0]].size_bytes, gap[2].birth - gap[1].death),
    )
    freed = problem.tensors[tensor].size_bytes
    held = plan.memory_bytes[0][before.death + 1 : after.birth]
    return Recompute(
        op=graph.ops[op].name,
        op_type=graph.ops[op].op_type,
        runs=count,
        time=(spec.time_ns[0] or 0) * (count - 1),
        tensor=graph.tensors[tensor_ids(graph)[tensor]].name,
        freed_bytes=freed,
        dropped_after=before.death,
        made_again_at=after.birth,
        peak_without_bytes=max(held, default=0) + freed,
    )


def live_tensor_lines(tensors: Sequence[LiveTensor], style: Style) -> list[str]:
    """A table of tensors: bytes, type, shape, name and producer."""
    room = max(16, (style.width - 46) // 2)
    rows = [
        [
            f"= {shorten(t.shares_with, 20)}" if t.shares_with else format_bytes(t.bytes),
            t.dtype,
            "x".join(str(size) for size in t.shape) or "scalar",
            shorten(t.name, room),
            shorten(f"from {t.producer}" if t.producer else "model input", room),
        ]
        for t in tensors[:MOST_ROWS]
    ]
    left = tensors[MOST_ROWS:]
    more = [f"  and {plural(len(left), 'more tensor')}, {format_bytes(sum(t.bytes for t in left))}"] if left else []
    return columns(rows, "><<<<") + more


def recompute_lines(recomputes: Sequence[Recompute]) -> list[str]:
    """One line per recomputed op: its cost, where it runs, and what that frees or saves."""
    rows = [
        [f"+{duration(r.time)}", f"{shorten(r.op, 28)} ({r.op_type})", _places(r), _why(r)]
        for r in recomputes[:MOST_ROWS]
    ]
    left = len(recomputes) - MOST_ROWS
    return columns(rows, "><<<") + ([f"  and {plural(left, 'more op')}"] if left > 0 else [])


def _places(recompute: Recompute) -> str:
    """How often it runs and, with several devices, where: one name where it is always the same."""
    names = recompute.devices
    if len(set(names)) <= 1:
        return f"on {names[0]}, {recompute.runs} times" if names else f"{recompute.runs} runs"
    return "on " + ", then ".join(shorten(name, 16) for name in names)


def _why(recompute: Recompute) -> str:
    """What it frees, and what would be needed without it."""
    steps = f"from step {recompute.dropped_after + 1} to {recompute.made_again_at - 1}"
    if recompute.memory is None:
        needed = format_bytes(recompute.peak_without_bytes)
        return f"frees {format_bytes(recompute.freed_bytes)} {steps}, which would need {needed}"
    if not recompute.freed_bytes:
        return "nothing is freed: it saves a copy"
    return f"frees {format_bytes(recompute.freed_bytes)} in {recompute.memory} {steps}"
