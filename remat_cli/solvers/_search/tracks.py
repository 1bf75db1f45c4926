"""Running the search kernels: tracks, the clock they stop by, and the incumbent they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.timeline import time_of
from remat_cli.solvers._search.interpreted import interpreted
from remat_cli.solvers._search.kernels import search
from remat_cli.solvers._search.orders import greedy_order
from remat_cli.solvers._search.profile import build, uniform
from remat_cli.solvers._search.records import HEADER, load, save
from remat_cli.solvers._search.slots import peak
from remat_cli.solvers._search.state import (
    BUDGET,
    NUM,
    OPS,
    ORDERING,
    PINNED,
    REPAIRING,
    ROUNDS,
    WORK,
    Ints,
    make_state,
)
from remat_cli.solvers.base import Limits

BEST, CURRENT = 0, 1


@dataclass
class Clock:
    """Says when to stop, by work if the limits name it (the same on every machine), else by time.

    `work` is what the tracks have done so far.
    """

    limits: Limits
    work: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether time or work is used up, or the user asked to stop."""
        if self.limits.work is not None and self.work >= self.limits.work:
            return True
        return self.limits.is_over

    def chunk(self, work: int, tracks: int) -> int:
        """Work for each of so many tracks until the next look at the clock: `work`, or what is left if less."""
        if self.limits.work is None:
            return work
        return max(1, min(work, (self.limits.work - self.work) // tracks))

    def share_used(self) -> float:
        """How much of the allowance is used, 0 to 1."""
        if self.limits.work is not None:
            return min(1.0, self.work / max(1, self.limits.work))
        spent = time.monotonic() - self.started
        return min(1.0, spent / max(1e-9, spent + self.limits.seconds_left))


@dataclass(frozen=True)
class Kernels:
    """The kernels that Python calls, compiled or interpreted; both do the same."""

    build: Callable[..., None] = build
    greedy_order: Callable[..., None] = greedy_order
    load: Callable[..., None] = load
    peak: Callable[..., int] = peak
    save: Callable[..., None] = save
    search: Callable[..., None] = search
    uniform: Callable[..., float] = uniform


COMPILED = Kernels()


def interpreted_kernels() -> Kernels:
    """All kernels, without compiling any."""
    return Kernels(**{name: interpreted(kernel) for name, kernel in vars(COMPILED).items()})


@dataclass
class Track:
    """One search with its own state, records and random numbers.

    `heat` is in time units: how much worse a step of the search may be. `seconds` are spent in kernels.
    """

    net: Ints
    state: Ints
    records: Ints
    heat: float = 0.0
    idle_chunks: int = 0
    seconds: float = 0.0
    kernels: Kernels = COMPILED

    @property
    def excess(self) -> int:
        """Bytes above budget of the best schedule, summed over its steps."""
        return int(self.records[BEST, 2])

    @property
    def time(self) -> int:
        """Total time of the best schedule."""
        return int(self.records[BEST, 1])

    @property
    def ops(self) -> list[int]:
        """Ops of the best schedule, without the end op."""
        return [int(op) for op in self.records[BEST, HEADER : HEADER + self.records[BEST, 0] - 1]]

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is better."""
        return self.excess, self.time

    @property
    def has_begun(self) -> bool:
        """Whether the first round of search since the start has ended."""
        return bool(self.state[NUM, ROUNDS] > 0 and (self.state[NUM, ROUNDS] > 1 or self.state[NUM, REPAIRING] == 0))

    @property
    def work(self) -> int:
        """Moves looked at so far."""
        return int(self.state[NUM, WORK])

    def begin(self, ops: Sequence[int]) -> None:
        """Start again from a legal schedule, forgetting the best."""
        steps = np.array([*ops, self.net[OPS, 0] - 1], np.int64)
        self.kernels.build(self.net, self.state, steps, len(steps))
        self.kernels.save(self.state, self.records[BEST])
        self.idle_chunks = 0

    def set_budget(self, budget_bytes: int) -> None:
        """Search on under another budget, from the best schedule."""
        self.state[NUM, BUDGET] = budget_bytes
        self.begin(self.ops)

    def improve(self, work: int) -> None:
        """Large-neighbourhood search for about `work` more moves."""
        self.state[NUM, ORDERING] = 0
        self._search(self.heat, work)

    def reorder(self, work: int, heat: float) -> None:
        """Search for an order with less excess for about `work` more moves; `heat` is relative to the excess."""
        self.state[NUM, ORDERING] = 1
        self._search(heat, work)

    def _search(self, heat: float, work: int) -> None:
        before, rounds, began = self.rank, self.state[NUM, ROUNDS], time.perf_counter()
        self.kernels.search(self.net, self.state, self.records[BEST], heat, self.work + work)
        self.seconds += time.perf_counter() - began
        if self.rank < before:
            self.idle_chunks = 0
        elif self.state[NUM, ORDERING] == 1 or self.state[NUM, ROUNDS] > rounds:
            self.idle_chunks += 1

    def begin_greedy(self, noise: float, recency: float) -> None:
        """Start again from a greedy order."""
        ops = np.zeros(int(self.net[OPS, 0]), np.int64)
        self.kernels.greedy_order(self.net, self.state, ops, noise, recency)
        self.begin([int(op) for op in ops[:-1]])

    def peak_bytes(self) -> int:
        """Peak of the best schedule as the search counts it (fixed part left out)."""
        self.kernels.save(self.state, self.records[CURRENT])
        self.kernels.load(self.net, self.state, self.records[BEST])
        found = int(self.kernels.peak(self.state))
        self.kernels.load(self.net, self.state, self.records[CURRENT])
        return found

    def random(self) -> float:
        """Next random number in [0, 1)."""
        return float(self.kernels.uniform(self.state))


def make_track(
    net: Ints, budget_bytes: int, seed: int, is_pinned: bool, heat: float = 0.0, kernels: Kernels = COMPILED
) -> Track:
    """A track at the baseline order."""
    state = make_state(net, budget_bytes, seed)
    state[NUM, PINNED] = int(is_pinned)
    track = Track(net, state, np.zeros((2, HEADER + state.shape[1]), np.int64), heat, kernels=kernels)
    track.begin(range(int(net[OPS, 0]) - 1))
    return track


def is_roomy(net: Ints, ops: Sequence[int]) -> bool:
    """Whether a state has room for this schedule and some recomputes more."""
    return len(ops) <= 2 * int(net[OPS, 0]) + 200


def chunk_work(net: Ints) -> int:
    """Moves between two looks at the clock: at most some 50 to 100 ms, less for tiny problems."""
    ops = int(net[OPS, 0])
    return min(1_000 * ops, 100_000, max(1_000, 50_000_000 // ops))


@dataclass
class Incumbent:
    """The best judged plan within budget; reports each improvement."""

    problem: Problem
    limits: Limits
    plan: Plan | None = None
    found_at: float = 0.0

    def offer(self, schedule: Schedule) -> None:
        """Judge a schedule if it is faster than the best so far; keep and report it if it is within budget."""
        if self.plan is not None and time_of(self.problem, schedule) >= self.plan.time_ns:
            return
        plan = self.limits.judge(self.problem, schedule)
        fits = plan.peak <= self.problem.memories[0].budget_bytes
        if fits and (self.plan is None or plan.time_ns < self.plan.time_ns):
            self.plan = plan
            self.found_at = time.monotonic()
            self.limits.report(schedule, None)

    def is_stale(self, patience_seconds: float) -> bool:
        """Whether the best plan has stood for so long."""
        return time.monotonic() - self.found_at > patience_seconds

    @property
    def is_good_enough(self) -> bool:
        """Whether the plan is within the asked gap of the baseline time, a trivial bound."""
        baseline_ns = self.problem.baseline_time_ns
        return self.plan is not None and self.plan.time_ns <= baseline_ns * (1 + self.limits.gap)
