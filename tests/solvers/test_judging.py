"""How `solve` judges: every reported schedule, each once, whoever asks first."""

from __future__ import annotations

from remat_cli.core.schedule.plan import Schedule
from remat_cli.solvers import _Recorder
from remat_cli.solvers.base import Limits
from tests.solvers.random_graphs import one_device


def test_a_schedule_judged_before_it_is_reported_is_not_judged_again():
    problem = one_device([([], 1, 4), ([0], 1, 4)])
    recorder = _Recorder(problem, "someone", Limits())
    schedule = Schedule.of_ops([0, 1])
    plan = recorder.judge(problem, schedule)
    recorder.report(schedule, None)
    assert recorder.best is plan


def test_another_budget_or_an_equal_schedule_is_judged_anew():
    problem = one_device([([], 1, 4), ([0], 1, 4)])
    recorder = _Recorder(problem, "someone", Limits())
    plan = recorder.judge(problem, Schedule.of_ops([0, 1]))
    assert recorder.judge(problem, Schedule.of_ops([0, 1])) is not plan
    assert recorder.judge(problem.with_budget(3), recorder.judge(problem, plan.schedule).schedule) is not plan
