"""The bounds of one method, solved to their end or for as long as the limits say."""

from __future__ import annotations

from dataclasses import replace

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits
from remat_cli.solvers.bounds import improving
from remat_cli.solvers.bounds.devices import Shortage, choose_stages, frontier_bounds, shortest_memory
from remat_cli.solvers.bounds.improving import Bound, Task
from remat_cli.solvers.bounds.pressure import Pressure, make_pressure


def gap_cover(problem: Problem, limits: Limits) -> Bound:
    return _last(make_pressure(problem), improving.gap_cover(problem), limits)


def frontier(problem: Problem, limits: Limits, boundaries: int) -> Bound:
    pressure = make_pressure(problem)
    return _last(pressure, improving.frontier(pressure, boundaries), limits)


def relaxed_frontier(problem: Problem, limits: Limits, boundaries: int) -> Bound:
    pressure = make_pressure(problem)
    return _last(pressure, improving.relaxed_frontier(pressure, boundaries), limits)


def free_order_bound(problem: Problem, limits: Limits) -> Bound:
    return _last(make_pressure(problem), improving.free_order(problem), limits)


def device_frontier(problem: Problem, limits: Limits, boundaries: int) -> Bound:
    work = Shortage(problem, limits.order, shortest_memory(problem))
    best = Bound(problem.baseline_time_ns, work.space, "frontier", False, 0.0)
    for bound in frontier_bounds(work, choose_stages(work, boundaries), limits, lambda: None):
        best = bound if bound.is_above(best) or bound.is_tight else best
    return best


def _last(pressure: Pressure, task: Task, limits: Limits) -> Bound:
    """The best bound, with the last start."""
    space = "free" if task.method == "free order" else "first_in_order"
    best = Bound(pressure.problem.baseline_time_ns, space, task.method, False, 0.0)
    for bound in improving.rising_bounds(pressure, task, limits, lambda: None):
        best = replace(bound, start=bound.start or best.start)
    return best
