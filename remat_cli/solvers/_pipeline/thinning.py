"""k-periodic schedules out of 1F1B*: leaving out every (k+1)-th mini-batch makes room in the stages that hold many."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from remat_cli.core.pipelines.pipeline import MemoryModel, PeriodicSchedule, PipelineChain
from remat_cli.solvers._pipeline.onef1b_star import (
    candidate_periods,
    contiguous_schedule,
    items_of,
    onef1b_star,
    stage_bytes,
)


@dataclass(frozen=True)
class ThinnedPlan:
    """1F1B* at `slot` with k of k + 1 mini-batches; k = 0: with all. `alive` is the most per stage."""

    slot: int
    k: int
    cuts: tuple[int, ...]
    alive: tuple[int, ...]

    @property
    def normalized_period(self) -> Fraction:
        """Time per mini-batch."""
        return Fraction(self.slot * (self.k + 1), self.k) if self.k else Fraction(self.slot)


def best_thinned(
    chain: PipelineChain, cuts: Sequence[int], memory: int, model: MemoryModel = "buf", *, most: int | None = None
) -> ThinnedPlan | None:
    """The least time per mini-batch of a fixed contiguous allocation, thinned with k = 1..most or not at all.

    `most` is the number of stages where it is not given. None: nothing fits.
    """
    items = items_of(chain, cuts)
    plans = []
    for slot in candidate_periods(items) or [1]:
        groups = onef1b_star(items, slot).groups[::2]
        for k in range((len(cuts) if most is None else most) + 1):
            alive = tuple(thinned_alive(group, k) for group in groups)
            if max(stage_bytes(chain, cuts, alive, model)) <= memory:
                plans.append(ThinnedPlan(slot, k, tuple(cuts), alive))
    return min(plans, key=lambda plan: (plan.normalized_period, plan.k), default=None)


def thinned_alive(group: int, k: int) -> int:
    """Of `group` slots in a row, how many have a mini-batch at most."""
    return group - group // (k + 1) if k else group


def thinned_schedule(chain: PipelineChain, plan: ThinnedPlan) -> PeriodicSchedule:
    """Layer by layer, stage s on device s."""
    once = contiguous_schedule(chain, plan.cuts, plan.slot)
    slots = range(max(1, plan.k))
    starts = tuple(tuple(start + slot * plan.slot for start in once.starts[0]) for slot in slots)
    moves = tuple(
        tuple(None if move is None else move + slot * plan.slot for move in once.transfers[0]) for slot in slots
    )
    return PeriodicSchedule(plan.slot * (plan.k + 1 if plan.k else 1), once.devices, starts, moves)
