"""Keep only the newest value and recompute all else for every op: what recomputing alone can do, at any price."""

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import Limits, Reason, Solution
from remat_cli.solvers.chains.candidates import best_within
from remat_cli.solvers.published._staged.rows import complete, schedule_of

MOST_STEPS = 500_000  # the judge takes a few seconds and a third of a gigabyte for so many


class CheckpointLast(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Before every op only the value made last is held, the rest is recomputed (Jain et al. 2020); O(ops^2) steps.

    It looks at neither bytes nor times, nor at the budget: one schedule, which is the plan if it is within it. Besides
    the newest value, what stays to the end anyway is held, and what must not be repeated: no schedule is legal
    otherwise. No marks are needed. Where a gradient needs only the one before, this comes near the least memory; where
    it needs others, all the way to these is recomputed at once, which may take as much as the baseline.

    Attributes:
        close_gaps: afterwards keep what the rest of the budget has room for, which the published heuristic does not.
    """

    name: ClassVar[str] = "checkpoint-last"
    summary: ClassVar[str] = "hold only the newest value, recompute all else for every op"
    takes: ClassVar[str] = "One device, as far as the schedule is of a length that can be judged."
    proves: ClassVar[str] = "nothing beyond that the baseline is fastest where it fits"

    close_gaps: bool = False

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        if len(problem.devices) > 1:
            return Reason("it places every op on one device")
        count = _step_count(condense(problem).problem)
        return (
            None
            if count <= MOST_STEPS
            else Reason(f"its schedule would have {count} steps; it goes up to {MOST_STEPS}")
        )

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """That one schedule, if it is within the budget."""
        return best_within(problem, _schedules, self.close_gaps, limits, start)


def _schedules(condensed: Condensed) -> Iterator[list[int]]:
    problem = condensed.problem
    # Tensors in memory when each stage begins, and at the end.
    staying: set[int] = set()
    held: list[set[int]] = [set()]
    for spec in problem.ops:
        staying.update(t for t in spec.outputs if problem.tensors[t].kept or not spec.repeatable)
        held.append({*staying, *spec.outputs})
    yield schedule_of(complete(problem, held)).op_ids()


def _step_count(problem: Problem) -> int:
    """How many steps the schedule has.

    An op with all that it must have recomputed is a set of bits. None of it is the op before, which comes after all
    that an earlier op needs.
    """
    producers = [
        {problem.tensors[t].producer for t in spec.inputs if not problem.tensors[t].kept} for spec in problem.ops
    ]
    needed: list[int] = []
    count = 0
    for op, spec in enumerate(problem.ops):
        bits = 1 << op
        for source in producers[op] - {op - 1}:
            bits |= needed[source]
        count += bits.bit_count()
        if op - 1 in producers[op]:
            bits |= needed[op - 1]
        needed.append(bits if spec.repeatable else 0)
    return count
