"""Running the placement kernels: a track is one search, with its records and scratch."""

from dataclasses import dataclass

import numpy as np

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.placing import rows
from remat_cli.solvers.placing.search import HEADER, begin, search
from remat_cli.solvers.placing.state import capacity, decode, edges, encode, make_work
from remat_cli.solvers.search.state import Ints

CURRENT, BEST = 0, 1


@dataclass
class PlacementTrack:
    """One search. `mean_ns` is the mean time of an op, the unit of heats; `idle` counts chunks without improvement.

    `restarts` counts how often it was sent elsewhere.
    """

    problem: Problem
    net: Ints
    work: Ints
    records: Ints
    mean_ns: float
    idle: int = 0
    restarts: int = 0

    @property
    def cost(self) -> tuple[int, int]:
        """Excess in byte-steps and time of the best schedule."""
        return int(self.records[BEST, 2]), int(self.records[BEST, 1])

    @property
    def schedule(self) -> Schedule:
        """The best schedule of this track."""
        return decode(self.problem, self.records[BEST, HEADER : HEADER + self.records[BEST, 0]])

    @property
    def evaluations(self) -> int:
        """Schedules followed so far."""
        return int(self.work[rows.NUM, rows.EVALUATIONS])

    def begin(self, schedule: Schedule) -> bool:
        """Stand at a schedule, made legal if it is not, best so far; false if that cannot be done here."""
        codes = encode(self.problem, schedule)
        if len(codes) + HEADER > self.records.shape[1]:
            return False
        self.records[CURRENT, 0] = len(codes)
        self.records[CURRENT, HEADER : HEADER + len(codes)] = codes
        is_legal = begin(self.net, self.work, self.records, CURRENT)
        self.records[BEST] = self.records[CURRENT]
        return is_legal

    def return_to_best(self) -> None:
        """Go on from the best schedule."""
        self.records[CURRENT] = self.records[BEST]

    def improve(self, evaluations: int, heat: float) -> bool:
        """Search until so many schedules more have been followed; whether the best improved. Heat is in mean ops."""
        before = self.cost
        search(self.net, self.work, self.records, heat * self.mean_ns, evaluations)
        self.idle = 0 if self.cost < before else self.idle + 1
        return self.cost < before


def make_track(problem: Problem, net: Ints, seed: int) -> PlacementTrack:
    """A track that stands nowhere yet."""
    records = np.zeros((2, capacity(net) + HEADER), np.int64)
    return PlacementTrack(problem, net, make_work(net, seed), records, problem.baseline_time_ns / len(problem.ops))


def chunk_evaluations(net: Ints) -> int:
    """Schedules to follow between looks at the clock: some 12 ms."""
    return max(40, 500_000 // (edges(net) + 2 * int(net[rows.DIMS, rows.TENSORS]) + 20))
