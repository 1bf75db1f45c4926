"""Proved lower bounds on the total time of a plan, for problems with one device.

Each bound holds in its search space and in every smaller one; it says nothing about a larger one. `gap_cover` and
`frontier` need first computations in baseline order, `free_order_bound` needs nothing. All may be stopped at any time
and then return what is proved so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from remat_cli.core.problem import Problem
from remat_cli.solvers._bounds_free import free_order_milp
from remat_cli.solvers._bounds_frontier import choose_boundaries, frontier_milp
from remat_cli.solvers._bounds_gaps import gap_cover_milp
from remat_cli.solvers._bounds_milp import Answer, Milp, solve_milp
from remat_cli.solvers._bounds_pressure import Pressure, make_pressure
from remat_cli.solvers.base import Limits, Order, Space

# Ops times stages up to which CP-SAT, exact and without the start of a process, is the quicker engine.
_SMALL = 300
# Numbers of boundaries to try, in this order: coarse stages give most of the bound soon.
_BOUNDARIES = (8, 12, 16, 24, 40)


@dataclass(frozen=True)
class Bound:
    """No schedule of `space` within the budget takes less than `time_ns` in total; None: there is none at all.

    `is_tight` says that the relaxation was solved to its end: more time would not raise this bound.
    """

    time_ns: int | None
    space: Space
    method: Literal["gap cover", "frontier", "free order"]
    is_tight: bool
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    def is_above(self, other: Bound | None) -> bool:
        """Whether this says more than another bound of the same space."""
        if other is None or self.time_ns is None:
            return True
        return other.time_ns is not None and self.time_ns > other.time_ns


def gap_cover(problem: Problem, limits: Limits) -> Bound:
    """Quick bound for `first_in_order`: between its uses a tensor stays in memory or is recomputed."""
    pressure = make_pressure(problem)
    return _bound(pressure, gap_cover_milp, "gap cover", len(problem.ops), limits)


def frontier(problem: Problem, limits: Limits, boundaries: int) -> Bound:
    """Strong bound for `first_in_order` from at most so many critical events; see `_bounds_frontier`.

    A few dozen boundaries are a sensible most: more say more in the end, and less in a given time.
    """
    pressure = make_pressure(problem)
    chosen = choose_boundaries(pressure, boundaries)
    size = len(problem.ops) * len(chosen)
    bound = _bound(pressure, lambda scaled: frontier_milp(scaled, chosen), "frontier", size, limits)
    return replace(bound, facts=bound.facts | {"boundaries": len(chosen)})


def free_order_bound(problem: Problem, limits: Limits) -> Bound:
    """Bound for every schedule (`free`), from the precedences that all orders share."""
    pressure = make_pressure(problem)
    return _bound(pressure, free_order_milp, "free order", len(problem.ops), limits)


def improving_bounds(
    problem: Problem, limits: Limits, best_ns: Callable[[], int | None] = lambda: None
) -> Iterator[Bound]:
    """Ever better bounds for the order of `limits`, cheap ones first, until time is up or nothing more is in reach.

    Ends early when a bound reaches `best_ns()`, the time of the best schedule known. Blocks between two bounds, but
    releases the interpreter lock meanwhile: run it in a thread beside a search.
    """
    best: Bound | None = None
    for method in _methods(problem, limits.order):
        known = best_ns()
        is_closed = best is not None and (best.time_ns is None or (known is not None and best.time_ns >= known))
        if is_closed or limits.is_over:
            return
        bound = method(problem, _part_of(limits))
        if bound.is_above(best):
            best = bound
            yield bound


def _methods(problem: Problem, order: Order) -> Iterator[Callable[[Problem, Limits], Bound]]:
    if order == "free":
        yield free_order_bound
        return
    yield gap_cover
    pressure = make_pressure(problem)
    tried: list[list[int]] = []
    for count in _BOUNDARIES:
        chosen = choose_boundaries(pressure, count)
        if chosen not in tried:
            tried.append(chosen)
            yield partial(frontier, boundaries=count)


def _part_of(limits: Limits) -> Limits:
    """Half of the time left, or all of it when it is short."""
    left = limits.seconds_left
    return replace(limits, seconds=max(left / 2, min(left, 2.0)), started=time.monotonic())


def _bound(
    pressure: Pressure,
    build: Callable[[Pressure], Milp],
    method: Literal["gap cover", "frontier", "free order"],
    size: int,
    limits: Limits,
) -> Bound:
    """Solve a relaxation of the extra time and add the time of every op once."""
    began = time.monotonic()
    space: Space = "free" if method == "free order" else "first_in_order"
    if pressure.is_surely_too_much():
        return Bound(None, "free", method, True, 0.0)
    quick = replace(limits, report=Limits().report, work=None, workers=1)
    answer = _solve(pressure, build, size, quick)
    seconds = time.monotonic() - began
    if answer.bound is None:
        return Bound(None, space, method, True, seconds, answer.facts)
    total = pressure.problem.baseline_time_ns + answer.bound * pressure.time_unit
    return Bound(total, space, method, answer.is_tight, seconds, answer.facts)


def _solve(pressure: Pressure, build: Callable[[Pressure], Milp], size: int, limits: Limits) -> Answer:
    if size <= _SMALL:
        return solve_milp(build(pressure), "cp-sat", limits)
    return solve_milp(build(pressure.for_floats()), "highs", limits)
