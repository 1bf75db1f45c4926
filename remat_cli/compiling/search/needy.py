"""Splits of what does not fit by itself, for plans that make all that waits beside it again, as training steps need."""

from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.search.loop import KeepRule, Known, search
from remat_cli.compiling.search.tiles import TileCandidate, Tiles

NEEDY_AIMS = (0.97, 0.9, 0.82, 0.75, 0.67, 0.6, 0.5)
"""Shares of the budget that no region may take: what is left is for what is worth more to be held."""


@dataclass(frozen=True)
class NeedySplits:
    """Proposes regions for ever less, until a plan is found; those that are cut alike once."""

    tiles: Tiles

    def propose(self, known: Known) -> Iterator[TileCandidate]:
        """The fewest tiles first: they take least time, but leave least room."""
        tried = set[object]()
        for share in NEEDY_AIMS:
            for proposal in self.tiles.propose_needy(int(self.tiles.free_bytes * share)):
                if proposal.regions and proposal.key not in tried:
                    tried.add(proposal.key)
                    yield TileCandidate(self.tiles, proposal, share)


def fit_needy(tiles: Tiles) -> OneModel | None:
    """The first plan of tiles and whole ops that are made again; None where what waits is not what is too much."""
    if not tiles.proposer.waits_for_more(tiles.free_bytes):
        return None
    return search(NeedySplits(tiles), KeepRule(), tiles.task.ending)
