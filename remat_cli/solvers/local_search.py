"""Anytime local search over schedules: reorder, then recompute, with moves of whole chains of ops."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import BestPlan, Limits, Reason, Solution
from remat_cli.solvers.search import rows
from remat_cli.solvers.search.state import make_net
from remat_cli.solvers.search.tracks import (
    COMPILED,
    Clock,
    Track,
    chunk_work,
    greedy_starts,
    interpreted_kernels,
    make_track,
    search_order,
)

HEATS = (0.02, 0.1, 0.5)  # of the mean op time
FIRST_WORK = 2_000  # moves, for a first plan
INTERPRETED_WORK = 50  # moves between two looks at the clock when kernels are interpreted
MOST_INTERPRETED_OPS = 1_000  # a first plan takes 1 to 2 s at 30 to 300 ops


class LocalSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Large-neighbourhood search over schedules; no limit on recomputes per op; proves nothing but zero overhead.

    Repair inserts recomputes, alone or in bundles with the dead ancestors they need, by excess bytes removed per time;
    the search removes some, repairs with noise, prunes what is idle and shifts steps in time. In free order it first
    looks for an order that fits without recomputing, and then searches from the best order and from the baseline's.
    One to two million moves per second and core at 100 to 1,000 ops.

    `tracks` is the number of searches that share the time (in free order one stays at the baseline order), `restart`
    after how many chunks without improvement (some 50 ms each) a track starts again, `patience` the seconds without
    improvement after which the search ends (0: it uses all its time), `orders` the number of greedy orders tried.
    """

    name: ClassVar[str] = "local-search"
    summary: ClassVar[str] = "reorders and recomputes by local search; good plans in seconds"
    takes: ClassVar[str] = "One device."
    proves: ClassVar[str] = "optimal when nothing needs recomputing"

    tracks: int = 3
    restart: int = 100
    patience: float = 0.0
    orders: int = 60

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return None if len(problem.devices) == 1 else Reason("it places every op on one device")

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """The compiled functions that the search needs."""
        return ("search.warmup",)

    def begins_interpreted(self, problem: Problem) -> bool:
        """Where the first repair takes but a few seconds so."""
        return len(problem.ops) <= MOST_INTERPRETED_OPS

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """Search until out of time or work, told to stop, within the gap of the baseline time, or out of patience."""
        return _Search(self, problem, limits, start).run()


