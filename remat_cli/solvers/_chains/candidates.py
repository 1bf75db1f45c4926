"""From sequences of ops that a heuristic proposes to the best schedule within the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import baseline
from remat_cli.solvers._chains.gap_closing import close_gaps
from remat_cli.solvers._sharing import Condensed, condense, drop_dead, read_later
from remat_cli.solvers.base import Limits, Order, Solution, Status

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
    if not contest.is_decided:
        for ops in generate(contest.condensed):
            if limits.is_over:
                break
            contest.enter(ops)
            if contest.is_decided:
                break
    if closes_gaps:
        contest.close_gaps()
    return contest.solution()


def why_not(problem: Problem, view: Callable[[Problem, Order], object]) -> str | None:
    """The reason (a text) why a one-device problem has no such view, in terms of its own ops; None if it has one."""
    if len(problem.devices) > 1:
        return "it plans for one device"
    condensed = condense(problem)
    found = view(condensed.problem, "free")
    return condensed.in_original_terms(found) if isinstance(found, str) else None


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


def _without_repeats(problem: Problem, ops: Sequence[int]) -> Sequence[int]:
    """Leave out repeats of what must not be repeated: readers take the first result."""
    first = {op: place for place, op in reversed(list(enumerate(ops)))}
    return [op for place, op in enumerate(ops) if problem.ops[op].repeatable or first[op] == place]


def cleaned(problem: Problem, ops: Sequence[int], order: Order) -> Schedule:
    """A proposed sequence as a schedule without dead steps, in the order asked for."""
    allowed = _without_repeats(problem, ops)
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
    best: Schedule | None = None
    best_ns: int | None = None
    least_peak: int | None = None
    seen: set[Schedule] = field(default_factory=set)
    fitting: list[tuple[int, int, Schedule]] = field(default_factory=list)
    closed: int = 0

    @property
    def is_decided(self) -> bool:
        """Whether nothing can be faster."""
        return self.best_ns == self.problem.baseline_time_ns

    def enter_start(self, start: Schedule) -> None:
        """What the caller knew already, if it is in the order asked for."""
        if self.limits.order == "free" or start.keeps_order:
            self._take(start)
        self.enter(self.condensed.contract(start).op_ids())

    def enter(self, ops: Sequence[int]) -> None:
        """Judge one candidate."""
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
            if self.limits.is_over or self.is_decided:
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
        bound = self.problem.baseline_time_ns
        if self.best is None:
            return Solution(Status.NOT_FOUND, self.limits.space, None, bound, facts=facts)
        status = Status.OPTIMAL if self.is_decided else Status.FEASIBLE
        return Solution(status, self.limits.space, self.best, bound, facts=facts)

    def _judge(self, schedule: Schedule) -> int | None:
        """Spell a condensed schedule out and take it; its time if it is within the budget."""
        budget = self.problem.memories[0].budget_bytes
        return self._take(self.condensed.expand(schedule, budget, self.limits.judge))

    def _take(self, schedule: Schedule) -> int | None:
        plan = self.limits.judge(self.problem, schedule)
        self.least_peak = plan.peak if self.least_peak is None else min(self.least_peak, plan.peak)
        if plan.peak > self.problem.memories[0].budget_bytes:
            return None
        if self.best_ns is None or plan.time_ns < self.best_ns:
            self.best, self.best_ns = schedule, plan.time_ns
            self.limits.report(schedule, self.problem.baseline_time_ns)
        return plan.time_ns
