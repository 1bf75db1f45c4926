"""Which model is planned, and how: in the way that the platform asks for, within the time that the user allows."""

import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.kinds import kind_of
from remat_cli.compiling.planned import Answered, PlannedModel, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.solve import Search
from remat_cli.compiling.ways import way
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.values.conditions import CPU
from remat_cli.onnx_io.read.load import is_training_step
from remat_cli.report.solution import CHEAPEST_PERCENT, MOST_PERCENT, overhead_percent

BRIEF_SECONDS = 10.0
MOST_OVERHEAD_SHARE = Fraction(1)  # of the baseline's time, where nothing else was said
P = TypeVar("P", bound=Answered)


def begun(search: Search, prepared: Prepared, platform: Platform) -> Search:
    """A search that begins now; a plan for one session on the CPU costs at most twice the time unless more is allowed.

    Steps of training and what pages or spans devices may cost any.
    """
    is_session = kind_of(platform.specs, is_spilled=platform.spill is not None) == "one_model"
    is_capped = is_session and platform.specs[0].provider == CPU and not is_training_step(prepared.source.ir)
    return replace(search.begun(), default_limit=MOST_OVERHEAD_SHARE if is_capped else None)


def attempts(request: CompileRequest, prepared: Prepared, platform: Platform) -> Iterator[CompileRequest]:
    """The request with a search that begins when it is asked for: briefly, then with all the time that it may have.

    More time is worth it for a plan at all, or for another one than a dear one, not for one that is a little faster.
    Steps of training, the least budget, models for many sizes and plans of other kinds have all the time at once.
    """
    is_session = kind_of(platform.specs, is_spilled=platform.spill is not None) == "one_model"
    is_least = any(part.kind == "min" for part in request.asked.parts)
    is_of_sizes = prepared.conditions.family is not None
    search = request.search
    if search.may_be_brief and is_session and not (is_least or is_of_sizes or is_training_step(prepared.source.ir)):
        brief = replace(search.within(BRIEF_SECONDS), dear_seconds=search.limits.seconds - BRIEF_SECONDS)
        yield replace(request, search=begun(brief, prepared, platform))
    yield replace(request, search=begun(search, prepared, platform))


def may_need_time(planned: PlannedModel) -> bool:
    """Whether there is no plan, and a longer search might find one."""
    return isinstance(planned, Refused) and planned.answer.run.status is not Status.INFEASIBLE


def plan_model(
    prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
) -> PlannedModel:
    """The best plan of the kind that the platform asks for; one that costs more time than the user allows is no plan.

    Raises:
        ConfigError: the solver does not take the model.
        ModelError: an op runs on no device, or there is none to place.
    """
    began = time.monotonic()
    kind = kind_of(platform.specs, is_spilled=platform.spill is not None)
    found: PlannedModel = way(kind).plan(prepared, platform, request, work, progress)
    return within_overhead(found.searched_since(began), request.search)


def within_overhead(planned: P, search: Search) -> P | Refused:
    """The plan; where it takes longer than `search` allows, none, and among the run's facts what it would cost."""
    question, answer = planned.answer.question, planned.answer
    most = search.allowed_overhead(question)
    if isinstance(planned, Refused) or most is None or search.allows(planned.time_ns, question):
        return planned
    cost = overhead_percent(planned.time_ns, question.baseline.time_ns)
    facts = {**answer.run.facts, CHEAPEST_PERCENT: cost, MOST_PERCENT: 100 * float(most)}
    refused = answer.without_plan()
    refused = replace(refused, run=replace(refused.run, facts=facts))
    return replace(planned.refused(refused), obstacle=None)
