from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import portfolio, solve
from remat_cli.solvers._portfolio_exact import Finisher
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.search.warmup import warm_up
from tests.solvers.random_graphs import at_fraction, fusion_net, nested_unet, one_device, random_problem
from tests.solvers.vectors import INSTANCES, load_cases
from tests.strategies import fraction_of, problems

QUICK = {"patience": 0.05, "proof": 0.2, "exact_ops": 0}


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


def instance(name, fraction):
    path = INSTANCES / f"{name}.json"
    if not path.exists():
        pytest.skip("no benchmark instances beside the checkout")
    return at_fraction(instance_problem(load_instance(path)), fraction)


@pytest.mark.parametrize(("order", "space"), [("keep", "first_in_order"), ("free", "free")])
def test_status_and_bounds_are_true_on_the_vectors(order, space):
    proved = found = total = 0
    for case in load_cases()[::4]:
        for problem, best in zip(case.problems, case.optimum[space], strict=True):
            result = solve(problem, "auto", Limits(seconds=3.0, order=order, workers=2), QUICK)
            if result.status is Status.INFEASIBLE:
                assert best is None
            if best is not None and result.bound_ns is not None:
                assert result.bound_ns <= best
            if result.status is Status.OPTIMAL:
                proved += 1
                assert result.plan.time_ns == best
            if best is not None:
                total, found = total + 1, found + (result.plan is not None and result.plan.time_ns == best)
    assert proved > 0
    assert found >= 0.95 * total


@settings(max_examples=15, deadline=None)
@given(problems(max_ops=8), st.floats(0.6, 1.0), st.sampled_from(["keep", "free"]))
def test_answers_are_within_budget_and_bounds_below_them(problem, fraction, order):
    fixed = problem.memories[0].fixed_bytes
    problem = problem.with_budget(fraction_of(baseline(problem).peak, fraction, fixed))
    result = solve(problem, "auto", Limits(seconds=2.0, order=order, workers=2), QUICK)
    if result.plan is not None:
        assert result.plan.peak <= problem.memories[0].budget_bytes
        assert result.bound_ns is not None
        assert problem.baseline_time_ns <= result.bound_ns <= result.plan.time_ns


def test_a_budget_that_the_baseline_meets_is_optimal_at_once():
    problem = at_fraction(random_problem(1), 1.0)
    result = solve(problem, "auto", Limits())
    assert result.status is Status.OPTIMAL
    assert result.plan.time_ns == problem.baseline_time_ns


@pytest.mark.parametrize("workers", [1, 2])
def test_a_training_graph_is_proved_optimal_in_free_order(workers):
    problem = instance("unet_vgg_bs32_416x608_train", 0.8)
    result = solve(problem, "auto", Limits(seconds=30.0, workers=workers))
    assert result.status is Status.OPTIMAL
    assert result.space == "free"
    assert result.seconds < 15.0


@pytest.mark.slow
def test_it_ends_early_when_nothing_improves():
    problem = at_fraction(fusion_net(), 0.95)
    result = solve(problem, "auto", Limits(seconds=60.0, workers=2), {"patience": 0.2, "proof": 0.5})
    assert result.plan is not None
    assert result.seconds < 15.0


@pytest.mark.slow
def test_the_whole_is_solved_on_small_problems_only():
    problem = at_fraction(fusion_net(), 0.95)
    options = {"patience": 0.1, "proof": 1.0}
    small = solve(problem, "auto", Limits(seconds=8.0, order="keep"), options)
    large = solve(problem, "auto", Limits(seconds=8.0, order="keep"), options | {"exact_ops": 10})
    assert small.facts["windows"]["whole"]["tried"] > 0
    assert large.facts["windows"]["whole"]["tried"] == 0
    assert sum(kind["tried"] for kind in large.facts["windows"].values()) > 0


def test_cp_sat_finds_a_plan_where_the_search_starts_above_budget():
    problem = at_fraction(nested_unet(), 0.95)
    taken = []
    finisher = Finisher(problem, Limits(order="keep"), lambda schedule, bound: taken.append(schedule), 0)
    limits = Limits(order="keep", seconds=60.0, should_stop=lambda: bool(taken))
    assert finisher.run(limits, None, 0) is not None
    assert simulate(problem, taken[-1]).peak <= problem.memories[0].budget_bytes


def test_a_schedule_that_comes_with_a_bound_starts_the_next_search(monkeypatch):
    problem = at_fraction(fusion_net(), 0.95)
    plan = solve(problem, "local-search", Limits(seconds=30.0, work=300_000, order="keep")).plan
    bound = Offer(problem.baseline_time_ns, plan.schedule)
    monkeypatch.setattr(portfolio, "improving_bounds", lambda *given: iter([bound]))
    result = solve(problem, "auto", Limits(seconds=3.0, order="keep", workers=2), QUICK)
    assert result.plan.time_ns <= plan.time_ns


@dataclass(frozen=True)
class Offer:
    """A bound with a schedule rounded from it."""

    time_ns: int
    start: Schedule
    method: str = "frontier"
    seconds: float = 0.0


def test_same_seed_and_work_give_the_same_schedule():
    problem = at_fraction(random_problem(3, 60), 0.75)
    results = [solve(problem, "auto", Limits(seconds=300.0, work=30_000, seed=2)) for _ in range(2)]
    assert results[0].plan.schedule == results[1].plan.schedule


def test_stop_is_heard_and_the_best_plan_kept():
    problem = at_fraction(nested_unet(), 0.95)
    reported = []
    limits = Limits(
        seconds=60.0,
        workers=2,
        order="keep",
        report=lambda schedule, bound: reported.append(schedule),
        should_stop=lambda: any(schedule is not None for schedule in reported),
    )
    result = solve(problem, "auto", limits)
    assert result.plan is not None
    assert result.seconds < 10.0


def test_impossible_in_every_order_is_infeasible():
    star = one_device([([], 1, 4), ([], 1, 4), ([], 1, 4), ([0, 1, 2], 1, 4)])
    assert solve(star.with_budget(15), "auto", Limits(seconds=5.0)).status is Status.INFEASIBLE
