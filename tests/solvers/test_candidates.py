"""Proposals of heuristics: cleaned, judged, the fastest within the budget, and nothing claimed that is not proved."""

from __future__ import annotations

import random
import time

import pytest

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import read_later
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.chains.candidates import best_within, cleaned, in_baseline_order
from tests.seeds import few
from tests.solvers.random_graphs import one_device, random_problem
from tests.solvers.random_training import chain_training, random_training
from tests.solvers.test_gap_closing import random_schedule

SEEDS = range(30)
# Op 0 is read by 1 and, long after, by 3; everything kept takes 11 bytes, with 0 computed twice 8.
SKIP = [([], 5, 3), ([0], 1, 4), ([1], 1, 4), ([2], 1, 1), ([0, 3], 1, 1)]
PLAIN, TWICE, SLOWER = [0, 1, 2, 3, 4], [0, 1, 2, 3, 0, 4], [0, 1, 2, 0, 1, 2, 3, 0, 4]


def answer(problem, proposals, order="free", start=None, close=False, **limits):
    reported = []
    limits = {"seconds": 10.0, **limits}
    watched = Limits(order=order, report=lambda schedule, bound: reported.append(schedule), **limits)
    return best_within(problem, lambda _: proposals, close, watched, start), reported


def test_the_fastest_within_budget_is_reported_and_returned():
    problem = one_device(SKIP, budget=9)
    found, reported = answer(problem, [PLAIN, SLOWER, TWICE, SLOWER])
    assert found.status is Status.FEASIBLE
    assert found.schedule == Schedule.of_ops(TWICE)
    assert reported[-1] is found.schedule
    assert found.bound_ns == problem.baseline_time_ns
    assert found.facts["candidates"] == 2  # without its dead steps SLOWER is TWICE
    assert found.facts["least_peak_bytes"] == 8


def test_what_fits_without_recomputing_is_optimal():
    found, _ = answer(one_device(SKIP, budget=11), [])
    assert found.status is Status.OPTIMAL
    assert found.schedule == Schedule.of_ops(PLAIN)


def test_a_better_order_of_ops_once_is_optimal_and_ends_the_search():
    ops = [([], 1, 5), ([], 1, 5), ([0], 1, 1), ([1], 1, 1), ([2, 3], 1, 1)]
    proposals = iter([[0, 2, 1, 3, 4], [0, 1, 2, 3, 4]])
    found, _ = answer(one_device(ops, budget=7), proposals)
    assert found.status is Status.OPTIMAL
    assert list(proposals) == [[0, 1, 2, 3, 4]]


def test_nothing_within_budget_is_no_proof():
    found, reported = answer(one_device(SKIP, budget=7), [TWICE, PLAIN])
    assert found.status is Status.NOT_FOUND
    assert found.schedule is None
    assert reported == []
    assert found.facts["least_peak_bytes"] == 8


def test_a_start_is_a_candidate():
    problem = one_device(SKIP, budget=9)
    found, _ = answer(problem, [], start=Schedule.of_ops(TWICE))
    assert found.schedule == Schedule.of_ops(TWICE)


def test_gaps_of_candidates_are_closed_when_asked():
    problem = one_device([*SKIP, ([4], 1, 1), ([1, 5], 1, 1)], budget=10)
    slow = [0, 1, 2, 3, 0, 4, 5, 0, 1, 6]
    left, _ = answer(problem, [slow])
    closed, _ = answer(problem, [slow], close=True)
    times = [simulate(problem, found.schedule).time_ns for found in (closed, left)]
    assert times[0] < times[1]


def test_time_that_is_over_ends_it():
    found, _ = answer(one_device(SKIP, budget=9), [TWICE], seconds=0.0)
    assert found.status is Status.NOT_FOUND


def test_a_generator_is_not_asked_for_more_than_there_is_time_for():
    def endless():
        while True:
            time.sleep(0.01)
            yield [0] * random.randint(1, 1000) + TWICE

    started = time.monotonic()
    answer(one_device(SKIP, budget=7), endless(), seconds=0.3)
    assert time.monotonic() - started < 3


def test_an_illegal_proposal_is_not_hidden():
    with pytest.raises(InvalidSchedule):
        answer(one_device(SKIP, budget=9), [[0, 1, 3, 2, 4]])


def test_dead_first_computations_go_where_the_order_is_free():
    problem = one_device(SKIP, budget=9)
    ops = [0, 1, 2, 0, 1, 2, 3, 0, 4]
    assert read_later(problem, ops) == [0, 1, 2, 3, 0, 4]
    assert cleaned(problem, ops, "keep").op_ids() == ops


def test_what_nobody_reads_and_what_is_kept_runs_once():
    problem = one_device([([], 1, 3), ([0], 1, 4), ([0], 1, 1)], kept=(1,))
    assert read_later(problem, [0, 1, 2, 0, 1, 2]) == [0, 1, 2]


def test_first_computations_move_forward_to_the_baseline_order():
    assert in_baseline_order([2, 0, 3, 1, 0, 4]) == [0, 1, 2, 3, 0, 4]
    assert in_baseline_order([0, 1, 0, 2]) == [0, 1, 0, 2]


@pytest.mark.parametrize("make", [random_problem, random_training])
@pytest.mark.parametrize("seed", few(SEEDS, 4))
def test_cleaning_keeps_schedules_legal_and_makes_none_slower(make, seed):
    problem = make(seed)
    rng = random.Random(seed)
    orders = random_schedule(problem, seed).op_ids()
    for order in ("free", "keep"):
        ops = orders if order == "free" else _shuffled(problem, rng)
        plan = simulate(problem, cleaned(problem, ops, order))
        assert plan.time_ns <= sum(problem.ops[op].time_ns[0] for op in ops)
        firsts = list(dict.fromkeys(plan.schedule.op_ids()))
        assert order == "free" or firsts == sorted(firsts)
        if order == "free":
            assert plan.peak <= simulate(problem, Schedule.of_ops(ops)).peak


def _shuffled(problem, rng: random.Random) -> list[int]:
    """A random topological order, with recomputes."""
    left, done, ops = set(range(len(problem.ops))), set(), []
    producers = [{problem.tensors[t].producer for t in spec.inputs} for spec in problem.ops]
    while left:
        op = rng.choice([op for op in sorted(left) if producers[op] <= done])
        ops += [source for source in sorted(producers[op]) if problem.ops[source].repeatable and rng.random() < 0.2]
        ops.append(op)
        left.discard(op)
        done.add(op)
    return ops


@pytest.mark.parametrize("order", ["free", "keep"])
@pytest.mark.parametrize("seed", few(SEEDS, 4))
def test_ops_that_must_not_be_repeated_are_not_and_answers_are_within_budget(seed, order):
    problem = random_training(seed)
    peak, fixed = baseline(problem).peak, problem.memories[0].fixed_bytes
    problem = problem.with_budget(fixed + (peak - fixed) * 9 // 10)

    def twice(condensed):
        yield [op for op in range(len(condensed.problem.ops)) for _ in range(2)]
        for number in range(5):
            yield random_schedule(condensed.problem, number).op_ids()

    found = best_within(problem, twice, True, Limits(seconds=10.0, order=order), None)
    if found.schedule is not None:
        assert simulate(problem, found.schedule).peak <= problem.memories[0].budget_bytes


def test_the_same_proposal_is_judged_once():
    judged = []

    def judge(problem, schedule):
        judged.append(schedule)
        return simulate(problem, schedule)

    problem = chain_training(4, size=2).with_budget(10)
    proposals = [list(range(9))] * 5
    answer(problem, proposals, judge=judge)
    assert len(judged) == 1
