"""Placement on several devices, with recomputation, copies that stay, and offloading; scales to thousands of ops."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import msgspec

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._knowledge import Knowledge
from remat_cli.solvers.base import Limits, Reason, Solution, Solver, Status
from remat_cli.solvers.bounds.devices import improving_device_bounds
from remat_cli.solvers.placing.exact import solve_exact
from remat_cli.solvers.placing.starts import lift, make_home, plain_starts, relaxed_problem, single_problem
from remat_cli.solvers.placing.state import make_net
from remat_cli.solvers.placing.tracks import PlacementTrack, chunk_evaluations, make_track

HEATS = ((0.02, 0.1, 0.5, 0.004), (0.02, 0.1, 0.5, 2.0, 8.0))  # of the mean op time, for every other track
FIRST_SECONDS = 0.5  # for a first plan by local search on a small problem, before the exact model
HOME_SHARE = 0.25  # of the time left, for all in one memory
SHARED_SHARE = 0.7  # of the time left, for the one-device problem below devices that share a memory
EXACT_SHARE = 0.6
ALONE_SHARE = 0.5  # of the time, for the search, before a single worker turns to bounds
BOUND_SHARE = 0.7  # of what is left then, for these
WORTH = 1.1  # a start that fits but takes so many times as long as the best is left alone

Place: TypeAlias = Callable[[Schedule], Schedule | None]


class PlacementSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For every op the device, and what to copy, keep, drop, offload and recompute, within each memory's budget.

    Large-neighbourhood search over whole schedules: some recomputes and copies are taken out, ops change devices, or
    steps move; what is missing then is copied or computed anew, and what is over budget is relieved by a recompute, a
    copy from where the value still is, or a copy out and back, by bytes removed per time. Every candidate is followed
    exactly (some 30,000 a second and core at 350 ops). It starts from plain placements, from the cheapest cut between
    two memories, and from each memory alone, which is a problem of one device. Devices that share one memory are one
    device with a choice of time and workspace for each op. Small problems also go to an exact model. Bounds rise
    beside the search; with one worker they follow most of it, and with a work limit there are none.

    `tracks` searches share the time, every other one of them hot. One that found nothing better for `restart` chunks
    (some 12 ms each) goes on from the best of all, or begins anew from a start that does not fit. `exact_ops` is how
    many ops a problem for the exact model has at most. All ends `patience` seconds after the last news (for up to 100
    ops, in proportion more for more; 0: use all the time).
    """

    name: ClassVar[str] = "placement"
    summary: ClassVar[str] = "devices, copies, offloading and recomputes by local search; the default for several"
    takes: ClassVar[str] = "Any number of devices."
    proves: ClassVar[str] = "optimal, infeasible, bound"

    tracks: int = 4
    restart: int = 60
    exact_ops: int = 15
    patience: float = 20.0

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return None

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """Those of the search for one device, which it runs on each memory alone, and its own."""
        return ("search.warmup",) if len(problem.devices) == 1 else ("placing.warmup", "search.warmup")

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """Search until optimal, out of time or work, within the gap, told to stop, or out of patience."""
        if len(problem.devices) == 1:
            return _make("auto").solve(problem, limits, start)
        return _Session(self, problem, limits, start).run()


def _make(name: str) -> Solver:
    from remat_cli.solvers import make_solver

    return make_solver(name)


