"""Shows the ONNX checker a model that the runtime optimised, without the ops that ONNX does not know."""

import functools
from collections.abc import Iterator

import onnx

RUNTIME_DOMAIN = "remat.runtime"
RUNTIME_OPS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "Gelu"})
"""What the runtime's fusions write into ONNX's domain, also where the model's opset does not have it."""


def without_runtime_ops(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with ops that ONNX does not have under a domain that its checker does not check.

    The runtime's optimiser writes some ops of its own into ONNX's domain, or newer ones than the model's opset has.
    """
    for node in _runtime_ops(proto):
        node.domain = RUNTIME_DOMAIN
    proto.opset_import.append(onnx.helper.make_opsetid(RUNTIME_DOMAIN, 1))
    return proto


def has_runtime_ops(proto: onnx.ModelProto) -> bool:
    """Whether the runtime's optimiser wrote ops into the model that ONNX's checker would not know."""
    return bool(_runtime_ops(proto))


def _runtime_ops(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
    nodes = (node for node in all_nodes(proto.graph) if node.domain in ("", "ai.onnx"))
    return [node for node in nodes if node.op_type in RUNTIME_OPS and schema_of(node.op_type, version) is None]


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
