"""Ops that hold or take much, taken apart in a model for many sizes.

Ranges, groups of queries, channels of transposed convolutions, ways through time.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.sizes import Dim, number
from remat_cli.onnx_io.write.assemble import Draft, element_types
from remat_cli.onnx_io.write.weights import weight_in
from remat_cli.splitting.loops.open_shapes import Partable
from remat_cli.splitting.recast.directions import goes_both_ways, parts_of_ways
from remat_cli.splitting.recast.dynamic import has_range, parts_of
from remat_cli.splitting.recast.grouped import has_groups, parts_of_groups
from remat_cli.splitting.recast.recast import Recast, Rewrite
from remat_cli.splitting.recast.transposed import comes_in_channels, in_channels
from remat_cli.splitting.rules.recurrent import TIME
from remat_cli.splitting.tiles.view import ModelView


def with_ops_apart(
    view: ModelView,
    dims: Mapping[str, tuple[Dim, ...]],
    costs: Mapping[str, OpCost],
    least_bytes: int,
    least: Mapping[str, int],
) -> Partable:
    """The model with ops taken apart that hold, or take for themselves, so many bytes; may be the model itself.

    `view` is of the largest sizes, `dims` are the dimensions of tensors for all sizes from the `least` ones on; `costs`
    are by name of an op.
    """
    names = [op.name for op in view.graph.ops]
    known = tuple(costs.get(name, OpCost(name, 0)) for name in names)
    parts = {op: parts_of for op in range(len(names)) if has_range(view, op, least_bytes)}
    large = {op: cost.workspace_bytes for op, cost in enumerate(known) if cost.workspace_bytes >= least_bytes}
    parts |= {op: parts_of_groups for op in large if has_groups(view, op)}
    parts |= {op: in_channels for op, taken in large.items() if comes_in_channels(view, op, dims, least, taken)}
    # networks that go both ways through a time that varies may run some steps at a time
    both_ways = [op for op in range(len(names)) if goes_both_ways(view, op)]
    parts |= {op: parts_of_ways for op in both_ways if (made := dims.get(view.makes[op][0])) and made[TIME].terms}
    taken = {
        op: found
        for op, found in parts.items()
        if all(name in dims for name in (*view.reads[op], *view.makes[op]) if name in view.tensors)
    }
    if not taken:
        return Partable(view.model, {}, {})
    rewrite = Rewrite(Recast(view, tuple(range(len(names))), known, {}, {}))
    new = view.model.clone()
    nodes = {node.name: node for node in new.graph}
    more, types = dict[str, tuple[Dim, ...]](), dict[str, tuple[TensorType, ...]]()
    for op, parts_of_op in taken.items():
        drafts = list(parts_of_op(rewrite, op))
        _put_in_place(new.graph, nodes[names[op]], drafts, rewrite)
        for draft in drafts:
            types[draft.name] = tuple(rewrite.types[name] for name in draft.makes)
            for name in (name for name in draft.makes if name not in dims):
                shape, like = rewrite.types[name].shape, rewrite.alike.get(name, "")
                more[name] = tuple(map(number, shape))
                if like in dims:  # where its lengths are that tensor's, they are so at all sizes
                    lengths = zip(shape, rewrite.types[like].shape, dims[like], strict=True)
                    more[name] = tuple(dim if new == old else number(new) for new, old, dim in lengths)
    return Partable(new, more, types, rewrite.costs)


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
        attributes = {} if draft.source is None else dict(draft.source.attributes)
        attributes |= {each.name: each for each in draft.changed}
        new_node = ir.Node(
            draft.domain, draft.op_type, reads, tuple(attributes.values()), outputs=made, name=draft.name
        )
        graph.insert_before(node, new_node)
        values |= {value.name or "": value for value in made}
    read = (old for old in node.outputs if old.uses() or old.is_graph_output())  # drafts need not make the others
    for old in read:
        new = values[old.name or ""]
        new.shape = old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    weights = [value for value in node.inputs if value is not None and value.name in graph.initializers]
    graph.remove(node, safe=True)
    for weight in weights:
        if not weight.uses() and weight not in graph.inputs and weight not in graph.outputs:
            graph.initializers.pop(weight.name or "", None)
