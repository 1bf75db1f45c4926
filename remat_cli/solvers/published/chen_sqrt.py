"""Chen's square-root checkpoints: as many segments as a segment has ops, in the forward pass of a training step."""

from collections.abc import Iterator
from typing import ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.base import Limits, Reason, Solution
from remat_cli.solvers.chains.candidates import best_within
from remat_cli.solvers.chains.checkpoints import (
    CandidateOps,
    candidate_ops,
    every_root,
    nothing_to_checkpoint,
    passes_of,
    steps_of,
)


class ChenSqrt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sublinear memory by sqrt(n) checkpoints (Chen et al. 2016), for graphs as in Jain et al. 2020; linear time.

    Of n candidates every floor(sqrt(n))-th is a checkpoint; the backward pass recomputes a segment at a time. It looks
    at neither bytes nor times, nor at the budget: the plan is the cheapest within it of those that the candidates give.

    Attributes:
        candidates: `articulation`: ops through which all of the forward pass goes, `linearised`: all forward ops in
            order, `both`: either; on a chain they are the same.
        close_gaps: afterwards keep what the rest of the budget has room for, which the published heuristic does not.
    """

    name: ClassVar[str] = "chen-sqrt"
    summary: ClassVar[str] = "checkpoints at every sqrt(n)-th forward op"
    takes: ClassVar[str] = "A training step on one device, its ops marked as forward and backward."
    proves: ClassVar[str] = "nothing beyond that the baseline is fastest where it fits"

    candidates: CandidateOps = "both"
    close_gaps: bool = False

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return nothing_to_checkpoint(problem)

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The cheapest within the budget of the schedules from one or two sets of checkpoints."""

        def schedules(condensed: Condensed) -> Iterator[list[int]]:
            passes = passes_of(condensed.problem)
            chosen = [every_root(ops) for ops in candidate_ops(passes, self.candidates)]
            return (steps_of(passes, checkpoints) for checkpoints in dict.fromkeys(chosen))

        return best_within(problem, schedules, self.close_gaps, limits, start)
