"""Fewest forwards in the unit-slot model by exhaustive search; shares no code with the solvers.

Dijkstra over what is stored: per branch the set of layers whose output is there, and the gradient (None before the
loss, -1 once it has been dropped). A value may be thrown away at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

State = tuple[tuple[frozenset[int], ...], tuple[int | None, ...]]


def fewest_forwards(lengths: tuple[int, ...], wanted: tuple[int, ...], slots: int) -> int | None:
    """The least number of forwards from all inputs to all input gradients, those wanted kept."""
    return _search((frozenset([0]),) * len(lengths), (None,) * len(lengths), lengths, wanted, slots)


def fewest_backward_forwards(layers: int, slots: int) -> int | None:
    """The same for one branch whose last gradient is there at the start."""
    return _search((frozenset([0]),), (layers,), (layers,), (1,), slots)


def _search(values, gradients, lengths, wanted, slots) -> int | None:
    heap = [(0, 0, (values, gradients))]
    done: set[State] = set()
    ticket = 0
    while heap:
        cost, _, state = heapq.heappop(heap)
        if state in done or _slots(state) > slots:
            continue
        done.add(state)
        if all(g == 0 or (g == -1 and not b) for g, b in zip(state[1], wanted, strict=True)):
            return cost
        for more, after in _moves(state, lengths):
            if after not in done:
                ticket += 1
                heapq.heappush(heap, (cost + more, ticket, after))
    return None


def _slots(state: State) -> int:
    values, gradients = state
    return sum(map(len, values)) + sum(g is not None and g >= 0 for g in gradients)


def _moves(state: State, lengths: tuple[int, ...]) -> Iterator[tuple[int, State]]:
    values, gradients = state
    if all(g is None for g in gradients) and all(n in there for n, there in zip(lengths, values, strict=True)):
        yield 0, (tuple(there - {n} for n, there in zip(lengths, values, strict=True)), lengths)
    for k, there in enumerate(values):
        gradient = gradients[k]
        if gradient == 0:
            yield 0, (values, _put(gradients, k, -1))
        if gradient is not None and gradient > 0 and gradient - 1 in there:
            yield 0, (_put(values, k, there - {gradient - 1}), _put(gradients, k, gradient - 1))
        for layer in there:
            yield 0, (_put(values, k, there - {layer}), gradients)
            if layer < lengths[k] and layer + 1 not in there:
                yield 1, (_put(values, k, there | {layer + 1}), gradients)
                yield 1, (_put(values, k, (there | {layer + 1}) - {layer}), gradients)


def _put(items: tuple, place: int, item) -> tuple:
    return (*items[:place], item, *items[place + 1 :])
