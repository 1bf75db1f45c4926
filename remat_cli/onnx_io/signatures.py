"""What an op's cost depends on, as a hash: ops with equal signatures share measurements."""

from __future__ import annotations

import hashlib
import json

import onnx_ir as ir

from remat_cli.core.graph import Graph, Tensor
from remat_cli.onnx_io.default_order import captured_values
from remat_cli.onnx_io.element_types import dims_of, runtime_name

SMALL_ELEMENTS = 64  # integer constants up to this size steer an op (axes, shapes, pads): their values count
NONE = "none"


def op_signatures(model: ir.Model, graph: Graph) -> tuple[str, ...]:
    """A stable SHA-256 per op of `graph`, in its order.

    Covers op, opset, attributes, element types and shapes of everything read and made, which inputs are weights, and
    the values of small integer weights.
    """
    nodes = {node.name: node for node in model.graph}
    tensors = {tensor.name: tensor for tensor in graph.tensors}
    versions = model.graph.opset_imports
    return tuple(_signature(nodes[op.name], tensors, versions) for op in graph.ops)


def _signature(node: ir.Node, tensors: dict[str, Tensor], versions: dict[str, int]) -> str:
    attributes = [ir.to_proto(node.attributes[name]) for name in sorted(node.attributes)]
    facts = {
        "op": [node.domain, node.op_type, node.overload, node.version or versions.get(node.domain)],
        "attributes": [proto.SerializeToString(deterministic=True).hex() for proto in attributes],
        "inputs": [_read(value, tensors) for value in node.inputs],
        "same": [node.inputs.index(value) if value is not None else -1 for value in node.inputs],
        "captured": [_read(value, tensors) for value in captured_values(node)],
        "outputs": [_kind(tensors[value.name]) if value.name else NONE for value in node.outputs],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read(value: ir.Value | None, tensors: dict[str, Tensor]) -> object:
    """What matters about one input: a tensor's type, or a weight's type and, if it is small and integer, its values."""
    if value is None or not value.name:
        return NONE
    if value.name in tensors:
        return _kind(tensors[value.name])
    tensor = value.const_value
    if tensor is None:
        return NONE
    steers = tensor.dtype.is_integer() and tensor.size <= SMALL_ELEMENTS
    return ["weight", runtime_name(tensor.dtype), dims_of(tensor), tensor.numpy().tolist() if steers else NONE]


def _kind(tensor: Tensor) -> list[object]:
    return [tensor.dtype, list(tensor.shape)]
