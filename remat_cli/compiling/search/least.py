"""Splits of least memory within the time allowed: a ladder of ever smaller ones, and where on it to look."""

from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.compiling.planned import OneModel
from remat_cli.compiling.search.loop import KeepRule, Known, SplitTrial, search
from remat_cli.compiling.search.tiles import TileCandidate, Tiles
from remat_cli.splitting.tiles.propose import SplitProposal

RUNGS = 16  # budgets tried for `min`, each a part below the last
RUNG_SHARES = (0.85, 0.95, 0.985)  # of the last one: ever smaller steps, where a larger one leads nowhere
CLIMB_SHARE, RUNG_SHARE = 0.5, 0.15  # of the time that is left: for rungs, until some are measured; for one at most
MOST_PLANNED = 3  # of the splits that were measured, the smallest first
RUNG_MARGIN = 3.5  # rungs may cost so many times the allowed overhead by estimate: measured, they often cost less


@dataclass(frozen=True)
class LeastSplits:
    """Proposes by bisection splits to measure, then those to plan that took no longer than allowed, the least first.

    Estimates err alike along the ladder: what the last trial cost, against what was estimated, says where to look.
    """

    tiles: Tiles

    def propose(self, known: Known) -> Iterator[TileCandidate | SplitTrial]:
        """The next place to look follows from what the last one cost."""
        task, rungs, steps = self.tiles.task, ladder(self.tiles), list[SplitProposal]()
        least_ns, allowed_ns = task.baseline_ns, task.allowed_ns
        fits: list[SplitTrial] = []
        low, high, error = 0, -1, 1.0
        for _ in range(self.tiles.most_trials):
            if low == len(steps):  # all that is known fits
                # The next rungs, as long as time for measuring them is left.
                clock = self.tiles.task.clock
                enough = (1 - CLIMB_SHARE) * clock.left
                while not steps or clock.left > enough:
                    found = next(rungs, None)
                    if found is None:
                        break
                    steps.append(found)
                high = len(steps) - 1
            if low > high:
                break
            near = (i for i, proposal in enumerate(steps) if error * proposal.added_ns <= allowed_ns)
            probe = min(high, max(low, max(near, default=low)))
            yield TileCandidate(self.tiles, steps[probe], is_probe=True)
            trial = known.trial
            if trial is not None and trial.least_ns <= least_ns + allowed_ns:
                fits.append(trial)
                low = probe + 1
            else:
                high = probe - 1
            if trial is not None:
                error = max(0, trial.least_ns - least_ns) / max(1, steps[probe].added_ns)
        yield from reversed(fits[-MOST_PLANNED:])


def hold_least(tiles: Tiles) -> OneModel | None:
    """The split of least memory whose plan takes no longer than the overhead allows.

    What holds fewer live bytes may need a larger process, by more nodes and gaps: where the process counts, the
    smallest few are planned.
    """
    task = tiles.task
    is_live = task.request.least == "live"
    rule = KeepRule(admits=task.is_allowed, better=task.better, is_enough=lambda found: is_live)
    return search(LeastSplits(tiles), rule, task.ending)


def ladder(tiles: Tiles) -> Iterator[SplitProposal]:
    """Proposals for ever smaller budgets, as long as their estimated overhead is not far too large.

    Where a rung cannot be reached, or is too dear, smaller steps go on from the last one.
    """
    task = tiles.task
    most_seconds = RUNG_SHARE * task.clock.left
    target = task.question.baseline.peak - task.whole.profile.fixed_bytes
    shares = list(RUNG_SHARES)
    for _ in range(RUNGS):
        proposal = next(iter(tiles.propose(int(target * shares[0]), most_seconds)), None)
        if proposal is None or proposal.added_ns > RUNG_MARGIN * task.allowed_ns:
            shares.pop(0)
            if not shares or task.should_stop():
                return
            continue
        target = int(target * shares[0])
        if proposal.regions:
            target = min(target, proposal.peak_bytes)
            yield proposal