@dataclass
class _Search:
    options: LocalSearch
    problem: Problem
    limits: Limits
    start: Schedule | None
    tracks: list[Track] = field(default_factory=list)
    rounds: int = 0
    offered_at: float = 0.0
    offer_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.clock = Clock(self.limits)
        self.best = BestPlan(self.problem, self.limits)
        self.is_pinned = self.limits.order == "keep"
        self.condensed: Condensed = condense(self.problem)
        self.net = make_net(self.condensed.problem, self.condensed.in_place)
        self.free_bytes = self.problem.memories[0].free_bytes

    def run(self) -> Solution:
        self.best.offer(baseline(self.problem).schedule)
        starts = self._take_start()
        if not self._is_done():
            mean_ns = self.condensed.problem.baseline_time_ns / max(1, len(self.condensed.problem.ops))
            kernels = interpreted_kernels() if self.limits.interpreted else COMPILED
            for number in range(max(1, self.options.tracks)):
                pinned = self.is_pinned or number == 0
                seed = self.limits.seed * 1_000_003 + number
                heat = mean_ns * HEATS[number % len(HEATS)]
                self.tracks.append(make_track(self.net, self.free_bytes, seed, pinned, heat, kernels))
            for track, ops in zip(self.tracks, starts, strict=False):
                track.begin(ops)
            # One repair of the first track's order, so that there is a plan as soon as can be.
            first = self.tracks[0]
            while not first.has_begun and not self.clock.is_over:
                self._improve_first(self.clock.chunk(min(FIRST_WORK, chunk_work(self.net)), 1))
            self._offer_best()
        if not self.limits.interpreted:
            # All that comes after a first plan.
            if not self.is_pinned and not self._is_done():
                self._reorder()
            while not self._is_done():
                self._round()
            # Offer what was held back.
            if self.tracks:
                self.offer_seconds = 0.0
                self._offer_best()
        facts: dict[str, Any] = {"moves": self.clock.work, "rounds": self.rounds}
        if seconds := sum(track.seconds for track in self.tracks):
            facts["moves_per_second_per_core"] = int(sum(track.work for track in self.tracks) / seconds)
        return self.best.solution(self.limits.space, self.problem.baseline_time_ns, facts)

    def _is_done(self) -> bool:
        patience = self.options.patience
        if self.best.is_near(self.problem.baseline_time_ns) or self.clock.is_over:
            return True
        return patience > 0 and self.best.plan is not None and time.monotonic() - self.best.found_at > patience

    def _take_start(self) -> list[list[int]]:
        """Offer the given schedule, and bring it into the form the search works on, unless it is too long for that."""
        if self.start is None or (self.is_pinned and not self.start.keeps_order):
            return []
        self.best.offer(self.start)
        ops = self.condensed.contract(self.start).op_ids()
        is_roomy = len(ops) <= 2 * int(self.net[rows.OPS, 0]) + 200  # for some recomputes more
        return [ops] if is_roomy else []

    def _improve_first(self, work: int) -> None:
        """A chunk of search on the first track; in parts, which come to the same, when kernels are interpreted."""
        first = self.tracks[0]
        before, step = first.work, INTERPRETED_WORK if self.limits.interpreted else work
        first.improve(step)
        while first.work < before + work and not self.clock.is_over:
            first.improve(min(step, before + work - first.work))
        self.clock.work += first.work - before

    def _reorder(self) -> None:
        """Give all tracks but the first the best order found; stop early when it fits as it is."""
        track = make_track(self.net, self.free_bytes, self.limits.seed, is_pinned=False)
        greedy_starts(track, (), self.options.orders)
        work = self.clock.chunk(chunk_work(self.net), 40)

        def is_over() -> bool:
            share = self.clock.share_used()
            if self.limits.work is not None:
                share = (self.clock.work + track.work) / max(1, self.limits.work)
            return share > 0.2 or self.limits.is_over

        search_order(track, work, 6, is_over)
        self.clock.work += track.work
        self.best.offer(self._expand(track.ops))
        for other in self.tracks[1:] or self.tracks:
            other.begin(track.ops)

    def _round(self) -> None:
        """A chunk of search on each track, in parallel when there are workers; then compare."""
        before = sum(track.work for track in self.tracks)
        work = self.clock.chunk(chunk_work(self.net), len(self.tracks))
        if self.limits.workers > 1 and len(self.tracks) > 1:
            with ThreadPoolExecutor(self.limits.workers) as pool:
                list(pool.map(lambda track: track.improve(work), self.tracks))
        else:
            for track in self.tracks:
                track.improve(work)
        self.clock.work += sum(track.work for track in self.tracks) - before
        self.rounds += 1
        self._offer_best()
        # A track that found nothing for long continues from the best of all, or from a fresh start.
        best = min(self.tracks, key=lambda track: track.rank)
        for track in self.tracks:
            if track.idle_chunks < self.options.restart:
                continue
            if track is best or (track.state is self.tracks[0].state and not self.is_pinned):
                track.begin(track.ops)
            else:
                track.begin(best.ops)

    def _offer_best(self) -> None:
        """Offer the best schedule if it is new, so rarely that judging takes a tenth of the time at most."""
        if time.monotonic() - self.offered_at < 10 * self.offer_seconds:
            return
        began = time.monotonic()
        best = min(self.tracks, key=lambda track: track.rank)
        if best.excess == 0 and (self.best.plan is None or best.time < self.best.plan.time_ns):
            self.best.offer(self._expand(best.ops))
            self.offered_at = time.monotonic()
            self.offer_seconds = self.offered_at - began

    def _expand(self, ops: list[int]) -> Schedule:
        budget_bytes = self.problem.memories[0].budget_bytes
        return self.condensed.expand(Schedule.of_ops(ops), budget_bytes, self.limits.judge)
