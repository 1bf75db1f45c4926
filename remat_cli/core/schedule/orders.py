"""Topological orders: by rank, and with few breaks."""

import heapq
from collections.abc import Collection, Sequence


def ranked_order(sources: Sequence[Collection[int]], ranks: Sequence[int]) -> list[int]:
    """A topological order: of the ops that are ready, the lowest rank first, then the lowest index.

    `sources` are by op the ops that it reads from.
    """
    missing = [len(group) for group in sources]
    readers = inverse(sources)
    ready = [(ranks[op], op) for op, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, op = heapq.heappop(ready)
        order.append(op)
        for reader in readers[op]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (ranks[reader], reader))
    return order


def chained_order(sources: Sequence[Collection[int]], reads: Sequence[Collection[int]]) -> list[int]:
    """A topological order with few breaks, where a break is an op that does not read from the one just before it.

    Of the ops that are ready, the lowest that reads from the last one; else the lowest of all. `sources` are by op
    all ops that must come before it, each once, `reads` those of them that it reads from.
    """
    missing = [len(group) for group in sources]
    followers, readers = inverse(sources), inverse(reads)
    ready = [op for op, count in enumerate(missing) if not count]
    left = set(range(len(sources)))
    order: list[int] = []
    last: list[int] = []
    while left:
        op = next((reader for reader in last if not missing[reader] and reader in left), -1)
        while op not in left:
            op = heapq.heappop(ready)
        left.remove(op)
        order.append(op)
        for follower in followers[op]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
        last = readers[op]
    return order


def inverse(groups: Sequence[Collection[int]]) -> list[list[int]]:
    """For each op the ops whose group it is in, in ascending order."""
    found: list[list[int]] = [[] for _ in groups]
    for op, group in enumerate(groups):
        for other in group:
            found[other].append(op)
    return found
