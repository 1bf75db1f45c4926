"""Losses that a model computes by itself, written out: the plainer ops that ONNX defines them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from remat_cli.autodiff.tape import OPSET, Tape, element_type, shape_of

WRITTEN_OUT = frozenset({"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"})

Values = dict[str, ir.Value]


def written_out(
    node: ir.Node, inputs: Sequence[ir.Value | None], tape: Tape
) -> tuple[Sequence[ir.Node], Values] | None:
    """Nodes that make the results of a loss under the same names, and the values they read, by name; None for others.

    Raises:
        ModelError: the shape of an input is not known.
    """
    if node.op_type not in WRITTEN_OUT or node.domain not in ("", "ai.onnx"):
        return None
    body = _body(ir.to_proto(node), inputs)
    read = {name: value for name, value in zip(body.input, inputs, strict=False) if value is not None}
    names = {name: value.name or "" for name, value in zip(body.output, node.outputs, strict=False)}
    names |= {name: tape.fresh(f"{node.name}/{name}") for name in _made(body) if not names.get(name)}
    given = {attribute.name: attribute for attribute in ir.to_proto(node).attribute}
    inner = [_inner(part, f"{node.name}/{part.op_type}", names, given) for part in body.node]
    function = onnx.FunctionProto(name=body.name, input=body.input, node=inner, opset_import=body.opset_import)
    return list(ir.serde.deserialize_function(function)), read


def _body(node: onnx.NodeProto, inputs: Sequence[ir.Value | None]) -> onnx.FunctionProto:
    """What ONNX defines the op by, for inputs of these types."""
    kinds = [onnx.TypeProto() if value is None else _kind(value) for value in inputs]
    schema: Any = onnx.defs.get_schema(node.op_type, OPSET)
    types = [kind.SerializeToString() for kind in kinds]
    body = onnx.FunctionProto()
    body.ParseFromString(schema.get_context_dependent_function(node.SerializeToString(), types))
    return body


def _kind(value: ir.Value) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(int(element_type(value)), shape_of(value))


def _made(body: onnx.FunctionProto) -> list[str]:
    return [name for node in body.node for name in node.output if name]


def _inner(
    node: onnx.NodeProto, name: str, names: Mapping[str, str], given: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """A node of the body under new names; attributes that the body takes over from the op are filled in."""
    copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=name)
    copy.input.extend(names.get(value, value) for value in node.input)
    copy.output.extend(names.get(value, value) for value in node.output)
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            copy.attribute.append(given[attribute.ref_attr_name])
            copy.attribute[-1].name = attribute.name
    return copy
