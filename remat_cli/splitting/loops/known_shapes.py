"""Shapes that ops compute from the shape of what they reshape or resize: written down, for all sizes.

A Reshape to a constant shape, in which a zero is a length that is only copied, is the same op on a part of its input;
one whose shape is computed is not, and makes the ops that compute it read tensors that a loop would not keep whole. So
it is with a Resize to computed sizes where these are whole multiples: it is one by scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from remat_cli.core.values.sizes import Dim, SizeFamily
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.rules.record import COPIED, REST

PREFIX = "remat/shape/"
ALLOWS_ZERO = "allowzero"
SCALES, SIZES = 2, 3
"""Inputs of a Resize."""


def with_known_shapes(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]], family: SizeFamily) -> ir.Model:
    """Makes shapes of Reshapes, and scales of Resizes, constant where one constant says them for all sizes.

    `dims` are the dimensions of tensors for all sizes. Ops that nothing reads any more are left out. May return the
    model itself.
    """
    if not any(_written_down(node, dims, family) or _scales(node, dims, family) for node in model.graph):
        return model
    plain = model.clone()
    for node in plain.graph:
        scales = _scales(node, dims, family)
        if scales is not None:
            name = f"{PREFIX}scales/{'_'.join(map(str, scales))}"
            node.replace_input_with(SCALES, weight_in(plain.graph, name, np.array(scales, np.float32)))
            node.replace_input_with(SIZES, None)
        shape = _written_down(node, dims, family)
        if shape is not None:
            name = f"{PREFIX}{'_'.join(map(str, shape))}"
            node.replace_input_with(1, weight_in(plain.graph, name, np.array(shape, np.int64)))
            node.attributes.pop(ALLOWS_ZERO, None)
    drop_unread(plain.graph, model.graph)
    return plain


def _written_down(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]], family: SizeFamily) -> list[int] | None:
    """The shape of a Reshape for all sizes; None where it is constant already, or needs two lengths that vary."""
    if (node.domain, node.op_type) != ("", "Reshape"):
        return None
    source, shape, made = node.inputs[0], node.inputs[1], node.outputs[0]
    if source is None or shape is None or shape.const_value is not None:
        return None
    before, after = dims.get(source.name or ""), dims.get(made.name or "")
    if before is None or after is None or takes_zero(node, after, family):
        return None
    left = [COPIED if at < len(before) and before[at] == dim else REST for at, dim in enumerate(after)]
    found = [said if dim.terms else dim.offset for said, dim in zip(left, after, strict=True)]
    most_rests = 1 if family.has_rest(after) else 0
    return found if found.count(REST) <= most_rests and not any(dim == Dim() for dim in after) else None


def _scales(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]], family: SizeFamily) -> list[int] | None:
    """By how much a Resize to computed sizes enlarges each axis; None where that is no whole number for all sizes.

    The runtime itself divides sizes by lengths, and has the same scales then.
    """
    sizes = node.inputs[SIZES] if len(node.inputs) > SIZES else None
    if (node.domain, node.op_type) != ("", "Resize") or sizes is None or sizes.const_value is not None:
        return None
    source = node.inputs[0]
    policy = node.attributes.get("keep_aspect_ratio_policy")
    if source is None or "axes" in node.attributes or (policy is not None and policy.as_string() != "stretch"):
        return None
    before, after = dims.get(source.name or ""), dims.get(node.outputs[0].name or "")
    if before is None or after is None:
        return None
    most = family.corners[0]
    scales = [each.at(most) // max(1, own.at(most)) for own, each in zip(before, after, strict=True)]
    is_same = (family.agree(each, own, scale) for own, each, scale in zip(before, after, scales, strict=True))
    return scales if all(is_same) else None


def takes_zero(node: ir.Node, made: Sequence[Dim], family: SizeFamily) -> bool:
    """Whether a zero in the shape of a Reshape is a length, and may be one: torch writes all Reshapes like that.

    Where no length is ever zero, the op does the same without saying so, and a zero can stand for a copied length.
    """
    zeros = node.attributes.get(ALLOWS_ZERO)
    return zeros is not None and bool(zeros.as_int()) and not all(map(family.is_never_zero, made))
