"""A plan for many sizes, looked at for one of them: the same schedule, with tensors as large as they are then."""

from collections.abc import Mapping

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.files.plan_file import FamilyPromise, PlanFile, graph_instances
from remat_cli.core.schedule.graph import Graph, Tensor, TensorType, size_bytes
from remat_cli.core.schedule.loops import is_loop
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.sizes import Dim, SizeFamily


def with_promise(plan: PlanFile, dims: Mapping[str, tuple[Dim, ...]]) -> PlanFile:
    """A plan with what it promises for all sizes; `dims` are its tensors' dimensions, those that never vary too."""
    family = plan.request.family
    if family is None:
        return plan
    varying = {
        tensor.name: dims[tensor.name]
        for tensor in plan.graph.tensors
        if any(dim.terms for dim in dims.get(tensor.name, ()))
    }
    known = FamilyPromise(varying, plan.promise.peak_bytes, dict(plan.request.dims))
    plan = _with(plan, known)
    bounds = dict.fromkeys(dim.within for each in varying.values() for dim in each if dim.within is not None)
    corners = [*family.corners, *(corner for bound in bounds for corner in family.corners_within(bound))]
    peaks = [(plan_at(plan, {**plan.request.dims, **corner}).promise.peak_bytes, corner) for corner in corners]
    peak, corner = max(peaks, key=lambda each: each[0])
    most = msgspec.structs.replace(known, peak_bytes=peak, peak_sizes={**plan.request.dims, **corner})
    return _with(plan, most if peak > known.peak_bytes else known)


def _with(plan: PlanFile, known: FamilyPromise) -> PlanFile:
    return msgspec.structs.replace(plan, promise=msgspec.structs.replace(plan.promise, family=known))


def plan_at(plan: PlanFile, sizes: Mapping[str, int]) -> PlanFile:
    """The plan as it runs at some sizes of its family; dimensions that are not named are as large as they get.

    Tensors are of these sizes, to the byte; what ops take inside, and what gates hold, is that of the largest sizes,
    which is the most that it can be. Nothing is known of time, or of the model without a plan.

    Raises:
        ModelError: the plan was made for one size, or the sizes are not among those that it was made for.
    """
    known, family = plan.promise.family, plan.request.family
    if known is None or family is None:
        made = ", ".join(f"{name}={size}" for name, size in plan.request.dims.items())
        raise ModelError(f"the plan was made for one size{f', {made}' if made else ''}: inspect it without --dim")
    chosen = _chosen(plan, family, sizes)
    tensors = tuple(_at(tensor, known.dims.get(tensor.name), chosen) for tensor in plan.graph.tensors)
    graph, now = plan.graph, msgspec.structs.replace(plan.graph, tensors=tensors)
    first = _simulated(plan, graph, plan.profile)
    profile = _profile_at(plan.profile, graph, now)
    then = _simulated(plan, now, profile)
    on_top = max(0, plan.promise.peak_bytes - first.peak)
    memory = tuple(bytes_ + on_top for bytes_ in then.memory_bytes[0])
    promise = msgspec.structs.replace(
        plan.promise,
        order=tuple(now.ops[op].name for op in then.schedule.op_ids()),
        gates=(),
        peak_bytes=max(memory, default=then.peak + on_top),
        live_peak_bytes=max(then.live_bytes[0], default=0) - profile.fixed_bytes,
        fixed_bytes=profile.fixed_bytes,
        memory_bytes=memory,
        process=None,
        runs=None,
    )
    return msgspec.structs.replace(
        plan,
        request=msgspec.structs.replace(plan.request, dims=chosen),
        graph=now,
        profile=profile,
        instances=graph_instances(now, make_problem(now, profile, plan.request.budget_bytes), then),
        promise=promise,
        verification=None,
    )


def _chosen(plan: PlanFile, family: SizeFamily, sizes: Mapping[str, int]) -> dict[str, int]:
    """All named dimensions, at these sizes or as large as they get; refused where the plan is not for them."""
    ranges = {each.name: each for each in family.ranges}
    for name, size in sizes.items():
        if name not in ranges and plan.request.dims.get(name) != size:
            raise ModelError(f"--dim {name}={size}: the plan is for all sizes of {', '.join(ranges)} only")
    chosen = {**plan.request.dims, **sizes}
    if not family.admits(chosen):
        said = ", ".join([*map(str, family.ranges), *map(str, family.limits)])
        told = ", ".join(f"{name}={chosen[name]}" for name in ranges)
        raise ModelError(f"{told} is not among the sizes that the plan is for: {said}")
    return chosen


def _at(tensor: Tensor, dims: tuple[Dim, ...] | None, sizes: Mapping[str, int]) -> Tensor:
    """A tensor as large as it is at some sizes; None: it never varies."""
    if dims is None:
        return tensor
    shape = tuple(dim.at(sizes) for dim in dims)
    before, now = (size_bytes(TensorType(tensor.dtype, each)) for each in (tensor.shape, shape))
    size = now if tensor.size_bytes == before else tensor.size_bytes * now // max(1, before)
    return msgspec.structs.replace(tensor, shape=shape, size_bytes=size)


def _profile_at(profile: Profile, graph: Graph, now: Graph) -> Profile:
    """Costs with what ops take inside: a loop takes a second copy of its results there, which is smaller then."""
    fewer = [one.size_bytes - other.size_bytes for one, other in zip(graph.tensors, now.tensors, strict=True)]
    costs = list(profile.ops)
    for number, (op, cost) in enumerate(zip(graph.ops, profile.ops, strict=True)):
        if is_loop(op.name):
            left_bytes = max(0, cost.workspace_bytes - sum(fewer[each] for each in op.outputs))
            costs[number] = msgspec.structs.replace(cost, workspace_bytes=left_bytes)
    inputs = sum(fewer[tensor] for tensor in graph.model_inputs)
    return msgspec.structs.replace(profile, ops=tuple(costs), input_bytes=profile.input_bytes - inputs)


def _simulated(plan: PlanFile, graph: Graph, profile: Profile) -> Plan:
    return simulate(make_problem(graph, profile, plan.request.budget_bytes), plan.schedule)
