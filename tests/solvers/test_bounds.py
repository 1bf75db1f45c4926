from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers.base import Limits
from remat_cli.solvers.bounds.frontier import choose_boundaries, make_frontier
from remat_cli.solvers.bounds.improving import Bound, improving_bounds
from remat_cli.solvers.bounds.pressure import make_pressure
from remat_cli.solvers.milp.program import Milp, solve_milp
from tests.solvers.brute_force import optimum
from tests.solvers.single_bounds import free_order_bound, frontier, gap_cover
from tests.solvers.vectors import INSTANCES, load_cases
from tests.strategies import fraction_of, problems, schedules


def quick() -> Limits:
    return Limits(seconds=60, order="keep")


def all_bounds(problem: Problem) -> list[Bound]:
    return [
        gap_cover(problem, quick()),
        frontier(problem, quick(), 2),
        frontier(problem, quick(), 30),
        free_order_bound(problem, quick()),
    ]


def contradicts(bound: Bound, least: int | None) -> bool:
    """Whether a bound lies above the optimum, or denies schedules that exist."""
    return least is not None and (bound.time_ns is None or bound.time_ns > least)


def test_no_bound_is_above_the_optimum_of_its_space():
    bounds = [
        (bound, case.optimum[bound.space][i])
        for case in load_cases()
        for i, problem in enumerate(case.problems)
        for bound in all_bounds(problem)
    ]
    assert len(bounds) > 400
    assert not [pair for pair in bounds if contradicts(*pair)]


