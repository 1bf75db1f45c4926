"""Splits of one model in tiles: the better of the whole plan and the best split, or why there is none."""

import math
from collections.abc import Sequence
from dataclasses import replace

from remat_cli.base import progress as stages
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.search.aimed import Tried, fit_budget
from remat_cli.compiling.search.least import hold_least, ladder
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.search.needy import fit_needy, fit_needy_bands, is_less_by_needy
from remat_cli.compiling.search.tiles import Tiles
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.schedule.splits import Region, RegionFacts
from remat_cli.core.values.curve import CurvePoint
from remat_cli.onnx_io.read.interface import has_op
from remat_cli.onnx_io.read.source_names import told_names
from remat_cli.splitting.tiles.obstacle import SplitObstacle
from remat_cli.splitting.tiles.propose import SplitProposal

DEAR_SHARE = 0.2
"""Of the time of a run: a plan that costs more is worth a longer search, where nobody said how long it may take."""
MADE_BY_RUNTIME = "the model has no such op: the runtime made it of others, which may well be cut"


def plan_split(tiles: Tiles, points: Sequence[CurvePoint] = (), known_share: float = math.inf) -> OneModel | Refused:
    """The better of the whole plan and the best one with splits; no search where outputs alone are too much.

    `points` are plans that are known, of which the best one takes `known_share` longer than the baseline.
    """
    task = tiles.task
    if tiles.output_bytes > tiles.free_bytes and not task.question.least:
        return without_splits(tiles)
    task.progress.stage(stages.SPLITTING)
    found = hold_least(tiles) if task.question.least else _within_budget(tiles, points, known_share)
    if found is None:
        return without_splits(tiles)
    if task.request.splits.mode == "auto" and isinstance(task.whole, OneModel):
        return task.better(task.whole, found)
    return found


def _within_budget(tiles: Tiles, points: Sequence[CurvePoint], known_share: float) -> OneModel | None:
    """The best of splits; a brief search that has found none but dear plans goes on, once for all its parts."""
    task, tried = tiles.task, Tried()
    found = _found(tiles, points, known_share, tried)
    share = min(known_share, task.share_of(found))
    may_go_on = task.request.search.dear_seconds > 0 and not task.clock.was_granted
    if not may_go_on or not DEAR_SHARE < share < math.inf or task.progress.should_stop():
        return found
    tried.granted_seconds = task.request.search.dear_seconds
    tiles.grant(tried.granted_seconds)
    task.progress.stage(stages.SPLITTING)
    return _best(task, found, _found(tiles, points, share, tried))


def _found(tiles: Tiles, points: Sequence[CurvePoint], known_share: float, tried: Tried) -> OneModel | None:
    """The best of splits that should fit as the model runs, and of those that need more to be made again too.

    Tiles of a training step that are made again come first, where whole ops fit at a high price or not at all: by
    items, which are found in a moment, and where nothing fits as the model runs, in all bands that were judged for it.
    """
    task, banded = tiles.task, None
    is_dear = task.share_of(task.whole if isinstance(task.whole, OneModel) else None) > DEAR_SHARE
    if is_dear:
        banded = fit_needy_bands(tiles, known_share, tried.keys)
        if banded is not None and tiles.is_cheap(banded):
            return banded
    proposed = tiles.propose(tiles.free_bytes)
    if is_dear and not proposed:
        share = min(known_share, task.share_of(banded))
        banded = _best(task, banded, fit_needy_bands(tiles, share, tried.keys))
    share = min(known_share, task.share_of(banded))
    return _best(task, banded, _aimed(tiles, proposed, points, share, tried))


def _aimed(
    tiles: Tiles, proposed: Sequence[SplitProposal], points: Sequence[CurvePoint], known_share: float, tried: Tried
) -> OneModel | None:
    """The best of splits that were proposed to fit as the model runs, and of those that make whole ops again too.

    These are for a solver to find, which may take all the time there is: so they come first only where no others are
    known by estimate, one of them where all others are dearer by estimate, and else after them where these are dear.
    """
    task = tiles.task
    may_be_needy = isinstance(task.whole, Refused)
    needy, are_left = None, may_be_needy
    if may_be_needy and not proposed:
        needy, are_left = fit_needy(tiles, known_share, tried.keys), False
    elif may_be_needy and is_less_by_needy(tiles, proposed):
        needy = fit_needy(tiles, known_share, tried.keys, most=1)
        are_left = needy is None
    if needy is not None and tiles.is_cheap(needy):
        return needy
    share = min(known_share, task.share_of(needy))
    aimed = fit_budget(tiles, proposed=proposed, points=points, known_share=share, tried=tried)
    if are_left and (aimed is None or not tiles.is_cheap(aimed)):
        needy = fit_needy(tiles, min(share, task.share_of(aimed)), tried.keys)
    return _best(task, needy, aimed)


def _best(task: SplitTask, *found: OneModel | None) -> OneModel | None:
    return min((each for each in found if each is not None), key=task.rank, default=None)


def proposed_regions(tiles: Tiles) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
    """The cheapest regions that would meet the budget (for `min`: those of least memory), by estimate."""
    if tiles.task.question.least:
        found = next(reversed(list(ladder(tiles))), None)
    else:
        found = next(iter(tiles.proposer.propose(tiles.free_bytes)), None)
    if found is None:
        obstacle = _obstacle(tiles)
        return (), (), None if obstacle is None else obstacle.text
    return found.regions, found.facts, None


def without_splits(tiles: Tiles) -> OneModel | Refused:
    """The whole plan, and why no split is in it; INFEASIBLE only where nothing can get around the reason.

    Once time is over, a reason that splits not looked at could get around is none.
    """
    task = tiles.task
    whole, obstacle = task.whole, None if task.progress.should_stop() else _obstacle(tiles)
    if obstacle is not None and not obstacle.is_final and task.should_stop():
        obstacle = None
    text = None if obstacle is None else obstacle.text
    if whole.answer.run.status is Status.INFEASIBLE and (obstacle is None or not obstacle.is_final):
        run = replace(whole.answer.run, status=Status.NOT_FOUND)
        return replace(whole, answer=replace(whole.answer, run=run), obstacle=text)
    return replace(whole, obstacle=text)


def _obstacle(tiles: Tiles) -> SplitObstacle | None:
    """What stands in the way; an op that the runtime made of the model's ops is no proof against the model."""
    whole, view = tiles.task.whole, tiles.proposer.timeline.view
    names = told_names(whole.prepared.source.ir, whole.prepared.graph)
    found = tiles.proposer.obstacle(whole.answer.run.floor.op, tiles.free_bytes, names)
    if found is None or found.op is None or has_op(whole.prepared.source.ir, view.nodes[found.op]):
        return found
    text = f"{found.text}; {MADE_BY_RUNTIME}" if found.is_of_ops else found.text
    return replace(found, text=text, is_final=False)
