"""The order of tiles, found again in the optimised split model, which the runtime has sorted in its own way."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import onnx_ir as ir

from remat_cli.core.graph import Graph
from remat_cli.core.orders import ranked_order


def tile_order(split: ir.Model, graph: Graph) -> list[int]:
    """Ops of `graph`, the optimised split model, as near as can be to the order of nodes in `split`.

    An op stands where the node of `split` stood that made the same tensor; ops that the optimiser added stand just
    before what reads them.
    """
    place = {value.name: index for index, node in enumerate(split.graph) for value in node.outputs}
    sources = _sources(graph)
    ranks = [max((place.get(graph.tensors[t].name, -1) for t in op.outputs), default=-1) for op in graph.ops]
    unplaced = {op for op, rank in enumerate(ranks) if rank < 0}
    for op in unplaced:
        ranks[op] = len(place)
    for reader in reversed(range(len(ranks))):
        for source in unplaced.intersection(sources[reader]):
            ranks[source] = min(ranks[source], ranks[reader])
    return ranked_order(sources, ranks)


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The same graph with its ops in another topological order."""
    new_id = {old: new for new, old in enumerate(order)}
    tensors = tuple(
        tensor if tensor.producer is None else msgspec.structs.replace(tensor, producer=new_id[tensor.producer])
        for tensor in graph.tensors
    )
    return Graph(tuple(graph.ops[op] for op in order), tensors, graph.weights)


def _sources(graph: Graph) -> list[list[int]]:
    """By op, the ops that made what it reads, once for every tensor."""
    made_by = [[graph.tensors[tensor].producer for tensor in op.inputs] for op in graph.ops]
    return [[producer for producer in producers if producer is not None] for producers in made_by]
