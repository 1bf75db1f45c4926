"""Judged plans as steps that may be paged: the same bytes at every step, and schedules that fit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.paging.paging import Link
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import Status
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.hot import hot_gaps, is_possible
from remat_cli.solvers.paging.lists import list_schedules
from remat_cli.solvers.paging.paging import page
from remat_cli.solvers.paging.plan_steps import plan_steps
from tests.solvers.random_training import chain_training
from tests.strategies import problems, schedules

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)


@SETTINGS
@given(st.data())
def test_steps_hold_what_the_judge_of_plans_says(data):
    """Views, results in place, recomputes and outputs included."""
    problem = data.draw(problems())
    plan = simulate(problem, data.draw(schedules(problem)))
    fixed = problem.memories[0].fixed_bytes
    held = plan_steps(problem, plan, Link(1, 1)).held_bytes()
    assert held == tuple(total - fixed for total in plan.memory_bytes[0])


@SETTINGS
@given(st.data())
def test_schedules_fit(data):
    problem = data.draw(problems())
    plan = simulate(problem, data.draw(schedules(problem)))
    free = plan_steps(problem, plan, Link(1, 1))
    floor = max(free.working_bytes()) + problem.memories[0].fixed_bytes
    paged = plan_steps(problem.with_budget(floor), plan, Link(1, 1))
    assert is_possible(paged)
    for schedule in list_schedules(paged) if list(hot_gaps(paged)) else ():
        assert follow_paging(paged, schedule).peak_bytes <= paged.budget_bytes


def test_a_training_step_at_half_its_memory():
    problem = chain_training(12, size=4, forward_ns=10)
    plan = baseline(problem)
    limited = problem.with_budget(plan.peak // 2)
    answer = page(plan_steps(limited, plan, Link(1, 1)), Limits(seconds=20.0))
    assert answer.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert answer.run is not None
    assert answer.run.peak_bytes <= plan.peak // 2
    assert answer.bound <= answer.run.makespan


def test_what_is_changed_in_place_is_not_written_before():
    """Op 1 overwrites what op 0 made, op 2 is large, op 3 reads the result of op 1."""
    tensors = (TensorSpec(4, 0), TensorSpec(4, 1), TensorSpec(6, 2), TensorSpec(1, 3, kept=True))
    ops = (
        OpSpec((), (0,), (5,), (0,)),
        OpSpec((0,), (1,), (5,), (0,), in_place=((0, 1),)),
        OpSpec((), (2,), (5,), (0,)),
        OpSpec((1,), (3,), (5,), (0,)),
    )
    problem = Problem(ops, tensors, (Memory("cpu", 6),), (Device("cpu", 0),))
    plan = simulate(problem, Schedule.of_ops([0, 1, 2, 3]))
    paged = plan_steps(problem, plan, Link(1, 1))
    assert paged.tensors[0].final == 1
    assert paged.tensors[2].is_kept is False  # its last step is the last of all
    answer = page(paged, Limits(seconds=20.0))
    assert answer.schedule is not None
    write = next(move for move in answer.schedule.transfers if move.direction == "write")
    assert write.start >= answer.schedule.starts[1] + 5
    assert answer.run is not None
    assert answer.run.makespan == 5 + 5 + 4 + 5 + 4 + 5
