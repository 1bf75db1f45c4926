"""Running the search kernels: tracks, the clock they stop by, and orders that need less memory without recomputing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.base import Limits
from remat_cli.solvers.search import rows
from remat_cli.solvers.search.interpreted import interpreted
from remat_cli.solvers.search.kernels import search
from remat_cli.solvers.search.orders import greedy_order
from remat_cli.solvers.search.profile import build, uniform
from remat_cli.solvers.search.records import HEADER, load, save
from remat_cli.solvers.search.slots import peak
from remat_cli.solvers.search.state import Ints, make_net, make_state

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
        """Excess and time of the best schedule, by which tracks are compared: smaller is better."""
        return self.excess, self.time

    @property
    def has_begun(self) -> bool:
        """Whether the first round of search since the start has ended."""
        return bool(
            self.state[rows.NUM, rows.ROUNDS] > 0
            and (self.state[rows.NUM, rows.ROUNDS] > 1 or self.state[rows.NUM, rows.REPAIRING] == 0)
        )

    @property
    def work(self) -> int:
        """Moves looked at so far."""
        return int(self.state[rows.NUM, rows.WORK])

    def begin(self, ops: Sequence[int]) -> None:
        """Start again from a legal schedule, forgetting the best."""
        steps = np.array([*ops, self.net[rows.OPS, 0] - 1], np.int64)
        self.kernels.build(self.net, self.state, steps, len(steps))
        self.kernels.save(self.state, self.records[BEST])
        self.idle_chunks = 0

    def set_budget(self, budget_bytes: int) -> None:
        """Search on under another budget, from the best schedule."""
        self.state[rows.NUM, rows.BUDGET] = budget_bytes
        self.begin(self.ops)

    def improve(self, work: int) -> None:
        """Large-neighbourhood search for about `work` more moves."""
        self.state[rows.NUM, rows.ORDERING] = 0
        self._search(self.heat, work)

    def reorder(self, work: int, heat: float) -> None:
        """Search for an order with less excess for about `work` more moves; `heat` is relative to the excess."""
        self.state[rows.NUM, rows.ORDERING] = 1
        self._search(heat, work)

    def _search(self, heat: float, work: int) -> None:
        before, rounds, began = self.rank, self.state[rows.NUM, rows.ROUNDS], time.perf_counter()
        self.kernels.search(self.net, self.state, self.records[BEST], heat, self.work + work)
        self.seconds += time.perf_counter() - began
        if self.rank < before:
            self.idle_chunks = 0
        elif self.state[rows.NUM, rows.ORDERING] == 1 or self.state[rows.NUM, rows.ROUNDS] > rounds:
            self.idle_chunks += 1

    def begin_greedy(self, noise: float, recency: float) -> None:
        """Start again from a greedy order."""
        ops = np.zeros(int(self.net[rows.OPS, 0]), np.int64)
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
    state[rows.NUM, rows.PINNED] = int(is_pinned)
    track = Track(net, state, np.zeros((2, HEADER + state.shape[1]), np.int64), heat, kernels=kernels)
    track.begin(range(int(net[rows.OPS, 0]) - 1))
    return track


def chunk_work(net: Ints) -> int:
    """Moves between two looks at the clock: at most some 50 to 100 ms, less for tiny problems."""
    ops = int(net[rows.OPS, 0])
    return min(1_000 * ops, 100_000, max(1_000, 50_000_000 // ops))


HEATS = (0.0005, 0.01, 0.002, 0.05)  # of the excess; no single one is best on all graphs


def greedy_starts(track: Track, starts: Sequence[Sequence[int]], tries: int) -> None:
    """Set the track to the best of the given orders and `tries` greedy ones, by bytes above budget."""
    best = track.ops
    least = track.excess
    for order in starts:
        track.begin(order)
        if track.excess < least:
            best, least = track.ops, track.excess
    for attempt in range(tries):
        noise = 0.0 if attempt == 0 else track.random()
        recency = 0.0 if attempt <= 1 else track.random()
        track.begin_greedy(noise, recency)
        if track.excess < least:
            best, least = track.ops, track.excess
    track.begin(best)


def search_order(track: Track, work: int, patience: int, is_over: Callable[[], bool]) -> None:
    """Improve the track's order in chunks of `work` moves until it fits or time is over.

    Ends early when `patience` chunks in a row bring nothing.
    """
    chunks = 0
    while track.excess > 0 and not is_over() and track.idle_chunks < patience:
        idle = track.idle_chunks
        if idle > 0:
            track.begin(track.ops)
            track.idle_chunks = idle
        track.reorder(work, HEATS[chunks % len(HEATS)])
        chunks += 1


def least_peak_order(condensed: Condensed, seed: int, is_over: Callable[[], bool], patience: int = 6) -> list[int]:
    """An order of all ops once whose peak is as low as the search gets it.

    Ids and peak are those of the condensed problem; its budget is not used. Targets lie an eighth below the peak
    reached, and nearer each time one is missed: a search towards a low target sees more of the steps that matter than
    one that only has to shave off the highest.
    """
    net: Ints = make_net(condensed.problem, condensed.in_place)
    track = make_track(net, 0, seed, is_pinned=False)
    best, least = track.ops, track.peak_bytes()
    step = least // 8
    track.set_budget(least - step)
    greedy_starts(track, (), 60)
    while step > least // 400 and not is_over():
        search_order(track, chunk_work(net), patience, is_over)
        peak = track.peak_bytes()
        if peak < least:
            best, least = track.ops, peak
        if track.excess > 0:
            step //= 2
        track.begin(best)
        track.set_budget(least - step)
    return best
