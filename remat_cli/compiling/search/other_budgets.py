"""Splits that other budgets led to in earlier compiles of the model: made again where they promise a better plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from remat_cli.compiling.facts import KnownSplit
from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.search.known_splits import known_splits
from remat_cli.compiling.search.loop import KeepRule, Known, search
from remat_cli.compiling.search.tiles import TileCandidate, Tiles

MOST_KNOWN, LEAST_GAIN = 2, 0.001  # plans of other budgets that are made again, and what they must promise


@dataclass(frozen=True)
class OtherBudgets:
    """Proposes known splits that this budget admits and that promise more than the plan that was `found`."""

    tiles: Tiles
    found: OneModel | None

    def propose(self, known: Known) -> Iterator[TileCandidate]:
        """The splits, searched for again, the best first."""
        for split in islice(self._better(), MOST_KNOWN):
            again = self.tiles.propose(split.target_bytes)
            proposal = next((each for each in again if each.form == split.form), None)
            if proposal is not None and proposal.regions:
                yield TileCandidate(self.tiles, proposal)

    def _better(self) -> Iterator[KnownSplit]:
        task = self.tiles.task
        baseline_ns, least, most_bytes = task.question.baseline.time_ns, task.question.least, task.question.budget_bytes
        known = known_splits(task.whole.prepared, task.request.splits)
        for split in sorted(known, key=lambda each: each.budget_bytes) if least else known:
            time_ns = split.relative_time * baseline_ns
            fits = time_ns <= baseline_ns + task.allowed_ns if least else split.budget_bytes <= most_bytes
            rank = split.budget_bytes if least else time_ns
            if fits and (self.found is None or rank < task.rank(self.found) * (1 - LEAST_GAIN)):
                yield split


def or_known(tiles: Tiles, found: OneModel | None) -> OneModel | None:
    """The plan, or a better one that another budget led to in an earlier compile of the model."""
    task = tiles.task
    rule = KeepRule(admits=task.is_allowed) if task.question.least else KeepRule()
    other = search(OtherBudgets(tiles, found), rule, task.ending)
    return task.better(found, other) if found and other else found or other
