"""A paged plan as it is kept: judged from its rules alone, so that a file cannot say what does not follow from it."""

from dataclasses import dataclass
from itertools import pairwise

from remat_cli.base.errors import InvalidSchedule, ModelError
from remat_cli.core.paged_sessions import PAGE_BYTES, PagedSessions, SessionCosts, paged_sessions
from remat_cli.core.paging import DIRECTIONS, PagedProblem, PagedRun, PagedSchedule, PageTransfer
from remat_cli.core.paging_judge import follow_paging
from remat_cli.core.paging_rules import PagingRules, rules_of, run_rules
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.spill import Paging, SpillMemory


@dataclass(frozen=True)
class PagedPlan:
    """Sessions, when each of them and each transfer is planned, and what the judge says; `paging` is what is kept."""

    sessions: PagedSessions
    schedule: PagedSchedule
    run: PagedRun
    paging: Paging

    @property
    def held_bytes(self) -> tuple[int, ...]:
        """The most that is held while each session runs, the last one up to the end; the fixed part is not included."""
        problem, curve, found = self.sessions.problem, self.run.curve, []
        at = 0
        for start, duration in zip(self.schedule.starts, problem.durations, strict=True):
            while at + 1 < len(curve) and curve[at + 1][0] <= start:
                at += 1
            last = at
            while last + 1 < len(curve) and curve[last + 1][0] < start + duration:
                last += 1
            found.append(max((held for _, held in curve[at : last + 1]), default=0))
        return (*found[:-2], max(found[-2:]))


def paged_plan(
    sessions: PagedSessions, firsts: tuple[int, ...], call_ns: int, memory: SpillMemory, schedule: PagedSchedule
) -> PagedPlan:
    """A schedule of sessions as it is run: everything as soon as its rules allow."""
    return _judged(sessions, firsts, call_ns, memory, rules_of(sessions.problem, schedule))


def _judged(
    sessions: PagedSessions, firsts: tuple[int, ...], call_ns: int, memory: SpillMemory, rules: PagingRules
) -> PagedPlan:
    problem = sessions.problem
    schedule = run_rules(problem, rules)
    run = follow_paging(problem, schedule)
    moves = [rule.move for lane in rules.lanes for rule in lane]
    paging = Paging(
        memory=memory,
        firsts=firsts,
        rules=rules,
        call_ns=call_ns,
        time_ns=-(-run.makespan // problem.link.ticks),
        stall_ns=run.stall // problem.link.ticks,
        peak_bytes=run.peak_bytes,
        file_bytes=sum(_padded(size) for size in file_sizes(problem, rules).values()),
        written_bytes=_moved(problem, moves, "write"),
        read_bytes=_moved(problem, moves, "read"),
    )
    return PagedPlan(sessions, schedule, run, paging)


def _moved(problem: PagedProblem, moves: list[PageTransfer], direction: str) -> int:
    return sum(problem.tensors[move.tensor].size_bytes for move in moves if move.direction == direction)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def file_sizes(problem: PagedProblem, rules: PagingRules) -> dict[int, int]:
    """Bytes of each tensor that is written, in the order of their writes."""
    moves = (rule.move for lane in rules.lanes for rule in lane)
    return {move.tensor: problem.tensors[move.tensor].size_bytes for move in moves if move.direction == "write"}


def file_offsets(problem: PagedProblem, rules: PagingRules) -> dict[int, int]:
    """Where each tensor that is written lies in the file."""
    offsets, end = {}, 0
    for tensor, size in file_sizes(problem, rules).items():
        offsets[tensor] = end
        end += _padded(size)
    return offsets


def read_paging(problem: Problem, plan: Plan, paging: Paging, sizes: tuple[int, ...]) -> PagedPlan:
    """The plan that a file speaks of, judged again; `sizes` are bytes of each tensor in a buffer of its own.

    Raises:
        ModelError: its figures do not follow from its rules, or those are none.
    """
    steps = len(plan.schedule.steps)
    if paging.firsts[:1] != (0,) or paging.firsts[-1] >= steps or any(a >= b for a, b in pairwise(paging.firsts)):
        raise ModelError("the plan's sessions do not begin at steps of its schedule, in order: compile again")
    if paging.call_ns < 0:
        raise ModelError(f"paging.call_ns is {paging.call_ns}, which cannot be negative: compile again")
    costs = SessionCosts(sizes, paging.call_ns, paging.memory.fresh_page_ns)
    sessions = paged_sessions(problem, plan, paging.firsts, paging.memory.link, costs)
    _check_rules(sessions.problem, paging.rules)
    try:
        found = _judged(sessions, paging.firsts, paging.call_ns, paging.memory, paging.rules)
    except InvalidSchedule as error:
        raise ModelError(f"the plan's paging is not legal: {error}; compile again") from None
    except IndexError:  # a step waits for a transfer that waits for it
        raise ModelError("the plan's paging waits for itself: compile again") from None
    for what in ("time_ns", "stall_ns", "peak_bytes", "file_bytes", "written_bytes", "read_bytes"):
        told, known = getattr(paging, what), getattr(found.paging, what)
        if told != known:
            raise ModelError(f"paging.{what} is {told}, and the judge says {known}: compile again")
    if found.run.peak_bytes > sessions.problem.budget_bytes:
        raise ModelError(f"the plan's paging holds {found.run.peak_bytes} bytes, more than its budget: compile again")
    return PagedPlan(sessions, found.schedule, found.run, paging)


def _check_rules(problem: PagedProblem, rules: PagingRules) -> None:
    """Every number is one of something that is there."""
    lanes, tensors, steps = rules.lanes, len(problem.tensors), len(problem.durations)
    is_right = len(lanes) == (len(DIRECTIONS) if problem.link.is_duplex else 1) and len(rules.waits) == steps
    for wait in rules.waits:
        is_right = is_right and len(wait) == len(lanes)
        is_right = is_right and all(0 <= n <= len(lane) for n, lane in zip(wait, lanes, strict=False))
    for rule in (rule for lane in lanes for rule in lane):
        others = sum(map(len, lanes))
        is_right = is_right and 0 <= rule.move.tensor < tensors and -1 <= rule.after_step < steps
        is_right = is_right and 0 <= rule.after_others <= others
    if not is_right:
        raise ModelError("the rules of the plan's paging speak of what is not there: compile again")
