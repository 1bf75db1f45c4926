"""Splits of what does not fit by itself, for plans that make all that waits beside it again, as training steps need."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.search.loop import KeepRule, Known, SplitTrial, search
from remat_cli.compiling.search.tiles import PLAN_SHARE, TileCandidate, Tiles
from remat_cli.compiling.solve import LEAST_SECONDS
from remat_cli.splitting.tiles.propose import SplitProposal

NEEDY_AIMS = (0.97, 0.9, 0.82, 0.75, 0.67, 0.6, 0.5)
"""Shares of the budget that no region may take: what is left is for what is worth more to be held."""
BANDS_SHARE, BANDS_SECONDS = 0.15, 3.0
"""Of the time limit for a plan of bands, and what that takes in any case: other bands may be better than more time."""
CHEAP_SHARE, NEAR_SHARE = 0.05, 0.04
"""Of the time of a run: what others must cost by estimate, and more than these, for these to come first."""


@dataclass(frozen=True)
class NeedySplits:
    """Proposes regions for ever less, until a plan is found; those that are cut alike once, what was `tried` never."""

    tiles: Tiles
    tried: set[object] = field(default_factory=set)
    most: int | None = None

    def propose(self, known: Known) -> Iterator[TileCandidate]:
        """The fewest tiles first: they take least time, but leave least room."""
        return islice(self._proposed(known), self.most)

    def _proposed(self, known: Known) -> Iterator[TileCandidate]:
        for share in NEEDY_AIMS:
            for proposal in self.tiles.propose_needy(int(self.tiles.free_bytes * share)):
                if proposal.regions and proposal.key not in self.tried:
                    self.tried.add(proposal.key)
                    yield TileCandidate(self.tiles, proposal, share)
                    if known.is_beaten:  # what is for less takes longer
                        return


def fit_needy(tiles: Tiles, known_share: float, tried: set[object], most: int | None = None) -> OneModel | None:
    """The first plan of tiles and whole ops that are made again; None where what waits is not what is too much.

    Nor where it takes longer than a plan that is known, by `known_share` longer than the baseline. So many are built at
    the `most`, and none that was `tried`.
    """
    if not tiles.proposer.waits_for_more(tiles.free_bytes):
        return None
    rule = KeepRule(beaten=lambda trial, best: tiles.task.overhead_share(trial.least_ns) > known_share)
    return search(NeedySplits(tiles, tried, most), rule, tiles.task.ending)


@dataclass(frozen=True)
class NeedyBands:
    """Proposes bands of a training step whose tiles are made again; what was `tried` is built once."""

    tiles: Tiles
    tried: set[object] = field(default_factory=set)

    def propose(self, known: Known) -> Iterator[TileCandidate]:
        """The likely best first."""
        share, seconds = NEEDY_AIMS[0], max(LEAST_SECONDS, self.tiles.task.request.search.limits.seconds)
        plan_share = min(PLAN_SHARE, max(BANDS_SHARE, BANDS_SECONDS / seconds))
        for proposal in self.tiles.propose_needy_bands(int(self.tiles.free_bytes * share)):
            if proposal.regions and proposal.key not in self.tried:
                self.tried.add(proposal.key)
                yield TileCandidate(self.tiles, proposal, share, plan_share=plan_share)


def fit_needy_bands(tiles: Tiles, known_share: float, tried: set[object]) -> OneModel | None:
    """The best of a few plans of a training step in bands, whose tiles are made again; None for other models.

    Such tiles are found soon, and what a tile is made of is small: whole ops that are made again need all of it.
    """
    task = tiles.task
    if not (tiles.is_step and tiles.proposer.waits_for_more(tiles.free_bytes)):
        return None
    ends = time.monotonic() + task.request.splits.race_share * task.request.search.limits.seconds

    def is_enough(found: OneModel) -> bool:
        return tiles.is_cheap(found) or time.monotonic() > ends

    def is_beaten(trial: SplitTrial, best: OneModel | None) -> bool:
        return task.overhead_share(trial.least_ns) > min(known_share, task.share_of(best))

    rule = KeepRule(better=task.better, is_enough=is_enough, beaten=is_beaten)
    return search(NeedyBands(tiles, tried), rule, task.ending)


def is_less_by_needy(tiles: Tiles, proposed: Sequence[SplitProposal]) -> bool:
    """Whether regions around what needs most by itself cost clearly less by estimate than all that is proposed."""
    baseline_ns, least_ns = tiles.task.baseline_ns, min(each.doubted_ns for each in proposed)
    if least_ns <= CHEAP_SHARE * baseline_ns or not tiles.proposer.waits_for_more(tiles.free_bytes):
        return False
    found = tiles.propose_needy(int(tiles.free_bytes * NEEDY_AIMS[0]))
    return any(each.regions and each.added_ns + NEAR_SHARE * baseline_ns < least_ns for each in found)