def test_frontier_is_the_optimum_on_most_vectors_where_recomputing_is_needed():
    found = [
        (frontier(problem, quick(), 30).time_ns, case.optimum["first_in_order"][i])
        for case in load_cases()
        for i, problem in enumerate(case.problems)
        if (case.optimum["first_in_order"][i] or 0) > problem.baseline_time_ns
    ]
    assert sum(bound == least for bound, least in found) > 0.8 * len(found)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_bounds_hold_with_views_in_place_results_and_everything_else(data):
    check_against_brute_force(data, max_ops=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_bounds_hold_on_many_more_problems(data):
    check_against_brute_force(data, max_ops=6)


def check_against_brute_force(data: st.DataObject, max_ops: int) -> None:
    problem = data.draw(problems(max_ops=max_ops))
    peak, fixed = baseline(problem).peak, problem.memories[0].fixed_bytes
    problem = problem.with_budget(data.draw(st.integers(min(peak, fixed + (peak - fixed) // 2), peak)))
    least = {space: optimum(problem, space) for space in ("first_in_order", "free")}
    for bound in all_bounds(problem):
        best = least["free" if bound.space == "free" else "first_in_order"]
        assert not contradicts(bound, best[0] if best else None)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_working_sets_and_weights_never_exceed_what_the_judge_counts(data):
    problem = data.draw(problems(max_ops=8))
    schedule = data.draw(schedules(problem))
    plan, pressure = simulate(problem, schedule), make_pressure(problem)
    unit = pressure_unit(problem)
    for step, op in enumerate(schedule.op_ids()):
        alive = {pressure.class_of[i.tensor] for i in plan.instances if i.birth <= step <= i.death}
        others = sum(pressure.weight[root] for root in alive - pressure.own[op])
        least = unit * (pressure.working[op] + others) + problem.memories[0].fixed_bytes
        assert least <= plan.memory_bytes[0][step]


def pressure_unit(problem: Problem) -> int:
    """The byte unit of a pressure: what a capacity of one unit more is worth."""
    big = problem.with_budget(problem.memories[0].fixed_bytes + 2**40)
    return 2**40 // make_pressure(big).capacity


def test_units_and_tolerances_round_towards_safety():
    problem = chain(bytes_of=3 * 10**9 + 1, budget=10**10)
    pressure = make_pressure(problem)
    floats = pressure.for_floats()
    assert floats.capacity <= 1_000_000
    for small, big in ((floats.weight, pressure.weight), (floats.working, pressure.working)):
        # floor(need / q) <= need / q and capacity / q <= ceil(capacity / q): what fits before fits after
        assert all(s * pressure.capacity <= b * floats.capacity for s, b in zip(small, big, strict=True))


def chain(bytes_of: int, budget: int) -> Problem:
    """Four ops in a row; the last reads the first and the third: one gap around two events."""
    return Problem(
        ops=(
            OpSpec((), (0,), (5,), (0,)),
            OpSpec((0,), (1,), (5,), (0,)),
            OpSpec((1,), (2,), (5,), (0,)),
            OpSpec((2, 0), (3,), (5,), (0,)),
        ),
        tensors=tuple(TensorSpec(bytes_of, op) for op in range(4)),
        memories=(Memory("cpu", budget),),
        devices=(Device("cpu", 0),),
    )


@pytest.mark.parametrize("engine", ["cp-sat", "highs"])
def test_both_engines_prove_optimum_and_infeasibility(engine):
    milp = Milp()
    first, second = milp.add(cost=3), milp.add(cost=5)
    milp.at_least([(2, first), (3, second)], 3)
    answer = solve_milp(milp, engine, quick())
    assert (answer.bound, answer.is_tight) == (5, True)
    milp.at_most([(1, second)], 0)
    assert solve_milp(milp, engine, quick()).bound is None


def test_a_bound_that_needs_recomputing_everywhere_is_infeasible_when_nothing_may_be_repeated():
    problem = chain(bytes_of=1, budget=2)
    assert gap_cover(problem, quick()).time_ns is None
    problem = chain(bytes_of=1, budget=3)
    fixed_ops = tuple(OpSpec(o.inputs, o.outputs, o.time_ns, o.workspace_bytes, repeatable=False) for o in problem.ops)
    tight = Problem(fixed_ops, problem.tensors, (Memory("cpu", 3),), problem.devices)
    assert frontier(tight, quick(), 4).time_ns == optimum(tight, "first_in_order")[0]


def test_a_wide_storage_is_seen_through_its_view():
    problem = Problem(
        ops=(
            OpSpec((), (0,), (7,), (0,)),
            OpSpec((0,), (1,), (1,), (0,)),
            OpSpec((0,), (2,), (1,), (0,)),
            OpSpec((2,), (3,), (1,), (0,)),
            OpSpec((3, 1), (4,), (1,), (0,)),
        ),
        tensors=(
            TensorSpec(6, 0),
            TensorSpec(6, 1, view_of=0),
            TensorSpec(4, 2),
            TensorSpec(4, 3),
            TensorSpec(1, 4, kept=True),
        ),
        memories=(Memory("cpu", 12),),
        devices=(Device("cpu", 0),),
    )
    best = optimum(problem, "first_in_order")
    assert best is not None
    assert best[0] == 11 + 8  # the base and its view once more
    assert frontier(problem, quick(), 8).time_ns == best[0]
    assert gap_cover(problem, quick()).time_ns > 11


def test_improving_bounds_rise_and_stop_at_the_best_schedule():
    problem = rl_problem("rl_g1", 0.8)
    limits = Limits(seconds=30, order="keep")
    times = [bound.time_ns for bound in improving_bounds(problem, limits, lambda: 47769 + 573)]
    assert times == [47769 + 573]  # the gap cover alone reaches that


def test_a_bound_search_stops_when_told_to():
    problem = rl_problem("rl_g4", 0.8)
    stop = threading.Event()
    limits = Limits(seconds=60, order="keep", should_stop=stop.is_set)
    began = time.monotonic()
    threading.Timer(2.0, stop.set).start()
    bound = frontier(problem, limits, 12)
    assert time.monotonic() - began < 15
    assert bound.time_ns is not None
    assert not bound.is_tight


def test_boundaries_are_few_critical_and_end_with_the_last_op():
    pressure = make_pressure(rl_problem("rl_g1", 0.8))
    chosen = choose_boundaries(pressure, 8)
    assert chosen[-1] == 99
    assert len(chosen) == 9
    assert all(pressure.live()[event] > 0.9 * pressure.capacity for event in chosen[:-1])
    assert any(make_frontier(pressure, [chosen]).milp.cost)


@pytest.mark.slow
@pytest.mark.parametrize(("fraction", "extra"), [(0.9, 377), (0.8, 1097)])
def test_the_published_optima_of_g1_are_optimal_in_any_order_of_recomputes(fraction, extra):
    problem = rl_problem("rl_g1", fraction)
    best = max(bound.time_ns for bound in improving_bounds(problem, quick(), lambda: 47769 + extra))
    assert best == 47769 + extra


def rl_problem(name: str, fraction: float) -> Problem:
    path = INSTANCES / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no benchmark instance {name} beside the checkout")
    problem = instance_problem(load_instance(path))
    return problem.with_budget(fraction_of(math.ceil(baseline(problem).peak), fraction))
