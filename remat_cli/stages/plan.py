"""Which model is planned, and how: reorder, split, recompute; on one device in one session, or on several."""

from pathlib import Path

from remat_cli.base.errors import ModelError
from remat_cli.base.progress import Progress, silent
from remat_cli.core.splits import Region, RegionFacts
from remat_cli.stages.ask import CompileRequest, ask
from remat_cli.stages.family import FamilyPlanner
from remat_cli.stages.page import plan_paging
from remat_cli.stages.place import plan_on_devices
from remat_cli.stages.planned import PlannedModel
from remat_cli.stages.platform import Platform
from remat_cli.stages.prepare import Prepared
from remat_cli.stages.profile import is_cut_into_sessions
from remat_cli.stages.solve import answer, unsolved
from remat_cli.stages.splitter import WHOLE_SHARE, Splitter, inside_above
from remat_cli.stages.tensor_cap import plan_capped
from remat_cli.stages.write import write_within_budget

FREE_PERCENT = 0.5  # a plan of whole ops that costs no more than this is taken as it is


def plan_model(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
) -> PlannedModel:
    """Plan whole ops; where that is not possible for free, plan with splits too and take what is better.

    Plans that say where ops run do not split them.

    Raises:
        ConfigError: the solver does not take the model.
        ModelError: an op runs on no device, or there is none to place.
    """
    if platform.spill is not None:
        _refuse_nothing(prepared)
        return plan_paging(prepared, platform, request, progress)
    if is_cut_into_sessions(platform.specs):
        _refuse_nothing(prepared)
        return plan_on_devices(prepared, platform, request, progress)
    mode, question = request.splits.mode, ask(platform, request)
    search = request.search if mode == "off" else request.search.share(WHOLE_SHARE)
    first = PlannedModel(prepared, platform, answer(question, search, progress), prepared)
    whole = write_within_budget(first, search, progress)
    if request.conditions.family is not None:
        return whole if mode == "off" else FamilyPlanner(whole, question, request, work, progress).best()
    if (most := request.splits.max_tensor_bytes) is not None and mode != "off" and inside_above(prepared.graph, most):
        return plan_capped(Splitter(whole, question, request, work, progress), most)
    if mode == "off" or (mode == "auto" and _is_free(whole)):
        return whole
    return Splitter(whole, question, request, work, progress).best()


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
