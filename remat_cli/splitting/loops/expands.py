"""Leaving out ops that repeat a tensor or a number for readers that would do so themselves, such as masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from remat_cli.core.values.sizes import Dim, number
from remat_cli.onnx_io.read.interface import dims_of
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.rules.table import rule_of

PREFIX = "remat/repeated/"
REPEATERS = {"Expand", "ConstantOfShape"}


def without_expands(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> ir.Model:
    """Removes Expands and tensors of one number that readers do not need, for any size; may return the model itself.

    `dims` are the dimensions of tensors for all sizes. An op that reads such a tensor reads what was expanded, if
    its result has the same shape then: each length is that of another input, or of what was expanded.
    """
    if not any(_is_needless(node, model, dims) for node in model.graph):
        return model
    lean = model.clone()
    for node in [node for node in lean.graph if node.op_type in REPEATERS]:
        if not _is_needless(node, lean, dims):
            continue  # asked when others are gone: of two that an op reads, one gives its result the shape
        repeated = node.inputs[0]
        if node.op_type != "Expand":  # the number that a ConstantOfShape repeats
            given = node.attributes.get("value")
            filling = np.zeros(1, np.float32) if given is None else given.as_tensor().numpy()
            repeated = weight_in(lean.graph, f"{PREFIX}{node.name}", filling.reshape(()))
        for user, at in list(node.outputs[0].uses()):
            user.replace_input_with(at, repeated)
        lean.graph.remove(node, safe=True)
    drop_unread(lean.graph, model.graph)
    return lean


def drop_unread(graph: ir.Graph, before: ir.Graph) -> None:
    """Take out ops whose results nothing reads any more.

    What nothing read before stays: the runtime runs it too, and does not fuse what such an op reads.
    """
    kept, read = set(graph.outputs), set(before.outputs)
    idle = {value.name for node in before if _is_idle(node, read) for value in node.outputs}
    for node in reversed(graph):
        if _is_idle(node, kept) and idle.isdisjoint(value.name for value in node.outputs):
            graph.remove(node, safe=True)


def _is_idle(node: ir.Node, kept: Collection[ir.Value]) -> bool:
    return not any(value.uses() or value in kept for value in node.outputs)


def _is_needless(node: ir.Node, model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> bool:
    if node.domain or node.op_type not in REPEATERS or node.outputs[0] in model.graph.outputs:
        return False
    users = [user for user, _ in node.outputs[0].uses()]
    return all(user.graph is model.graph and _repeats(user, node.outputs[0], dims) for user in users)


def _repeats(user: ir.Node, expanded: ir.Value, dims: Mapping[str, tuple[Dim, ...]]) -> bool:
    """Whether an op has a result of its shape without what was expanded."""
    if not rule_of(user.domain, user.op_type).takes_one_for_copies:
        return False
    maker, made = expanded.producer(), dims.get(user.outputs[0].name or "")
    inputs = [value for value in user.inputs if value is not None and value is not expanded]
    if maker is not None and maker.op_type == "Expand" and maker.inputs[0] is not None:
        inputs.append(maker.inputs[0])
    known = (dims.get(each.name or "") for each in inputs if each.const_value is None)
    shapes = [tuple(map(number, dims_of(each.const_value))) for each in inputs if each.const_value is not None]
    shapes += [shape for shape in known if shape is not None]
    if made is None:
        return False
    # broadcasting counts places from the end; ones come of themselves
    wanted = [(at, dim) for at, dim in enumerate(reversed(made), 1) if dim != number(1) or at == len(made)]
    return all(any(at <= len(shape) and shape[-at] == dim for shape in shapes) for at, dim in wanted)
