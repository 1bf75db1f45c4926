"""Leaving out ops that repeat a tensor for readers that would repeat it themselves, such as masks for all heads."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.core.sizes import Dim

LOGIC = {"And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
BROADCASTERS = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Where"} | LOGIC)
"""Ops that read a number again for each place, with the bits that they have for a tensor of copies."""


def without_expands(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> ir.Model:
    """The model without the Expands that its ops do not need, for any size; itself where it has none.

    `dims` are the dimensions of tensors for all sizes. An op that reads such a tensor reads what was expanded, if
    another input has the shape of its result.
    """
    if not any(_is_needless(node, model, dims) for node in model.graph):
        return model
    lean = model.clone()
    for node in [node for node in lean.graph if _is_needless(node, lean, dims)]:
        for user, at in list(node.outputs[0].uses()):
            user.replace_input_with(at, node.inputs[0])
        lean.graph.remove(node, safe=True)
    return lean


def _is_needless(node: ir.Node, model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> bool:
    if (node.domain, node.op_type) != ("", "Expand") or node.outputs[0] in model.graph.outputs:
        return False
    users = [user for user, _ in node.outputs[0].uses()]
    return all(user.graph is model.graph and _repeats(user, node.outputs[0], dims) for user in users)


def _repeats(user: ir.Node, expanded: ir.Value, dims: Mapping[str, tuple[Dim, ...]]) -> bool:
    """Whether an op has a result of its shape without what was expanded."""
    if user.domain or user.op_type not in BROADCASTERS:
        return False
    shape = dims.get(user.outputs[0].name or "")
    others = [dims.get(value.name or "") for value in user.inputs if value is not None and value is not expanded]
    return shape is not None and shape in others
