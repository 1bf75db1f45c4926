"""Shapes that are computed and need not say a length, or are asked of a tensor that a loop keeps from being whole.

A length need not be said that is what is left of a Reshape, or what an Expand reads.

The op then is the same for a part along that axis. Attention of 4 x batch matrices that is seen as batch x 4, and
places of a table repeated for each head, have such shapes: two of their lengths vary, so that no constant says them.
What is asked of a large tensor's shape is computed of the shapes of inputs instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import Dim, SizeFamily, number, product_of
from remat_cli.onnx_io.read.normalise import names_in
from remat_cli.splitting.loops.expands import drop_unread
from remat_cli.splitting.loops.known_numbers import asked_lengths
from remat_cli.splitting.loops.known_shapes import ALLOWS_ZERO, takes_zero
from remat_cli.splitting.loops.loop_values import SizeValues
from remat_cli.splitting.rules.record import COPIED, REPEATED, REST
from remat_cli.splitting.rules.shape import OPEN_SHAPES
from remat_cli.splitting.rules.table import rule_of


@dataclass(frozen=True)
class Partable:
    """A model with ops that can run on parts; dimensions of tensors that it has more; types, costs of its new ops."""

    model: ir.Model
    dims: Mapping[str, tuple[Dim, ...]]
    types: Mapping[str, tuple[TensorType, ...]]
    costs: Mapping[str, OpCost] = field(default_factory=dict)


def with_open_shapes(
    model: ir.Model, dims: Mapping[str, tuple[Dim, ...]], family: SizeFamily, large: Collection[str]
) -> Partable:
    """The model with lengths left open in computed shapes of large tensors.

    Of each Reshape those are open that it reads at the same place, and of the others one: the longest.

    Shapes of large tensors are computed of those of inputs. `dims` are the dimensions of tensors for all sizes of the
    `family`.
    """
    if not any(_asks_shape(node, dims, large) or _open_of(node, dims, family, large) for node in model.graph):
        return Partable(model, {}, {})
    new = model.clone()
    nodes = list(new.graph)
    numbers = SizeValues(new.graph, dims, names_in(new), OPEN_SHAPES)
    for node in nodes:
        if _asks_shape(node, dims, large):
            made = present(asked_lengths(node, dims), "what a Shape tells")
            parts = [numbers.length(dim) if dim.terms else numbers.constant([dim.offset]) for dim in made]
            name = f"{OPEN_SHAPES}{node.name}"
            whole = numbers.op(new.graph, name, "Concat", parts, ir.AttrInt64("axis", 0))
            node.outputs[0].replace_all_uses_with(whole)
        found = _open_of(node, dims, family, large)
        if found:
            wanted = enumerate(dims[node.outputs[0].name or ""])
            parts = [numbers.constant([found[axis]]) if axis in found else numbers.length(dim) for axis, dim in wanted]
            name = f"{OPEN_SHAPES}{node.name}"
            node.replace_input_with(1, numbers.op(new.graph, name, "Concat", parts, ir.AttrInt64("axis", 0)))
            node.attributes.pop(ALLOWS_ZERO, None)
    drop_unread(new.graph, model.graph)
    added = of_sizes(node for node in new.graph if node not in nodes)
    new.graph.sort()
    return Partable(new, *added)


def of_sizes(nodes: Iterable[ir.Node]) -> tuple[dict[str, tuple[Dim, ...]], dict[str, tuple[TensorType, ...]]]:
    """Dimensions of what ops make that compute lengths and shapes, by tensor, and its types, by op."""
    dims: dict[str, tuple[Dim, ...]] = {}
    types: dict[str, tuple[TensorType, ...]] = {}
    for node in nodes:
        length = len(node.inputs) if node.op_type == "Concat" else 1
        if node.op_type == "Shape":
            length = len((node.inputs[0] and node.inputs[0].shape) or ())
        dims[node.outputs[0].name or ""] = (number(length),)
        types[node.name or ""] = (TensorType("int64", (length,)),)
    return dims, types


def _asks_shape(node: ir.Node, dims: Mapping[str, tuple[Dim, ...]], large: Collection[str]) -> bool:
    """Whether an op asks for lengths of a large tensor that another op makes."""
    is_shape = (node.domain, node.op_type) == ("", "Shape") and not node.outputs[0].is_graph_output()
    source = node.inputs[0] if is_shape else None
    is_made = source is not None and source.producer() is not None
    return is_made and source is not None and source.name in large and bool(asked_lengths(node, dims))


def _open_of(
    node: ir.Node, dims: Mapping[str, tuple[Dim, ...]], family: SizeFamily, large: Collection[str]
) -> dict[int, int]:
    """Axes of what an op makes whose length need not be said, with what is said instead."""
    rest_or_repeated = rule_of(node.domain, node.op_type).open_length
    if rest_or_repeated is None:
        return {}
    source, shape, made = node.inputs[0], node.inputs[1], node.outputs[0].name or ""
    before, after = dims.get((source and source.name) or ""), dims.get(made)
    if shape is None or shape.const_value is not None or before is None or after is None or made not in large:
        return {}
    varying = [axis for axis, dim in enumerate(after) if dim.terms]
    if rest_or_repeated == REPEATED:
        shift = len(after) - len(before)
        shared = [axis for axis in varying if axis >= shift and before[axis - shift] == after[axis]]
        return dict.fromkeys(shared, REPEATED)
    starts = [(dim, product_of(before[:axis])) for axis, dim in enumerate(before)]
    kept = {axis: (after[axis], product_of(after[:axis])) for axis in varying}
    kept = {axis: start for axis, start in kept.items() if start in starts}
    if takes_zero(node, after, family):
        return {}
    copied = [axis for axis, start in kept.items() if starts[axis : axis + 1] == [start]]
    others = sorted(set(kept) - set(copied), key=lambda axis: (-after[axis].at(family.corners[0]), axis))
    if not family.has_rest(after):
        return dict.fromkeys(copied, COPIED)
    return dict.fromkeys(copied, COPIED) | dict.fromkeys(others[:1], REST)
