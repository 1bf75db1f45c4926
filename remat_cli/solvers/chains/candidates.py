"""From sequences of ops that a heuristic proposes to the best schedule within the budget, its gaps closed if asked for.

A gap is the time between the last read of a value and its recompute. To close it the value is held all through, which
saves the recompute and every one that ran only for it, and lets go what those read. Whatever made the schedule, the
most time saved per byte and step goes first, until nothing more fits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers._sharing import Condensed, condense, drop_dead, read_later
from remat_cli.solvers.base import BestPlan, Limits, Order, Reason, Solution, Status, several_devices

NOTHING = -(2**62)  # what a step takes that is no longer there


def close_gaps(condensed: Condensed, schedule: Schedule, limits: Limits) -> Schedule:
    """The schedule of the condensed problem with gaps closed, as far as the judge finds it within the budget.

    Never slower, and the schedule itself where nothing can be closed or time is over.
    """
    original = condensed.original
    budget = original.memories[0].budget_bytes
    closed = closings(condensed.problem, schedule, lambda: limits.is_over)
    while closed:
        gone = frozenset().union(*closed)
        changed = Schedule(tuple(step for place, step in enumerate(schedule.steps) if place not in gone))
        spelled = condensed.expand(changed, budget, limits.judge)
        if limits.judge(original, spelled).peak <= budget:
            return changed
        closed = closed[: len(closed) // 2]  # views may need more, spelled out, than was counted
    return schedule


def closings(problem: Problem, schedule: Schedule, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
    """Steps to leave out of a one-device schedule, gap by gap, in the order in which they were found to fit."""
    steps = _Steps(problem, schedule.op_ids())
    found: list[frozenset[int]] = []
    while True:
        # Try every gap once, the best first; what is worth less than when it was ranked goes back into the queue.
        before, queue = len(found), []
        for place in steps.repeats():
            if should_stop():
                return found
            queue.append((-steps.closing(place).worth, place))
        heapq.heapify(queue)
        while queue and not should_stop():
            _, place = heapq.heappop(queue)
            if steps.is_gone(place):
                continue
            closing = steps.closing(place)
            if queue and -closing.worth > queue[0][0]:
                heapq.heappush(queue, (-closing.worth, place))
            elif steps.fits(closing):
                steps.leave_out(closing)
                found.append(closing.gone)
        if len(found) == before or should_stop():
            return found


@dataclass
class _Value:
    """An instance: its size, the step that makes it and those that read it, in order; the end is past the last."""

    size_bytes: int
    place: int
    readers: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last step at which it is there."""
        return self.readers[-1] if self.readers else self.place


@dataclass(frozen=True)
class _Closing:
    """What closing a gap does: steps that go, time saved per byte and step, and (first, past last, bytes) that change.

    `place` is the recompute whose readers take the value made before.
    """

    place: int
    gone: frozenset[int]
    worth: float
    changes: tuple[tuple[int, int, int], ...]


