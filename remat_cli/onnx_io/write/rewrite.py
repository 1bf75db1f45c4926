"""Writes a judged plan as a model that stock ONNX Runtime runs exactly so and that frees buffers in time."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from remat_cli.base.errors import RematError
from remat_cli.core.schedule.graph import Graph, Tensor, TensorType, size_bytes
from remat_cli.core.schedule.plan import Compute, Plan
from remat_cli.core.schedule.problem import make_problem, tensor_ids
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.gate_form import GateForm
from remat_cli.core.values.profile import without_costs
from remat_cli.onnx_io.read.default_order import captured_values
from remat_cli.onnx_io.read.interface import Interface, fed_inputs, fixed_value, type_of
from remat_cli.onnx_io.read.layout_scene import whole_names
from remat_cli.onnx_io.read.normalise import fresh_name, names_in
from remat_cli.onnx_io.read.to_graph import INPUTS, to_graph
from remat_cli.onnx_io.sizes.free_shapes import Canvas, Dims, Infer, free_shapes, known_shapes
from remat_cli.onnx_io.sizes.value_lengths import value_lengths, value_ranks
from remat_cli.onnx_io.write.assemble import Draft, Parts, assemble, check_rewritten, declare, element_types
from remat_cli.onnx_io.write.gates import GatedOps, LayoutGates, Scene, add_gates, newly_lone_reads
from remat_cli.onnx_io.write.markers import BESIDE
from remat_cli.onnx_io.write.processor_guard import Guard
from remat_cli.ort_rules.layout import WholeLayout
from remat_cli.ort_rules.order import depth_first_order

LEAST_BYTES = 1024  # a gate is not worth it to free smaller buffers in time
MOST_ROUNDS = 8  # barriers move towards the source of a known shape, one op per round


@dataclass(frozen=True)
class Released:
    """A model in which order and frees are settled.

    `observed` are the types of all nodes' results, `known` what the runtime knows of their shapes when it loads them.
    """

    model: ir.Model
    gated_ops: GatedOps
    observed: dict[str, tuple[TensorType, ...]]
    known: dict[str, Dims]


def release_buffers(parts: Parts, scene: Scene, infer: Infer) -> Released:
    """Write gates and shapes until no large buffer has a shape that the runtime knows beforehand.

    Values whose shape cannot be hidden after some rounds keep it: order and results do not depend on this.
    """
    sizes = {name: size_bytes(kind) for name, kind in scene.types.items()}
    if any(sizes.get(name, 0) >= LEAST_BYTES for step in scene.steps for name in step.makes):
        # Inputs and outputs whose shape the interface gives away, and that some op reads.
        read = {name for step in scene.steps for name in step.all_reads}
        known_ports = frozenset(name for name in _fully_known(parts) if name in read)
        scene = replace(scene, barriers=scene.barriers | known_ports)
    for _ in range(MOST_ROUNDS):
        released = _settle(parts, scene, infer)
        targets = known_shapes(released.gated_ops.drafts, released.known, LEAST_BYTES, sizes)
        more = frozenset(name for name in targets if name in scene.types and name not in scene.opaque)
        # Values whose shape the runtime knows beforehand, where gates must not ask for it.
        known_now = frozenset(name for name, dims in released.known.items() if _is_known(dims))
        told = frozenset[str]() if scene.form == "size" else known_now
        if more <= scene.barriers and told <= scene.told:
            return released
        scene = replace(scene, barriers=scene.barriers | more, told=scene.told | told)
    # Check that no gate asks for a shape that is known beforehand: the runtime would not wait for it.
    for draft in released.gated_ops.drafts:
        is_asked = draft.step < 0 and draft.op_type == "Shape"
        if is_asked and _is_known(released.known.get(draft.reads[0], (None,))):
            raise RematError(f"'{draft.name}' cannot wait for '{draft.reads[0]}', whose shape is known: report this")
    return released


def _settle(parts: Parts, scene: Scene, infer: Infer) -> Released:
    """Write the gates that a scene needs, build the model, and declare shapes that say as little as possible."""
    gated_ops = add_gates(scene)
    types = {**scene.types, **gated_ops.types}
    zeros = {name: ir.tensor(np.zeros(shape, np.int64)) for name, shape in gated_ops.zeros.items()}
    parts = replace(parts, weights={**parts.weights, **zeros}, types={**parts.types, **element_types(gated_ops.types)})
    model = assemble(parts, gated_ops.drafts)
    given = tuple(types[value.name or ""] for value in fed_inputs(model.graph))
    observed = {INPUTS: given} | {
        draft.name: tuple(types[name] for name in draft.makes if name) for draft in gated_ops.drafts
    }
    outputs = {port.name for port in parts.interface.outputs}
    # Number of the shape of each value that an op makes, as the judge sees the finished model.
    graph = to_graph(model, observed)
    left_out = outputs | set(scene.opaque)
    ids = tensor_ids(graph)
    no_cost = without_costs(op.name for op in graph.ops)
    storage = {ids[i.tensor]: i.storage for i in baseline(make_problem(graph, no_cost)).instances}
    numbers: dict[int, int] = {}
    for op in graph.ops:
        for made in op.outputs:
            before = [old for old, new in op.in_place if new == made and storage.get(old) == storage[made]]
            numbers[made] = numbers[before[0]] if before else len(numbers)
    named = ((graph.tensors[tensor].name, number) for tensor, number in numbers.items())
    groups = {name: number for name, number in named if name not in left_out}
    open_axes, unsure = None, frozenset[int]()
    if scene.layout is not None:
        open_axes = frozenset({0})
        # Those as one whose values are added or multiplied: only of such is known that shapes agree.
        merged = dict(groups)
        for draft in gated_ops.drafts:
            is_sum = draft.op_type in ("Add", "Sum", "Mul") and scene.unsure.isdisjoint(draft.reads)
            if is_sum and all(name in merged for name in draft.reads):
                same = {merged[name] for name in (*draft.reads, *draft.makes) if name in merged}
                merged = {name: min(same) if each in same else each for name, each in merged.items()}
        groups = merged
        unsure = frozenset(groups[name] for name in scene.unsure if name in groups)
    shapes, known = free_shapes(Canvas(model, types, groups, open_axes, unsure), infer)
    declare(model, shapes)
    return Released(model, gated_ops, observed, known)


def _fully_known(parts: Parts) -> list[str]:
    """Inputs and outputs of which the interface says every dimension."""
    ports = (*parts.interface.inputs, *parts.interface.outputs)
    return [port.name for port in ports if port.shape and _is_known(port.shape)]


def _is_known(dims: Iterable[object]) -> bool:
    return all(isinstance(dim, int) for dim in dims)


@dataclass(frozen=True)
class RewriteInfo:
    """What the rewritten model says about itself, and the interface it must keep.

    `barriers` are values that the runtime's optimiser must not look past; `gates` have the form that suits the device.
    All ops wait for the `guard`, where the model runs on one kind of processor only. `source_name` is the name of the
    file that it is made of.
    """

    budget_bytes: int
    source_sha256: str
    remat_version: str
    bound_dims: Mapping[str, int]
    interface: Interface
    barriers: frozenset[str] = frozenset()
    gates: GateForm = "size"
    guard: Guard | None = None
    source_name: str = ""
    layout: WholeLayout | None = None


@dataclass(frozen=True)
class Rewritten:
    """The rewritten model and what is needed to judge and verify it.

    `step_ops` is the node of each plan step, in order; `gate_ops` are the gate helpers' names;
    `observed` are the types of all nodes' results and `known` what the runtime knows of shapes before a run, both as
    `to_graph` wants them. `run_steps` are the plan's steps as a default session would run them as they are written.
    """

    model: ir.Model
    step_ops: tuple[str, ...]
    gate_ops: frozenset[str]
    gates: int
    observed: dict[str, tuple[TensorType, ...]]
    known: dict[str, Dims]
    run_steps: tuple[int, ...]


def rewrite(model: ir.Model, graph: Graph, plan: Plan, info: RewriteInfo, infer: Infer) -> Rewritten:
    """Write the plan as a model: its ops in the plan's order, repeated ones as copies, held in place by gates.

    `graph` must be that of `model`, and `plan` a one-device plan of it. Weights are shared, never copied.

    Raises:
        RematError: the plan spans devices, repeats an op for nobody, or cannot be written down faithfully.
    """
    taken = names_in(model)
    steps, types = _steps(model, graph, plan, info.interface, taken)
    values = model.graph.initializers.items()
    own_weights = {name: value.const_value for name, value in values if value.const_value is not None}
    fixed = {name: tensor for name, tensor in own_weights.items() if fixed_value(model.graph.initializers[name])}
    steps, opened = free_reshapes(steps, fixed, taken)
    weights = own_weights | opened
    if info.guard is not None:
        weights.update(info.guard.weights)
    parts = Parts(model, info.interface, weights, _value_types(steps, types))
    released = release_buffers(parts, _scene(graph, steps, types, parts, info, taken), infer)
    drafts = released.gated_ops.drafts
    # What the model says of itself; its peak is added once the finished file has been judged.
    set_model_metadata(released.model, "remat.version", info.remat_version)
    set_model_metadata(released.model, "remat.budget_bytes", str(info.budget_bytes))
    set_model_metadata(released.model, "remat.source_sha256", info.source_sha256)
    set_model_metadata(released.model, "remat.source", info.source_name)
    if info.bound_dims:
        bound = ",".join(f"{name}={number}" for name, number in sorted(info.bound_dims.items()))
        set_model_metadata(released.model, "remat.bound_dims", bound)
    check_rewritten(released.model, info.interface, is_held=info.layout is None)
    return Rewritten(
        model=released.model,
        step_ops=tuple(draft.name for draft in drafts if draft.step >= 0),
        gate_ops=frozenset(draft.name for draft in drafts if draft.step < 0),
        gates=released.gated_ops.gates,
        observed=released.observed,
        known=released.known,
        run_steps=tuple(
            drafts[place].step
            for place in depth_first_order([draft.wiring for draft in drafts])
            if drafts[place].step >= 0
        ),
    )


def set_model_metadata(model: ir.Model, key: str, value: str) -> None:
    """Write one entry of the model's metadata, in place."""
    model.metadata_props[key] = value


