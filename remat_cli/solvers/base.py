"""The one interface of all solvers: Problem and Limits in, Solution out. The judge decides the rest."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.solver_run import Improvement, ProvedFloor, SolverRun, Space, Status

__all__ = [
    "BestPlan",
    "Improvement",
    "Limits",
    "Order",
    "ProvedFloor",
    "Reason",
    "Solution",
    "Solver",
    "SolverRun",
    "Space",
    "Status",
    "never",
]


class Reason(msgspec.Struct, frozen=True):
    """Why a solver does not take a problem: `words` with a `{}` for each of `ops`, so that anybody can name them."""

    words: str
    ops: tuple[int, ...] = ()

    def __str__(self) -> str:
        """With ops by their numbers."""
        return self.words.format(*self.ops)

    def named(self, names: Sequence[str]) -> str:
        """With ops by their names; one without a name keeps its number."""
        return self.words.format(*(names[op] if op < len(names) and names[op] else op for op in self.ops))

    def renumbered(self, ops: Sequence[int]) -> "Reason":
        """The same of another problem, of which each op here is this one."""
        return Reason(self.words, tuple(ops[op] for op in self.ops))


def several_devices(problem: Problem) -> Reason | None:
    """Why a solver that plans for one device cannot take a problem; None where it has one."""
    return Reason("it plans for one device") if len(problem.devices) > 1 else None


Order = Literal["free", "keep"]
Judge: TypeAlias = Callable[[Problem, Schedule], Plan]


def _ignore(schedule: Schedule | None, bound_ns: int | None) -> None:
    """Report to nobody."""


def never() -> bool:
    """For searches that end by themselves alone."""
    return False


@dataclass(frozen=True)
class Limits:
    """When to stop, with what means, and whom to tell.

    `seconds` is wall time from `started` (time.monotonic); `work` is a number of search steps that, with one worker,
    gives the same plan on every machine (None: no limit). `gap` is a fraction (0.001 = 0.1 %) of the baseline time at
    which to stop. `report(schedule, bound_ns)` takes a better schedule, a better proved bound on the total time, or
    both (None: nothing new); it may be called from one thread at a time only. `should_stop()` is polled.
    `interpreted` search compiles no kernels and ends at its first plan (see `Early`).
    `judge` is `simulate`: a solver that judges a schedule before it reports it asks here, so that it is judged once.
    """

    seconds: float = 30.0
    workers: int = 1
    seed: int = 0
    gap: float = 0.0
    order: Order = "free"
    work: int | None = None
    interpreted: bool = False
    report: Callable[[Schedule | None, int | None], None] = _ignore
    judge: Judge = simulate
    should_stop: Callable[[], bool] = never
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        """Wall time left, never negative."""
        return max(0.0, self.started + self.seconds - time.monotonic())

    @property
    def space(self) -> Space:
        """The search space of the order asked for."""
        return "free" if self.order == "free" else "first_in_order"

    @property
    def is_over(self) -> bool:
        """Whether time is up or the user asked to stop."""
        return self.seconds_left <= 0.0 or self.should_stop()


@dataclass(frozen=True)
class Solution:
    """What a solver claims: never a peak or a time, only a schedule and a proved lower bound on the total time.

    `space` is the search space in which status and bound hold. `floor` is a proved least total budget, if the
    solver proved more than the working sets say; `facts` are figures for people (variables, iterations, ...).
    """

    status: Status
    space: Space
    schedule: Schedule | None = None
    bound_ns: int | None = None
    floor: ProvedFloor | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class BestPlan:
    """`plan` is the fastest that the judge found within every budget, since `found_at`; each better one is reported."""

    problem: Problem
    limits: Limits
    plan: Plan | None = None
    found_at: float = 0.0

    @property
    def is_baseline(self) -> bool:
        """Whether nothing can be faster, in any space."""
        return self.plan is not None and self.plan.time_ns == self.problem.baseline_time_ns

    def is_near(self, bound_ns: int | None) -> bool:
        """Whether the plan is within the asked gap of a bound."""
        allowed = self.limits.gap * self.problem.baseline_time_ns
        return self.plan is not None and bound_ns is not None and self.plan.time_ns - bound_ns <= allowed

    def offer(self, schedule: Schedule) -> bool:
        """Keep and report a schedule if it is within every budget and faster; whether it is within."""
        plan = self.limits.judge(self.problem, schedule)
        budgets = zip(plan.peak_bytes, self.problem.memories, strict=True)
        is_within = all(peak <= memory.budget_bytes for peak, memory in budgets)
        if is_within and (self.plan is None or plan.time_ns < self.plan.time_ns):
            self.plan, self.found_at = plan, time.monotonic()
            self.limits.report(schedule, None)
        return is_within

    def solution(
        self, space: Space, bound_ns: int | None, facts: dict[str, Any], is_infeasible: bool = False
    ) -> Solution:
        """What is known in the end; the bound holds in the space."""
        if self.plan is None:
            status = Status.INFEASIBLE if is_infeasible else Status.NOT_FOUND
            return Solution(status, space, None, None if is_infeasible else bound_ns, facts=facts)
        status = Status.OPTIMAL if self.plan.time_ns == bound_ns else Status.FEASIBLE
        return Solution(status, space, self.plan.schedule, bound_ns, facts=facts)


class Solver(Protocol):
    """A frozen msgspec Struct whose fields are its options; `takes` says for people what `supports` decides."""

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[str]
    proves: ClassVar[str]

    def supports(self, problem: Problem) -> Reason | None:
        """None, or the reason why this solver cannot take the problem."""
        ...

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """Search until optimal, out of time, within the gap, or told to stop."""
        ...


@runtime_checkable
class Compiled(Protocol):
    """A solver whose search runs compiled code, which takes long to compile, once per machine."""

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """Modules of this package with the `ENTRIES` that a search on this problem calls, and a `warm_up`."""
        ...


@runtime_checkable
class Early(Compiled, Protocol):
    """One that finds first plans without compiled code too, and sometimes proves them: `Limits.interpreted`."""

    def begins_interpreted(self, problem: Problem) -> bool:
        """Whether that takes but a few seconds on this problem."""
        ...
