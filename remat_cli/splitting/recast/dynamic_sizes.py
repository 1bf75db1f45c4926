"""Quantisation by the range of a whole tensor, taken apart in a model for many sizes."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import Dim, number
from remat_cli.onnx_io.write.assemble import Draft, element_types
from remat_cli.splitting.loops.open_shapes import Partable
from remat_cli.splitting.loops.weights import weight_in
from remat_cli.splitting.recast.dynamic import has_range, parts_of
from remat_cli.splitting.recast.recast import Recast, Rewrite
from remat_cli.splitting.tiles.view import ModelView


def with_ranges_apart(view: ModelView, dims: Mapping[str, tuple[Dim, ...]], least_bytes: int) -> Partable:
    """The model with every quantisation of a tensor of at least so many bytes taken apart; may be the model itself.

    `view` is of the largest sizes, `dims` are the dimensions of tensors for all sizes.
    """
    ops = tuple(range(len(view.graph.ops)))
    taken = [op for op in ops if has_range(view, op, least_bytes) and view.reads[op][0] in dims]
    if not taken:
        return Partable(view.model, {}, {})
    costs = tuple(OpCost(op.name, 0) for op in view.graph.ops)
    rewrite = Rewrite(Recast(view, ops, costs, {}, {}))
    new = view.model.clone()
    nodes = {node.name: node for node in new.graph}
    more, types = dict[str, tuple[Dim, ...]](), dict[str, tuple[TensorType, ...]]()
    for op in taken:
        drafts, source = list(parts_of(rewrite, op)), view.reads[op][0]
        _put_in_place(new.graph, nodes[view.graph.ops[op].name], drafts, rewrite)
        for draft in drafts:
            types[draft.name] = tuple(rewrite.types[name] for name in draft.makes)
            made = {name: rewrite.types[name].shape for name in draft.makes if name not in dims}
            more |= {name: _lengths(shape, view.tensors[source].shape, dims[source]) for name, shape in made.items()}
    return Partable(new, more, types)


def _lengths(shape: tuple[int, ...], read: tuple[int, ...], dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Dimensions for all sizes of what has the lengths of what is read, but for those that are numbers."""
    if len(shape) != len(read):
        return tuple(map(number, shape))
    return tuple(dim if made == old else number(made) for made, old, dim in zip(shape, read, dims, strict=True))


def _put_in_place(graph: ir.Graph, node: ir.Node, drafts: list[Draft], rewrite: Rewrite) -> None:
    """Write drafts where a node stands, which is then no more."""
    values = {value.name or "": value for value in node.inputs if value is not None}
    kinds = element_types({name: rewrite.types[name] for draft in drafts for name in draft.makes})
    for draft in drafts:
        for name in draft.reads:
            if name and name not in values:  # what is new is a constant
                values[name] = weight_in(graph, name, rewrite.weights[name].numpy())
        made = [ir.Value(name=name, type=kinds[name]) for name in draft.makes]
        reads = [values[name] if name else None for name in draft.reads]
        graph.insert_before(
            node, ir.Node(draft.domain, draft.op_type, reads, draft.changed, outputs=made, name=draft.name)
        )
        values |= {value.name or "": value for value in made}
    for old in node.outputs:
        new = values[old.name or ""]
        new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
