"""How a plan that is one model is found: reorder and recompute whole ops, then split them too where that is better."""

import time
from dataclasses import replace
from math import isinf
from pathlib import Path

from remat_cli.base.progress import Progress, silent
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import Answered, OneModel, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.leaner_form import in_leaner_form
from remat_cli.compiling.search.family import plan_family, run_here
from remat_cli.compiling.search.known_plans import KnownPlans
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.search.loops import Loops
from remat_cli.compiling.search.splitter import plan_split, proposed_regions
from remat_cli.compiling.search.tensor_cap import plan_capped
from remat_cli.compiling.search.tiles import WHOLE_SHARE, Tiles, inside_above
from remat_cli.compiling.solve import answer
from remat_cli.compiling.write import write_within_budget
from remat_cli.core.schedule.splits import Region, RegionFacts
from remat_cli.core.values.curve import TradeOff

FREE_PERCENT = 0.5  # a plan of whole ops that costs no more than this is taken as it is


def plan_one_model(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
) -> OneModel | Refused:
    """Plan whole ops; where that is not possible for free, plan with splits too and take what is better.

    It is in the form in which a process holds less.

    Raises:
        ConfigError: the solver does not take the model.
    """
    found = _planned(prepared, platform, request, work, progress)
    return in_leaner_form(found, request, progress) if isinstance(found, OneModel) else found


def _planned(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
) -> OneModel | Refused:
    """The best plan that is known or found: by a search, unless what is known already answers the question.

    A search builds nothing of which no more is expected than of a plan that is known. Where that one cannot be built
    any more, it is forgotten, and the search is made without it.
    """
    known = KnownPlans(SplitTask.unplanned(prepared, platform, request, work, progress))
    if (answered := known.answer()) is not None:
        return answered
    while True:
        curve = known.curve()
        searched = _searched(known, curve, prepared, request, progress)
        found = known.best(searched if isinstance(searched, OneModel) else None)
        if found is not None or isinf(known.best_share(curve)) or progress.should_stop():
            known.searched()
            return found or searched


def _searched(
    known: KnownPlans, curve: TradeOff, prepared: Prepared, request: CompileRequest, progress: Progress
) -> OneModel | Refused:
    """What a search finds: plans of whole ops, then splits of which more is expected than is known."""
    task, mode = known.task, request.splits.mode
    search = request.search if mode == "off" else request.search.share(WHOLE_SHARE)
    solving = time.monotonic()
    found = answer(task.question, search, progress)
    first = Answered(prepared=prepared, platform=task.whole.platform, answer=found, whole=prepared)
    whole = write_within_budget(first, search, progress).solved_since(solving)
    task = replace(task, whole=whole)
    if request.conditions.family is not None:
        return run_here(whole) if mode == "off" else plan_family(Loops(task))
    tiles = Tiles(task)
    if (most := request.splits.max_tensor_bytes) is not None and mode != "off" and inside_above(prepared.graph, most):
        return plan_capped(tiles, most)
    kept = whole.near if isinstance(whole, Refused) else whole
    if kept is not None and mode != "max":
        known.keep(kept)
    if mode == "off" or (mode == "auto" and _is_free(whole)):
        return whole
    share = known.best_share(curve)
    if mode == "auto" and isinstance(whole, OneModel):
        share = min(share, task.share_of(whole))
    return plan_split(tiles, curve.points, share)


def propose_regions(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path
) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
    """What would be split to meet the budget, estimated from the whole ops' figures, and what stands in the way."""
    return proposed_regions(Tiles(SplitTask.unplanned(prepared, platform, request, work, silent())))


def _is_free(whole: OneModel | Refused) -> bool:
    """Whether a plan of whole ops needs nothing better."""
    question = whole.answer.question
    if isinstance(whole, Refused) or question.least:
        return False
    return whole.plan.time_ns <= question.baseline.time_ns * (1 + FREE_PERCENT / 100)