class _Steps:
    """A schedule from which steps go, with the bytes of every step; exact where nothing shares storage."""

    def __init__(self, problem: Problem, ops: list[int]) -> None:
        self.problem, self.ops = problem, ops
        self.free_bytes = problem.memories[0].free_bytes
        self.runs: dict[int, list[int]] = {}
        self.made: list[list[_Value]] = []
        self.read: list[list[_Value]] = []
        newest: dict[int, _Value] = {}
        for place, op in enumerate(self.ops):
            spec = self.problem.ops[op]
            self.runs.setdefault(op, []).append(place)
            self.read.append([newest[tensor] for tensor in dict.fromkeys(spec.inputs)])
            for value in self.read[-1]:
                value.readers.append(place)
            self.made.append([_Value(self.problem.tensors[t].size_bytes, place) for t in spec.outputs])
            newest.update(zip(spec.outputs, self.made[-1], strict=True))
        for tensor, value in newest.items():
            if self.problem.tensors[tensor].kept:
                value.readers.append(len(self.ops))
        change = [0] * (len(self.ops) + 2)
        for value in (value for values in self.made for value in values):
            change[value.place] += value.size_bytes
            change[value.last + 1] -= value.size_bytes
        live = np.array(list(accumulate(change))[: len(self.ops)], dtype=np.int64)
        self.bytes = live + np.array([self.problem.ops[op].workspace_bytes[0] for op in self.ops], dtype=np.int64)

    def is_gone(self, place: int) -> bool:
        """Whether a step has been left out."""
        return int(self.bytes[place]) < 0

    def repeats(self) -> list[int]:
        """The recomputes that are left."""
        return sorted(place for places in self.runs.values() for place in places[1:])

    def closing(self, place: int) -> _Closing:
        """What it takes and brings to close the gap before a recompute."""
        # The steps that go with a recompute: itself, and those that ran only for it.
        going = {place}
        waiting = list(self.read[place])
        while waiting:
            step = waiting.pop().place
            is_repeat = self.runs[self.ops[step]][0] != step
            if step not in going and is_repeat and all(going.issuperset(value.readers) for value in self.made[step]):
                going.add(step)
                waiting += self.read[step]
        gone = frozenset(going)
        changes = []
        # What steps that go had made, other than the first of them, and what they were the last to read.
        for value in {id(value): value for step in gone for value in self.read[step]}.values():
            left = [reader for reader in value.readers if reader not in gone]
            begin = value.place if value.place in gone else max([value.place, *left[-1:]]) + 1
            changes.append((begin, value.last + 1, -value.size_bytes))
        # What it takes to hold the values made before; up to the recompute, from when on the bytes are the same.
        for before, value in self._instances(place):
            if value.readers:
                changes.append((before.last + 1, place, value.size_bytes))
        saved = sum(self.problem.ops[self.ops[step]].time_ns[0] or 0 for step in gone)
        cost = sum((end - begin) * size for begin, end, size in changes)
        return _Closing(place, gone, saved / cost if cost > 0 else math.inf, tuple(changes))

    def fits(self, closing: _Closing) -> bool:
        """Whether no step gets more than the budget through it; those that had more already do not count."""
        after = self._after(closing)
        grown = [(begin, end) for begin, end, size in closing.changes if size > 0]
        return all(after[begin:end].max(initial=NOTHING) <= self.free_bytes for begin, end in grown)

    def leave_out(self, closing: _Closing) -> None:
        """Close a gap: hold a value between two uses, and leave out the recompute that made it again."""
        self.bytes = self._after(closing)
        for before, value in self._instances(closing.place):
            before.readers += value.readers
            for step in value.readers:
                if step < len(self.ops):
                    self.read[step] = [before if read is value else read for read in self.read[step]]
        for step in closing.gone:
            self.runs[self.ops[step]].remove(step)
            for value in self.read[step]:
                value.readers.remove(step)

    def _after(self, closing: _Closing) -> npt.NDArray[np.int64]:
        after = self.bytes.copy()
        for begin, end, size in closing.changes:
            after[begin:end] += size
        after[list(closing.gone)] = NOTHING
        return after

    def _instances(self, place: int) -> list[tuple[_Value, _Value]]:
        """Each result of a recompute with the instance made before it."""
        runs = self.runs[self.ops[place]]
        before = self.made[runs[runs.index(place) - 1]]
        return list(zip(before, self.made[place], strict=True))


CLOSED = 12  # of the fastest candidates, the gaps are closed

Generate = Callable[[Condensed], Iterable[Sequence[int]]]


def best_within(
    problem: Problem, generate: Generate, closes_gaps: bool, limits: Limits, start: Schedule | None
) -> Solution:
    """The fastest of what `generate` proposes, as sequences of ops of the condensed problem, within the budget.

    Each must read only what was computed before it. Dead steps are taken out, ops that must not be repeated are not,
    and with order `keep` what comes too late for the baseline order is put earlier. Better ones are reported at once.
    Of the fastest the gaps are closed if asked for. Nothing but the baseline time is proved.
    """
    plan = baseline(problem)
    if plan.peak <= problem.memories[0].budget_bytes:
        return Solution(Status.OPTIMAL, "free", plan.schedule, plan.time_ns)
    contest = _Contest(problem, condense(problem), closes_gaps, limits)
    if start is not None:
        contest.enter_start(start)
    if not contest.best.is_baseline:
        for ops in generate(contest.condensed):
            if limits.is_over:
                break
            contest.enter(ops)
            if contest.best.is_baseline:
                break
    if closes_gaps:
        contest.close_gaps()
    return contest.solution()


