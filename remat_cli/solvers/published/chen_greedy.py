"""Chen's greedy checkpoints: one whenever the forward pass has made so many bytes since the last; all sizes swept."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._sharing import Condensed, drop_dead
from remat_cli.solvers.base import Limits, Reason, Solution
from remat_cli.solvers.chains.candidates import best_within
from remat_cli.solvers.chains.checkpoints import (
    CandidateOps,
    by_size,
    candidate_ops,
    every_root,
    nothing_to_checkpoint,
    passes_of,
    segment_sizes,
    steps_of,
)


class ChenGreedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Checkpoints by bytes (Chen et al. 2016), for graphs as in Jain et al. 2020; O(sizes * ops) and the judge.

    A candidate is a checkpoint when the ops since the last one have made more than b bytes, which evens segments out by
    memory. What b leads to is an outcome, so it is swept, from 0 to three times the memory that square-root checkpoints
    take and in the range that Chen et al. search; the plan is the cheapest within the budget.

    Attributes:
        candidates: `articulation`: ops through which all of the forward pass goes, `linearised`: all forward ops in
            order, `both`: either; on a chain they are the same.
        sizes: how many values of b from the whole range, for each kind of candidates.
        close_gaps: afterwards keep what the rest of the budget has room for, which the published heuristic does not.
    """

    name: ClassVar[str] = "chen-greedy"
    summary: ClassVar[str] = "checkpoints after every so many bytes of the forward pass, all sizes swept"
    takes: ClassVar[str] = "A training step on one device, its ops marked as forward and backward."
    proves: ClassVar[str] = "nothing beyond that the baseline is fastest where it fits"

    candidates: CandidateOps = "both"
    sizes: Annotated[int, msgspec.Meta(ge=1)] = 300
    close_gaps: bool = False

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return nothing_to_checkpoint(problem)

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The cheapest within the budget of the schedules from all different sets of checkpoints."""

        def schedules(condensed: Condensed) -> Iterator[list[int]]:
            passes = passes_of(condensed.problem)
            # The peak of linearised square-root checkpoints without what is fixed: the scale of segment sizes.
            steps = Schedule.of_ops(steps_of(passes, every_root(passes.forward)))
            plan = simulate(passes.problem, drop_dead(passes.problem, steps))
            peak_bytes = plan.peak - passes.problem.memories[0].fixed_bytes
            chosen = [
                by_size(passes, candidates, size)
                for candidates in candidate_ops(passes, self.candidates)
                for size in segment_sizes(passes, candidates, peak_bytes, self.sizes)
            ]
            return (steps_of(passes, checkpoints) for checkpoints in dict.fromkeys(chosen))

        return best_within(problem, schedules, self.close_gaps, limits, start)