def _steps(
    model: ir.Model, graph: Graph, plan: Plan, interface: Interface, taken: set[str]
) -> tuple[tuple[Draft, ...], dict[str, TensorType]]:
    """One draft per step of the plan, and the type of each instance by its name."""
    ids = tensor_ids(graph)
    names = instance_names(graph, plan, ids, taken)
    for number, step in enumerate(plan.schedule.steps):
        if not isinstance(step, Compute) or step.device != 0:
            raise RematError(f"step {number} is not on the first device: only plans for one device can be written")
    steps = tuple(drafts_of(model, graph, plan, (ids, names), taken).values())
    # An op that is repeated must be read each time, or the runtime would drop a run and with it the plan's order.
    read = {name for draft in steps for name in draft.all_reads} | {port.name for port in interface.outputs}
    runs = Counter(draft.source.name for draft in steps if draft.source is not None)
    for draft in steps:
        if draft.source is not None and runs[draft.source.name] > 1 and read.isdisjoint(draft.makes):
            raise RematError(
                f"step {draft.step} computes '{draft.name}', which nobody reads: the plan wastes a recompute"
            )
    kinds = {name: _tensor(graph, ids, plan, i) for i, name in enumerate(names)}
    return steps, {name: TensorType(t.dtype, t.shape) for name, t in kinds.items()}


