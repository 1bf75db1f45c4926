"""Whether a plan file agrees with itself: what it says of its graph, costs, schedule and promises, and the judge.

A file may be edited, cut and joined, or made to deceive. What passes here can be judged, drawn and run without a doubt
about ids, lengths and signs; whether it fits the model is for `verify`, which has the model.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.files.plan_file import PlanFile, PlanParts
from remat_cli.core.schedule.graph import Graph, TensorType, size_bytes
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.sizes import Dim

NEVER_NEGATIVE = ("_bytes", "_ns", "_seconds")
"""Ends of the names of figures that cannot be below zero."""


CLONE = re.compile(r"/remat_[0-9]+(_[0-9]+)?")
"""What the name of an op that runs again has behind the op's own; the last number where that was taken."""


def check_plan(plan: PlanFile) -> None:
    """Check a plan as a whole. What one that spans devices promises besides its time is told by its placement.

    Raises:
        ModelError: two parts of it contradict each other, or a figure cannot be; the text names them.
    """
    for part in ("request", "graph", "profile", "solved", "promise", "splitting", "placement", "paging"):
        _check_signs(part, msgspec.to_builtins(getattr(plan, part)))
    check_graph(plan.graph)
    PART_CHECKS[plan.parts](plan)


def check_one_model(plan: PlanFile) -> None:
    """Check that what a plan of one model promises is what the judge says of it.

    Raises:
        ModelError: it is not.
    """
    # Each op has one cost, and nothing else has.
    _refuse_twins("cost", (cost.name for cost in plan.profile.ops))
    strange = {cost.name for cost in plan.profile.ops} ^ {op.name for op in plan.graph.ops}
    if strange:
        raise ModelError(f"op '{min(strange)}' has a cost but is not in the graph, or has none")
    problem, judged = plan.problem(), plan.plan()
    _check_time(plan, judged)
    if plan.promise.family is not None:
        _check_family(plan, plan.promise.family.dims)
    # What the written model runs, gates left out, are the steps of the schedule.
    gates = set(plan.promise.gates)
    _refuse_twins("gate", plan.promise.gates)
    _refuse_twins("step", plan.promise.order)
    if not gates <= set(plan.promise.order):
        raise ModelError("a gate is not among the ops that it promises to run")
    order = [name for name in plan.promise.order if name not in gates]
    wanted = [plan.graph.ops[op].name for op in judged.schedule.op_ids()]
    if len(order) != len(wanted):
        raise ModelError(f"it promises to run {len(order)} ops, and its schedule has {len(wanted)}")
    for name, op in zip(order, wanted, strict=True):
        if name != op and not CLONE.fullmatch(name.removeprefix(op)):
            raise ModelError(f"it promises to run '{name}' where its schedule has '{op}'")
    _check_promise(plan, problem)


def _check_time(plan: PlanFile, judged: Plan) -> None:
    if judged.time_ns != plan.solved.time_ns:
        raise ModelError(f"solved.time_ns is {plan.solved.time_ns}, and the judge says {judged.time_ns}")


def _check_family(plan: PlanFile, dims: Mapping[str, tuple[Dim, ...]]) -> None:
    """Dimensions for all sizes are those of the graph at the sizes that the plan was made for."""
    shapes = plan.graph.shapes
    asked = plan.request.family
    missing = {name for found in dims.values() for dim in found for name in dim.names} - plan.request.dims.keys()
    if asked is None or missing:
        raise ModelError(f"its dimensions depend on {', '.join(sorted(missing)) or 'sizes'}, which it was not made for")
    if wrong := next((each for each in asked.ranges if each.high not in each.sizes), None):
        raise ModelError(f"the sizes {wrong} do not end where they say")
    for name, found in dims.items():
        if shapes.get(name) != tuple(dim.at(plan.request.dims) for dim in found):
            raise ModelError(f"the dimensions of tensor '{name}' for all sizes are not those in its graph")


def check_paged(plan: PlanFile) -> None:
    """Check that a plan which pages is one of a single device, and takes what its rules say.

    Raises:
        ModelError: it is not, or does not.
    """
    if len(plan.placement.devices if plan.placement else ()) != 1:
        raise ModelError("it pages, and has not exactly one device")
    if (known := plan.paged(plan.plan()).paging.time_ns) != plan.solved.time_ns:
        raise ModelError(f"solved.time_ns is {plan.solved.time_ns}, and the judge of paging says {known}")


def _check_signs(name: str, found: Any) -> None:
    """No size, time or shape is negative, however deep."""
    if isinstance(found, dict):
        for key, inner in found.items():
            _check_signs(f"{name}.{key}", inner)
    elif isinstance(found, list | tuple):
        for inner in found:
            _check_signs(name, inner)
    elif isinstance(found, int | float) and found < 0 and name.endswith((*NEVER_NEGATIVE, ".shape")):
        raise ModelError(f"{name} is {found}, which cannot be negative")