@dataclass
class _Session:
    """One call of the solver: starts, local search, bounds and the exact model take turns."""

    options: PlacementSearch
    problem: Problem
    limits: Limits
    start: Schedule | None

    def __post_init__(self) -> None:
        self.known = Knowledge(self.problem, self.limits, self.options.patience)
        self.net = make_net(self.problem, self.limits.order == "keep")
        self.pool: list[Schedule] = []
        self.made: list[PlacementTrack] = []
        self.others: list[Schedule] = []

    def run(self) -> Solution:
        """Try the starts, then search while bounds rise."""
        self.limits.report(None, self.known.bound_ns)
        for schedule in [*([] if self.start is None else [self.start]), *plain_starts(self.problem)]:
            # A start for the search, and a plan if it fits.
            self.known.offer(schedule)
            self.pool.append(schedule)
        if self.limits.work is not None or len(self.problem.memories) == 1:
            self._search(1.0)
        elif self.limits.workers > 1:
            with ThreadPoolExecutor(1) as executor:
                bounds = executor.submit(self._raise_bounds, 1.0)
                try:
                    self._search(1.0)
                finally:
                    self.known.finished.set()
                bounds.result()
        else:
            self._search(ALONE_SHARE)
            self._raise_bounds(BOUND_SHARE)
            self._improve(1.0)
        return self.known.solution()

    def _search(self, share: float) -> None:
        """All parts once, then local search until this share of what is left now is used."""
        end = time.monotonic() + self.limits.seconds_left * share
        if len(self.problem.memories) == 1:
            # Devices with one memory between them: the relaxed problem, whose bounds hold, then each device alone.
            relaxed = relaxed_problem(self.problem)
            problems = [relaxed]
            for device in range(len(self.problem.devices)):
                alone = single_problem(self.problem, device)
                if alone is not None and alone not in problems:
                    problems.append(alone)
            home = make_home(self.problem, 0)
            if home is not None and home.problem not in problems:
                problems.append(home.problem)
            for number, problem in enumerate(problems):
                part = SHARED_SHARE if number == 0 else HOME_SHARE
                if not self.known.should_end() and (
                    self.known.best_ns is None or problem.baseline_time_ns < self.known.best_ns
                ):
                    self._solve_below("auto", problem, partial(lift, self.problem, problem), part, problem is relaxed)
        elif len(self.problem.ops) <= self.options.exact_ops:
            # A tenth of what is left, or so many seconds if that is less.
            self._improve(min(0.1, FIRST_SECONDS / max(1e-9, self.limits.seconds_left)))
            # The exact model; what it proves holds in the space asked for.
            if not self.known.should_end():
                limits = self.known.part(EXACT_SHARE)
                outcome = solve_exact(self.problem, limits, self.known.best)
                self.known.facts["exact"] = outcome.facts
                self.known.work += limits.work or 0
                if outcome.status is Status.INFEASIBLE:
                    self.known.raise_bound(None)
                self.known.take(outcome.schedule, outcome.bound_ns)
        else:
            self._go_home()
        self._improve(max(0.0, end - time.monotonic()) / max(1e-9, self.limits.seconds_left))

    def _go_home(self) -> None:
        """All in one memory, by local search for one device: as good as it is possible without other devices."""
        homes = [home for memory in range(len(self.problem.memories)) if (home := make_home(self.problem, memory))]
        homes.sort(key=lambda home: home.problem.baseline_time_ns)
        for home in homes[:2]:
            if self.known.best_ns is not None and home.problem.baseline_time_ns >= self.known.best_ns:
                continue
            if self.known.should_end():
                return
            if working_set_floor(home.problem).bytes[0] <= home.problem.memories[0].budget_bytes:
                self._solve_below("local-search", home.problem, home.lift, HOME_SHARE, False)

    def _solve_below(self, solver: str, problem: Problem, place: Place, share: float, has_bounds: bool) -> None:
        """Solve a one-device problem and place what comes of it."""

        def report(schedule: Schedule | None, bound_ns: int | None) -> None:
            placed = None if schedule is None else place(schedule)
            if placed is not None:
                self.known.offer(placed)
            if bound_ns is not None and has_bounds:
                self.known.raise_bound(bound_ns)

        limits = self.known.part(share, report)
        solution = _make(solver).solve(problem, limits, None)
        self.known.work += limits.work or 0
        report(solution.schedule, solution.bound_ns)
        placed = None if solution.schedule is None else place(solution.schedule)
        if placed is not None:
            self.pool.insert(0, placed)
        if solution.status is Status.INFEASIBLE and has_bounds and solution.space in (self.limits.space, "free"):
            self.known.raise_bound(None)

    def _raise_bounds(self, share: float) -> None:
        """Better and better bounds until told to stop."""
        limits = self.known.part(share)
        for bound in improving_device_bounds(self.problem, limits, lambda: self.known.best_ns):
            self.known.facts["bound"] = {"method": bound.method, "seconds": bound.seconds}
            self.known.raise_bound(bound.time_ns)
            if self.known.should_end():
                return

    def _improve(self, share: float) -> None:
        """Local search on every track in turns, until this share of what is left is used."""
        end, most = (
            time.monotonic() + self.limits.seconds_left * share,
            (
                float("inf")
                if self.limits.work is None
                else self.known.work + max(1, int((self.limits.work - self.known.work) * share))
            ),
        )
        tracks = list(self._tracks())
        with ThreadPoolExecutor(self._threads) as executor:
            for turn in itertools.count():
                if not tracks or self.known.should_end() or time.monotonic() >= end or self.known.work >= most:
                    break
                chunk = min(chunk_evaluations(self.net), max(1, (most - self.known.work) // len(tracks)))
                self._take_turn(executor, tracks, int(chunk), turn)
        self.known.facts["followed"] = sum(track.evaluations for track in self.made)

    @property
    def _threads(self) -> int:
        """Threads for tracks; one worker of several raises bounds."""
        return 1 if self.limits.work is not None else max(1, self.limits.workers - 1)

    def _take_turn(self, executor: ThreadPoolExecutor, tracks: list[PlacementTrack], chunk: int, turn: int) -> None:
        before = sum(track.evaluations for track in tracks)
        heats = [HEATS[number % 2][turn % len(HEATS[number % 2])] for number in range(len(tracks))]
        list(executor.map(lambda track, heat: track.improve(chunk, heat), tracks, heats))
        self.known.work += sum(track.evaluations for track in tracks) - before
        for track in tracks:
            excess, time_ns = track.cost
            if excess == 0 and (self.known.best_ns is None or time_ns < self.known.best_ns):
                self.known.offer(track.schedule)
            if track.idle >= self.options.restart:
                # Go on from the best of all or the track's own, now and then anew from a start that does not fit. The
                # first track is always near the best; one that is not within the budgets is given more time.
                track.idle, track.restarts = 0, track.restarts + 1
                is_within, best = track.cost[0] == 0, self.known.best
                often = 2 if is_within else 4
                if track is not self.made[0] and self.others and track.restarts % often == 0:
                    track.begin(self.others[track.restarts // often % len(self.others)])
                elif is_within and best is not None and track.cost[1] > (self.known.best_ns or 0):
                    track.begin(best)
                else:
                    track.return_to_best()

    def _tracks(self) -> Iterator[PlacementTrack]:
        """Tracks at the best plan and at the best of the other starts."""
        if not self.made:
            count = max(self.options.tracks, self._threads)
            self.made = [make_track(self.problem, self.net, self.limits.seed + i) for i in range(count)]
        best = [] if self.known.best is None else [self.known.best]
        # Starts that fit and starts that do not, by excess and time, each once; slow ones that fit are left out.
        starts = [*best, *self.pool]
        probe = self.made[0]
        found: dict[tuple[int, int], Schedule] = {}
        for schedule in starts:
            if probe.begin(schedule) and not (
                self.known.best_ns is not None and probe.cost[0] == 0 and probe.cost[1] > WORTH * self.known.best_ns
            ):
                found.setdefault(probe.cost, schedule)
        ranked = sorted(found)
        fitting, others = [found[c] for c in ranked if c[0] == 0], [found[c] for c in ranked if c[0] > 0]
        self.others = others
        # All but the first begin at what does not fit: other ways down than from what does.
        for number, track in enumerate(self.made):
            own = fitting or others if number == 0 else others or fitting
            if own and track.begin(own[max(0, number - 1) % len(own)]):
                yield track
