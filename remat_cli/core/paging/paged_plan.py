"""A paged plan as it is kept: judged from its rules alone, so that a file cannot say what does not follow from it."""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

from remat_cli.base.errors import InvalidSchedule, ModelError
from remat_cli.core.paging.page_places import NO_PLACES, PageLife, PagePlaces, PageRoom, best_order, place_pages
from remat_cli.core.paging.paged_sessions import PagedSessions, SessionCosts, groups_of, paged_sessions
from remat_cli.core.paging.paging import DIRECTIONS, PagedProblem, PagedRun, PagedSchedule, PageTransfer
from remat_cli.core.paging.paging_judge import follow_paging, stretches
from remat_cli.core.paging.paging_rules import PagingRules, rules_of, run_rules
from remat_cli.core.paging.weight_loads import weights_read
from remat_cli.core.paging.weight_paging import NO_WEIGHTS, WeightPaging
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.values.pages import PAGE_BYTES, whole_pages
from remat_cli.core.values.spill import DISK, Paging, SpillMemory


@dataclass(frozen=True)
class PagedPlan:
    """Sessions, when each of them and each transfer is planned, and what the judge says; `paging` is what is kept."""

    sessions: PagedSessions
    schedule: PagedSchedule
    run: PagedRun
    paging: Paging
    places: PagePlaces = NO_PLACES

    @property
    def held_bytes(self) -> tuple[int, ...]:
        """The most that is held in each step that is run, the last one up to the end; without the fixed part."""
        problem, curve, found = self.sessions.problem, self.run.curve, []
        at = 0
        for start, duration in zip(self.schedule.starts, problem.durations, strict=True):
            while at + 1 < len(curve) and curve[at + 1][0] <= start:
                at += 1
            last = at
            while last + 1 < len(curve) and curve[last + 1][0] < start + duration:
                last += 1
            found.append(max((held for _, held in curve[at : last + 1]), default=0))
        return (*found[self.sessions.first_action : -2], max(found[-2:]))

    @property
    def session_bytes(self) -> tuple[int, ...]:
        """The most that is held while each session is opened and run; without the fixed part."""
        steps, most = self.sessions.steps[self.sessions.first_action :], [0] * len(self.paging.firsts)
        for step, held in zip(steps, self.held_bytes, strict=False):
            most[step.session] = max(most[step.session], held)
        return tuple(most)

    def away_in(self, session: int) -> frozenset[int]:
        """The plan's instances that are away all through a session's run."""
        steps, tensors = self.sessions.steps, self.sessions.problem.tensors
        (at,) = (number for number, step in enumerate(steps) if step.kind == "run" and step.session == session)
        reads = (move for move in self.schedule.transfers if move.direction == "read")
        gone = {m.tensor for m in reads if tensors[m.tensor].uses[m.gap] < at < tensors[m.tensor].uses[m.gap + 1]}
        return frozenset(self.sessions.instances[tensor] for tensor in gone if tensor < len(self.sessions.instances))


def paged_plan(
    sessions: PagedSessions, firsts: tuple[int, ...], costs: SessionCosts, memory: SpillMemory, schedule: PagedSchedule
) -> PagedPlan:
    """A schedule of sessions as it is run: everything as soon as its rules allow."""
    return _judged(sessions, firsts, costs, memory, rules_of(sessions.problem, schedule))


