"""The search that all pagers share: schedules of ops that are proposed, in sessions of several lengths, paged."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from remat_cli.core.paged_plan import paged_plan
from remat_cli.core.paged_sessions import PagedSessions, grouped, paged_sessions
from remat_cli.core.paging import PagedProblem, PagedSchedule
from remat_cli.core.paging_judge import follow_paging
from remat_cli.core.plan import Plan, Schedule
from remat_cli.core.segments import Segment
from remat_cli.core.simulate import simulate
from remat_cli.solvers._paging.hot import hot_gaps
from remat_cli.solvers._paging.lists import list_schedules
from remat_cli.solvers._paging.paging import page, unpaged
from remat_cli.solvers._paging.question import PagingFound, PagingQuestion
from remat_cli.solvers._paging.spare import without_idle_moves
from remat_cli.solvers.base import Limits

COUNTS = (16, 32, 64, 128)  # of sessions of about equal time; more hold less, and cost more calls
CLOSER = 2  # of the best by simple rules are searched closely


class PagingProposal(NamedTuple):
    """A schedule whose values are to be paged where it holds too much, and what it is called."""

    source: str
    schedule: Schedule


@dataclass(frozen=True)
class _Candidate:
    """A proposal as sessions, with the best schedule of them so far."""

    source: str
    plan: Plan
    firsts: tuple[int, ...]
    sessions: PagedSessions
    schedule: PagedSchedule
    makespan: int


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
    paged = paged_plan(best.sessions, best.firsts, question.costs.call_ns, question.memory, fewest)
    facts: dict[str, object] = {"best_from": best.source, "sessions": len(best.firsts)}
    told = msgspec.structs.replace(paged.paging, best_from=best.source, bound_ns=bound // question.memory.link.ticks)
    return PagingFound(best.plan, replace(paged, paging=told), found_at - limits.started, facts)


def _candidates(question: PagingQuestion, proposal: PagingProposal) -> Iterator[_Candidate]:
    """A proposal in sessions of several lengths, shorter where that is needed to fit."""
    problem = question.problem
    plan = simulate(problem, proposal.schedule)
    lengths = [plan.time_ns // count for count in COUNTS]
    for firsts in dict.fromkeys(grouped(problem, plan, length) for length in lengths):
        found = _fitted(question, plan, firsts)
        if found is None:
            return
        schedule, makespan = _by_rules(found.problem)
        yield _Candidate(proposal.source, plan, _firsts(found), found, schedule, makespan)


def _fitted(question: PagingQuestion, plan: Plan, firsts: tuple[int, ...]) -> PagedSessions | None:
    """Sessions that begin there, those halved that hold too much with all else away; None: one op or all outputs do."""
    while True:
        sessions = paged_sessions(question.problem, plan, firsts, question.memory.link, question.costs)
        budget = sessions.problem.budget_bytes
        *working, end = sessions.problem.working_bytes()
        if end > budget:
            return None
        steps = zip(sessions.cut.actions, working, strict=True)
        large = [session.steps for session, held in steps if isinstance(session, Segment) and held > budget]
        if not large:
            return sessions
        if any(len(each) == 1 for each in large):
            return None
        firsts = tuple(sorted({*firsts, *(each[len(each) // 2] for each in large)}))


def _firsts(sessions: PagedSessions) -> tuple[int, ...]:
    """The first step of each session."""
    return tuple(action.steps[0] for action in sessions.cut.actions if isinstance(action, Segment))


def _by_rules(problem: PagedProblem) -> tuple[PagedSchedule, int]:
    """The fastest schedule that simple rules make; of a possible problem there is one."""
    made = list_schedules(problem) if any(True for _ in hot_gaps(problem)) else iter([unpaged(problem)])
    judged = ((follow_paging(problem, schedule).makespan, number, schedule) for number, schedule in enumerate(made))
    makespan, _, schedule = min(judged)
    return schedule, makespan
