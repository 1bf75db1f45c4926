"""Revolve: the binomial checkpoints of Griewank & Walther, on the chain of blocks of a training step."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.base import Limits, Reason, Solution
from remat_cli.solvers.chains.blocks import find_blocks, spell_out
from remat_cli.solvers.chains.candidates import best_within, why_not
from remat_cli.solvers.chains.revolve import MOST_FORWARDS, chain_actions, fewest_forwards, forward_table, reverse


class Revolve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revolve (Griewank & Walther 2000) as Jain et al. 2020 apply it to graphs.

    Optimal for chains of equal layers whose backward needs the layer's input alone. Any other training step is treated
    as if it were one: each block between two ops through which everything goes counts as one layer of one unit of time
    and memory, and runs forward again just before it runs backward. The schedule for every number of checkpoints is
    then judged with true sizes and times; where the blocks are few or uneven (long skips, U-Nets) it is far from
    good. At least all blocks but the last are computed twice, unless gaps are closed. O(blocks^2) per number of
    checkpoints, and the judging.

    Attributes:
        checkpoints: how many values between blocks are kept at once, the input among them (none: try all numbers, most
            first).
        close_gaps: afterwards keep what the rest of the budget has room for, which the published heuristic does not.
    """

    name: ClassVar[str] = "revolve"
    summary: ClassVar[str] = "binomial checkpoints on the chain of blocks (Griewank & Walther 2000)"
    takes: ClassVar[str] = "A training step on one device that is a chain of blocks."
    proves: ClassVar[str] = "nothing beyond that the baseline is fastest where it fits"

    checkpoints: Annotated[int, msgspec.Meta(ge=1)] | None = None
    close_gaps: bool = False

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return why_not(problem, find_blocks)

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The cheapest within the budget of the schedules for each number of checkpoints."""

        def schedules(condensed: Condensed) -> Iterator[list[int]]:
            blocks = find_blocks(condensed.problem, limits.order)
            if isinstance(blocks, Reason):
                return
            stages = blocks.chain.stages
            useful = stages - 1
            counts = range(useful, 0, -1) if self.checkpoints is None else [min(self.checkpoints, useful)]
            table = forward_table(useful, max(counts) + 2)
            for count in counts:
                if fewest_forwards(stages, count) <= MOST_FORWARDS:
                    yield spell_out(blocks, chain_actions(reverse(table, stages, count + 2)))

        return best_within(problem, schedules, self.close_gaps, limits, start)
