"""Schedules and stages: there and back, and what must run so that what is held is there."""

from __future__ import annotations

import random

import pytest

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.published._staged.rows import complete, in_stages, schedule_of, stages_of
from tests.seeds import few
from tests.solvers.random_graphs import one_device, random_problem

# 0 feeds 1 and 4; 1 feeds 2, 2 feeds 3, 3 feeds 4.
SKIP = one_device([([], 1, 3), ([0], 1, 4), ([1], 1, 4), ([2], 1, 3), ([3, 0], 1, 3)], kept=(4,))


def test_every_op_once_holds_each_value_until_its_last_reader():
    stages = stages_of(SKIP, Schedule.of_ops([0, 1, 2, 3, 4]))
    assert stages.computed == ({0}, {1}, {2}, {3}, {4})
    assert stages.held == (set(), {0}, {0, 1}, {0, 2}, {0, 3}, {4})


def test_what_is_recomputed_need_not_be_held():
    stages = stages_of(SKIP, Schedule.of_ops([0, 1, 2, 3, 0, 4]))
    assert stages.computed == ({0}, {1}, {2}, {3}, {0, 4})
    assert stages.held == (set(), {0}, {1}, {2}, {3}, {4})
    assert schedule_of(stages.computed) == Schedule.of_ops([0, 1, 2, 3, 0, 4])


def test_recomputes_are_sorted_and_merged_inside_a_stage():
    assert stages_of(SKIP, Schedule.of_ops([0, 1, 2, 1, 0, 1, 3, 4])).computed[3] == {0, 1, 3}


def test_recomputes_after_the_last_op_are_left_out():
    assert stages_of(SKIP, Schedule.of_ops([0, 1, 2, 3, 0, 4, 0])).computed == ({0}, {1}, {2}, {3}, {0, 4})


def test_another_order_has_no_stages():
    twins = one_device([([], 1, 3), ([], 1, 4), ([0, 1], 1, 4)])
    assert stages_of(twins, Schedule.of_ops([1, 0, 2])) is None


def test_an_unfinished_schedule_has_no_stages():
    assert stages_of(SKIP, Schedule.of_ops([0, 1, 2])) is None


def test_a_stage_that_lacks_a_value_has_none():
    """Op 1 alone, without op 0, is not enough for op 1's reader if op 0 never ran."""
    assert in_stages(SKIP, [{1}, {1}, {2}, {3}, {4}]) is None


def test_nothing_held_makes_all_ancestors_run():
    nothing = [set() for _ in range(5)]
    assert complete(SKIP, [*nothing, {4}]) == [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}]


def test_what_begins_to_be_held_is_made():
    held = [set(), {0}, {0, 1}, {2}, {0, 3}, {4}]
    assert complete(SKIP, held) == [{0}, {1}, {2}, {0, 3}, {4}]


@pytest.mark.parametrize("seed", few(range(30), 4))
def test_there_and_back(seed):
    """Completed stages are legal, and hold what a second look says that they do."""
    problem, rng = random_problem(seed, 15), random.Random(seed)
    kept = {tensor for tensor, spec in enumerate(problem.tensors) if spec.kept}
    made = [{x for x, spec in enumerate(problem.tensors) if spec.producer < stage} for stage in range(15)]
    held = [*({x for x in tensors if rng.random() < 0.6} for tensors in made), kept]
    computed = complete(problem, held)
    schedule = schedule_of(computed)
    try:
        simulate(problem, schedule)
    except InvalidSchedule as error:
        assert "repeat" in str(error)  # noqa: PT017
    stages = stages_of(problem, schedule)
    assert stages.computed == tuple(computed)
    again = complete(problem, stages.held)
    assert all(now <= before for now, before in zip(again, computed, strict=True))
    assert in_stages(problem, again) is not None