def check_graph(graph: Graph) -> None:
    """Check that names are told apart, and that what an op says of tensors and weights is of those it reads or makes.

    Raises:
        ModelError: two names are the same, something does not exist, or a size is not that of its type.
    """
    _refuse_twins("op", (op.name for op in graph.ops))
    _refuse_twins("tensor", (tensor.name for tensor in graph.tensors))
    for op in graph.ops:
        if any(source not in op.inputs or result not in op.outputs for source, result in op.in_place):
            raise ModelError(f"op '{op.name}' works in place on a tensor that it does not read, or does not make")
        if any(not 0 <= weight < len(graph.weights) for weight in op.weights):
            raise ModelError(f"op '{op.name}' reads a weight that does not exist")
    for tensor in graph.tensors:
        if tensor.producer is not None and not 0 <= tensor.producer < len(graph.ops):
            raise ModelError(f"tensor '{tensor.name}' is made by op {tensor.producer}, which does not exist")
        reads = () if tensor.producer is None else graph.ops[tensor.producer].inputs
        if tensor.view_of is not None and tensor.view_of not in reads:
            raise ModelError(f"tensor '{tensor.name}' is a view of what its op does not read")
        size = size_bytes(TensorType(tensor.dtype, tensor.shape))
        is_made = tensor.producer is not None and not tensor.kept and tensor.view_of is None
        may_share_weight = is_made and bool(graph.ops[tensor.producer or 0].weights)  # whose bytes are counted there
        if tensor.size_bytes != size and not (tensor.size_bytes == 0 and may_share_weight):
            raise ModelError(
                f"tensor '{tensor.name}' is {tensor.size_bytes} bytes, and {tensor.dtype}{list(tensor.shape)} "
                f"takes {size}"
            )


def _refuse_twins(what: str, names: Iterable[str]) -> None:
    name, count = next(iter(Counter(names).most_common(1)), ("", 1))
    if count > 1:
        raise ModelError(f"{count} of its {what}s are named '{name}'")


def _check_promise(plan: PlanFile, problem: Problem) -> None:
    """Figures of memory and time are the judge's, as far as they follow from the schedule alone."""
    promise = plan.promise
    figures: list[tuple[str, Any, Any]] = [
        ("the number of promise.memory_bytes", len(promise.memory_bytes), len(promise.order))
    ]
    if plan.splitting is not None:
        ops = len(plan.splitting.whole_profile.ops)
        figures.append(("the number of promise.baseline_memory_bytes", len(promise.baseline_memory_bytes), ops))
    else:
        before = baseline(problem)
        figures.append(("promise.baseline_memory_bytes", promise.baseline_memory_bytes, before.memory_bytes[0]))
        figures.append(("solved.baseline_time_ns", plan.solved.baseline_time_ns, before.time_ns))
    for what, told, known in figures:
        if told != known:
            raise ModelError(f"{what} is {_brief(told)}, and the judge says {_brief(known)}")
    if promise.peak_bytes > plan.request.budget_bytes:
        raise ModelError(
            f"it promises {promise.peak_bytes} bytes, which is more than its budget of {plan.request.budget_bytes}"
        )
    if promise.memory_bytes and max(promise.memory_bytes) > promise.peak_bytes:
        raise ModelError(f"it promises {promise.peak_bytes} bytes, and {max(promise.memory_bytes)} during an op")
    most = min((*promise.memory_bytes, promise.peak_bytes - promise.live_peak_bytes))
    if not plan.profile.fixed_bytes <= promise.fixed_bytes <= most:
        raise ModelError(
            f"promise.fixed_bytes is {promise.fixed_bytes}, and its profile and the bytes during each op leave it from "
            f"{plan.profile.fixed_bytes} to {most}"
        )
    if promise.baseline_memory_bytes and max(promise.baseline_memory_bytes) != promise.baseline_peak_bytes:
        raise ModelError(
            f"the baseline's peak is {promise.baseline_peak_bytes} bytes, and {max(promise.baseline_memory_bytes)} "
            "during an op"
        )


def _brief(figure: Any) -> str:
    return f"a list of {len(figure)}" if isinstance(figure, tuple) else str(figure)


def check_graph_of(plan: PlanFile, graph: Graph) -> None:
    """Check that a plan without splits is one of this model: ops and tensors are the same, by name, kind and shape.

    Raises:
        ModelError: they are not.
    """
    ours = [(op.name, op.op_type, op.domain, op.inputs, op.outputs) for op in plan.graph.ops]
    if ours != [(op.name, op.op_type, op.domain, op.inputs, op.outputs) for op in graph.ops]:
        raise ModelError("the plan's ops are not those of the model: compile again")
    values = [(each.name, each.dtype, each.shape, each.kept, each.size_bytes) for each in plan.graph.tensors]
    if values != [(each.name, each.dtype, each.shape, each.kept, each.size_bytes) for each in graph.tensors]:
        raise ModelError("the plan's tensors are not those of the model: compile again")


PART_CHECKS: Final[Mapping[PlanParts, Callable[[PlanFile], None]]] = MappingProxyType(
    {
        "one_model": check_one_model,
        "sessions": lambda plan: _check_time(plan, plan.plan()),
        "paged": check_paged,
    }
)
"""What is checked of a plan by the parts that its file has."""
