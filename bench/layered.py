"""Random layered graphs of any size, in the style of Gagrani et al., "Neural topological ordering", NeurIPS 2022.

Own code after the description that stands beside the published instances: widths of layers uniform around
2 x width factor x sqrt(ops), links between neighbouring layers, skip links from a random op to a random later layer,
sizes from a mixture of normals, uniform costs, and a random order among the ops that are ready. One source, one target.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise

from bench.draft import Draft

WIDTH_FACTOR = 0.31
WIDTH_SPREAD = 0.75
NEIGHBOUR_DENSITY = 0.235
EDGES_PER_OP = 5.9
SKIP_SHARE = 0.14
SIZE_MIXTURE = ((0.3, 500, 500), (0.3, 1000, 1000), (0.3, 3000, 1000), (0.1, 5000, 1000))  # weight, mean, deviation
LEAST_SIZE = 10
MOST_COST = 1000


@dataclass(frozen=True)
class Shape:
    """How large a graph is, and how many layers a skip link may span (None: up to all, as in the published style)."""

    ops: int
    longest_skip: int | None = None


def layered(name: str, shape: Shape, seed: int) -> Draft:
    """A random layered graph; the same name, shape and seed give the same file on every machine.

    In large graphs the links between neighbours are thinned out so that there are 5.9 edges per op in any size.
    """
    rng = random.Random(seed)
    layers = _layers(shape.ops, rng)
    edges = _links(layers, rng)
    _add_skips(edges, layers, shape, rng)
    span = "all layers" if shape.longest_skip is None else f"at most {shape.longest_skip} layers"
    source = (
        f"random layered graph, seed {seed}: n={shape.ops}, width factor {WIDTH_FACTOR}, width variability"
        f" {WIDTH_SPREAD}, {EDGES_PER_OP} edges per op, {SKIP_SHARE:.0%} of them skip links over {span}; random order"
    )
    draft = Draft(name, source, "uniform random integers", seed)
    for op, inputs in _random_order(shape.ops, edges, rng):
        is_end = op in (0, shape.ops - 1)
        draft.add(f"n{op}", (0 if is_end else rng.randint(1, MOST_COST), _size(rng)), inputs)
    return draft


def _layers(count: int, rng: random.Random) -> list[range]:
    """Consecutive ids per layer; the first and the last layer are a single op."""
    mean = 2 * WIDTH_FACTOR * math.sqrt(count)
    layers, first = [range(0, 1)], 1
    while first < count - 1:
        width = max(1, round(mean * rng.uniform(1 - WIDTH_SPREAD, 1 + WIDTH_SPREAD)))
        last = min(first + width, count - 1)
        layers.append(range(first, last))
        first = last
    return [*layers, range(count - 1, count)]


def _links(layers: list[range], rng: random.Random) -> set[tuple[int, int]]:
    """Links between neighbouring layers, at least one reader and one input for every op."""
    widths = [len(layer) for layer in layers]
    pairs = sum(one * other for one, other in pairwise(widths))
    density = min(NEIGHBOUR_DENSITY, EDGES_PER_OP * (1 - SKIP_SHARE) * sum(widths) / pairs)
    edges: set[tuple[int, int]] = set()
    for before, after in pairwise(layers):
        found = {(one, other) for one in before for other in after if rng.random() < density}
        read, reading = {one for one, _ in found}, {other for _, other in found}
        found |= {(one, rng.choice(after)) for one in before if one not in read}
        reading |= {other for _, other in found}
        found |= {(rng.choice(before), other) for other in after if other not in reading}
        edges |= found
    return edges


def _add_skips(edges: set[tuple[int, int]], layers: list[range], shape: Shape, rng: random.Random) -> None:
    """Add links from random ops to random ops of later, non-neighbouring layers, until there are enough edges.

    None ends at the target: it is a layer of its own and would read a large part of the graph.
    """
    layer_of = [number for number, layer in enumerate(layers) for _ in layer]
    wanted = max(round(EDGES_PER_OP * shape.ops), round(len(edges) / (1 - SKIP_SHARE)))
    most = shape.longest_skip or len(layers)
    while len(edges) < wanted:
        one = rng.randrange(1, shape.ops - 1)
        nearest, farthest = layer_of[one] + 2, min(layer_of[one] + most, len(layers) - 2)
        if nearest <= farthest:
            edges.add((one, rng.choice(layers[rng.randint(nearest, farthest)])))


def _random_order(count: int, edges: set[tuple[int, int]], rng: random.Random) -> list[tuple[int, list[int]]]:
    """Ops in a random topological order, each with the places of its inputs in that order."""
    readers: list[list[int]] = [[] for _ in range(count)]
    inputs: list[list[int]] = [[] for _ in range(count)]
    for one, other in sorted(edges):
        readers[one].append(other)
        inputs[other].append(one)
    missing = [len(reads) for reads in inputs]
    ready = [op for op in range(count) if not missing[op]]
    place: dict[int, int] = {}
    while ready:
        pick = rng.randrange(len(ready))
        ready[pick], ready[-1] = ready[-1], ready[pick]
        op = ready.pop()
        place[op] = len(place)
        for reader in readers[op]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return [(op, sorted(place[one] for one in inputs[op])) for op in place]


def _size(rng: random.Random) -> int:
    """Bytes from the mixture, in tens, never below ten."""
    weights = [weight for weight, _, _ in SIZE_MIXTURE]
    _, mean, deviation = rng.choices(SIZE_MIXTURE, weights)[0]
    return max(LEAST_SIZE, round(rng.gauss(mean, deviation) / 10) * 10)
