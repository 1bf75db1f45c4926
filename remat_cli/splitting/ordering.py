"""The order of tiles, found again in the optimised split model, which the runtime has sorted in its own way."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec
import onnx_ir as ir

from remat_cli.core.graph import Graph


def tile_order(split: ir.Model, graph: Graph) -> list[int]:
    """Ops of `graph`, the optimised split model, as near as can be to the order of nodes in `split`.

    An op stands where the node of `split` stood that made the same tensor; ops that the optimiser added stand just
    before what reads them.
    """
    place = {value.name: index for index, node in enumerate(split.graph) for value in node.outputs}
    readers = _readers(graph)
    ranks = [max((place.get(graph.tensors[t].name, -1) for t in op.outputs), default=-1) for op in graph.ops]
    for op in reversed(range(len(ranks))):
        if ranks[op] < 0:
            ranks[op] = min((ranks[reader] for reader in readers[op]), default=len(place))
    return _sorted(ranks, readers)


def reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """The same graph with its ops in another topological order."""
    new_id = {old: new for new, old in enumerate(order)}
    tensors = tuple(
        tensor if tensor.producer is None else msgspec.structs.replace(tensor, producer=new_id[tensor.producer])
        for tensor in graph.tensors
    )
    return Graph(tuple(graph.ops[op] for op in order), tensors, graph.weights)


def _readers(graph: Graph) -> Sequence[tuple[int, ...]]:
    """By op, the ops that read what it makes, once for every tensor."""
    found: list[list[int]] = [[] for _ in graph.ops]
    for index, op in enumerate(graph.ops):
        for tensor in op.inputs:
            producer = graph.tensors[tensor].producer
            if producer is not None:
                found[producer].append(index)
    return [tuple(readers) for readers in found]


def _sorted(ranks: Sequence[int], readers: Sequence[tuple[int, ...]]) -> list[int]:
    """A topological order, ops of low rank first."""
    missing: dict[int, int] = dict.fromkeys(range(len(ranks)), 0)
    for targets in readers:
        for target in targets:
            missing[target] += 1
    ready = [(ranks[op], op) for op, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, op = heapq.heappop(ready)
        order.append(op)
        for target in readers[op]:
            missing[target] -= 1
            if not missing[target]:
                heapq.heappush(ready, (ranks[target], target))
    return order
