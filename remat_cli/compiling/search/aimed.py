"""Splits whose plans should fit a budget: the cheapest by estimate, at falling shares of it, since estimates err."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.search.loop import KeepRule, Known, search
from remat_cli.compiling.search.tiles import TileCandidate, Tiles

AIMS = (1.0, 0.985, 0.95, 0.9, 0.8, 0.65, 0.5)  # shares of the budget to aim at, one after the other: estimates err


@dataclass(frozen=True)
class AimedSplits:
    """Proposes splits at each aim in turn, none twice; a tighter plan goes on at lower aims."""

    tiles: Tiles
    aims: Sequence[float]

    def propose(self, known: Known) -> Iterator[TileCandidate]:
        """A few splits, whatever became of those before."""
        return islice(self._all(), self.tiles.most_trials)

    def _all(self) -> Iterator[TileCandidate]:
        tried: set[object] = set()
        for aim in self.aims:
            lower = tuple(other for other in AIMS if other < aim)[1:]
            for proposal in self.tiles.propose(int(self.tiles.free_bytes * aim)):
                if proposal.regions and proposal.key not in tried:
                    tried.add(proposal.key)
                    yield TileCandidate(self.tiles, proposal, aim, tighter=partial(fit_budget, self.tiles, lower))


def fit_budget(tiles: Tiles, aims: Sequence[float] = AIMS) -> OneModel | None:
    """The first split, by falling aims, whose plan fits the budget; where it is dear, the fastest of a few more.

    What fits a smaller budget fits this one, and may be faster: estimates err. More are tried as long as the race
    may take by its share of the time limit.
    """
    task = tiles.task
    ends = time.monotonic() + task.request.splits.race_share * task.request.search.limits.seconds
    return search(
        AimedSplits(tiles, aims), KeepRule(better=task.better, is_enough=tiles.is_cheap, ends=ends), task.ending
    )
