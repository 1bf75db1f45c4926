"""Keep every tensor until its last read: the reference that every plan is compared with."""

from typing import ClassVar

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.placing import fastest_schedule
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits, Reason, Solution, Status


class KeepAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every op once, in baseline order, each on its fastest device; linear time.

    Optimal where it fits on one device, since no schedule is faster; on several where handing values over costs
    nothing.
    """

    name: ClassVar[str] = "keep-all"
    summary: ClassVar[str] = "every op once, in baseline order, on its fastest device"
    takes: ClassVar[str] = "Everything whose values can get from each op's fastest device to their readers'."
    proves: ClassVar[str] = "optimal when it fits and moves nothing between devices"

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        try:
            fastest_schedule(problem)
        except ModelError as reason:
            return Reason(str(reason))
        return None

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """That schedule if it is within every budget, otherwise nothing."""
        plan = limits.judge(problem, fastest_schedule(problem))
        bound = problem.baseline_time_ns
        pairs = zip(problem.memories, plan.peak_bytes, strict=True)
        if any(peak > memory.budget_bytes for memory, peak in pairs):
            return Solution(Status.NOT_FOUND, "free", None, bound)
        status = Status.OPTIMAL if plan.time_ns == bound else Status.FEASIBLE
        return Solution(status, "free", plan.schedule, bound)
