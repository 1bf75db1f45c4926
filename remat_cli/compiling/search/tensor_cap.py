"""A cap on the tensors inside a model: of the splits that keep it, the fastest plan within the budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from remat_cli.base import progress as stages
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.search.splitter import Splitter, SplitTrial, inside_above
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.schedule.splits import LargeTensor

MOST_CAPPED = 6  # splits under a cap that are measured


@dataclass
class CapSearch:
    """Tries splits, the cheapest first; what stood in the way of each is kept for the message.

    `left`: tensors above the cap in the split that left least; `least_bytes`: the least budget of a split that left
    none, and which the budget is too small for.
    """

    splitter: Splitter
    most_bytes: int
    left: tuple[LargeTensor, ...]
    least_bytes: int | None = None
    best: OneModel | None = None

    def run(self) -> OneModel | Refused:
        """The plan, or the whole model without one and why."""
        self.splitter.progress.stage(stages.SPLITTING)
        proposals = self.splitter.search.capped(self.most_bytes, self.splitter.free_bytes)
        for proposal in islice(proposals, MOST_CAPPED):
            trial = self.splitter.measure(proposal, None)
            if trial is not None and not self._has_larger(trial):
                self._try(trial)
            if self.best is not None and not self.splitter.is_dear(self.best):
                break
        return self.best or self._without_plan()

    def _has_larger(self, trial: SplitTrial) -> bool:
        above = inside_above(trial.prepared.graph, self.most_bytes)
        if above and _sum(above) < _sum(self.left):
            self.left = above
        return bool(above)

    def _try(self, trial: SplitTrial) -> None:
        found = self.splitter.plan(trial)
        if isinstance(found, OneModel):
            self.best = found if self.best is None else min(self.best, found, key=self.splitter.rank)
            return
        floor = working_set_floor(self.splitter.problem_of(trial)).bytes[0]
        self.least_bytes = floor if self.least_bytes is None else min(self.least_bytes, floor)

    def _without_plan(self) -> Refused:
        whole = self.splitter.whole
        run = replace(whole.answer.run, status=Status.NOT_FOUND, plan=None)
        return replace(whole.refused(replace(whole.answer, run=run)), obstacle=self._obstacle())

    def _obstacle(self) -> str | None:
        if self.splitter.progress.should_stop():
            return None
        if self.least_bytes is not None:
            budget_bytes = self.splitter.question.budget_bytes
            return (
                f"with no tensor above --max-tensor {self.most_bytes:,} inside, the model needs at least "
                f"{self.least_bytes:,} bytes, and --budget is {budget_bytes:,}: raise one of them"
            )
        if not self.left:
            return None
        largest = max(self.left, key=lambda each: each.size_bytes)
        return (
            f"tensor '{largest.name}' of {largest.size_bytes:,} bytes, which op '{largest.op}' makes, is above "
            f"--max-tensor {self.most_bytes:,} in every split that was tried"
        )


def plan_capped(splitter: Splitter, most_bytes: int) -> OneModel | Refused:
    """The fastest of a few splits in which no tensor inside is larger; without a plan where none of them is one."""
    return CapSearch(splitter, most_bytes, inside_above(splitter.whole.prepared.graph, most_bytes)).run()


def _sum(tensors: Sequence[LargeTensor]) -> int:
    return sum(each.size_bytes for each in tensors)
