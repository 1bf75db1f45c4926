"""Splits whose plans should fit a budget: over a ladder of caps that of which, by estimate, most is to be expected."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.search.expected import Expected, Promising
from remat_cli.compiling.search.loop import KeepRule, Known, SplitTrial, search
from remat_cli.compiling.search.tiles import TileCandidate, Tiles
from remat_cli.core.values.curve import CurvePoint
from remat_cli.runtime.measure.profilers import LONG_RUN_NS
from remat_cli.splitting.tiles.propose import SplitProposal

AIMS = (1.0, 0.985, 0.95, 0.9, 0.8, 0.65, 0.5)  # shares of the budget to aim at, one after the other: estimates err
CAPS = (0.65, 0.5, 0.35, 0.8, 0.25)
"""Of what planning can change: caps below a budget that are looked at too, in this order, as time allows."""
LOOK_SECONDS, LOOK_SHARE = 1.0, 0.15
"""For looking at them, and of the time that is left, which must be as much; each may take its part of that."""
NEAR_SHARE = 0.04
"""Of the time of a run: what costs by so little more by estimate costs the same, and the smaller one is preferred."""
WORTH_PER_SECOND = 0.0025
"""Of the time of a run: so much must be expected of a candidate for each second that it takes to build and measure."""
LESS_SECONDS = 10.0
"""For plans for less, after one that did not hold what it should."""
RUNS, SECONDS = 8, 2.0
"""What that takes before one was measured: so many runs of the model, and seconds beside them."""


@dataclass(frozen=True)
class Aim:
    """A proposal, and the share of the budget that it was made for."""

    proposal: SplitProposal
    share: float

    def is_other_than(self, failed: "Aim") -> bool:
        """Whether it may fit where another one did not: it is for less, or of another form."""
        return self.share < failed.share or self.proposal.form != failed.proposal.form


@dataclass
class Tried:
    """What searches for one question have built: keys of proposals, and what was measured of them.

    They were granted so many seconds beyond the time limit; building and measuring the last one took `seconds`.
    """

    granted_seconds: float = 0.0
    seconds: float | None = None
    keys: set[object] = field(default_factory=set)
    measured: list[tuple[Promising, float]] = field(default_factory=list)


@dataclass(frozen=True)
class AimedSplits:
    """Proposes of all splits that should fit a budget, or a cap below it, the one of which most is to be expected.

    What costs about as little and holds less comes first. Each that was measured corrects the estimates of its kin.
    Where one does not fit, splits for less are proposed; a tighter plan goes on there too. `points` are plans that are
    known, of which the best within the budget takes `known_share` longer than the baseline; `proposed` is what was
    proposed for the first aim before, where that was asked for; nothing that was `tried` is built again.
    """

    tiles: Tiles
    aims: Sequence[float] = AIMS
    points: Sequence[CurvePoint] = ()
    known_share: float = math.inf
    proposed: Sequence[SplitProposal] | None = None
    tried: Tried = field(default_factory=Tried)

    def propose(self, known: Known) -> Iterator[TileCandidate]:
        """A few splits, as long as more is expected of one than it takes."""
        lower = list(self.aims[1:])
        pool = [*self._first(), *self._below(self.aims[0])] if self.aims else []
        # Plans that are known, as measurements of what is proposed for as many bytes.
        task = self.tiles.task
        fixed_bytes = task.whole.profile.fixed_bytes
        split = [point for point in self.points if point.is_split and point.live_bytes > fixed_bytes]
        found = []
        for point in split if pool else ():
            own = Promising("", point.live_bytes - fixed_bytes, 0.0)
            near = min(map(self._point, pool), key=own.distance)
            found.append((Promising(near.form, own.peak_bytes, near.share), point.relative_time - 1))
        expected = Expected((*found, *self.tried.measured))
        first_seconds = SECONDS + RUNS * task.baseline_ns / 1e9  # what building and measuring one may take
        for _ in range(self.tiles.most_trials):
            while not pool and lower:
                pool = self._at(lower.pop(0))
            best_share = task.share_of(known.best)
            seconds = first_seconds if self.tried.seconds is None else self.tried.seconds
            chosen = self._best(pool, expected, seconds, min(self.known_share, best_share))
            if chosen is None:
                return
            self.tried.keys.add(chosen.proposal.key)
            began = time.monotonic()
            tighter = partial(fit_less, self.tiles, tuple(aim for aim in AIMS if aim < chosen.share)[1:])
            try:
                yield TileCandidate(self.tiles, chosen.proposal, chosen.share, tighter=tighter)
            finally:  # a search that ends with it has learnt that too
                self.tried.seconds = time.monotonic() - began
                if known.trial is not None:
                    self.tried.measured.append((self._point(chosen), task.overhead_share(known.trial.least_ns)))
            expected = Expected((*found, *self.tried.measured))
            pool = [each for each in pool if each.proposal.key not in self.tried.keys]
            if not isinstance(known.found, OneModel) and not known.is_beaten:
                pool = [each for each in pool if each.is_other_than(chosen)]
                lower = self._less(chosen.share, lower, known.found)
                pool += self._at(lower.pop(0)) if lower else []

    def _less(self, share: float, lower: Sequence[float], found: Refused | None) -> list[float]:
        """What to aim at after a plan that does not fit: at once for as much less as sessions need more for it."""
        question, needed_bytes = self.tiles.task.question, None if found is None else found.needed_bytes
        below = [each for each in lower if each < share]
        if needed_bytes is None or not below:
            return below
        fixed_bytes = self.tiles.task.whole.profile.fixed_bytes
        fitting = share * (question.budget_bytes - fixed_bytes) / max(1, needed_bytes - fixed_bytes)
        return below if fitting >= below[0] else [fitting, *(each for each in below if each < fitting)]

    def _best(self, pool: Sequence[Aim], expected: Expected, seconds: float, best: float) -> Aim | None:
        """What is built next: while no plan is known the cheapest, else that of which most is expected, if any is."""
        if not pool:
            return None
        costs = [expected.cost(self._point(each)) for each in pool]
        if math.isinf(best):
            least = min(costs)
            near = (each for each, cost in zip(pool, costs, strict=True) if cost <= least + NEAR_SHARE)
            return min(near, key=lambda each: each.proposal.peak_bytes)
        gains = [expected.gain(self._point(each), best) for each in pool]
        gain, place = max(zip(gains, range(len(pool)), strict=True))
        return pool[place] if gain > WORTH_PER_SECOND * seconds else None

    def _first(self) -> list[Aim]:
        """What is proposed for the first aim."""
        share = self.aims[0]
        return self._at(share) if self.proposed is None else self._new(self.proposed, share)

    def _at(self, share: float, most_seconds: float = math.inf) -> list[Aim]:
        """What is proposed for a share of the budget and was not tried before."""
        return self._new(self.tiles.propose(int(self.tiles.free_bytes * share), most_seconds), share)

    def _new(self, found: Sequence[SplitProposal], share: float) -> list[Aim]:
        return [Aim(each, share) for each in found if each.regions and each.key not in self.tried.keys]

    def _below(self, share: float) -> list[Aim]:
        """What is proposed for caps below, which are the same for every budget, as time allows."""
        task = self.tiles.task
        if task.clock.left < LOOK_SECONDS:
            return []
        ends = time.monotonic() + min(LOOK_SECONDS, LOOK_SHARE * task.clock.left)
        whole_bytes = task.question.baseline.peak - task.whole.profile.fixed_bytes
        shares = [cap * whole_bytes / max(1, self.tiles.free_bytes) for cap in CAPS]
        below, found = [each for each in shares if each < share], list[Aim]()
        for place, each in enumerate(below):
            left = ends - time.monotonic()
            if left > 0 and not task.should_stop():
                found += self._at(each, left / (len(below) - place))
        return found

    def _point(self, aim: Aim) -> Promising:
        proposal = aim.proposal
        return Promising(proposal.form, max(1, proposal.peak_bytes), proposal.doubted_ns / self.tiles.task.baseline_ns)


def fit_less(tiles: Tiles, aims: Sequence[float]) -> OneModel | None:
    """The fastest of splits for less, after runs showed that one does not hold what it should.

    It has some time of its own where nobody said how long a search may take: else there would be no plan at all.
    """
    if tiles.task.request.search.may_be_brief:
        tiles.task.clock.grant(LESS_SECONDS)
    return fit_budget(tiles, aims)


def fit_budget(
    tiles: Tiles,
    aims: Sequence[float] = AIMS,
    points: Sequence[CurvePoint] = (),
    known_share: float = math.inf,
    proposed: Sequence[SplitProposal] | None = None,
    tried: Tried | None = None,
) -> OneModel | None:
    """The fastest of a few splits whose plans fit the budget, or the first that costs hardly anything.

    What fits a smaller budget fits this one, and may be faster: estimates err. More are tried as long as the race
    may take by its share of the time limit and of what was granted beyond it, and more is expected than what is known.
    """
    task, tried = tiles.task, tried or Tried()
    began, ran = time.monotonic(), task.clock.run_seconds
    most_seconds = task.request.splits.race_share * (task.request.search.limits.seconds + tried.granted_seconds)
    is_long = task.baseline_ns > LONG_RUN_NS

    def is_over() -> bool:  # short runs of the model do not count
        running = 0.0 if is_long else task.clock.run_seconds - ran
        return time.monotonic() - began - running > most_seconds

    proposer = AimedSplits(tiles, aims, points, known_share, proposed, tried)

    def is_beaten(trial: SplitTrial, best: OneModel | None) -> bool:
        return task.overhead_share(trial.least_ns) > min(known_share, task.share_of(best))

    rule = KeepRule(better=task.better, is_enough=lambda found: tiles.is_cheap(found) or is_over(), beaten=is_beaten)
    return search(proposer, rule, task.ending)
