"""A cap on the tensors inside a model: of the splits that keep it, the fastest plan within the budget."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from remat_cli.base import progress as stages
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.search.loop import KeepRule, Known, SplitTrial, search
from remat_cli.compiling.search.tiles import TileCandidate, Tiles, inside_above
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.schedule.splits import LargeTensor


@dataclass
class CapSearch:
    """Proposes splits, the cheapest first; what stood in the way of each is kept for the message.

    `left`: tensors above the cap in the split that left least; `least_bytes`: the least budget of a split that left
    none, and which the budget is too small for.
    """

    tiles: Tiles
    most_bytes: int
    left: tuple[LargeTensor, ...]
    least_bytes: int | None = None

    def run(self) -> OneModel | Refused:
        """The plan, or the whole model without one and why."""
        task = self.tiles.task
        task.progress.stage(stages.SPLITTING)
        rule = KeepRule(better=task.better, is_enough=self.tiles.is_cheap)
        return search(self, rule, task.ending) or self._without_plan()

    def propose(self, known: Known) -> Iterator[TileCandidate | SplitTrial]:
        """Splits to measure, and of those the ones to plan in which no tensor is above the cap."""
        for proposal in self.tiles.capped(self.most_bytes):
            yield TileCandidate(self.tiles, proposal, is_probe=True)
            trial = known.trial
            above = () if trial is None else inside_above(trial.prepared.graph, self.most_bytes)
            if above and _sum(above) < _sum(self.left):
                self.left = above
            if trial is None or above:
                continue
            yield trial
            if not isinstance(known.found, OneModel):
                floor = working_set_floor(self.tiles.problem_of(trial)).bytes[0]
                self.least_bytes = floor if self.least_bytes is None else min(self.least_bytes, floor)

    def _without_plan(self) -> Refused:
        whole = self.tiles.task.whole
        run = replace(whole.answer.run, status=Status.NOT_FOUND, plan=None)
        return replace(whole.refused(replace(whole.answer, run=run)), obstacle=self._obstacle())

    def _obstacle(self) -> str | None:
        if self.tiles.task.should_stop():
            return None
        if self.least_bytes is not None:
            budget_bytes = self.tiles.task.question.budget_bytes
            return (
                f"with no tensor above --max-tensor {self.most_bytes:,} inside, the model needs at least "
                f"{self.least_bytes:,} bytes, and --budget is {budget_bytes:,}: raise one of them"
            )
        if not self.left:
            return None
        return _largest_told(self.left, self.most_bytes)


def above_cap(whole: OneModel | Refused, most_bytes: int, *, is_cut: bool) -> Refused:
    """No plan: in no loop that was tried are all tensors small enough; why, unless the search was cut."""
    left = inside_above(whole.prepared.graph, most_bytes)
    run = replace(whole.answer.run, status=Status.NOT_FOUND, plan=None)
    refused = whole.refused(replace(whole.answer, run=run))
    return replace(refused, obstacle=None if is_cut else _largest_told(left, most_bytes))


def plan_capped(tiles: Tiles, most_bytes: int) -> OneModel | Refused:
    """The fastest of a few splits in which no tensor inside is larger; without a plan where none of them is one."""
    return CapSearch(tiles, most_bytes, inside_above(tiles.task.whole.prepared.graph, most_bytes)).run()


def _largest_told(left: Sequence[LargeTensor], most_bytes: int) -> str:
    largest = max(left, key=lambda each: each.size_bytes)
    return (
        f"tensor '{largest.name}' of {largest.size_bytes:,} bytes, which op '{largest.op}' makes, is above "
        f"--max-tensor {most_bytes:,} in every split that was tried"
    )


def _sum(tensors: Sequence[LargeTensor]) -> int:
    return sum(each.size_bytes for each in tensors)
