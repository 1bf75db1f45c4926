"""The least budget that a given overhead buys: what `--budget min` means."""

import time
from dataclasses import dataclass, replace

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits
from remat_cli.solvers.floor.proof import proved_floor
from remat_cli.solvers.search.state import make_net
from remat_cli.solvers.search.tracks import Clock, Track, chunk_work, least_peak_order, make_track

PATIENCE = 6  # chunks without improvement after which a target counts as out of reach
ATTEMPTS = 3
HEAT = 0.05  # of the mean op time: how much slower a step of the search may make the schedule
FLOOR_SECONDS = 2.0  # for a proved floor, below which it is not worth searching
KERNELS = ("search.warmup",)  # what is compiled for it
FINEST = 1000  # the search ends when targets differ by less than this fraction of the peak


def find_least_budget(problem: Problem, limits: Limits, max_overhead: float) -> Schedule | None:
    """The schedule of least peak found whose time is at most (1 + max_overhead) times the baseline's.

    Starts from the baseline (in free order also from an order of low peak), then searches for plans under falling
    targets, each from the last plan found: a bisection between the peak reached and the floor, whose lower end rises
    when a target is not met. Any peak it returns is one that the judge confirmed; nothing is proved about smaller
    ones. The budget in `problem` is not used. None if there are several devices, or the overhead is negative.
    """
    if len(problem.devices) != 1 or max_overhead < 0:
        return None
    return _Descent(problem, limits, max_overhead).run()


@dataclass
class _Descent:
    problem: Problem
    limits: Limits
    max_overhead: float

    def __post_init__(self) -> None:
        self.clock = Clock(self.limits)
        self.condensed = condense(self.problem)
        self.fixed_bytes = self.problem.memories[0].fixed_bytes
        self.most_ns = int(self.problem.baseline_time_ns * (1 + self.max_overhead))
        self.best: Plan = baseline(self.problem)
        # Where the search stands: it may count more memory than the judge, so it keeps steps of its own.
        self.ops: list[int] = list(range(len(self.condensed.problem.ops)))

    def run(self) -> Schedule:
        # The best floor that a little of the time proves; that of single steps where only work counts.
        if self.limits.work is not None:
            floor = working_set_floor(self.problem).bytes[0]
        else:
            seconds = min(FLOOR_SECONDS, self.limits.seconds_left / 10)
            floor = proved_floor(self.problem, replace(self.limits, seconds=seconds, started=time.monotonic())).bytes
        if self.limits.order == "free" and self.best.peak > floor:
            limits, clock = self.limits, self.clock
            self._take(
                least_peak_order(self.condensed, limits.seed, lambda: limits.is_over or clock.share_used() > 0.3)
            )
        if self.max_overhead > 0:
            # Bisect from the best schedule, then from the baseline, then from the best with other random numbers.
            net = make_net(self.condensed.problem, self.condensed.in_place)
            is_pinned = self.limits.order == "keep"
            mean_ns = self.condensed.problem.baseline_time_ns / max(1, len(self.condensed.problem.ops))
            baseline_ops = list(range(len(self.condensed.problem.ops)))
            for attempt in range(ATTEMPTS):
                track = make_track(net, 0, self.limits.seed + attempt, is_pinned, HEAT * mean_ns)
                # Lower the peak reached towards the floor, or the highest target missed, starting from `ops`.
                ops = baseline_ops if attempt == 1 else self.ops
                low = floor
                while self.best.peak - low > self.best.peak // FINEST and not self.clock.is_over:
                    target = low + (self.best.peak - low) // 2
                    track.begin(ops)
                    if self._reach(track, target):
                        ops = self.ops
                    else:
                        low = target
        return self.best.schedule

    def _take(self, ops: list[int]) -> bool:
        """Judge a schedule of the search; keep it if it is within the overhead and needs less."""
        plan = simulate(self.problem, self.condensed.expand(Schedule.of_ops(ops)))
        if plan.time_ns > self.most_ns or plan.peak >= self.best.peak:
            return False
        self.best, self.ops = plan, ops
        return True

    def _reach(self, track: Track, target: int) -> bool:
        """Search until a plan within the target (total bytes) and the overhead is found; False if none is."""
        track.set_budget(target - self.fixed_bytes)
        idle = 0
        while idle < PATIENCE and not self.clock.is_over:
            before, work = track.rank, track.work
            track.improve(self.clock.chunk(chunk_work(track.net), 1))
            self.clock.work += track.work - work
            idle = 0 if track.rank < before else idle + 1
            if track.excess == 0 and track.time <= self.most_ns:
                return self._take(track.ops)
        return False
