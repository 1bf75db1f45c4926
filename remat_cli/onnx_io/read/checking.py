"""Shows the ONNX checker a model as it would have it, where the runtime does without or knows more than ONNX.

ONNX Runtime is not so strict with the main graph: it sorts nodes, infers types, knows all operator sets of its own and
most functions that the checker refuses. It asks the checker itself about every op, those in bodies included.
"""

import functools
from collections.abc import Iterator
from itertools import chain

import onnx

from remat_cli.ort_rules.order import Wiring, ready_order

RUNTIME_DOMAIN = "remat.runtime"
RUNTIME_OPS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Gelu"})
"""What the runtime's fusions write into ONNX's domain, also where the model's opset does not have it."""
OLDEST_IR_VERSION = 4
"""The first in which weights need not be inputs; the runtime wants that of no older one."""
NEWEST_VERSIONS = {"": onnx.helper.VERSION_TABLE[-1][2], "ai.onnx.ml": onnx.helper.VERSION_TABLE[-1][3]}
"""What the runtime takes of the operator sets that a file does not name; of its own there is one."""


def checkable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for the checker: external weights, whose files it cannot find, are inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    graph = copy.graph
    for owner in (graph, *all_bodies(graph)):
        for tensor in [t for t in owner.initializer if t.data_location == onnx.TensorProto.EXTERNAL]:
            owner.initializer.remove(tensor)
            if all(port.name != tensor.name for port in graph.input):
                graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    for port in graph.output:
        if not port.HasField("type"):
            port.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for port in (*graph.input, *graph.output):
        if port.type.HasField("tensor_type"):
            port.type.tensor_type.shape.SetInParent()
    copy.ir_version = max(copy.ir_version, OLDEST_IR_VERSION) if copy.HasField("ir_version") else copy.ir_version
    del copy.functions[:]  # the runtime writes their ops in place of their calls, and judges them then
    del copy.metadata_props[:]
    imported = {entry.domain for entry in copy.opset_import}
    for domain in sorted({node.domain for node in all_nodes(graph)} - imported):
        copy.opset_import.append(onnx.helper.make_opsetid(domain, NEWEST_VERSIONS.get(domain, 1)))
    sort_nodes(graph)
    return without_runtime_ops(copy)


def without_runtime_ops(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with ops that ONNX does not have, or no longer, under a domain that its checker does not check.

    The runtime's optimiser writes some ops of its own into ONNX's domain, or newer ones than the model's opset has. It
    knows ops that ONNX deprecates as functions, as it does GroupNormalization of opset 18, or refuses them itself.
    """
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
    for node in (node for node in all_nodes(proto.graph) if node.domain in ("", "ai.onnx")):
        schema, is_known = schema_of(node.op_type, version), onnx.defs.has(node.op_type)
        is_missing = schema is None and (node.op_type in RUNTIME_OPS or is_known)
        if is_missing or (schema is not None and schema.deprecated):
            node.domain = RUNTIME_DOMAIN
    proto.opset_import.append(onnx.helper.make_opsetid(RUNTIME_DOMAIN, 1))
    return proto


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Have no node read what a later one makes, in place; those that wait for each other come last."""
    places = range(len(graph.node))
    order = ready_order([Wiring(tuple(reads_of(node)), tuple(filter(None, node.output))) for node in graph.node])
    if order == [*places]:
        return
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(kept[place] for place in (*order, *sorted(set(places) - set(order))))


def reads_of(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, those that its bodies read from outside included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            inside = {value.name for value in (*body.input, *body.initializer)}
            inside.update(name for inner in body.node for name in inner.output)
            names = (*chain.from_iterable(map(reads_of, body.node)), *(value.name for value in body.output))
            yield from (name for name in names if name not in inside)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of all graphs inside it."""
    for owner in (graph, *all_bodies(graph)):
        yield from owner.node


def all_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """All graphs inside a graph."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield body
                yield from all_bodies(body)


@functools.cache
def schema_of(op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """What a version of ONNX's own operators says of an op; None where it does not have it."""
    try:
        return onnx.defs.get_schema(op_type, version)
    except onnx.defs.SchemaError:
        return None
