"""A model in which each item of a batch runs by itself, to be cut once more.

Exporters lay the rows of all items flat for a product of matrices, [items, rows, columns] as [items * rows, columns],
and fold them again behind it. A part of the rows of each item is no part of the flat rows, so that nothing is cut there
but by items. Of one item alone any rows are the same rows flat: once items are apart, regions and bands along rows go
through, and through all else that mixes an item's own axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.layout_scene import SPLIT_OF
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.bands.bands import Banding, even_counts
from remat_cli.splitting.bands.demands import UncutOp, band_works
from remat_cli.splitting.bands.items import item_axes
from remat_cli.splitting.bands.lowering import lower
from remat_cli.splitting.recast.recast import Recast
from remat_cli.splitting.tiles.build import TILE, split_with_types
from remat_cli.splitting.tiles.estimate import COPY_NS, COPY_NS_PER_BYTE, step_time_ns, workspace_of
from remat_cli.splitting.tiles.op_view import SUMMED
from remat_cli.splitting.tiles.schedule import in_order
from remat_cli.splitting.tiles.steps import RunStep, TiledRegion, op_of, results_of
from remat_cli.splitting.tiles.view import ModelView

MOST_ITEMS = 16
MOST_OPS = 4_000  # of the model with its items apart: a search among more takes too long
MOST_UNCUT = 16  # ops found not to be cut by items before that is given up


@dataclass(frozen=True)
class ItemsApart:
    """A model with its items apart as `cast`, made of `whole` by the steps of `region`, which cut ops along `axis`."""

    whole: Recast
    region: TiledRegion
    axis: Mapping[int, int]
    items: int
    model: ir.Model
    cast: Recast

    @cached_property
    def tensor_of(self) -> Mapping[str, str]:
        """By name of a piece the tensor of the whole model that it is of."""
        return {piece.name: piece.tensor for step in self.region.steps for piece in results_of(step)}


def items_apart(
    view: ModelView, order: tuple[int, ...], costs: Sequence[OpCost], forbidden: Collection[str], may_fill: bool
) -> ItemsApart | None:
    """The model with its items apart; None where there is one item, or too many, or nothing can be cut by items.

    Ops whose names are forbidden take all items at once.
    """
    whole = Recast(view, order, tuple(costs), {}, {})
    uncut = {op for op, each in enumerate(view.graph.ops) if each.name in forbidden}
    for _ in range(MOST_UNCUT):
        axis = {op: each for op, each in item_axes(view, order, uncut, goes_on=True).items() if each != SUMMED}
        items = max((count for count in even_counts(view, axis, axis) if count <= MOST_ITEMS), default=1)
        if items == 1 or len(order) + len(axis) * (items - 1) > MOST_OPS:
            return None
        banding = Banding(axis, dict.fromkeys(axis, 0), (items,))
        works = band_works(whole, banding)
        if isinstance(works, UncutOp):
            uncut.add(works.op)
            continue
        steps = tuple(in_order(view, lower(whole, banding, works, may_fill)))
        return _built(whole, TiledRegion(order, steps), axis, items)
    return None


def _built(whole: Recast, region: TiledRegion, axis: Mapping[int, int], items: int) -> ItemsApart:
    """The model of these steps, its ops in their order."""
    view = whole.view
    model, types = split_with_types(view, whole.order, [region])
    nodes = tuple(model.graph)
    made = {node.name or "": tuple(types[value.name or ""] for value in node.outputs if value.name) for node in nodes}
    graph = to_graph(model, made)
    number = {op.name: index for index, op in enumerate(graph.ops)}
    costs, origin = _costs(whole, region, graph_nodes := {node.name or "": node for node in nodes}), dict[str, str]()
    maker = {piece.name: op_of(view, step) for step in region.steps for piece in results_of(step)}
    before = ""
    for name, node in graph_nodes.items():
        ops = [maker[value.name] for value in node.outputs if value.name in maker]
        before = origin[name] = view.graph.ops[ops[0]].name if ops else before
    new = view.of_other(model, graph)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    known = tuple(
        costs.get(op.name)
        or OpCost(op.name, COPY_NS + int(COPY_NS_PER_BYTE * sum(sizes[graph.tensors[t].name] for t in op.outputs)), 0)
        for op in graph.ops
    )
    cast = Recast(new, tuple(number[node.name or ""] for node in nodes), known, origin, {})
    return ItemsApart(whole, region, axis, items, model, cast)


def _costs(whole: Recast, region: TiledRegion, nodes: Mapping[str, ir.Node]) -> dict[str, OpCost]:
    """What ops cost that are those of the whole model, or tiles of them."""
    view, found = whole.view, dict[str, OpCost]()
    numbers = {op.name: index for index, op in enumerate(view.graph.ops)}
    tiles = {
        (view.graph.ops[step.work.op].name, str(step.tile)): step for step in region.steps if isinstance(step, RunStep)
    }
    for name, node in nodes.items():
        step = tiles.get((node.metadata_props.get(SPLIT_OF, ""), node.metadata_props.get(TILE, "")))
        if step is not None:
            time_ns, workspace = step_time_ns(step, view, whole.costs), workspace_of(step, view, whole.costs)
            found[name] = OpCost(name, time_ns, workspace)
        elif name in numbers:
            found[name] = whole.costs[numbers[name]]
    return found