def _judged(
    sessions: PagedSessions,
    firsts: tuple[int, ...],
    costs: SessionCosts,
    memory: SpillMemory,
    rules: PagingRules,
    order: tuple[int, ...] | None = None,
) -> PagedPlan:
    """A plan by its rules; where places are in no order yet, one is searched for."""
    schedule = run_rules(sessions.problem, rules)
    run = follow_paging(sessions.problem, schedule)
    places = NO_PLACES
    if memory.memory == DISK:
        lives, rooms = _outside(sessions, schedule, _peak_bytes(sessions, schedule, run))
        order = best_order(lives, rooms) if order is None else order
        if sorted(order) != list(range(len(lives))):
            raise ModelError("paging.place_order is no order of what the plan has in memory: compile again")
        places = place_pages(lives, rooms, order)
        sessions = sessions.with_longer_steps(_fresh_ns(sessions, schedule, places, costs.fresh_page_ns))
        schedule = run_rules(sessions.problem, rules)
        run = follow_paging(sessions.problem, schedule)
    problem = sessions.problem
    moves = [rule.move for lane in rules.lanes for rule in lane]
    paging = Paging(
        memory=memory,
        firsts=firsts,
        rules=rules,
        call_ns=costs.call_ns,
        time_ns=-(-run.makespan // problem.link.ticks),
        stall_ns=run.stall // problem.link.ticks,
        peak_bytes=_peak_bytes(sessions, schedule, run),
        file_bytes=sum(whole_pages(size) for size in file_sizes(problem, rules).values()),
        written_bytes=_moved(problem, moves, "write"),
        read_bytes=_moved(problem, moves, "read"),
        weights=costs.weights if costs.weights.sessions else None,
        place_order=order or (),
    )
    return PagedPlan(sessions, schedule, run, paging, places)


def _outside(
    sessions: PagedSessions, schedule: PagedSchedule, peak_bytes: int
) -> tuple[list[PageLife], list[PageRoom]]:
    """When values are there outside of sessions, and the bytes they may take from the start of each step that is run.

    Those that are handed over in the end lie apart.
    """
    tensors, end = sessions.problem.tensors, len(sessions.steps) - 1
    outside, first = len(tensors) - len(sessions.packed), sessions.first_action
    lives = [
        PageLife(tensor, whole_pages(tensors[tensor].size_bytes), begin, over, tensors[tensor].uses[-1] == end)
        for tensor, begin, over in stretches(sessions.problem, schedule)
        if tensor < outside and tensors[tensor].size_bytes
    ]
    steps = zip(schedule.starts[first:], sessions.inner_bytes[first:], strict=True)
    return lives, [PageRoom(start, peak_bytes - inner) for start, inner in steps]


def _fresh_ns(sessions: PagedSessions, schedule: PagedSchedule, places: PagePlaces, page_ns: int) -> dict[int, int]:
    """How much longer each step takes, by the pages that come anew with what it makes.

    What is read is not counted: a disk was measured reading into fresh pages.
    """
    step_at = {start: step for step, start in enumerate(schedule.starts)}
    more: dict[int, int] = defaultdict(int)
    for life, fresh_bytes in zip(places.lives, places.fresh_bytes, strict=True):
        uses = sessions.problem.tensors[life.tensor].uses
        step = step_at.get(life.begin, -1)
        if step >= 0 and step == uses[0]:
            more[step] += page_ns * (fresh_bytes // PAGE_BYTES)
    return more


def _peak_bytes(sessions: PagedSessions, schedule: PagedSchedule, run: PagedRun) -> int:
    """The most that is held once the beginning is over, which leaves room for nothing and holds none."""
    if not sessions.first_action:
        return run.peak_bytes
    over = schedule.starts[0] + sessions.problem.durations[0]
    return max((held for tick, held in run.curve if tick >= over), default=0)


def _moved(problem: PagedProblem, moves: list[PageTransfer], direction: str) -> int:
    return sum(problem.tensors[move.tensor].size_bytes for move in moves if move.direction == direction)


def image_bytes(size_bytes: int) -> int:
    """What a weight takes as it is read from its file: whole pages, wherever in one it begins."""
    return whole_pages(size_bytes) + PAGE_BYTES


def file_sizes(problem: PagedProblem, rules: PagingRules) -> dict[int, int]:
    """Bytes of each tensor that is written, in the order of their writes."""
    moves = (rule.move for lane in rules.lanes for rule in lane)
    return {move.tensor: problem.tensors[move.tensor].size_bytes for move in moves if move.direction == "write"}


def file_offsets(problem: PagedProblem, rules: PagingRules) -> dict[int, int]:
    """Where each tensor that is written lies in the file."""
    offsets, end = {}, 0
    for tensor, size in file_sizes(problem, rules).items():
        offsets[tensor] = end
        end += whole_pages(size)
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
    weights = NO_WEIGHTS if paging.weights is None else paging.weights
    _check_weights(problem, plan, paging, weights)
    costs = SessionCosts(sizes, paging.call_ns, paging.memory.fresh_page_ns, weights)
    sessions = paged_sessions(problem, plan, paging.firsts, paging.memory.link, costs)
    _check_rules(sessions.problem, paging.rules)
    try:
        found = _judged(sessions, paging.firsts, costs, paging.memory, paging.rules, paging.place_order)
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
    return replace(found, paging=paging)


def _check_weights(problem: Problem, plan: Plan, paging: Paging, weights: WeightPaging) -> None:
    """Check that weights and sessions exist, that each session reads some, and that no weight is told too small."""
    away, known = weights.sessions, weights.weights
    numbers = [each.weight for each in known]
    is_right = all(0 <= s < len(paging.firsts) for s in away) and all(a < b for a, b in pairwise(away))
    is_right = is_right and all(0 <= n < len(problem.weight_bytes) for n in numbers) and len({*numbers}) == len(known)
    is_right = is_right and all(e.image_bytes >= problem.weight_bytes[e.weight] and e.packed_bytes >= 0 for e in known)
    is_right = is_right and min(weights.costs.open_ns, weights.costs.pack_ns_per_mib) >= 0
    if is_right and away:
        read = weights_read(problem, plan, groups_of(plan, paging.firsts))
        found = weights.of_sessions(away, read)
        is_right = found is not None and found.sessions == away
    if not is_right or bool(away) != (paging.weights is not None):
        raise ModelError("the plan's paging speaks of weights or sessions that are not there: compile again")


def _check_rules(problem: PagedProblem, rules: PagingRules) -> None:
    """Check that numbers in the rules are those of tensors, steps and transfers that exist."""
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
