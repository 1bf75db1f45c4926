"""Leaving out what a schedule computes for nobody; the runtime would not run it either."""

from __future__ import annotations

from collections import Counter

from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute, Schedule
from remat_cli.core.simulate import simulate


def tidy(problem: Problem, plan: Plan) -> Plan:
    """The plan without computations that nobody reads and whose op runs elsewhere; never slower, never larger.

    A first computation may go too, so first computations may then come in another order than before.
    """
    while True:
        schedule = _without_unread(problem, plan)
        if schedule == plan.schedule:
            return plan
        plan = simulate(problem, schedule)


def wanted_instances(problem: Problem, plan: Plan) -> set[int]:
    """Instances that some step reads, and the newest of each model output."""
    wanted = {instance for reads in plan.reads for instance in reads}
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    wanted.update(number for tensor, number in newest.items() if problem.tensors[tensor].kept)
    return wanted


def _without_unread(problem: Problem, plan: Plan) -> Schedule:
    wanted = wanted_instances(problem, plan)
    runs = Counter(plan.schedule.op_ids())
    steps = []
    for step, made in zip(plan.schedule.steps, plan.makes, strict=True):
        if isinstance(step, Compute) and runs[step.op] > 1 and not wanted.intersection(made):
            runs[step.op] -= 1
            continue
        steps.append(step)
    return Schedule(tuple(steps))
