"""Keep every tensor until its last read: the reference that every plan is compared with."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import baseline
from remat_cli.solvers.base import Limits, Solution, Status


class KeepAll(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every op once, in baseline order; linear time. Optimal where it fits, since no schedule is faster."""

    name: ClassVar[str] = "keep-all"
    summary: ClassVar[str] = "every op once, in baseline order"
    proves: ClassVar[str] = "optimal when it fits"

    def supports(self, problem: Problem) -> str | None:
        """One device, which can run everything."""
        return None if len(problem.devices) == 1 else "it places every op on one device"

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The baseline if it is within budget, otherwise nothing."""
        plan = baseline(problem)
        bound = problem.baseline_time_ns
        if plan.peak > problem.memories[0].budget_bytes:
            return Solution(Status.NOT_FOUND, "free", None, bound)
        return Solution(Status.OPTIMAL, "free", plan.schedule, bound)
