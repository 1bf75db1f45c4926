"""Why a plan needs what it needs: who is alive at the peak, and what each recompute buys."""

from __future__ import annotations

from collections import defaultdict

from remat_cli.core.graph import Graph
from remat_cli.core.plan import Instance, Plan
from remat_cli.core.problem import Problem, tensor_ids
from remat_cli.core.schedule import Compute
from remat_cli.report.report import LiveTensor, Recompute


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


def alive_at(graph: Graph, plan: Plan, step: int) -> tuple[LiveTensor, ...]:
    """The tensors held in the first memory during a step, largest first; sharers after the owner of their storage.

    A storage whose owner is no longer read itself is still held by its sharers, and is listed under the owner's name.
    """
    ids = tensor_ids(graph)
    owners: dict[int, Instance] = {}
    ends: dict[int, int] = defaultdict(int)
    for instance in plan.instances:
        owners.setdefault(instance.storage, instance)
        ends[instance.storage] = max(ends[instance.storage], instance.death)
    held = [i for i in plan.instances if i.memory == 0 and i.birth <= step and _is_held(i, owners, ends, step)]
    found = [_live_tensor(graph, ids, i, owners[i.storage]) for i in held]
    order = sorted(range(len(found)), key=lambda n: (-_owner_bytes(graph, ids, owners[held[n].storage]), n))
    return tuple(found[n] for n in order)


def _is_held(instance: Instance, owners: dict[int, Instance], ends: dict[int, int], step: int) -> bool:
    last = ends[instance.storage] if owners[instance.storage] is instance else instance.death
    return step <= last


def _owner_bytes(graph: Graph, ids: tuple[int, ...], owner: Instance) -> int:
    return graph.tensors[ids[owner.tensor]].size_bytes


def _live_tensor(graph: Graph, ids: tuple[int, ...], instance: Instance, owner: Instance) -> LiveTensor:
    """Describe one instance; one that lives in another's storage, or in a model input's, takes no bytes of its own."""
    tensor = graph.tensors[ids[instance.tensor]]
    base = graph.tensors[ids[owner.tensor]]
    shares = None if owner is instance else base.name
    if owner is instance and tensor.view_of is not None and not tensor.kept:
        shares = graph.tensors[tensor.view_of].name  # a view of a model input: the caller owns that storage
    return LiveTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        bytes=0 if shares else tensor.size_bytes,
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
