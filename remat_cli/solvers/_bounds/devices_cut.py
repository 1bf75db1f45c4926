"""Where to run ops on two memories when neither is short: a minimum cut, exact and in milliseconds.

In any schedule let a[v] say that op v runs in memory 0, b[v] that it runs in memory 1, and look at a value x made by u
and read by v. With a[v] and not a[u], x is copied to memory 0 at least once; likewise for b and memory 1. So the time
is at least the least of

    sum time[v][0] a[v] + time[v][1] b[v] + sum over x of copy[1][0][x] p[x] + copy[0][1][x] q[x]
    with a[v] + b[v] >= 1, p[x] >= a[v] - a[u] and q[x] >= b[v] - b[u] for each reader v of x

and a schedule that runs every op once in each of its memories, and copies once, takes that long if neither memory is
short and calls cost nothing. An op may well run in both: that may cost less than a copy. With b'[v] = 1 - b[v] every
row asks that one variable is at most another, or pays for the difference; so it is a minimum cut (Picard, "Maximal
closure of a graph and applications to combinatorial problems", 1976).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from ortools.graph.python import max_flow

from remat_cli.solvers._bounds.devices_rooms import Rooms

_SOURCE, _SINK = 0, 1


def cut_units(rooms: Rooms) -> int | None:
    """The least time in units, whatever memory it takes; None: some value cannot get to where it must be read."""
    network = _Network(1 + sum(_figures(rooms)))
    first = network.nodes(2 * len(rooms.problem.ops))
    for op, times in enumerate(rooms.times):
        on, off = first + 2 * op, first + 2 * op + 1
        network.pay(on, _SINK, times[0])
        network.pay(_SOURCE, off, times[1])
        network.pay(off, on, None)
        if not rooms.problem.ops[op].repeatable:
            network.pay(on, off, None)
    for tensor, readers in enumerate(rooms.readers):
        made = first + 2 * rooms.producer(tensor)
        wanted, enough = network.nodes(2), network.count - 1
        network.pay(wanted, made, rooms.copies[tensor][1][0])
        network.pay(made + 1, enough, rooms.copies[tensor][0][1])
        for reader in readers:
            network.pay(first + 2 * reader, wanted, None)
            network.pay(enough, first + 2 * reader + 1, None)
    return network.least()


def _figures(rooms: Rooms) -> list[int]:
    times = [time for row in rooms.times for time in row if time is not None]
    return times + [time for tensor in range(len(rooms.copies)) for _, _, time in rooms.links(tensor)]


@dataclass
class _Network:
    """Node 0 is on the side of ones, node 1 on that of zeros; `never` is more than any finite cut costs."""

    never: int
    count: int = 2
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)

    def nodes(self, count: int) -> int:
        """The first of so many new nodes."""
        self.count += count
        return self.count - count

    def pay(self, tail: int, head: int, cost: int | None) -> None:
        """What it costs when `tail` is 1 and `head` is 0; None: that cannot be."""
        self.tails.append(tail)
        self.heads.append(head)
        self.costs.append(self.never if cost is None else cost)

    def least(self) -> int | None:
        """The cost of a minimum cut."""
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(np.array(self.tails), np.array(self.heads), np.array(self.costs, dtype=np.int64))
        if flow.solve(_SOURCE, _SINK) != flow.OPTIMAL or flow.optimal_flow() >= self.never:
            return None
        return int(flow.optimal_flow())
