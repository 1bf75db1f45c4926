"""Closing gaps: by hand, never slower, never over budget, exact about bytes, and quick."""

from __future__ import annotations

import random
import time

import pytest

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits
from remat_cli.solvers.chains.candidates import _Steps, close_gaps, closings
from tests.seeds import few
from tests.solvers.random_graphs import one_device, random_problem
from tests.solvers.random_training import chain_training, random_training

SEEDS = range(25)
# Op 0 is read by 1 and, long after, by 3; between them 1 and 2 take 4 bytes.
SKIP = [([], 5, 3), ([0], 1, 4), ([1], 1, 4), ([0, 2], 1, 1)]


def random_schedule(problem, seed: int) -> Schedule:
    """Baseline order with recomputes of what a step reads put before it, now and then."""
    rng = random.Random(seed)
    ops: list[int] = []
    for op, spec in enumerate(problem.ops):
        for tensor in spec.inputs:
            source = problem.tensors[tensor].producer
            if problem.ops[source].repeatable and rng.random() < 0.4:
                ops.append(source)
        ops.append(op)
    return Schedule.of_ops(ops)


def closed(problem, schedule, seconds: float = 10.0) -> Schedule:
    return close_gaps(condense(problem), schedule, Limits(seconds=seconds))


def test_a_gap_closes_when_its_value_fits_all_through():
    problem = one_device(SKIP, budget=11)
    schedule = Schedule.of_ops([0, 1, 2, 0, 3])
    assert closed(problem, schedule).op_ids() == [0, 1, 2, 3]
    assert closed(problem.with_budget(10), schedule) is schedule


def test_what_ran_only_for_a_recompute_goes_with_it():
    problem = one_device([([], 1, 3), ([0], 1, 1), ([1], 1, 2), ([1, 2], 1, 1)], budget=6)
    assert closed(problem, Schedule.of_ops([0, 1, 2, 0, 1, 3])).op_ids() == [0, 1, 2, 3]


def test_a_value_held_only_for_the_recompute_makes_room():
    """Between its reads op 1 takes no more than op 0, which is held so that 1 can be made again."""
    problem = one_device([([], 1, 4), ([0], 1, 4), ([1], 1, 2), ([2], 1, 2), ([1, 3], 1, 1)], budget=10)
    schedule = Schedule.of_ops([0, 1, 2, 3, 1, 4])
    assert simulate(problem, schedule).peak == 10
    assert closed(problem, schedule).op_ids() == [0, 1, 2, 3, 4]


def test_the_first_of_equal_bytes_saves_most_time():
    ops = [([], 9, 2), ([], 1, 2), ([0, 1], 1, 2), ([2], 1, 2), ([0, 3], 1, 1), ([1, 4], 1, 1)]
    problem = one_device(ops, budget=7)
    found = closed(problem, Schedule.of_ops([0, 1, 2, 3, 0, 4, 1, 5]))
    assert found.op_ids().count(0) == 1


@pytest.mark.parametrize("make", [random_problem, random_training])
@pytest.mark.parametrize("seed", few(SEEDS, 3))
def test_never_slower_never_above_budget(make, seed):
    problem = make(seed)
    condensed = condense(problem)
    schedule = random_schedule(condensed.problem, seed)
    least, most = simulate(condensed.problem, schedule).peak, 0
    for share in (0, 1, 2, 4):
        budget = least + share * 5
        limited = condense(problem.with_budget(budget))
        found = close_gaps(limited, schedule, Limits(seconds=10.0))
        before, plan = (simulate(limited.problem, s) for s in (schedule, found))
        assert plan.time_ns <= before.time_ns
        assert simulate(problem, limited.expand(found, budget)).peak <= budget
        most = max(most, len(schedule.steps) - len(found.steps))
    assert most > 0 or len(schedule.steps) == len(condensed.problem.ops)


@pytest.mark.parametrize("seed", few(SEEDS, 3))
def test_bytes_stay_exact_while_gaps_close(seed):
    problem = random_problem(seed)
    schedule = random_schedule(problem, seed)
    steps = _Steps(problem, schedule.op_ids())
    gone: set[int] = set()
    while steps.repeats():
        closing = steps.closing(steps.repeats()[0])
        steps.leave_out(closing)
        gone |= closing.gone
        left = [place for place in range(len(schedule.steps)) if place not in gone]
        plan = simulate(problem, Schedule(tuple(schedule.steps[place] for place in left)))
        assert [int(steps.bytes[place]) + 11 for place in left] == list(plan.memory_bytes[0])
    assert gone


def test_stops_when_told_to():
    problem = one_device(SKIP, budget=11)
    assert closings(problem, Schedule.of_ops([0, 1, 2, 0, 3]), lambda: True) == []
    schedule = Schedule.of_ops([0, 1, 2, 0, 3])
    assert closed(problem, schedule, seconds=0.0) is schedule


def test_a_long_schedule_does_not_outlast_its_time():
    """Every stage from the beginning again: tens of thousands of gaps, whose ranking alone takes many seconds."""
    problem = chain_training(300, size=3).with_budget(250)
    ops = list(range(301))
    for stage in range(300):
        ops += [*range(301 - stage), 301 + stage]
    started = time.process_time()
    closed(problem, Schedule.of_ops(ops), seconds=0.5)
    assert time.process_time() - started < 2.5


def test_hundreds_of_gaps_in_a_thousand_steps_close_quickly():
    problem = chain_training(400, size=3).with_budget(700)
    forward = list(range(401))
    ops = forward + [op for stage in range(400) for op in (399 - stage, 400 - stage, 401 + stage)]
    started = time.process_time()
    found = closed(problem, Schedule.of_ops(ops))
    assert time.process_time() - started < 2.0
    assert len(found.steps) < len(ops) - 100
