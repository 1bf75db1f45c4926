"""Proved lower bounds on the total time of a plan, for problems with several devices.

Three kinds, cheap ones first: the least time if no memory were short (a minimum cut); bounds for one device
with all memories together (`merged_problem`); and the frontier bound with a place for everything
(`_bounds.devices_frontier`), the only one that sees what one memory lacks and another has. All hold for the order of
the limits: `free`, or first computations in baseline order. None counts what it costs to hand over between devices.

The cut says where to run ops on two memories when neither is short, exact and in milliseconds.

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

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from ortools.graph.python import max_flow

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits, Order, Space
from remat_cli.solvers.bounds.devices_frontier import (
    device_frontier_milp,
    free_windows,
    ordered_windows,
)
from remat_cli.solvers.bounds.devices_rooms import Rooms, make_rooms, merged_problem, one_memory
from remat_cli.solvers.bounds.free_frontier import choose_chain
from remat_cli.solvers.bounds.frontier import choose_boundaries
from remat_cli.solvers.bounds.improving import Bound, improving_bounds, known_units, part_of
from remat_cli.solvers.bounds.pressure import Pressure, make_pressure
from remat_cli.solvers.milp.program import BoundEngine, rising_answers

# Variables up to which CP-SAT, exact and without the start of a process, is the quicker engine.
_SMALL = 1_000
# Numbers of boundaries to try, in this order.
_BOUNDARIES = (4, 8, 12, 16, 24, 40)
# Variables of a program that is solved in minutes, and of one that is worth integers.
_MOST = 400_000
_MOST_INTEGERS = 60_000
# Of the time left, for one program, and for all bounds with the memories merged.
_SHARE = 0.6
_MERGED_SHARE = 0.15
# Below this share of its capacity a memory is never short.
_WORTH = 0.8


@dataclass(frozen=True)
class Shortage:
    """A problem with the memory that is shortest, if any is, as a problem of its own."""

    problem: Problem
    order: Order
    shortest: Pressure | None

    @property
    def space(self) -> Space:
        """The search space in which bounds for this order of ops hold."""
        return "free" if self.order == "free" else "first_in_order"


def improving_device_bounds(
    problem: Problem, limits: Limits, best_ns: Callable[[], int | None] = lambda: None
) -> Iterator[Bound]:
    """Ever better bounds for the order of `limits`, until time is up or nothing more is in reach.

    Ends early when a bound reaches `best_ns()`, the time of the best schedule known. Blocks between two bounds, but
    releases the interpreter lock meanwhile: run it in a thread beside a search.
    """
    best: Bound | None = None
    for bound in _all_bounds(problem, limits, best_ns):
        if bound.is_above(best):
            best = bound
            yield best
        if best is not None and best.is_enough(best_ns()):
            return


def cut_bound(problem: Problem) -> Bound:
    """The least time if no memory were short, for two memories without overlap; None if some op fits nowhere."""
    began = time.monotonic()
    rooms = make_rooms(problem)
    units = None if rooms.has_stranded_op else cut_units(rooms)
    return Bound(_nanoseconds(rooms, units), "free", "cut", True, time.monotonic() - began)


def shortest_memory(problem: Problem) -> Pressure | None:
    """The memory that would lack most if everything ran there; None if everything fits into each."""
    pressures = [make_pressure(one_memory(problem, memory)) for memory in range(len(problem.memories))]
    shares = [
        (max(p.live(), default=0) + sum(problem.weight_bytes) // p.byte_unit) / max(1, p.capacity) for p in pressures
    ]
    worst = shares.index(max(shares))
    return pressures[worst] if shares[worst] > _WORTH else None


def _all_bounds(problem: Problem, limits: Limits, best_ns: Callable[[], int | None]) -> Iterator[Bound]:
    """All ways to a bound, the cheapest first."""
    several = len(problem.memories) > 1
    if several and len(problem.memories) == 2 and not problem.overlap:
        yield cut_bound(problem)
    work = Shortage(problem, limits.order, shortest_memory(problem) if several else None)
    # Of one device, where all memories together are short; without its starts.
    merged = merged_problem(problem)
    pressure = make_pressure(merged)
    if not several or max(pressure.live(), default=0) > pressure.capacity:
        for bound in improving_bounds(merged, part_of(limits, _MERGED_SHARE if several else 1.0), best_ns):
            yield replace(bound, start=None, facts=bound.facts | {"memories": "merged"})
    tried: list[list[int]] = []
    for count in (0, *_BOUNDARIES) if several else ():
        chosen = [] if limits.is_over else choose_stages(work, count)
        if limits.is_over or chosen in tried:
            continue
        tried.append(chosen)
        yield from frontier_bounds(work, chosen, part_of(limits, _SHARE), best_ns)


def choose_stages(work: Shortage, count: int) -> list[int]:
    """At most so many boundaries, where the shortest memory asks for them."""
    if work.shortest is None or count == 0:
        return []
    choose = choose_chain if work.order == "free" else choose_boundaries
    return choose(work.shortest, count)


def frontier_bounds(
    work: Shortage, chosen: list[int], limits: Limits, best_ns: Callable[[], int | None]
) -> Iterator[Bound]:
    """Rising bounds from the program with these boundaries."""
    began = time.monotonic()
    links = len(work.problem.memories) ** 2
    size = (len(chosen) + 1) * (len(work.problem.ops) + len(work.problem.tensors)) * links
    if size > _MOST:
        return
    is_small = size <= _SMALL
    rooms = make_rooms(work.problem, is_small)
    if rooms.has_stranded_op:
        yield Bound(None, "free", "frontier", True, time.monotonic() - began)
        return
    ranges_of = free_windows if work.order == "free" else ordered_windows
    milp = device_frontier_milp(rooms, ranges_of(rooms, chosen))
    quick = replace(limits, report=Limits().report, work=None, workers=1)
    engine: BoundEngine = "cp-sat" if is_small else "highs" if len(milp.upper) <= _MOST_INTEGERS else "relaxed"
    for answer in rising_answers(milp, engine, quick, known_units(best_ns, 0, rooms.time_unit)):
        facts = answer.facts | {"boundaries": len(chosen)}
        total = _nanoseconds(rooms, answer.bound)
        yield Bound(total, work.space, "frontier", answer.is_tight, time.monotonic() - began, facts)


def _nanoseconds(rooms: Rooms, units: int | None) -> int | None:
    return None if units is None else units * rooms.time_unit


SOURCE, SINK = 0, 1


def cut_units(rooms: Rooms) -> int | None:
    """The least time in units, whatever memory it takes; None: some value cannot get to where it must be read."""
    whole = sum(time for row in rooms.times for time in row if time is not None)
    whole += sum(time for tensor in range(len(rooms.copies)) for _, _, time in rooms.links(tensor))
    network = CutNetwork(1 + whole)
    first = network.nodes(2 * len(rooms.problem.ops))
    for op, times in enumerate(rooms.times):
        on, off = first + 2 * op, first + 2 * op + 1
        network.pay(on, SINK, times[0])
        network.pay(SOURCE, off, times[1])
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


@dataclass
class CutNetwork:
    """Node 0 is on the side of ones, node 1 on that of zeros; `never` is more than any finite cut costs."""

    never: int
    count: int = 2
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    costs: list[int] = field(default_factory=list)

    def nodes(self, count: int) -> int:
        """Add so many nodes to the network; the number of the first."""
        self.count += count
        return self.count - count

    def pay(self, tail: int, head: int, cost: int | None) -> None:
        """What it costs when `tail` is 1 and `head` is 0; None: that cannot be."""
        self.tails.append(tail)
        self.heads.append(head)
        self.costs.append(self.never if cost is None else cost)

    def least(self) -> int | None:
        """The cost of a minimum cut."""
        flow, status = self._solved()
        return None if status != flow.OPTIMAL or flow.optimal_flow() >= self.never else int(flow.optimal_flow())

    def ones(self) -> set[int]:
        """The nodes that are 1 in a minimum cut, as few as can be."""
        return set(self._solved()[0].get_source_side_min_cut())

    def _solved(self) -> tuple[Any, Any]:
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(np.array(self.tails), np.array(self.heads), np.array(self.costs, dtype=np.int64))
        return flow, flow.solve(SOURCE, SINK)