def why_not(problem: Problem, view: Callable[[Problem, Order], object]) -> Reason | None:
    """The reason why a one-device problem has no such view, in terms of its own ops; None if it has one."""
    if (reason := several_devices(problem)) is not None:
        return reason
    condensed = condense(problem)
    found = view(condensed.problem, "free")
    return condensed.in_original_terms(found) if isinstance(found, Reason) else None


def in_baseline_order(ops: Sequence[int]) -> list[int]:
    """First computations moved to where the baseline order asks for them: never later, and so always legal."""
    early: set[int] = set()
    sequence: list[int] = []
    following = 0
    for op in ops:
        if op in early:
            early.discard(op)
            continue
        early.update(range(following, op))
        sequence += (*range(following, op), op)
        following = max(following, op + 1)
    return sequence


def cleaned(problem: Problem, ops: Sequence[int], order: Order) -> Schedule:
    """A proposed sequence as a schedule without dead steps, in the order asked for."""
    # Leave out repeats of what must not be repeated: readers take the first result.
    first = {op: place for place, op in reversed(list(enumerate(ops)))}
    allowed = [op for place, op in enumerate(ops) if problem.ops[op].repeatable or first[op] == place]
    if order == "free":
        return Schedule.of_ops(read_later(problem, allowed))
    return drop_dead(problem, Schedule.of_ops(in_baseline_order(allowed)))


@dataclass
class _Contest:
    """Judges candidates and remembers the best; `fitting` are those within the budget: time, number, and schedule."""

    problem: Problem
    condensed: Condensed
    closes_gaps: bool
    limits: Limits
    least_peak: int | None = None
    seen: set[Schedule] = field(default_factory=set)
    fitting: list[tuple[int, int, Schedule]] = field(default_factory=list)
    closed: int = 0

    def __post_init__(self) -> None:
        self.best = BestPlan(self.problem, self.limits)

    def enter_start(self, start: Schedule) -> None:
        """What the caller knew already, if it is in the order asked for."""
        if self.limits.order == "free" or start.keeps_order:
            self._take(start)
        self.enter(self.condensed.contract(start).op_ids())

    def enter(self, ops: Sequence[int]) -> None:
        """Judge one candidate, unless the same schedule was judged before."""
        schedule = cleaned(self.condensed.problem, ops, self.limits.order)
        if schedule in self.seen:
            return
        self.seen.add(schedule)
        time_ns = self._judge(schedule)
        if time_ns is not None and self.closes_gaps:
            self.fitting.append((time_ns, len(self.seen), schedule))

    def close_gaps(self) -> None:
        """Close the gaps of the fastest candidates, fastest first."""
        for _, _, schedule in sorted(self.fitting)[:CLOSED]:
            if self.limits.is_over or self.best.is_baseline:
                return
            ops = close_gaps(self.condensed, schedule, self.limits).op_ids()
            closed = cleaned(self.condensed.problem, ops, self.limits.order)
            if closed not in self.seen:
                self.closed += 1
                self.seen.add(closed)
                self._judge(closed)

    def solution(self) -> Solution:
        """The answer; the schedule in it has been reported."""
        facts: dict[str, Any] = {"candidates": len(self.seen)}
        if self.closes_gaps:
            facts["closed"] = self.closed
        if self.least_peak is not None:
            facts["least_peak_bytes"] = self.least_peak
        return self.best.solution(self.limits.space, self.problem.baseline_time_ns, facts)

    def _judge(self, schedule: Schedule) -> int | None:
        """Spell a condensed schedule out and take it; its time if it is within the budget."""
        budget = self.problem.memories[0].budget_bytes
        return self._take(self.condensed.expand(schedule, budget, self.limits.judge))

    def _take(self, schedule: Schedule) -> int | None:
        plan = self.limits.judge(self.problem, schedule)
        self.least_peak = plan.peak if self.least_peak is None else min(self.least_peak, plan.peak)
        if plan.peak > self.problem.memories[0].budget_bytes:
            return None
        if self.best.plan is None or plan.time_ns < self.best.plan.time_ns:
            self.best.plan = plan
            self.limits.report(schedule, self.problem.baseline_time_ns)
        return plan.time_ns
