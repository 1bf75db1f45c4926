"""From a solution of the frontier program to a schedule: where to recompute, though not within the budget for sure.

Each recompute of a stage goes directly before the first reader that lacks its result; a good start for a search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.solvers._bounds.frontier import Frontier, Stage


def rounded_schedule(problem: Problem, frontier: Frontier, values: Sequence[int]) -> Schedule:
    """A legal schedule with the recomputes of a solution; it may exceed the budget.

    When it does not, and takes no more time than the solution, it is optimal if the solution is.
    """
    steps: list[int] = []
    for stage in frontier.stages:
        held = frontier.held[stage.begin]
        present = {x for x, variable in held.items() if variable is None or values[variable]}
        later = frontier.held[stage.end]
        wanted = {x for x, variable in later.items() if variable is None or values[variable]}
        again = [op for op, run in stage.runs.items() if values[run]]
        steps += _Stage(problem, stage, present, wanted).place(again)
    return Schedule.of_ops(steps)


@dataclass(frozen=True)
class _Stage:
    """One stage with the tensors in memory when it begins and when it ends."""

    problem: Problem
    stage: Stage
    present: set[int]
    wanted: set[int]

    def place(self, again: list[int]) -> list[int]:
        """All steps of the stage. Readers have larger numbers, so they are there before what they read."""
        steps = list(range(self.stage.begin + 1, self.stage.last + 1))
        for op in sorted(again, reverse=True):
            steps.insert(self._position(steps, op), op)
        return steps

    def _position(self, steps: list[int], op: int) -> int:
        """Before the first reader that lacks a result; if none does, at the end of the longest time without a use."""
        outputs = self.problem.ops[op].outputs
        missing = {x for x in outputs if op <= self.stage.begin and x not in self.present}
        lacking = [place for place, step in enumerate(steps) if missing.intersection(self.problem.ops[step].inputs)]
        if lacking:
            return lacking[0]
        uses = [*self._uses(steps, op), *([self._end(steps)] if self.wanted.intersection(outputs) else [])]
        if len(uses) < 2:
            return uses[0] if uses and op <= self.stage.begin else len(steps)
        return max(pairwise(uses), key=lambda pair: pair[1] - pair[0])[1]

    def _uses(self, steps: list[int], op: int) -> Iterator[int]:
        """Places that need results of an op: the start of the stage or its own first run, and readers."""
        outputs = set(self.problem.ops[op].outputs)
        if op <= self.stage.begin:
            yield 0
        for place, step in enumerate(steps):
            if step == op or outputs.intersection(self.problem.ops[step].inputs):
                yield place

    def _end(self, steps: list[int]) -> int:
        """Before the first run that ends the stage."""
        return len(steps) - (self.stage.end == self.stage.last)
