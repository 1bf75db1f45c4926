"""Branches that are taken for all sizes, in place of the ops that choose them.

Traced code asks for ranks and channels, which a file with open sizes computes anew in each run. The runtime then keeps
an If, whose body no loop cuts; with what is known of all sizes it is the op of one branch.
"""

from __future__ import annotations

import onnx_ir as ir

from remat_cli.onnx_io.read.copies import op_like
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.read.op_facts import has_body
from remat_cli.splitting.loops.expands import drop_unread

COMPARED = {
    "Equal": lambda one, other: one == other,
    "Greater": lambda one, other: one > other,
    "Less": lambda one, other: one < other,
}
BRANCHES = {True: "then_branch", False: "else_branch"}


def with_taken_branches(model: ir.Model) -> ir.Model:
    """The model, in which numbers that are the same for all sizes are constants, with such branches of a single op.

    May return the model itself.
    """
    if not any(_taken(node) for node in model.graph):
        return model
    plain = model.clone()
    for node in list(plain.graph):
        inner = _taken(node)
        if inner is None:
            continue
        twin = op_like(inner, node.name or "")
        (old,), (new,) = node.outputs, twin.outputs
        new.type, new.shape = old.type, old.shape
        plain.graph.insert_before(node, twin)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        plain.graph.remove(node, safe=True)
        new.name = old.name
    drop_unread(plain.graph, model.graph)
    return plain


def _taken(node: ir.Node) -> ir.Node | None:
    """The op of the branch that an If takes for all sizes; None where that is not known, or no single op."""
    holds = _condition(node.inputs[0]) if (node.domain, node.op_type) == ("", "If") else None
    if holds is None:
        return None
    branch = node.attributes[BRANCHES[holds]].as_graph()
    own = set(branch.initializers.values())
    if len(branch) != 1 or len(node.outputs) != 1 or own & set(branch.node(0).inputs):
        return None
    inner = branch.node(0)
    is_plain = len(inner.outputs) == 1 and inner.outputs[0] is branch.outputs[0] and not has_body(inner)
    return inner if is_plain else None


def _condition(value: ir.Value | None) -> bool | None:
    """What a comparison of two known numbers says; None where it is no such."""
    maker = None if value is None else value.producer()
    compare = COMPARED.get(maker.op_type) if maker is not None and not maker.domain else None
    if maker is None or compare is None:
        return None
    read = [fixed_value(each) for each in maker.inputs]
    one, other = (None if each is None or each.size != 1 else each.numpy().item() for each in read)
    return None if one is None or other is None else bool(compare(one, other))
