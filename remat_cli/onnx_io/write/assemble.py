"""Assembles a model from drafts of its nodes, which are plain data joined by names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from remat_cli.base.errors import RematError
from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.checking import without_runtime_ops
from remat_cli.onnx_io.read.default_order import default_order, priority_order
from remat_cli.onnx_io.read.interface import DATA_TYPES, Interface, Port, dims_of, interface_of, port_of
from remat_cli.ort_rules.order import EARLY_OPS, Wiring


@dataclass(frozen=True)
class Draft:
    """One node to be.

    `reads` and `makes` are value names by position, "" where an optional one is left out. `captured` maps names that
    the subgraphs of the op read to the values they get. `source` is the node of the reference model that it copies,
    None for a gate helper. `clone` counts the earlier runs of the same op; `step` is the plan's step, -1 for a helper.
    `attributes` are those of a helper; other nodes have those of their source, `changed` ones replaced. `notes` are
    added to the metadata of the node.
    """

    name: str
    op_type: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    domain: str = ""
    captured: tuple[tuple[str, str], ...] = ()
    source: ir.Node | None = None
    clone: int = 0
    step: int = -1
    attributes: tuple[tuple[str, int], ...] = ()
    changed: tuple[ir.Attr, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def all_reads(self) -> tuple[str, ...]:
        """Names of the values that must exist before it runs, each once."""
        names = (*self.reads, *(new for _, new in self.captured))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def wiring(self) -> Wiring:
        """What the order of execution depends on."""
        made = tuple(name for name in self.makes if name)
        return Wiring(self.all_reads, made, self.op_type in EARLY_OPS and self.domain in ("", "ai.onnx"))

    def reading(self, new: Mapping[str, str]) -> Draft:
        """The same op, reading other values."""
        reads = tuple(new.get(name, name) for name in self.reads)
        captured = tuple((outer, new.get(name, name)) for outer, name in self.captured)
        return replace(self, reads=reads, captured=captured)


LIGHT_BYTES = 1024  # weights above this are left out of the copy that the checker sees


@dataclass(frozen=True)
class Parts:
    """What the new model takes over: `weights` are all constants by name, `types` those of values made by ops."""

    model: ir.Model
    interface: Interface
    weights: Mapping[str, ir.TensorProtocol]
    types: Mapping[str, ir.TypeProtocol]


def assemble(parts: Parts, drafts: Sequence[Draft]) -> ir.Model:
    """Build the model; inputs and outputs are those of the interface, weights only those that are read."""
    old = parts.model.graph
    ports = {port.name: port for port in parts.interface.inputs}
    inputs: list[ir.Value] = []
    for value in old.inputs:
        port = ports.get(value.name or "") or port_of(value)
        shape = None if port.shape is None else port.shape.copy()
        inputs.append(ir.Value(name=value.name, type=port.type, shape=shape, const_value=value.const_value))
    values = {value.name or "": value for value in inputs}
    outputs = {port.name: port for port in parts.interface.outputs}
    read = {name for draft in drafts for name in draft.all_reads} | set(outputs)
    for weight, tensor in parts.weights.items():
        if weight in read and weight not in values:
            shape = ir.Shape(dims_of(tensor))
            values[weight] = ir.Value(name=weight, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
    nodes = [_node(draft, values, parts, outputs) for draft in drafts]
    graph = ir.Graph(
        inputs,
        [values[name] for name in outputs],
        nodes=nodes,
        initializers=[value for value in values.values() if value.const_value is not None],
        opset_imports=dict(old.opset_imports),
        name=old.name,
        doc_string=old.doc_string,
        metadata_props=dict(old.metadata_props),
    )
    return ir.Model(
        graph,
        ir_version=parts.model.ir_version,
        producer_name="remat",
        domain=parts.model.domain,
        model_version=parts.model.model_version,
        doc_string=parts.model.doc_string,
        functions=tuple(parts.model.functions.values()),
        metadata_props=dict(parts.model.metadata_props),
    )


def _node(draft: Draft, values: dict[str, ir.Value], parts: Parts, outputs: Mapping[str, Port]) -> ir.Node:
    """The node of a draft; what it makes joins the `values`."""
    made: list[ir.Value] = []
    for name in draft.makes:
        port = outputs.get(name)
        if port is None:
            made.append(ir.Value(name=name, type=parts.types.get(name)))
        else:
            shape = None if port.shape is None else port.shape.copy()
            # the runtime takes an output without a type, ONNX's checker does not
            made.append(ir.Value(name=name, type=port.type or parts.types.get(name), shape=shape))
    values.update({name: value for name, value in zip(draft.makes, made, strict=True) if name})
    source = draft.source
    inner = {outer: values[name] for outer, name in draft.captured}
    if source is None:
        attributes: list[ir.Attr] = [ir.AttrInt64(name, value) for name, value in draft.attributes]
        attributes += [_attribute(each, inner) for each in draft.changed]
        metadata = dict(draft.notes)
    else:
        replaced = {each.name for each in draft.changed}
        kept = [each for each in source.attributes.values() if each.name not in replaced]
        attributes = [*(_attribute(each, inner) for each in kept), *draft.changed]
        metadata = dict(source.metadata_props) | dict(draft.notes)
        if draft.clone:
            metadata |= {"remat.clone_of": source.name or "", "remat.step": str(draft.step), "remat.device": "0"}
    return ir.Node(
        draft.domain,
        draft.op_type,
        [values[name] if name else None for name in draft.reads],
        attributes,
        overload="" if source is None else source.overload,
        version=None if source is None else source.version,
        doc_string=None if source is None else source.doc_string,
        metadata_props=metadata,
        outputs=made,
        name=draft.name,
    )


def _attribute(attribute: ir.Attr, inner: Mapping[str, ir.Value]) -> ir.Attr:
    """An attribute to share; subgraphs are copied, and read the new values from outside."""
    if attribute.type == ir.AttributeType.GRAPH:
        return ir.AttrGraph(attribute.name, _body(attribute.as_graph(), inner))
    if attribute.type == ir.AttributeType.GRAPHS:
        return ir.AttrGraphs(attribute.name, [_body(body, inner) for body in attribute.as_graphs()])
    return attribute


def _body(body: ir.Graph, inner: Mapping[str, ir.Value]) -> ir.Graph:
    """A copy of a subgraph that reads the new values from outside; what is its own, under any name, stays."""
    copy = body.clone(allow_outer_scope_values=True)
    own = {value for node in ir.traversal.RecursiveGraphIterator(copy) for value in node.outputs}
    for graph in (copy, *copy.subgraphs()):
        own.update((*graph.inputs, *graph.initializers.values()))
    for node in ir.traversal.RecursiveGraphIterator(copy):
        for position, value in enumerate(node.inputs):
            if value is not None and value.name and value not in own and value.name in inner:
                node.replace_input_with(position, inner[value.name])
    return copy


def declare(model: ir.Model, shapes: Mapping[str, tuple[int | str | None, ...]]) -> None:
    """Write shapes into the values that ops make, in place."""
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.name in shapes:
                value.shape = ir.Shape(shapes[value.name])


def without_shapes(model: ir.Model) -> ir.Model:
    """A copy in which nothing is said of the shapes of what ops make, but of outputs of the model."""
    copy = model.clone()
    for node in copy.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None
    return copy


def element_types(types: Mapping[str, TensorType]) -> dict[str, ir.TypeProtocol]:
    """The onnx-ir type of each tensor."""
    return {name: ir.TensorType(DATA_TYPES[kind.dtype]) for name, kind in types.items()}


def check_rewritten(model: ir.Model, interface: Interface, *, is_held: bool = True) -> None:
    """Check what every rewritten model must be; `is_held`: default sessions run it in the order of the file.

    Raises:
        RematError: it is not valid ONNX, names are not unique, file order is not the order of execution, or the
            interface changed.
    """
    nodes = list(model.graph)
    if len({node.name for node in nodes}) != len(nodes):
        raise RematError("the rewritten model has two nodes of one name: report this")
    in_order = list(range(len(nodes)))
    if is_held and (default_order(nodes) != in_order or priority_order(nodes) != in_order):
        raise RematError("the rewritten model would not run in the plan's order: report this")
    untyped = {port.name for port in interface.outputs if port.type is None}
    if _described(interface_of(model), untyped) != _described(interface, untyped):
        raise RematError("the rewritten model has another interface than the original: report this")
    try:
        onnx.checker.check_model(without_runtime_ops(ir.to_proto(light_copy(model))))
    except onnx.checker.ValidationError as error:
        raise RematError(f"the rewritten model is not valid ONNX: {str(error).splitlines()[0]}") from error


def _described(interface: Interface, untyped: Collection[str]) -> list[tuple[str, str, str]]:
    ports = (*interface.inputs, *interface.outputs)
    return [(p.name, "" if p.name in untyped else str(p.type), str(p.shape)) for p in ports]


def light_copy(model: ir.Model) -> ir.Model:
    """The model with its large weights turned into inputs, so that it can be checked at any size."""
    copy = model.clone()
    graph = copy.graph
    for name, value in list(graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > LIGHT_BYTES:
            del graph.initializers[name]
            value.const_value = None
            if not value.is_graph_input():
                graph.inputs.append(value)
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is None:
            value.shape = ir.Shape([])  # the checker wants one
    return copy


def inferred(model: ir.Model, *, data_prop: bool) -> onnx.ModelProto:
    """The model without its large weights, with the types and shapes that are declared or follow from what is.

    With `data_prop` shapes follow from values too.
    """
    proto = ir.to_proto(light_copy(model))
    try:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=data_prop)
    except Exception:  # an op that ONNX does not know, or shapes that contradict: the declared ones are what there is
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
    return proto
