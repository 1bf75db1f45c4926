"""Shapes that ops compute from the shape of what they reshape: written down, with a zero where a length is only copied.

A Reshape to a constant shape is the same op on a part of its input; one whose shape is computed is not, and makes the
ops that compute it read tensors that a loop would not keep whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from remat_cli.core.values.sizes import Dim
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.loops.weights import weight_in

PREFIX = "remat/shape/"
ALLOWS_ZERO = "allowzero"
COPIED, REST = 0, -1


def with_known_shapes(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> ir.Model:
    """Makes shapes of Reshapes constant where one constant says them for all sizes; may return the model itself.

    `dims` are the dimensions of tensors for all sizes. Ops that nothing reads any more are left out.
    """
    if not any(_written_down(node, dims) for node in model.graph):
        return model
    plain = model.clone()
    for node in plain.graph:
        shape = _written_down(node, dims)
        if shape is not None:
            name = f"{PREFIX}{'_'.join(map(str, shape))}"
            node.replace_input_with(1, weight_in(plain.graph, name, np.array(shape, np.int64)))
            node.attributes.pop(ALLOWS_ZERO, None)
    drop_unread(plain.graph)
    return plain


def _written_down(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]]) -> list[int] | None:
    """The shape of a Reshape for all sizes; None where it is constant already, or needs two lengths that vary."""
    if (node.domain, node.op_type) != ("", "Reshape"):
        return None
    source, shape, made = node.inputs[0], node.inputs[1], node.outputs[0]
    if source is None or shape is None or shape.const_value is not None:
        return None
    before, after = dims.get(source.name or ""), dims.get(made.name or "")
    if before is None or after is None or takes_zero(node, after):
        return None
    left = [COPIED if at < len(before) and before[at] == dim else REST for at, dim in enumerate(after)]
    found = [said if dim.terms else dim.offset for said, dim in zip(left, after, strict=True)]
    return found if found.count(REST) <= 1 and not any(dim == Dim() for dim in after) else None


def takes_zero(node: ir.Node, made: Sequence[Dim]) -> bool:
    """Whether a zero in the shape of a Reshape is a length, and may be one: torch writes all Reshapes like that.

    Where no length is ever zero, the op does the same without saying so, and a zero can stand for a copied length.
    """
    zeros = node.attributes.get(ALLOWS_ZERO)
    return zeros is not None and bool(zeros.as_int()) and not all(dim.is_never_zero for dim in made)
