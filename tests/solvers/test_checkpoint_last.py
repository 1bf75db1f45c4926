"""checkpoint-last: what it holds, what it recomputes, and how far it goes."""

from __future__ import annotations

import pytest

from remat_cli.base.errors import ConfigError
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import solve
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.published.checkpoint_last import MOST_STEPS, CheckpointLast, _schedules, _step_count
from tests.seeds import few
from tests.solvers.random_graphs import in_place_problem, one_device, random_problem, skip_net
from tests.solvers.random_training import chain_training, random_training


def steps_of(problem: Problem) -> list[int]:
    (steps,) = _schedules(condense(problem))
    return steps


def run(problem: Problem, budget: int, **options):
    return solve(problem.with_budget(budget), "checkpoint-last", Limits(seconds=20.0), options)


def test_every_op_but_the_next_starts_from_the_beginning():
    # 0 -> 1 -> 2, and 3 reads all of them: only 2 is there, 0 and 1 come again.
    problem = one_device([([], 1, 1), ([0], 1, 1), ([1], 1, 1), ([0, 1, 2], 1, 1)])
    assert steps_of(problem) == [0, 1, 2, 0, 1, 3]


def test_what_must_not_be_repeated_and_what_stays_anyway_is_held():
    ops = tuple(
        OpSpec(reads, (op,), (1,), (0,), repeatable=op != 0)
        for op, reads in enumerate([(), (0,), (1,), (2,), (0, 1, 2)])
    )
    tensors = tuple(TensorSpec(1, op, kept=op == 2) for op in range(5))
    problem = Problem(ops, tensors, (Memory("cpu", 99),), (Device("cpu", 0),))
    assert steps_of(problem) == [0, 1, 2, 3, 1, 4]


def test_a_chain_takes_no_more_than_its_largest_op():
    problem = chain_training(15, size=7)
    result = run(problem, 28)
    assert result.plan.peak == 28
    assert result.plan.time_ns > 3 * problem.baseline_time_ns
    assert result.status is Status.FEASIBLE
    assert run(problem, 27).status is Status.INFEASIBLE


def test_under_a_budget_that_the_baseline_meets_it_is_no_slower():
    problem = chain_training(8)
    result = run(problem, baseline(problem).peak)
    assert result.status is Status.OPTIMAL
    assert result.plan.time_ns == problem.baseline_time_ns


def test_closing_gaps_uses_the_rest_of_the_budget():
    problem = chain_training(12)
    plain, closed = run(problem, 8), run(problem, 8, close_gaps=True)
    assert closed.plan.time_ns < plain.plan.time_ns
    assert closed.plan.peak <= 8


@pytest.mark.parametrize("seed", few(range(25), 3))
@pytest.mark.parametrize("make", [random_problem, in_place_problem, skip_net, random_training])
def test_schedules_are_legal_and_of_the_length_that_was_counted(make, seed):
    problem = make(seed)
    condensed = condense(problem)
    steps = steps_of(problem)
    assert len(steps) == _step_count(condensed.problem)
    result = run(problem, 2**40)
    assert result.plan == simulate(problem.with_budget(2**40), result.plan.schedule)


def test_absurd_lengths_are_refused_before_they_are_built():
    ops = [([], 1, 1)] + [([0], 1, 1) if op == 1 else ([op - 2], 1, 1) for op in range(1, 2 * MOST_STEPS // 500)]
    problem = one_device(ops)
    reason = CheckpointLast().supports(problem)
    assert reason is not None
    assert str(MOST_STEPS) in str(reason)
    with pytest.raises(ConfigError, match="steps"):
        run(problem, 10)


def test_several_devices_are_refused():
    op = OpSpec((), (0,), (1, 1), (0, 0))
    devices = (Device("a", 0), Device("b", 0))
    problem = Problem((op,), (TensorSpec(1, 0),), (Memory("m", 9),), devices)
    assert str(CheckpointLast().supports(problem)) == "it places every op on one device"
