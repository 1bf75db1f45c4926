from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import solve
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.search.warmup import warm_up
from tests.solvers.brute_force import optimum
from tests.solvers.random_graphs import at_fraction, fusion_net, nested_unet, one_device, random_problem
from tests.solvers.vectors import INSTANCES, load_cases
from tests.strategies import fraction_of, problems


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


def quick(order="free"):
    """Made anew each time: limits count from when they are made."""
    return Limits(seconds=20.0, work=20_000, order=order)


def keeps_order(schedule):
    firsts = list(dict.fromkeys(schedule.op_ids()))
    return firsts == sorted(firsts)


@pytest.mark.parametrize(("order", "space"), [("keep", "first_in_order"), ("free", "free")])
def test_finds_nearly_all_optima_of_the_vectors(order, space):
    found = total = 0
    for case in load_cases():
        for problem, best in zip(case.problems, case.optimum[space], strict=True):
            result = solve(problem, "local-search", quick(order))
            assert result.space == space or result.status is Status.INFEASIBLE
            got = result.plan.time_ns if result.plan else None
            assert best is not None or got is None
            assert got is None or got >= best
            total, found = total + 1, found + (got == best)
    assert found >= 0.97 * total


@settings(max_examples=60, deadline=None)
@given(problems(max_ops=10), st.floats(0.5, 1.0), st.sampled_from(["keep", "free"]))
def test_every_answer_is_judged_legal_and_within_budget(problem, fraction, order):
    fixed = problem.memories[0].fixed_bytes
    problem = problem.with_budget(fraction_of(baseline(problem).peak, fraction, fixed))
    result = solve(problem, "local-search", Limits(order=order, work=3_000))
    if result.plan is not None:
        assert result.plan.peak <= problem.memories[0].budget_bytes
        assert order == "free" or keeps_order(result.plan.schedule)


@pytest.mark.parametrize("order", ["keep", "free"])
def test_same_seed_and_work_give_the_same_schedule(order):
    problem = at_fraction(random_problem(3, 60), 0.75)
    limits = Limits(order=order, work=60_000, seed=5)
    results = [solve(problem, "local-search", limits) for _ in range(2)]
    assert results[0].plan is not None
    assert results[0].plan.schedule == results[1].plan.schedule


def test_workers_do_not_change_what_is_found():
    problem = at_fraction(random_problem(3, 60), 0.75)
    plans = [solve(problem, "local-search", Limits(work=60_000, workers=w, order="keep")).plan for w in (1, 2)]
    assert plans[0].schedule == plans[1].schedule


def test_time_limit_and_stop_are_respected():
    problem = at_fraction(random_problem(8, 120), 0.72)
    solve(problem, "local-search", Limits(work=100))  # compiles the kernels, which has no limit
    began = time.monotonic()
    result = solve(problem, "local-search", Limits(seconds=0.5, order="keep"))
    assert time.monotonic() - began < 3.0
    assert result.status is not Status.OPTIMAL
    stopped = solve(problem, "local-search", Limits(seconds=60.0, order="keep", should_stop=lambda: True))
    assert stopped.seconds < 5.0


def test_below_a_proved_floor_is_infeasible():
    chain = one_device([([], 1, 8), ([0], 1, 8), ([0], 1, 8), ([1, 2], 1, 8)])
    assert solve(chain.with_budget(23), "local-search", quick()).status is Status.INFEASIBLE
    crossed = one_device([([], 5, 4), ([], 5, 4), ([0, 1], 1, 4), ([0, 1], 1, 4), ([2, 3], 1, 1)])
    result = solve(crossed.with_budget(12), "local-search", quick())
    assert (result.status, result.space) == (Status.INFEASIBLE, "free")
    assert 12 < result.floor.bytes <= baseline(crossed).peak
    assert optimum(crossed.with_budget(12), "free") is None


def test_a_budget_that_only_another_order_meets_costs_nothing_in_free_order():
    # Two branches that each shrink: one after the other fits, both at once does not.
    branches = one_device([([], 1, 9), ([], 1, 9), ([0], 1, 1), ([1], 1, 1), ([2, 3], 1, 1)]).with_budget(11)
    free = solve(branches, "local-search", quick())
    assert free.status is Status.OPTIMAL
    assert free.plan.time_ns == 5
    kept = solve(branches, "local-search", quick("keep"))
    assert kept.plan.time_ns == 7  # both branches' first ops run twice, the first results go unread


@pytest.mark.parametrize("order", ["keep", "free"])
@pytest.mark.parametrize(
    "problem",
    [
        one_device([([], 3, 5)]),
        one_device([([], 0, 0), ([0], 0, 0), ([0, 1], 0, 0)]),
        one_device([([], 3, 5), ([], 2, 4), ([], 1, 3)]),
        one_device([([], 3, 5), ([0], 2, 4), ([0], 1, 3)], kept=(0, 2)),
        random_problem(1, 2),
    ],
    ids=["single", "zeros", "disconnected", "kept", "pair"],
)
def test_small_and_odd_problems(problem, order):
    peak = baseline(problem).peak
    for budget in range(max(0, peak - 6), peak + 1):
        result = solve(problem.with_budget(budget), "local-search", Limits(work=500, order=order))
        assert result.plan is None or result.plan.peak <= budget
        assert result.plan is not None or budget < peak


def test_a_good_start_is_honoured():
    problem = at_fraction(nested_unet(), 0.9)
    first = solve(problem, "local-search", Limits(work=60_000, order="keep"))
    again = solve(problem, "local-search", Limits(work=10, order="keep"), start=first.plan.schedule)
    assert again.plan.time_ns <= first.plan.time_ns


def test_a_start_out_of_order_is_no_answer_when_the_order_is_kept():
    branches = one_device([([], 1, 9), ([], 1, 9), ([0], 1, 1), ([1], 1, 1), ([2, 3], 1, 1)]).with_budget(11)
    start = Schedule.of_ops([0, 2, 1, 3, 4])
    assert simulate(branches, start).peak <= 11
    result = solve(branches, "local-search", Limits(work=1, order="keep"), start=start)
    assert result.plan is None or keeps_order(result.plan.schedule)


@pytest.mark.parametrize("order", ["keep", "free"])
@pytest.mark.parametrize(("build", "fraction"), [(nested_unet, 0.95), (nested_unet, 0.9), (fusion_net, 0.95)])
def test_model_like_graphs_need_chains_and_get_them(build, fraction, order):
    problem = at_fraction(build(), fraction)
    result = solve(problem, "local-search", Limits(seconds=20.0, work=1_000_000, order=order))
    assert result.plan is not None


def test_published_overhead_on_a_random_layered_graph():
    path = INSTANCES / "rl_g2.json"
    if not path.exists():
        pytest.skip("no benchmark instances beside the checkout")
    problem = at_fraction(instance_problem(load_instance(path)), 0.8)
    result = solve(problem, "local-search", Limits(seconds=30.0, work=150_000, order="keep"))
    assert keeps_order(result.plan.schedule)
    assert result.plan.time_ns <= 1.046 * problem.baseline_time_ns
