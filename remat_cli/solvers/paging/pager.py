"""The search that all pagers share: schedules of ops that are proposed, in sessions of several lengths, paged."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from remat_cli.core.paging.paged_plan import paged_plan
from remat_cli.core.paging.paged_sessions import PagedSessions, SessionCosts, grouped, groups_of, paged_sessions
from remat_cli.core.paging.paging import PagedSchedule
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.core.paging.weight_loads import weights_read
from remat_cli.core.paging.weight_paging import NO_WEIGHTS
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.segments import Segment
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.hot import hot_gaps, is_possible
from remat_cli.solvers.paging.lists import list_schedules
from remat_cli.solvers.paging.paging import page, unpaged
from remat_cli.solvers.paging.question import PagingFound, PagingQuestion
from remat_cli.solvers.paging.spare import without_idle_moves

COUNTS = (16, 32, 64, 128)  # of sessions of about equal time; more hold less, and cost more calls
CALLS_SHARE = 0.01  # of the time of a plan, that calls may take for each op to be a session of its own
OP_BY_OP_SHARE = 0.3  # of the time that is left, for one plan in such sessions
CLOSER = 2  # of the best by simple rules are searched closely
MORE_AWAY = (0, 1, 2, 4, 8)  # sessions whose weights page beyond those that must


class PagingProposal(NamedTuple):
    """A schedule whose values are to be paged where it holds too much, and what it is called."""

    source: str
    schedule: Schedule


@dataclass(frozen=True)
class _Candidate:
    """A proposal as sessions, with the best schedule of them so far, and how long simple rules took for it."""

    source: str
    plan: Plan
    firsts: tuple[int, ...]
    costs: SessionCosts
    sessions: PagedSessions
    schedule: PagedSchedule
    makespan: int
    seconds: float


def page_best(
    question: PagingQuestion, proposals: Iterator[PagingProposal], limits: Limits, closer: int
) -> PagingFound:
    """Of all proposals, in sessions of several lengths, the fastest by simple rules; `closer` of them searched on."""
    candidates: list[_Candidate] = []
    seen: set[Schedule] = set()
    for proposal in proposals:
        if proposal.schedule not in seen:
            seen.add(proposal.schedule)
            candidates += _candidates(question, proposal)
    candidates.sort(key=lambda each: each.makespan)
    candidates += _op_by_op(question, tuple(candidates), limits)
    candidates.sort(key=lambda each: each.makespan)
    if not candidates:
        return PagingFound()
    best, found_at, bound = candidates[0], time.monotonic(), 0
    for number, each in enumerate(candidates[:closer]):
        if limits.is_over:
            break
        share = limits.seconds_left / (min(closer, len(candidates)) - number)
        part = replace(limits, seconds=share, started=time.monotonic())
        answer = page(each.sessions.problem, part, [each.schedule])
        if number == 0:
            bound = answer.bound
        if answer.schedule is not None and answer.run is not None and answer.run.makespan < best.makespan:
            best = replace(each, schedule=answer.schedule, makespan=answer.run.makespan)
            found_at, bound = time.monotonic(), answer.bound
    fewest = without_idle_moves(best.sessions.problem, best.schedule)
    paged = paged_plan(best.sessions, best.firsts, best.costs, question.memory, fewest)
    facts: dict[str, object] = {"best_from": best.source, "sessions": len(best.firsts)}
    told = msgspec.structs.replace(paged.paging, best_from=best.source, bound_ns=bound // question.memory.link.ticks)
    return PagingFound(best.plan, replace(paged, paging=told), found_at - limits.started, facts)


def _candidates(question: PagingQuestion, proposal: PagingProposal) -> Iterator[_Candidate]:
    """A proposal in sessions of several lengths, shorter where that is needed to fit."""
    problem = question.problem
    plan = simulate(problem, proposal.schedule)
    lengths = [plan.time_ns // count for count in COUNTS]
    for firsts in dict.fromkeys(grouped(problem, plan, length) for length in lengths):
        ways = list(_ways(question, plan, firsts))
        if not ways:
            return
        for found, costs in ways:
            yield _candidate(proposal.source, plan, found, costs)


def _candidate(source: str, plan: Plan, found: PagedSessions, costs: SessionCosts) -> _Candidate:
    begin = time.monotonic()
    # The fastest schedule that simple rules make; of a possible problem there is one.
    problem = found.problem
    made = list_schedules(problem) if any(True for _ in hot_gaps(problem)) else iter([unpaged(problem)])
    judged = ((follow_paging(problem, schedule).makespan, number, schedule) for number, schedule in enumerate(made))
    makespan, _, schedule = min(judged)
    spent = time.monotonic() - begin
    return _Candidate(source, plan, _firsts(found), costs, found, schedule, makespan, spent)


def _op_by_op(question: PagingQuestion, candidates: Sequence[_Candidate], limits: Limits) -> Iterator[_Candidate]:
    """The plans with a session for each op, where calls cost next to nothing and there is time for the rules.

    Their work grows with the square of the sessions; a plan that holds no more than it may needs none of it.
    """
    for each in {candidate.plan.schedule: candidate for candidate in reversed(candidates)}.values():
        plan, problem, count = each.plan, question.problem, len(each.plan.schedule.steps)
        is_cheap = count * each.costs.call_ns <= CALLS_SHARE * plan.time_ns
        needed_seconds = each.seconds * (count / len(each.firsts)) ** 2
        fits = plan.peak <= problem.memories[0].budget_bytes
        if is_cheap and not limits.is_over and (fits or needed_seconds < OP_BY_OP_SHARE * limits.seconds_left):
            costs = msgspec.structs.replace(question.costs, weights=NO_WEIGHTS)
            found = _fitted(question, plan, grouped(problem, plan, 0), costs)
            if found is not None:
                yield _candidate(each.source, plan, found, costs)


def _ways(
    question: PagingQuestion, plan: Plan, firsts: tuple[int, ...]
) -> Iterator[tuple[PagedSessions, SessionCosts]]:
    """Sessions that begin there or are shorter, with none of their weights away, with as few as will do, and more.

    The more weights are away, the more there is to read, and the more room to read it early.
    """
    costs = question.costs
    stay = msgspec.structs.replace(costs, weights=NO_WEIGHTS)
    found = _fitted(question, plan, firsts, stay)
    if found is not None:
        yield found, stay
        if not any(True for _ in hot_gaps(found.problem)):
            return
    if not costs.weights.weights:
        return
    all_away = _fitted(question, plan, firsts, costs)
    if all_away is None:
        return
    firsts = _firsts(all_away)
    read = weights_read(question.problem, plan, groups_of(plan, firsts))
    order = spread([session for session in read if costs.weights.of_sessions([session], read)])

    def away(count: int) -> SessionCosts:
        weights = costs.weights.of_sessions(order[:count], read) or NO_WEIGHTS
        return msgspec.structs.replace(costs, weights=weights)

    def fits(count: int) -> bool:
        return is_possible(paged_sessions(question.problem, plan, firsts, question.memory.link, away(count)).problem)

    least = bisect_left(range(len(order)), True, lo=1, key=fits)
    for count in sorted({min(len(order), least + more) for more in (*MORE_AWAY, len(order))}):
        mine = away(count)
        tried = paged_sessions(question.problem, plan, firsts, question.memory.link, mine)
        if is_possible(tried.problem):
            yield tried, mine


def spread(numbers: Sequence[int]) -> list[int]:
    """The same numbers in an order in which each beginning is spread evenly over all of them, the last one first."""
    bits = max(1, (len(numbers) - 1).bit_length())
    places = sorted(range(len(numbers)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [numbers[len(numbers) - 1 - place] for place in places]


def _fitted(question: PagingQuestion, plan: Plan, firsts: tuple[int, ...], costs: SessionCosts) -> PagedSessions | None:
    """Sessions that begin there, those halved that hold too much with all else away; None: one op or all outputs do.

    All weights are away of which `costs` says that they may be.
    """
    while True:
        groups = groups_of(plan, firsts)
        read = weights_read(question.problem, plan, groups)
        weights = costs.weights.of_sessions(range(len(firsts)), read) or NO_WEIGHTS
        mine = msgspec.structs.replace(costs, weights=weights)
        sessions = paged_sessions(question.problem, plan, firsts, question.memory.link, mine)
        budget = sessions.problem.budget_bytes
        *working, end = sessions.problem.working_bytes()
        if end > budget or budget <= 0:
            return None
        pairs = zip(sessions.steps, working, strict=False)
        large = {step.session for step, held in pairs if held > budget}
        if not large:
            return sessions
        if any(len(groups[each]) == 1 for each in large):
            return None
        firsts = tuple(sorted({*firsts, *(groups[each][len(groups[each]) // 2] for each in large)}))


def _firsts(sessions: PagedSessions) -> tuple[int, ...]:
    """The first step of each session."""
    return tuple(action.steps[0] for action in sessions.cut.actions if isinstance(action, Segment))
