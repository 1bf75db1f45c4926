"""Proved lower bounds on the total time of a plan, for problems with one device.

Each bound holds in its search space and in every smaller one; it says nothing about a larger one. `gap_cover`,
`frontier` and `relaxed_frontier` need first computations in baseline order, `free_order` needs nothing. All may be
stopped at any time and then return what is proved so far.

Gap cover takes milliseconds: between two uses in a row, a tensor is recomputed or it stays in memory. At each first
computation where keeping everything takes too much, enough of the gaps around it must be recomputed; costs of gaps add
up, because the gaps of one tensor do not overlap in time.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from operator import mul
from typing import Any, Literal, TypeAlias

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits, Order, Space
from remat_cli.solvers.bounds.free import free_order_milp
from remat_cli.solvers.bounds.free_frontier import choose_chain, free_frontier_milp
from remat_cli.solvers.bounds.frontier import Frontier, choose_boundaries, make_frontier, rounded_schedule
from remat_cli.solvers.bounds.pressure import Pressure, make_pressure
from remat_cli.solvers.milp.program import BoundEngine, Known, Milp, rising_answers

# In all rows together, about; enough for each critical event of a problem of 1,000 ops.
_ROW_TERMS = 200_000


@dataclass(frozen=True, order=True)
class UseGap:
    """A tensor between two uses in a row, `first` and `last` (events; the number of ops is the end)."""

    tensor: int
    first: int
    last: int


def gap_cover_milp(pressure: Pressure) -> Milp:
    """Cost in time units; one row per first computation that is over budget when nothing is recomputed.

    Of very many only the worst of each of some blocks get a row.
    """
    builder = _GapCover(pressure, pressure.worst_events(1.0, pressure.events_within(_ROW_TERMS)))
    for event in builder.events:
        builder.cover(event)
    return builder.milp


@dataclass
class _GapCover:
    """Creates a literal "recomputed in this gap" when a row first asks for it."""

    pressure: Pressure
    events: list[int]
    milp: Milp = field(default_factory=Milp)
    recomputed: dict[UseGap, int | None] = field(default_factory=dict)
    slots: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gaps: dict[int, list[UseGap]] = {event: [] for event in self.events}
        for tensor, root in enumerate(self.pressure.class_of):
            uses = self.pressure.uses(tensor)
            for first, last in pairwise(uses):
                for event in self.events[bisect_right(self.events, first) : bisect_left(self.events, last)]:
                    if self.pressure.weight[root] > 0 and root not in self.pressure.own[event]:
                        self.gaps[event].append(UseGap(tensor, first, last))

    def cover(self, event: int) -> None:
        """Working set and what stays in memory around an event fit together."""
        pressure, terms, most = self.pressure, [], self.pressure.capacity - self.pressure.working[event]
        for root, gaps in pressure.by_class((gap.tensor, gap) for gap in self.gaps[event]).items():
            for gap in gaps:
                if gap not in self.recomputed:
                    self.recomputed[gap] = self._new_literal(gap)
            literals = [literal for gap in gaps if (literal := self.recomputed[gap]) is not None]
            most -= pressure.weight[root]
            if len(literals) == len(gaps):
                terms.append((-pressure.weight[root], self.milp.all_of(literals)))
        self.milp.at_most(terms, most)

    def _new_literal(self, gap: UseGap) -> int | None:
        op = self.pressure.producer(gap.tensor)
        spec = self.pressure.problem.ops[op]
        if not spec.repeatable:
            return None
        if len(spec.outputs) == 1:
            return self.milp.add(cost=self.pressure.times[op])
        # One run serves all results of an op: runs are counted per slot between uses of any of them.
        literal = self.milp.add()
        uses = sorted({use for tensor in spec.outputs for use in self.pressure.uses(tensor)})
        covered = [(op, use) for use in uses if gap.first < use <= gap.last]
        for slot in covered:
            if slot not in self.slots:
                self.slots[slot] = self.milp.add(cost=self.pressure.times[op])
        self.milp.at_least([(1, self.slots[slot]) for slot in covered] + [(-1, literal)], 0)
        return literal


# Variables times stages up to which CP-SAT, exact and without the start of a process, is the quicker engine.
_SMALL = 300
# Numbers of boundaries to try, in this order: coarse stages give most of the bound soon.
_BOUNDARIES = (4, 8, 12, 16, 24, 40)
# Without integers, in layers, many boundaries are solved soon.
_BOUNDARIES_RELAXED = (12,)
# Beyond so many ops programs are solved without integers only.
_LARGE = 3_000
_BOUNDARIES_LARGE = (1, 2, 4)
# Ops times stages that fit into 4 GiB.
_MOST = 160_000
# Of the time left, for one relaxation.
_SHARE = 0.75
# Ops times boundaries up to which a frontier program for any order is written: twice as many take 3 s and 0.4 GiB.
_MOST_RUNS = 100_000

Method: TypeAlias = Literal["gap cover", "frontier", "free order", "cut"]


@dataclass(frozen=True)
class Bound:
    """No schedule of `space` within the budget takes less than `time_ns` in total; None: there is none at all.

    `is_tight` says that the relaxation was solved to its end: more time would not raise this bound. `start` is a
    schedule near to a solution of the relaxation, legal but maybe over the budget, for a search to start from.
    """

    time_ns: int | None
    space: Space
    method: Method
    is_tight: bool
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    start: Schedule | None = None

    def is_above(self, other: Bound | None) -> bool:
        """Whether this says more than another bound of the same space."""
        if other is None or self.time_ns is None:
            return True
        return other.time_ns is not None and self.time_ns > other.time_ns

    def is_enough(self, known_ns: int | None) -> bool:
        """Whether nothing above this is worth proving, when the best schedule known takes so long."""
        return self.time_ns is None or (known_ns is not None and self.time_ns >= known_ns)


@dataclass(frozen=True)
class _Program:
    """A relaxation of the extra time; `frontier` turns its solutions into schedules."""

    milp: Milp
    frontier: Frontier | None = None


@dataclass(frozen=True)
class Task:
    """A relaxation to be built and solved; `size` is about its number of variables."""

    method: Method
    build: Callable[[Pressure], _Program]
    size: int
    with_integers: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


def improving_bounds(
    problem: Problem, limits: Limits, best_ns: Callable[[], int | None] = lambda: None
) -> Iterator[Bound]:
    """Ever better bounds for the order of `limits`, cheap ones first, until time is up or nothing more is in reach.

    Also bounds that are no better, but have a new start. Ends early when a bound reaches `best_ns()`, the time of the
    best schedule known. Blocks between two bounds, but releases the interpreter lock meanwhile: run it in a thread
    beside a search.
    """
    best: Bound | None = None
    pressure = make_pressure(problem)
    for task in _tasks(pressure, limits.order):
        for bound in rising_bounds(pressure, task, part_of(limits, _SHARE), best_ns):
            if bound.is_above(best):
                best = bound
                yield best
            elif bound.start is not None and best is not None:
                yield replace(best, start=bound.start)
            if best is not None and best.is_enough(best_ns()):
                return
        if limits.is_over:
            return


def _tasks(pressure: Pressure, order: Order) -> Iterator[Task]:
    """The relaxations worth solving, cheap ones first."""
    problem, ops = pressure.problem, len(pressure.problem.ops)
    is_large = ops > _LARGE
    tried: list[list[int]] = [[]]  # boundaries
    if order == "free":
        yield free_order(problem)
        # With ever more boundaries, as long as the program is not too large to be written down.
        for count in _BOUNDARIES_LARGE if is_large else _BOUNDARIES:
            chain = choose_chain(pressure, count) if ops * count <= _MOST_RUNS else []
            if chain not in tried:
                tried.append(chain)
                yield free_frontier(problem, chain)
        return
    yield gap_cover(problem)
    for count in _BOUNDARIES_LARGE if is_large else _BOUNDARIES_RELAXED:
        task = relaxed_frontier(pressure, count)
        if task.size <= _MOST:
            yield task
    for count in () if is_large else _BOUNDARIES:
        chosen = choose_boundaries(pressure, count)
        if chosen not in tried:
            tried.append(chosen)
            yield frontier(pressure, count)


def gap_cover(problem: Problem) -> Task:
    """Quick, for `first_in_order`: between its uses a tensor stays in memory or is recomputed."""
    is_small = len(problem.ops) <= _LARGE
    return Task("gap cover", lambda scaled: _Program(gap_cover_milp(scaled)), len(problem.ops), is_small)


def free_order(problem: Problem) -> Task:
    """For every schedule (`free`), from the precedences that all orders share."""
    return Task("free order", lambda scaled: _Program(free_order_milp(scaled)), len(problem.ops))


def free_frontier(problem: Problem, chain: list[int]) -> Task:
    """The same with boundaries, each an ancestor of the next."""
    size, is_small = len(problem.ops) * (1 + len(chain)), len(problem.ops) <= _LARGE
    facts = {"boundaries": len(chain)}
    return Task("free order", lambda scaled: _Program(free_frontier_milp(scaled, chain)), size, is_small, facts)


def frontier(pressure: Pressure, boundaries: int) -> Task:
    """Strong, for `first_in_order`, from at most so many critical events.

    A few dozen boundaries are a sensible most: more say more in the end, and less in a given time.
    """
    chosen = choose_boundaries(pressure, boundaries)
    size = len(pressure.problem.ops) * len(chosen)
    return Task("frontier", partial(_frontier_program, [chosen]), size, facts={"boundaries": len(chosen)})


def relaxed_frontier(pressure: Pressure, boundaries: int) -> Task:
    """Without integers, from layers with so many critical events, half as many, and so on.

    Linear in the number of ops; on large problems it says far more than the gap cover. Integers would cost more time
    with layers than without.
    """
    counts = [boundaries >> halvings for halvings in range(boundaries.bit_length())]
    layers = [choose_boundaries(pressure, count) for count in counts]
    size = len(pressure.problem.ops) * len(layers[0])
    return Task("frontier", partial(_frontier_program, layers), size, False, {"boundaries": len(layers[0])})


def _frontier_program(layers: list[list[int]], scaled: Pressure) -> _Program:
    made = make_frontier(scaled, layers)
    return _Program(made.milp, made)


def part_of(limits: Limits, share: float) -> Limits:
    """A part of the time left, or all of it when it is short."""
    left = limits.seconds_left
    return replace(limits, seconds=max(left * share, min(left, 2.0)), started=time.monotonic())


def rising_bounds(pressure: Pressure, task: Task, limits: Limits, best_ns: Callable[[], int | None]) -> Iterator[Bound]:
    """Solve a relaxation of the extra time and add the time of every op once; each bound at least the one before."""
    began = time.monotonic()
    if pressure.is_surely_too_much():
        yield Bound(None, "free", task.method, True, 0.0)
        return
    quick = replace(limits, report=Limits().report, work=None, workers=1)
    is_small = task.size <= _SMALL
    scaled = pressure if is_small else pressure.for_floats()
    program = task.build(scaled)
    known = known_units(best_ns, pressure.problem.baseline_time_ns, pressure.time_unit)
    engine: BoundEngine = "cp-sat" if is_small else "highs" if task.with_integers else "relaxed"
    for answer in rising_answers(program.milp, engine, quick, known):
        seconds = time.monotonic() - began
        space: Space = "free" if task.method == "free order" else "first_in_order"
        facts = answer.facts | task.facts
        time_ns, is_tight = None, True
        if answer.bound is not None:
            time_ns = pressure.problem.baseline_time_ns + answer.bound * pressure.time_unit
            is_tight = answer.is_tight
        start = None
        if program.frontier is not None and answer.values is not None:
            # A solution that costs more than the best schedule known is of no use.
            cost, most = sum(map(mul, program.milp.cost, answer.values)), known()
            if most is None or cost <= most:
                start = rounded_schedule(pressure.problem, program.frontier, answer.values)
        yield Bound(time_ns, space, task.method, is_tight, seconds, facts, start)


def known_units(best_ns: Callable[[], int | None], free_ns: int, unit: int) -> Known:
    """The time of the best schedule beyond what counts nothing, in time units."""

    def known() -> int | None:
        best = best_ns()
        return None if best is None else (best - free_ns) // unit

    return known
