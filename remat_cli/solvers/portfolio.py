"""`auto`: search, exact solving and bounds together, until the plan is proved best or nothing improves."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import baseline
from remat_cli.solvers._bounds import improving_bounds
from remat_cli.solvers.base import Limits, Solution, Space, Status

SEARCH_SHARE = 0.6  # of the time, for local search, where CP-SAT or bounds come after it


class Auto(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A portfolio: local search (which reorders before it recomputes), then CP-SAT from its plan, bounds beside them.

    Bounds are proved for the space of the asked order: `free`, or `first_in_order` when the order is kept. CP-SAT only
    contributes plans, because what it proves holds in smaller spaces. With one worker the bounds come after the
    search. With a work limit only the searches run, since bounds are limited by time.

    It ends when the best plan is proved optimal or within the asked gap, when time is up, and when nothing improves:
    a search ends after `patience` seconds without a better plan or bound (and at least twice the time it took to find
    the best plan), the bounds `proof` seconds after the last improvement, if they have not said all they can before.
    Both are for up to 100 ops, and in proportion more for more. `patience` 0: use all the time. CP-SAT runs on
    problems of up to `exact_ops` ops, with at most `exact_copies` computations of each.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "local search, then CP-SAT, with a proved bound; the default"
    proves: ClassVar[str] = "optimal, infeasible, bound"

    patience: float = 0.75
    proof: float = 10.0
    exact_ops: int = 300
    exact_copies: int = 3

    def supports(self, problem: Problem) -> str | None:
        """One device."""
        return None if len(problem.devices) == 1 else "it places every op on one device"

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The baseline if it fits; else search and bound."""
        plan = baseline(problem)
        if plan.peak <= problem.memories[0].budget_bytes:
            return Solution(Status.OPTIMAL, "free", plan.schedule, problem.baseline_time_ns)
        return _Session(self, problem, limits).run(start)


@dataclass
class _Session:
    """What the members share: the best plan and bound, and when each last improved."""

    options: Auto
    problem: Problem
    limits: Limits
    best: Schedule | None = None
    best_ns: int | None = None
    is_impossible: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    finished: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.bound_ns = self.problem.baseline_time_ns
        self.improved_at = self.began = time.monotonic()
        self.found_after = 0.0

    def run(self, start: Schedule | None) -> Solution:
        if self.limits.work is not None:
            self._search(start)
        elif self.limits.workers > 1:
            with ThreadPoolExecutor(1) as pool:
                bounds = pool.submit(self._raise_bounds)
                self._search_beside(bounds, start)
        else:
            self._search(start)
            self._raise_bounds()
        return self._solution()

    def _search_beside(self, bounds: Future[None], start: Schedule | None) -> None:
        """Search while bounds rise in another thread, and on with other seeds for as long as they do."""
        try:
            self._search(start)
            seed = self.limits.seed
            while not (bounds.done() or self._should_end()):
                seed += 1
                limits = replace(self._member_limits(), seed=seed)
                limits = replace(limits, should_stop=lambda: bounds.done() or self._should_end())
                self._run_member("local-search", {}, limits, self.best)
        finally:
            self.finished.set()
        bounds.result()

    def _search(self, start: Schedule | None) -> None:
        is_small = len(self.problem.ops) <= self.options.exact_ops
        is_alone = self.limits.workers == 1 and self.limits.work is None
        self._run_member("local-search", {}, self._member_limits(SEARCH_SHARE if is_small or is_alone else 1.0), start)
        self._wait_anew()
        if is_small and not self._should_end():
            options = {"max_copies": self.options.exact_copies}
            limits = self._member_limits(0.5 if is_alone or self.limits.work is not None else 1.0)
            self._run_member("moccasin", options, limits, self.best if self.best is not None else start)

    def _run_member(self, name: str, options: dict[str, Any], limits: Limits, start: Schedule | None) -> None:
        from remat_cli.solvers import make_solver

        began = time.monotonic()
        solution = make_solver(name, options).solve(self.problem, limits, start)
        if solution.schedule is not None:
            self._take(solution.schedule, None)
        self.facts[name] = solution.facts | {"seconds": time.monotonic() - began}

    def _member_limits(self, share: float = 1.0) -> Limits:
        """A share of what is left, with reports and stops by way of the session."""
        beside = self.limits.workers > 1 and self.limits.work is None
        return replace(
            self.limits,
            seconds=self.limits.seconds_left * share,
            started=time.monotonic(),
            work=None if self.limits.work is None else max(1, int(self.limits.work * share)),
            workers=max(1, self.limits.workers - beside),
            report=self._take,
            should_stop=self._should_stop,
        )

    def _take(self, schedule: Schedule | None, bound_ns: int | None) -> None:
        """A member reports a plan within budget; its bound, if any, holds in another space and is dropped."""
        if schedule is None:
            return
        ops = self.problem.ops
        time_ns = sum(ops[op].time_ns[0] or 0 for op in schedule.op_ids())
        with self.lock:
            if self.best_ns is None or time_ns < self.best_ns:
                self.best, self.best_ns = schedule, time_ns
                self.improved_at = time.monotonic()
                self.found_after = self.improved_at - self.began
                self.limits.report(schedule, None)

    def _raise_bounds(self) -> None:
        """Report better and better bounds until told to stop."""
        self._wait_anew()
        limits = replace(self.limits, should_stop=self._should_end)
        for bound in improving_bounds(self.problem, limits, lambda: self.best_ns):
            with self.lock:
                self.facts["bound"] = {"method": bound.method, "seconds": bound.seconds}
                if bound.time_ns is None:
                    self.is_impossible = True
                    return
                if bound.time_ns > self.bound_ns:
                    self.bound_ns = bound.time_ns
                    self.improved_at = time.monotonic()
                    self.limits.report(None, bound.time_ns)

    def _should_stop(self) -> bool:
        """Whether a search should stop."""
        return self._should_end() or self._is_stale(self.options.patience)

    def _should_end(self) -> bool:
        """Whether all should end."""
        is_over = self.finished.is_set() or self.limits.should_stop()
        return is_over or self._is_closed() or self._is_stale(self.options.proof)

    def _is_closed(self) -> bool:
        """Whether the proof is complete: infeasible, or the gap is small enough."""
        if self.is_impossible or self.best_ns is None:
            return self.is_impossible
        return self.best_ns - self.bound_ns <= self.limits.gap * self.problem.baseline_time_ns

    def _is_stale(self, patience: float) -> bool:
        """Whether nothing has improved for so long that more time is unlikely to pay."""
        if self.options.patience <= 0 or self.limits.work is not None or self.best_ns is None:
            return False
        patience *= max(1.0, len(self.problem.ops) / 100)
        return time.monotonic() - self.improved_at > max(patience, 2 * self.found_after)

    def _wait_anew(self) -> None:
        """Give the next member its own share of patience."""
        self.improved_at = time.monotonic()

    def _solution(self) -> Solution:
        space: Space = "first_in_order" if self.limits.order == "keep" else "free"
        if self.best is None:
            status = Status.INFEASIBLE if self.is_impossible else Status.NOT_FOUND
            return Solution(status, space, None, None if self.is_impossible else self.bound_ns, facts=self.facts)
        status = Status.OPTIMAL if self.best_ns == self.bound_ns else Status.FEASIBLE
        return Solution(status, space, self.best, self.bound_ns, facts=self.facts)
