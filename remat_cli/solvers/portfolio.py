"""`auto`: search, exact solving and bounds together, until the plan is proved best or nothing improves."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.timeline import time_of
from remat_cli.solvers._knowledge import Knowledge
from remat_cli.solvers._portfolio_exact import Finisher
from remat_cli.solvers.base import Limits, Order, Reason, Solution, Status
from remat_cli.solvers.bounds.improving import improving_bounds
from remat_cli.solvers.floor.proof import impossible

SEARCH_SHARE = 0.6  # of the time left, for local search; CP-SAT or bounds come after it
EXACT_SHARE = 0.3  # of the time left, for CP-SAT
EXACT_WORK_SHARE = 0.01  # of the work: a unit takes CP-SAT some 50 times as long as local search
NO_PLAN_SHARE = 0.4  # of the time left, for a turn while there is no plan
MIN_TURN_SECONDS = 1.0  # for up to 300 ops, in proportion more for more
MOST_TURN_OPS = 3_000  # above, CP-SAT has nothing to say, and local search in free order also looks at the other
LEAD_SECONDS = 0.3  # for a first plan, before bounds take a part of the processor
PROOF_SECONDS = 1.0  # to prove that there is no plan, before the first bound


class Auto(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A portfolio: local search and CP-SAT on parts of the schedule take turns, bounds rise beside them.

    Bounds are proved for the space of the asked order: `free`, or `first_in_order` when the order is kept. CP-SAT only
    contributes plans, because what it proves holds in smaller spaces. In free order the first turns go to free order
    and to the baseline order, so that keeping the order is never better. With one worker the bounds come after most of
    the search. With a work limit only local search and CP-SAT run, since bounds are limited by time.

    It ends when the best plan is proved optimal or within the asked gap, when time is up, and when nothing improves: a
    turn ends after `patience` seconds without a better plan or bound, everything `proof` seconds after the last
    improvement (and at least twice the time it took to find the best plan). Both are for up to 100 ops, and in
    proportion more for more. `patience` 0: use all the time. The whole problem goes to CP-SAT once for each best plan
    on problems of up to `exact_ops` ops, parts of it (large-neighbourhood search) on any; 0: never either.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "local search and CP-SAT in turns, with a proved bound; the default"
    takes: ClassVar[str] = "Any number of devices."
    proves: ClassVar[str] = "optimal, infeasible, bound"

    patience: float = 0.75
    proof: float = 10.0
    exact_ops: int = 300

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return None

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """Those of the member that gets the first turn; the others have none."""
        from remat_cli.solvers import solver_class

        member = solver_class("local-search" if len(problem.devices) == 1 else "placement")
        modules: tuple[str, ...] = member().kernels(problem)
        return modules

    def begins_interpreted(self, problem: Problem) -> bool:
        """Whether the search begins with interpreted kernels: where local search does."""
        from remat_cli.solvers import solver_class

        return len(problem.devices) == 1 and bool(solver_class("local-search")().begins_interpreted(problem))

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The baseline if it fits; else search and bound; several devices are the matter of `placement`."""
        if len(problem.devices) > 1:
            from remat_cli.solvers import make_solver

            return make_solver("placement").solve(problem, limits, start)
        plan = baseline(problem)
        if plan.peak <= problem.memories[0].budget_bytes:
            return Solution(Status.OPTIMAL, "free", plan.schedule, problem.baseline_time_ns)
        return _Session(self, problem, limits, start).run()


