"""Proved lower bounds on the total time of a plan, for problems with several devices.

Three kinds, cheap ones first: the least time if no memory were short (`_bounds.devices_cut`); bounds for one device
with all memories together (`merged_problem`); and the frontier bound with a place for everything
(`_bounds.devices_frontier`), the only one that sees what one memory lacks and another has. All hold for the order of
the limits: `free`, or first computations in baseline order. None counts what it costs to hand over between devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from remat_cli.core.problem import Problem
from remat_cli.solvers._bounds.devices_cut import cut_units
from remat_cli.solvers._bounds.devices_frontier import (
    StageRanges,
    device_frontier_milp,
    free_windows,
    ordered_windows,
)
from remat_cli.solvers._bounds.devices_rooms import Rooms, make_rooms, merged_problem, one_memory
from remat_cli.solvers._bounds.free_frontier import choose_chain
from remat_cli.solvers._bounds.frontier import choose_boundaries
from remat_cli.solvers._bounds.improving import Bound, improving_bounds, known_units, part_of
from remat_cli.solvers._bounds.pressure import Pressure, make_pressure
from remat_cli.solvers._milp.program import BoundEngine, Milp, rising_answers
from remat_cli.solvers.base import Limits, Order, Space

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
        """Where bounds of this order hold."""
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
    """In the order of cost."""
    several = len(problem.memories) > 1
    if several and len(problem.memories) == 2 and not problem.overlap:
        yield cut_bound(problem)
    work = Shortage(problem, limits.order, shortest_memory(problem) if several else None)
    yield from _merged(problem, part_of(limits, _MERGED_SHARE if several else 1.0), best_ns)
    tried: list[list[int]] = []
    for count in (0, *_BOUNDARIES) if several else ():
        chosen = [] if limits.is_over else choose_stages(work, count)
        if limits.is_over or chosen in tried:
            continue
        tried.append(chosen)
        yield from frontier_bounds(work, chosen, part_of(limits, _SHARE), best_ns)


def _merged(problem: Problem, limits: Limits, best_ns: Callable[[], int | None]) -> Iterator[Bound]:
    """Of one device, where all memories together are short; without its starts."""
    merged = merged_problem(problem)
    pressure = make_pressure(merged)
    if len(problem.memories) > 1 and max(pressure.live(), default=0) <= pressure.capacity:
        return
    for bound in improving_bounds(merged, limits, best_ns):
        yield replace(bound, start=None, facts=bound.facts | {"memories": "merged"})


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
    milp = device_frontier_milp(rooms, _windows(work, rooms, chosen))
    quick = replace(limits, report=Limits().report, work=None, workers=1)
    for answer in rising_answers(milp, _engine(milp, is_small), quick, known_units(best_ns, 0, rooms.time_unit)):
        facts = answer.facts | {"boundaries": len(chosen)}
        total = _nanoseconds(rooms, answer.bound)
        yield Bound(total, work.space, "frontier", answer.is_tight, time.monotonic() - began, facts)


def _windows(work: Shortage, rooms: Rooms, chosen: list[int]) -> StageRanges:
    return free_windows(rooms, chosen) if work.order == "free" else ordered_windows(rooms, chosen)


def _engine(milp: Milp, is_small: bool) -> BoundEngine:
    if is_small:
        return "cp-sat"
    return "highs" if len(milp.upper) <= _MOST_INTEGERS else "relaxed"


def _nanoseconds(rooms: Rooms, units: int | None) -> int | None:
    return None if units is None else units * rooms.time_unit