def drafts_of(
    model: ir.Model,
    graph: Graph,
    plan: Plan,
    known: tuple[Sequence[int], Sequence[str]],
    taken: set[str],
    first: int = 0,
) -> dict[int, Draft]:
    """One draft per Compute of an op of `graph`, by its step; the plan's ops before `first` are no ops of the graph.

    `known` are the graph's tensors by the plan's, and the name of each instance; new names are added to `taken`.
    """
    ids, names = known
    nodes = {node.name: node for node in model.graph}
    runs: Counter[int] = Counter()
    drafts: dict[int, Draft] = {}
    for number, step in enumerate(plan.schedule.steps):
        if isinstance(step, Compute) and step.op >= first:
            used = (*plan.reads[number], *plan.makes[number])
            new = {_tensor(graph, ids, plan, i).name: names[i] for i in used}
            # A draft of one run of an op; `new` maps tensor names to the instances that this run reads and makes.
            node = nodes[graph.ops[step.op - first].name]
            clone = runs[step.op]
            reads = [value.name or "" if value is not None else "" for value in node.inputs]
            outer = [value.name or "" for value in captured_values(node)]
            drafts[number] = Draft(
                name=fresh_name(f"{node.name}/remat_{clone}", taken) if clone else node.name or "",
                op_type=node.op_type,
                domain=node.domain,
                reads=tuple(new.get(name, name) for name in reads),
                makes=tuple(new.get(value.name or "", "") for value in node.outputs),
                captured=tuple((name, new.get(name, name)) for name in outer),
                source=node,
                clone=clone,
                step=number,
            )
            runs[step.op] += 1
    return drafts


def _tensor(graph: Graph, ids: Sequence[int], plan: Plan, instance: int) -> Tensor:
    return graph.tensors[ids[plan.instances[instance].tensor]]


def instance_names(graph: Graph, plan: Plan, ids: tuple[int, ...], taken: set[str]) -> list[str]:
    """Name of each instance; the first has the tensor's own, but for a model output the newest has it.

    `ids` are the graph's tensors by the plan's; new names are added to `taken`.
    """
    of_tensor: dict[int, list[int]] = {}
    for number, instance in enumerate(plan.instances):
        of_tensor.setdefault(ids[instance.tensor], []).append(number)
    names = [""] * len(plan.instances)
    for tensor, numbers in of_tensor.items():
        own = graph.tensors[tensor].name
        bearer = numbers[-1] if graph.tensors[tensor].kept else numbers[0]
        for count, number in enumerate(numbers):
            names[number] = own if number == bearer else fresh_name(f"{own}/remat_{count}", taken)
    return names