@dataclass
class _Session:
    """One call: members take turns, and `known` is what they share.

    `next_start` is where the next local search begins: the caller's start, a plan rounded from a bound, or what CP-SAT
    found above the budget. Without one it begins at the best plan.
    """

    options: Auto
    problem: Problem
    limits: Limits
    next_start: Schedule | None = None
    bounds_done: threading.Event = field(default_factory=threading.Event)
    has_plan: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.known = Knowledge(self.problem, self.limits, self.options.patience)
        self.turn_began, self.has_news = self.known.began, False
        self.finisher: Finisher | None = None

    def run(self) -> Solution:
        if self.limits.interpreted:
            # The first plan, and bounds that may prove that there is no better one.
            self._improve(self.limits.order, 1.0)
            if self.known.best is not None:
                self._raise_bounds()
        elif self.limits.work is not None:
            # Local search, in free order also from the baseline order alone, then CP-SAT; the same on every machine.
            order = self.limits.order
            self._improve(order, 0.5 if order == "free" else 0.7)
            if order == "free" and not self._should_end():
                self._improve("keep", 0.2)
            if self.options.exact_ops > 0 and not self._should_end():
                self._finish(EXACT_WORK_SHARE)
        elif self.limits.workers > 1:
            with ThreadPoolExecutor(1) as pool:
                bounds = pool.submit(self._raise_bounds)
                try:
                    self._search(1.0)
                finally:
                    self.known.finished.set()
                bounds.result()
        else:
            self.bounds_done.set()
            # As `_search`, but only until every member had a turn in which nothing improved.
            end = time.monotonic() + self.limits.seconds_left * SEARCH_SHARE
            turn, before, idle = 0, None, 0
            while not self._should_end() and time.monotonic() < end and idle <= len(self._orders):
                self._take_turn(turn, end - time.monotonic())
                idle = idle + 1 if self.known.best_ns == before and before is not None else 0
                turn, before = turn + 1, self.known.best_ns
            self._raise_bounds()
            self._search(1.0)
        return self.known.solution()

    def _search(self, share: float) -> None:
        """Members in turns until this share of the time left is used or nothing improves."""
        end = time.monotonic() + self.limits.seconds_left * share
        turn = 0
        while not self._should_end() and time.monotonic() < end:
            self._take_turn(turn, end - time.monotonic())
            turn += 1

    @property
    def _is_large(self) -> bool:
        """Whether starting a turn takes so long that local search had better have one turn for all the time."""
        return len(self.problem.ops) > MOST_TURN_OPS

    @property
    def _orders(self) -> list[Order]:
        """Orders in which local search takes turns: in free order also the baseline order alone."""
        is_both = self.limits.order == "free" and not self._is_large
        return ["free", "keep"] if is_both else [self.limits.order]

    def _take_turn(self, turn: int, seconds: float) -> None:
        """One member's turn: free order, baseline order, CP-SAT, and round again."""
        orders = self._orders
        part = turn % (len(orders) + 1)
        if self._is_large:
            self._improve(orders[0], min(1.0, seconds / max(1e-9, self.limits.seconds_left)), turn)
        elif part < len(orders):
            self._improve(orders[part], self._share_of(seconds, SEARCH_SHARE / len(orders)), turn)
        elif self.options.exact_ops > 0:
            self._finish(self._share_of(seconds, EXACT_SHARE))

    def _share_of(self, seconds: float, share: float) -> float:
        """A share of these seconds as a share of all that is left; short turns while no plan is known."""
        share = share if self.known.best is not None else min(share, NO_PLAN_SHARE)
        least = MIN_TURN_SECONDS * max(1.0, len(self.problem.ops) / 300)
        return min(1.0, max(share * seconds, least) / max(1e-9, self.limits.seconds_left))

    def _improve(self, order: Order, share: float, turn: int = 0) -> None:
        """Local search in this order, from `next_start` or the best plan, with a new seed each turn."""
        from remat_cli.solvers import make_solver

        self._begin_turn()
        start, self.next_start = self.next_start, None
        limits = self._member_limits(share)
        limits = replace(limits, seed=self.limits.seed + turn, order=order)
        began = time.monotonic()
        solution = make_solver("local-search").solve(self.problem, limits, self.known.best if start is None else start)
        if solution.schedule is not None:
            self._take(solution.schedule, None)
        self.known.facts["local-search"] = solution.facts | {"seconds": time.monotonic() - began}

    def _finish(self, share: float) -> None:
        """CP-SAT on parts of the best plan, or of the one nearest to the budget."""
        self._begin_turn()
        if self.finisher is None:
            self.finisher = Finisher(self.problem, self.limits, self._take, self.options.exact_ops)
        limits = self._member_limits(share)
        with self.known.lock:
            best, bound_ns = self.known.best, self.known.bound_ns
        near = self.finisher.run(limits, best, bound_ns)
        if near is not None:
            self.next_start = near
        self.known.facts["windows"] = self.finisher.facts

    def _member_limits(self, share: float = 1.0) -> Limits:
        """A share of what is left, with reports and stops by way of the session."""
        beside = not (self.bounds_done.is_set() or self.limits.work is not None)
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
        if schedule is not None and self.known.record(schedule, time_of(self.problem, schedule)):
            self.has_plan.set()

    def _raise_bounds(self) -> None:
        """Report better and better bounds until told to stop; the search gets a moment's lead for a first plan."""
        self.has_plan.wait(min(LEAD_SECONDS, self.limits.seconds_left / 4))
        self.known.improved_at = time.monotonic()
        limits = replace(self.limits, should_stop=self._should_end)
        try:
            # Look for a floor above the budget, as long as there is no plan and it takes but a moment.
            if self.known.best is None and not self._should_end():
                moment = replace(limits, seconds=min(PROOF_SECONDS, limits.seconds_left), started=time.monotonic())
                self.known.floor = impossible(self.problem, moment)
                self.known.is_impossible = self.known.floor is not None
            for bound in improving_bounds(self.problem, limits, lambda: self.known.best_ns):
                with self.known.lock:
                    self.known.facts["bound"] = {"method": bound.method, "seconds": bound.seconds}
                    if bound.start is not None:
                        self.next_start, self.has_news = bound.start, True
                    self.known.raise_bound(bound.time_ns)
                if self.known.is_impossible:
                    return
        finally:
            self.bounds_done.set()

    def _should_stop(self) -> bool:
        """Whether a member's turn should end."""
        if self._should_end() or self.known.is_stale(self.options.patience, self.turn_began):
            return True
        return self.has_news and time.monotonic() - self.turn_began > MIN_TURN_SECONDS

    def _should_end(self) -> bool:
        """Whether all members of the portfolio should end."""
        is_over = self.known.finished.is_set() or self.limits.should_stop()
        return is_over or self.known.is_closed or self.known.is_stale(self.options.proof)

    def _begin_turn(self) -> None:
        """Give the next member its own share of patience."""
        self.turn_began, self.has_news = time.monotonic(), False
