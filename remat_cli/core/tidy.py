"""Leaving out what a schedule computes for nobody; the runtime would not run it either."""

from __future__ import annotations

from collections import Counter

from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute, Schedule
from remat_cli.core.simulate import simulate


def tidy(problem: Problem, plan: Plan) -> Plan:
    """The plan without computations that nobody reads and whose op runs elsewhere; never slower, never larger.

    A first computation may go too, so first computations may then come in another order than before. Linear in the
    number of steps and reads: what a step read goes on to be looked at when the step goes.
    """
    steps = plan.schedule.steps
    uses = _uses(problem, plan)
    runs = Counter(plan.schedule.op_ids())
    dropped: set[int] = set()
    unread = [number for number, made in enumerate(plan.makes) if not any(uses[instance] for instance in made)]
    while unread:
        gone = []
        for number in unread:
            step = steps[number]
            if isinstance(step, Compute) and runs[step.op] > 1:
                runs[step.op] -= 1
                gone.append(number)
        dropped.update(gone)
        unread = _newly_unread(plan, gone, uses)
    if not dropped:
        return plan
    return simulate(problem, Schedule(tuple(step for number, step in enumerate(steps) if number not in dropped)))


def _uses(problem: Problem, plan: Plan) -> list[int]:
    """How many reads each instance has; the newest of a model output has one more, the caller's."""
    uses = [0] * len(plan.instances)
    for reads in plan.reads:
        for instance in reads:
            uses[instance] += 1
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    for tensor, number in newest.items():
        uses[number] += problem.tensors[tensor].kept
    return uses


def _newly_unread(plan: Plan, gone: list[int], uses: list[int]) -> list[int]:
    """Take the reads of these steps off `uses`; the steps whose results nobody reads any more, in order."""
    touched = set()
    for number in gone:
        for instance in plan.reads[number]:
            uses[instance] -= 1
            touched.add(plan.instances[instance].birth)
    return [number for number in sorted(touched) if not any(uses[instance] for instance in plan.makes[number])]