def _scene(
    graph: Graph,
    steps: tuple[Draft, ...],
    types: Mapping[str, TensorType],
    parts: Parts,
    info: RewriteInfo,
    taken: set[str],
) -> Scene:
    """What gates are written into, before any is."""
    inputs = {t.name: TensorType(t.dtype, t.shape) for t in graph.tensors if t.producer is None}
    constants = {name: type_of(tensor) for name, tensor in parts.weights.items()}
    imports = parts.model.graph.opset_imports
    known = {**constants, **inputs, **types}
    # Of what is transposed the runtime asks what is read for its shape.
    turned = (name for step in steps if step.op_type == "Transpose" for name in step.makes)
    lengths = value_lengths(parts.model, graph.shapes)
    return Scene(
        steps=steps,
        types=known,
        weights=frozenset(constants),
        opaque=frozenset(name for name, kind in parts.types.items() if not isinstance(kind, ir.TensorType)),
        barriers=info.barriers & known.keys(),
        apart={} if info.layout is not None and info.layout.in_any else newly_lone_reads(parts.model, steps),
        inputs=tuple(inputs),
        outputs=frozenset(port.name for port in parts.interface.outputs),
        opset=imports.get("", imports.get("ai.onnx", 0)),
        taken=frozenset(taken),
        form=info.gates,
        told=frozenset((*parts.weights, *_fully_known(parts), *turned)),
        unsure=_instances(lengths, steps),
        ranked_by_values=_instances(value_ranks(parts.model, lengths), steps),
        guard=info.guard,
        layout=None if info.layout is None else _layout_gates(steps, info.layout, parts),
    )


def _instances(tensors: Collection[str], steps: Sequence[Draft]) -> frozenset[str]:
    """All that steps make of some tensors of the model, by name."""
    pairs = (zip(step.makes, step.source.outputs, strict=True) for step in steps if step.source is not None)
    return frozenset(name for each in pairs for name, value in each if name and value.name in tensors)


def _layout_gates(steps: tuple[Draft, ...], layout: WholeLayout, parts: Parts) -> LayoutGates:
    """Where gates may stand so that sessions make of the steps what they make of the whole ops."""
    names = whole_names(parts.model)
    of_step = ["" if step.source is None else names[step.source.name or ""] for step in steps]
    helpers = {number for number, name in enumerate(of_step) if name not in layout.names}
    outside = {name for number in helpers for name in (*steps[number].all_reads, *steps[number].makes) if name}
    outside |= {
        name for number, step in enumerate(steps) if of_step[number] not in layout.in_any for name in step.makes if name
    }
    weights = parts.weights.keys()
    return LayoutGates(
        entrances=frozenset(n for n in helpers if n and steps[n].op_type == "Slice"),
        may_wait=frozenset(
            n for n, step in enumerate(steps) if step.op_type not in BESIDE or of_step[n] not in layout.names
        ),
        tokens=frozenset(outside | {port.name for port in parts.interface.outputs}) - weights,
        lone=frozenset(name for n, step in enumerate(steps) if of_step[n] in layout.partners for name in step.makes),
    )


def _value_types(steps: tuple[Draft, ...], types: Mapping[str, TensorType]) -> dict[str, ir.TypeProtocol]:
    """The onnx-ir type of each value that a step makes; sequences and optional values keep theirs."""
    found = element_types(types)
    for step in steps:
        for name, value in zip(step.makes, step.source.outputs if step.source else (), strict=True):
            if name and value.type is not None and not isinstance(value.type, ir.TensorType):
                found[name] = value.type
    return found


def free_reshapes(
    steps: tuple[Draft, ...], weights: Mapping[str, ir.TensorProtocol], taken: set[str]
) -> tuple[tuple[Draft, ...], dict[str, ir.TensorProtocol]]:
    """Replace fully known target shapes by ones with -1 in front, which mean the same; also the weights that are new.

    So the runtime cannot know the shape of the result beforehand.
    """
    opened, made = dict[str, str](), dict[str, ir.TensorProtocol]()
    new: list[Draft] = []
    for step in steps:
        is_reshape = step.op_type == "Reshape" and step.domain in ("", "ai.onnx") and len(step.reads) == 2
        shape = weights.get(step.reads[1]) if is_reshape else None
        if shape is None or step.reads[0] in weights or not shape.size or bool((shape.numpy() < 1).any()):
            new.append(step)
            continue
        data, target = step.reads
        if target not in opened:
            values = shape.numpy().copy()
            values[0] = -1
            opened[target] = fresh_name(f"{target}/remat_open", taken)
            made[opened[target]] = ir.tensor(values, name=opened[target])
        new.append(replace(step, reads=(data, opened[target])))
    return tuple(new), made
