"""What the parts of a solver share while they run: the best plan and bound, and when to stop."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.timeline import time_of
from remat_cli.solvers.base import Limits, ProvedFloor, Solution, Space, Status


@dataclass
class Knowledge:
    """The best plan and bound so far. `patience` is the seconds without news after which all ends (0: never).

    Reports come from one thread at a time. `work` is what has been used of the work limit, `floor` a proof that the
    budget is too small.
    """

    problem: Problem
    limits: Limits
    patience: float
    best: Schedule | None = None
    best_ns: int | None = None
    is_impossible: bool = False
    work: int = 0
    floor: ProvedFloor | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    finished: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.bound_ns = self.problem.baseline_time_ns
        self.began = self.improved_at = time.monotonic()
        self.found_after = 0.0
        self.allowed_ns = self.limits.gap * baseline(self.problem).time_ns if self.limits.gap else 0.0

    def record(self, schedule: Schedule, time_ns: int) -> bool:
        """Take a plan that is within the budgets if it is better than the best."""
        with self.lock:
            if self.best_ns is not None and time_ns >= self.best_ns:
                return False
            self.best, self.best_ns = schedule, time_ns
            self.improved_at = time.monotonic()
            self.found_after = self.improved_at - self.began
            self.limits.report(schedule, None)
            return True

    def offer(self, schedule: Schedule) -> bool:
        """Take a schedule if it is legal, within the budgets, in the asked order, and better than the best."""
        time_ns = time_of(self.problem, schedule)
        with self.lock:
            if self.best_ns is not None and time_ns >= self.best_ns:
                return False
            if self.limits.order == "keep" and not schedule.keeps_order:
                return False
            try:
                plan = self.limits.judge(self.problem, schedule)
            except InvalidSchedule:
                return False
            if any(p > m.budget_bytes for p, m in zip(plan.peak_bytes, self.problem.memories, strict=True)):
                return False
            return self.record(schedule, time_ns)

    def raise_bound(self, bound_ns: int | None) -> None:
        """Take a bound that holds in the space; None says that there is no schedule at all."""
        with self.lock:
            if bound_ns is None:
                self.is_impossible = True
            elif bound_ns > self.bound_ns:
                self.bound_ns = bound_ns
                self.improved_at = time.monotonic()
                self.limits.report(None, bound_ns)

    def take(self, schedule: Schedule | None, bound_ns: int | None) -> None:
        """A report of a member whose bounds hold in the space."""
        if schedule is not None:
            self.offer(schedule)
        if bound_ns is not None:
            self.raise_bound(bound_ns)

    @property
    def is_closed(self) -> bool:
        """Whether the proof is complete: no schedule, or the gap is small enough."""
        if self.is_impossible or self.best_ns is None:
            return self.is_impossible
        return self.best_ns - self.bound_ns <= self.allowed_ns

    def should_end(self) -> bool:
        """Whether all should end: proved, told to, out of work or time, or nothing new for long."""
        if self.finished.is_set() or self.limits.is_over or self.is_closed:
            return True
        if self.limits.work is not None:
            return self.work >= self.limits.work
        return self.is_stale(self.patience)

    def is_stale(self, patience: float, since: float = 0.0) -> bool:
        """Whether nothing has improved, nor since then, for so long that more of the same is unlikely to pay."""
        if self.patience <= 0 or self.limits.work is not None or self.best_ns is None:
            return False
        patience *= max(1.0, len(self.problem.ops) / 100)
        waited = time.monotonic() - max(self.improved_at, since)
        return waited > (patience if since else max(patience, 2 * self.found_after))

    def part(self, share: float, take: Callable[[Schedule | None, int | None], None] | None = None) -> Limits:
        """A share of what is left, for a member whose reports go to `take`."""
        work = self.limits.work
        return replace(
            self.limits,
            seconds=self.limits.seconds_left * share,
            started=time.monotonic(),
            work=None if work is None else max(1, int((work - self.work) * share)),
            report=self.take if take is None else take,
            should_stop=self.should_end,
        )

    def solution(self) -> Solution:
        """The solver's answer: what is known now."""
        if self.best is None:
            status = Status.INFEASIBLE if self.is_impossible else Status.NOT_FOUND
            space: Space = self.limits.space if self.floor is None else "free"
            bound_ns = None if self.is_impossible else self.bound_ns
            return Solution(status, space, None, bound_ns, self.floor, self.facts)
        status = Status.OPTIMAL if self.best_ns == self.bound_ns else Status.FEASIBLE
        return Solution(status, self.limits.space, self.best, self.bound_ns, facts=self.facts)
