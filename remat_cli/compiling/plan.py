"""Which model is planned, and how: reorder, split, recompute; on one device in one session, or on several."""

import time
from dataclasses import replace
from pathlib import Path

from remat_cli.base.errors import ModelError
from remat_cli.base.progress import Progress, silent
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.page import plan_paging
from remat_cli.compiling.place import plan_on_devices
from remat_cli.compiling.planned import PlannedModel
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.profile import is_cut_into_sessions
from remat_cli.compiling.search.family import FamilyPlanner
from remat_cli.compiling.search.splitter import WHOLE_SHARE, Splitter, inside_above
from remat_cli.compiling.search.tensor_cap import plan_capped
from remat_cli.compiling.solve import Search, answer, unsolved
from remat_cli.compiling.write import write_within_budget
from remat_cli.core.schedule.splits import Region, RegionFacts
from remat_cli.report.solution import CHEAPEST_PERCENT, MOST_PERCENT, overhead_percent

FREE_PERCENT = 0.5  # a plan of whole ops that costs no more than this is taken as it is


def plan_model(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
) -> PlannedModel:
    """Plan whole ops; where that is not possible for free, plan with splits too and take what is better.

    Plans that say where ops run do not split them. A plan that costs more time than the user allows is no plan.

    Raises:
        ConfigError: the solver does not take the model.
        ModelError: an op runs on no device, or there is none to place.
    """
    began = time.monotonic()
    found = _planned(prepared, platform, request, work, progress, began)
    return within_overhead(found.searched_since(began), request.search)


def within_overhead(planned: PlannedModel, search: Search) -> PlannedModel:
    """The plan; where it takes longer than `search` allows, none, and among the run's facts what it would cost."""
    question, answer = planned.answer.question, planned.answer
    most = search.allowed_overhead(question)
    if not planned.has_plan or most is None or search.allows(planned.time_ns, question):
        return planned
    cost = overhead_percent(planned.time_ns, question.baseline.time_ns)
    facts = {**answer.run.facts, CHEAPEST_PERCENT: cost, MOST_PERCENT: 100 * float(most)}
    refused = answer.without_plan()
    refused = replace(refused, run=replace(refused.run, facts=facts))
    return replace(planned, answer=refused, written=None, cut=None, paged=None, obstacle=None)


def _planned(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress, began: float
) -> PlannedModel:
    if platform.spill is not None:
        _refuse_nothing(prepared)
        return plan_paging(prepared, platform, request, progress)
    if is_cut_into_sessions(platform.specs):
        _refuse_nothing(prepared)
        return plan_on_devices(prepared, platform, request, progress)
    mode, question = request.splits.mode, ask(platform, request)
    search = request.search if mode == "off" else request.search.share(WHOLE_SHARE)
    solving = time.monotonic()
    first = PlannedModel(prepared, platform, answer(question, search, progress), prepared)
    whole = write_within_budget(first, search, progress).solved_since(solving)
    if request.conditions.family is not None:
        return whole if mode == "off" else FamilyPlanner(whole, question, request, work, progress, began).best()
    splitter = Splitter(whole, question, request, work, progress, began=began)
    if (most := request.splits.max_tensor_bytes) is not None and mode != "off" and inside_above(prepared.graph, most):
        return plan_capped(splitter, most)
    if mode == "off" or (mode == "auto" and _is_free(whole)):
        return whole
    return splitter.best()


def _refuse_nothing(prepared: Prepared) -> None:
    if not prepared.graph.ops:
        path = prepared.source.path
        raise ModelError(f"nothing runs in {path}: there is no op to place; leave --device out")


def propose_regions(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path
) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
    """What would be split to meet the budget, estimated from the whole ops' figures, and what stands in the way."""
    question = ask(platform, request)
    whole = PlannedModel(prepared, platform, unsolved(question, request.search), prepared)
    return Splitter(whole, question, request, work, silent()).proposed()


def _is_free(whole: PlannedModel) -> bool:
    """Whether a plan of whole ops needs nothing better."""
    question = whole.answer.question
    if whole.written is None or question.least:
        return False
    return whole.plan.time_ns <= question.baseline.time_ns * (1 + FREE_PERCENT / 100)
