from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers.base import Limits
from remat_cli.solvers.floor.game import Game, Move, least_peak, subsets
from remat_cli.solvers.floor.proof import impossible, improving_floors, proved_floor
from tests.solvers.brute_force import optimum
from tests.solvers.random_graphs import nested_unet, one_device, skip_net
from tests.strategies import problems, schedules


def quick() -> Limits:
    return Limits(seconds=30)


def true_floor(problem: Problem) -> int:
    """Least budget with a schedule, by exhaustive search."""
    least, most = working_set_floor(problem).bytes[0], baseline(problem).peak
    while least < most:
        middle = (least + most) // 2
        if optimum(problem.with_budget(middle), "free") is None:
            least = middle + 1
        else:
            most = middle
    return least


def check(problem: Problem) -> bool:
    """Whether the proved floor is the true one; fails when it is above that, or below that of single steps."""
    floor, least = proved_floor(problem, quick()).bytes, true_floor(problem)
    assert working_set_floor(problem).bytes[0] <= floor <= least
    proof = impossible(problem.with_budget(least), quick())
    assert proof is None
    return floor == least


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(problems(max_ops=6))
def test_floor_is_never_above_the_least_budget(problem):
    check(problem)


def test_floor_is_mostly_exact_and_often_above_single_steps_on_nets_with_skips():
    nets = [skip_net(seed, 6) for seed in range(40)]
    assert sum(check(net) for net in nets) > 30
    assert sum(proved_floor(net, quick()).bytes > working_set_floor(net).bytes[0] for net in nets) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_floor_holds_on_many_more_nets(block):
    nets = [skip_net(seed, random.Random(seed).choice([5, 6, 7, 8])) for seed in range(100 * block, 100 * block + 100)]
    assert sum(check(net) for net in nets) > 85


@settings(deadline=None, max_examples=100)
@given(problems(max_ops=9).flatmap(lambda problem: schedules(problem).map(lambda schedule: (problem, schedule))))
def test_no_schedule_is_below_the_floor(drawn):
    problem, schedule = drawn
    assert proved_floor(problem, quick()).bytes <= simulate(problem, schedule).peak


def two_branches() -> list[tuple[list[int], int, int]]:
    """Each branch widens to 10 on its way to a result of 3; whichever comes second runs beside the other's result."""
    return [([], 1, 1), ([0], 1, 10), ([1], 1, 3), ([], 1, 1), ([3], 1, 10), ([4], 1, 3), ([2, 5], 1, 1)]


def test_two_long_branches_need_one_result_beside_the_other_branch():
    problem = one_device(two_branches(), fixed=100)
    floor = proved_floor(problem, quick())
    assert working_set_floor(problem).bytes[0] == 113
    assert floor.bytes == 116 == true_floor(problem)
    assert floor.ops[0] == 6
    assert floor.held in ((2,), (5,))


def test_recomputing_is_counted_as_possible():
    # The first tensor is read at both ends of a wide chain: holding it is avoidable at the price of time.
    problem = one_device([([], 1, 6), ([0], 1, 1), ([1], 1, 10), ([2], 1, 1), ([3, 0], 1, 1)])
    assert baseline(problem).peak == 17
    assert proved_floor(problem, quick()).bytes == 11 == true_floor(problem)


def test_a_budget_below_what_two_ops_need_together_is_impossible():
    problem = one_device(two_branches())
    proof = impossible(problem.with_budget(15), quick())
    assert proof is not None
    assert (proof.bytes, proof.ops[0]) == (16, 6)
    assert impossible(problem.with_budget(16), quick()) is None
    alone = impossible(problem.with_budget(12), quick())
    assert alone is not None
    assert (alone.bytes, alone.ops) == (13, (2,))


def test_kept_tensors_are_needed_together_at_the_end():
    problem = one_device([([], 1, 5), ([], 1, 6), ([], 1, 7)], kept=(0, 1, 2))
    assert proved_floor(problem, quick()).bytes == 18 == true_floor(problem)


def test_floors_rise_and_the_search_stops_in_time():
    floors = [floor.bytes for floor in improving_floors(nested_unet(), Limits(seconds=2))]
    assert floors == sorted(set(floors))
    assert list(improving_floors(nested_unet(), Limits(seconds=0))) == []


def test_a_search_that_ends_early_proves_less_but_nothing_wrong():
    weights = (4, 3, 5, 2)
    moves = (Move(0, 0, 1, 1, 4), Move(1, 0b1, 0b10, 0b11, 7), Move(2, 0b1, 0b100, 0b101, 9), Move(3, 6, 8, 14, 10))
    game = Game(weights, moves, Move(4, 0b1001, 0, 0b1001, 6), (0, 1, 2, 3))
    full = least_peak(game, 0, 10**6)
    assert full.is_exact
    for most in range(1, full.positions + 1):
        part = least_peak(game, 0, most)
        assert part.least <= full.least
    stopped = least_peak(game, 3, 10**6, lambda: True)
    assert stopped.least <= full.least


def test_subsets_of_a_set():
    assert sorted(subsets(0b101)) == [0, 0b001, 0b100, 0b101]
