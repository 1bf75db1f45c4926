"""Plans that page: the fastest within the budget of those that keep, recompute and page, cut into sessions."""

import time
from dataclasses import replace

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress, aside
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.page_answer import AUTO, WITHOUT_SHARE, page_by, terms_of
from remat_cli.compiling.planned import Answered, OneModel, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.forecast import needed_bytes
from remat_cli.compiling.process.within_process import fastest_within
from remat_cli.compiling.solve import (
    LEAST_SECONDS,
    BudgetAnswer,
    BudgetQuestion,
    Search,
    answer,
    prepare_kernels,
    refusal,
)
from remat_cli.compiling.write import as_asked, write_within_budget
from remat_cli.core.paging.weight_need import weight_need
from remat_cli.core.paging.weight_paging import NO_WEIGHTS
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.budget import Budget, describe_bytes
from remat_cli.core.values.spill import DISK
from remat_cli.paging.hosted import hosted_weights
from remat_cli.paging.planned import Paged

WITHOUT_TRIES = 5  # of plans that page nothing, for the fastest whose process holds as little as it may


def plan_paging(
    prepared: Prepared, platform: Platform, request: CompileRequest, progress: Progress
) -> OneModel | Paged | Refused:
    """The best plan that pages; under `auto` one that only recomputes, as one model, where that is no slower.

    Raises:
        ConfigError: the solver does not take the model.
    """
    if platform.spill is not None and platform.spill.memory == DISK:
        # No less is fixed than weights and inputs are: one session packs weights of the same contents once, and that is
        # what was measured; sessions pack each its own.
        profile, graph = platform.profile, platform.graph
        known = profile.fixed_bytes + platform.session_bytes.get(profile.memory, 0)
        less = graph.weight_bytes + graph.input_bytes - known
        platform = platform.with_session_bytes({profile.memory: less}) if less > 0 else platform
    search, question = request.search, ask(platform, request)
    asked = search.known_pager
    if reason := asked.supports(question.problem):
        raise ConfigError(f"solver {asked.name} cannot take this model: {reason}")
    if asked.name != AUTO:
        return _paged(prepared, platform, question, search, progress)
    begin = time.monotonic()
    without = _without_paging(prepared, platform, request, search.share(WITHOUT_SHARE), progress)
    beat_ns = without.time_ns if isinstance(without, OneModel) else None
    paged = _paged(prepared, platform, question, search.share(1 - WITHOUT_SHARE), progress, beat_ns)
    if not isinstance(without, OneModel):
        return paged
    if isinstance(paged, Paged) and paged.time_ns < without.time_ns:
        return replace(paged, without_paging_ns=without.time_ns)
    rest = search.within(search.limits.seconds - (time.monotonic() - begin))
    # That which pages nothing, searched on from there, where time is left and something to gain.
    is_settled = without.plan.time_ns <= without.answer.question.baseline.time_ns
    if is_settled or rest.limits.seconds < LEAST_SECONDS or progress.should_stop():
        return without
    again = _without_paging(without.prepared, platform, request, rest, progress, without.plan.schedule)
    return again if isinstance(again, OneModel) and again.time_ns < without.time_ns else without


def _without_paging(
    prepared: Prepared,
    platform: Platform,
    request: CompileRequest,
    search: Search,
    progress: Progress,
    start: Schedule | None = None,
) -> OneModel | Refused | None:
    """A plan that recomputes and pages nothing; None where the solver does not take the model, or none holds so little.

    A budget in bytes bounds the process, as it does for a plan that pages: what is live gets so much less.
    """
    alone = replace(platform, spill=None, session_bytes={})  # an ordinary model in an ordinary session
    (asked,) = request.asked.parts
    if asked.kind != "bytes" or platform.spill is None or platform.spill.memory != DISK:
        return _recomputed(prepared, alone, request, search, progress, start)

    def within(live_bytes: int) -> OneModel | Refused | None:
        less = replace(request, asked=request.asked.leaving(live_bytes))
        return _recomputed(prepared, alone, less, search.share(1 / WITHOUT_TRIES), progress, start)

    process = Budget(asked.bytes, "process", "typed")
    found = fastest_within(process, 0, WITHOUT_TRIES, within, lambda found: needed_bytes(found, request))
    return None if found is None else as_asked(found, process.bytes)


def _recomputed(
    prepared: Prepared,
    alone: Platform,
    request: CompileRequest,
    search: Search,
    progress: Progress,
    start: Schedule | None,
) -> OneModel | Refused | None:
    """The best plan of one session for what may be live."""
    question = ask(alone, request)
    if refusal(question.problem, search.solver, question.names):
        return None
    found = answer(question, search, aside(progress), start)
    first = Answered(prepared=prepared, platform=alone, answer=found, whole=prepared)
    return write_within_budget(first, search, aside(progress))


def _paged(
    prepared: Prepared,
    platform: Platform,
    question: BudgetQuestion,
    search: Search,
    progress: Progress,
    beat_ns: int | None = None,
) -> Paged | Refused:
    pager, spill, weights = search.known_pager, platform.spill, NO_WEIGHTS
    if spill is not None and spill.memory == DISK:
        weights = hosted_weights(platform, prepared.reference, prepared.conditions, progress)
    terms = terms_of(platform, question.problem, weights)
    if terms is None:
        raise ConfigError("a plan that pages needs a memory to page to: write --spill disk:DIR or --spill host")
    may_be_away = sum(platform.graph.weights[each.weight].size_bytes for each in weights.weights)
    uncounted = may_be_away + sum(platform.session_bytes.values())
    prepare_kernels(pager, question.problem, progress)
    progress.stage(stages.SOLVING)
    limits = replace(search.limits, should_stop=progress.should_stop)
    found = page_by(replace(terms.question(question.problem), beat_ns=beat_ns), pager, limits, uncounted)
    answered = BudgetAnswer(question, found.run)
    known = Answered(prepared=prepared, platform=platform, answer=answered, whole=prepared)
    if found.paged:
        # What is held while each session is opened and runs, fixed part included.
        sessions, fixed = found.paged.sessions, question.problem.memories[0].fixed_bytes
        held = tuple(fixed - sessions.released_bytes + bytes_ for bytes_ in found.paged.session_bytes)
        cut = msgspec.structs.replace(sessions.cut, memory_bytes=(held,))
        return Paged(**known.known, cut=cut, paged=found.paged)
    need = weight_need(question.problem, baseline(question.problem), terms.memory.link, terms.costs)
    if need is None:
        return known.refused()
    weight = platform.graph.weights[need.weight]
    packs = f", and what reads it packs a copy of {format_bytes(need.packed_bytes)}" if need.packed_bytes else ""
    told = f"weight '{weight.name}' of {describe_bytes(weight.size_bytes)} pages as a whole{packs}"
    counted = sum(platform.session_bytes.values())
    rest = "" if counted else "; what open sessions hold, some MiB that only a run shows, comes on top"
    obstacle = f"{told}: that takes a budget of at least {describe_bytes(need.budget_bytes)}{rest}"
    return replace(known.refused(), weight_obstacle=obstacle)
