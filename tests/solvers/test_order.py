from __future__ import annotations

import pytest
from hypothesis import given, settings

from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.search.tracks import least_peak_order
from remat_cli.solvers.search.warmup import warm_up
from tests.solvers.random_graphs import one_device, random_problem
from tests.solvers.vectors import INSTANCES
from tests.strategies import problems


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


def never():
    return False


@settings(max_examples=30, deadline=None)
@given(problems(max_ops=9, sharing=False))
def test_orders_are_legal_and_never_worse_than_the_baseline(problem):
    order = least_peak_order(condense(problem), 0, never, patience=1)
    assert sorted(order) == list(range(len(problem.ops)))
    assert simulate(problem, Schedule.of_ops(order)).peak <= baseline(problem).peak


def test_branches_run_one_after_the_other():
    shrink = [([], 1, 9), ([], 1, 9), ([], 1, 9), ([0], 1, 1), ([1], 1, 1), ([2], 1, 1), ([3, 4, 5], 1, 1)]
    problem = one_device(shrink)
    assert baseline(problem).peak == 28
    assert simulate(problem, Schedule.of_ops(least_peak_order(condense(problem), 0, never))).peak == 12


def test_same_seed_gives_the_same_order():
    problem = random_problem(4, 80)
    assert least_peak_order(condense(problem), 3, never, patience=2) == least_peak_order(
        condense(problem), 3, never, patience=2
    )


def test_a_random_layered_graph_needs_much_less_in_another_order():
    path = INSTANCES / "rl_g1.json"
    if not path.exists():
        pytest.skip("no benchmark instances beside the checkout")
    problem = instance_problem(load_instance(path))
    order = least_peak_order(condense(problem), 0, never, patience=2)
    assert simulate(problem, Schedule.of_ops(order)).peak <= 0.82 * baseline(problem).peak
