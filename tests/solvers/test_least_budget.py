from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import Device, OpSpec, Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers.base import Limits
from remat_cli.solvers.least_budget import find_least_budget
from remat_cli.solvers.search.warmup import warm_up
from tests.seeds import few
from tests.solvers.brute_force import optimum
from tests.solvers.random_graphs import fusion_net, one_device, random_problem
from tests.strategies import problems


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


@settings(max_examples=25, deadline=None)
@given(problems(max_ops=7), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from(["keep", "free"]))
def test_peaks_lie_between_floor_and_baseline_and_the_overhead_is_kept(problem, overhead, order):
    schedule = find_least_budget(problem, Limits(order=order, work=3_000), overhead)
    plan = simulate(problem, schedule)
    assert working_set_floor(problem).bytes[0] <= plan.peak <= baseline(problem).peak
    assert plan.time_ns <= problem.baseline_time_ns * (1 + overhead)


@pytest.mark.parametrize("seed", few(range(6), 1))
def test_tiny_problems_reach_the_true_least_budget(seed):
    problem = random_problem(seed, 6)
    plan = simulate(problem, find_least_budget(problem, Limits(work=60_000), 1e6))
    assert optimum(problem.with_budget(plan.peak), "free") is not None
    assert optimum(problem.with_budget(plan.peak - 1), "free") is None


def test_more_overhead_never_needs_more_memory_on_a_model_like_graph():
    problem = fusion_net()
    peaks = []
    for overhead in (0.0, 0.3, 1.0):
        schedule = find_least_budget(problem, Limits(seconds=20.0, work=200_000), overhead)
        peaks.append(simulate(problem, schedule).peak)
    assert peaks == sorted(peaks, reverse=True)


def test_several_devices_and_negative_overheads_have_no_answer():
    problem = one_device([([], 1, 1)])
    assert find_least_budget(problem, Limits(), -0.1) is None
    op = OpSpec((), (0,), (1, 1), (0, 0))
    two = Problem((op,), problem.tensors, problem.memories, (Device("a", 0), Device("b", 0)))
    assert find_least_budget(two, Limits(), 0.2) is None
