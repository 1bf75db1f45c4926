"""From a solution without integers to schedules: which tensors to hold between stages, and what follows from that.

Sections of Jain et al. 2020: two-phase rounding fixes S by a threshold or at random, then completes R.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.published._staged.rounding import (
    COST,
    EVENTS,
    NUM,
    PEAK,
    TRIES,
    Flags,
    complete,
    delay,
    make_room,
    prune,
    settle,
)
from remat_cli.solvers.search import rows
from remat_cli.solvers.search.state import Ints, make_net

Rounding: TypeAlias = Literal["both", "deterministic", "randomised"]
Shares: TypeAlias = NDArray[np.float64]
"""S[t, x] from 0 to 1: tensor x, numbered as in the net, in memory when stage t begins; the last row is the end."""

_CERTAIN = 1e-6


def guesses(
    shares: Shares, rounding: Rounding, thresholds: int, samples: int, seed: int
) -> Iterator[tuple[str, Flags]]:
    """What to hold, each with a name for how it was chosen: the threshold, or what was drawn.

    Thresholds first, from low to high; then samples, that hold each tensor in each stage with its share.
    Every other sample draws once per tensor for all stages, as a threshold of its own: a tensor is then held in one
    stretch, where draws for each stage would have it made again and again.
    """
    if rounding != "randomised":
        # The distinct shares above zero; where these are too many, as many of them, evenly spread.
        found = np.unique(np.round(shares[shares > _CERTAIN], 6))
        if len(found) > thresholds:
            found = np.unique(found[np.linspace(0, len(found) - 1, thresholds).round().astype(int)])
        for threshold in map(float, found):
            yield f"threshold {threshold:.6g}", (shares >= threshold - _CERTAIN).astype(np.uint8)
    if rounding != "deterministic":
        draw = np.random.default_rng(seed)
        for number in range(samples):
            size = shares.shape if number % 2 else (1, shares.shape[1])
            how = "drawn for each stage" if number % 2 else "drawn for each tensor"
            yield how, (draw.random(size) < shares).astype(np.uint8)


def number_tensors(problem: Problem) -> list[int]:
    """For each tensor its number in the net: op by op, in the order of outputs."""
    order = [tensor for op in problem.ops for tensor in op.outputs]
    return sorted(range(len(order)), key=order.__getitem__)


@dataclass(frozen=True)
class RoundedPlan:
    """A schedule in stages as a rising list of events, with what it takes in time and (nothing fixed) bytes."""

    time_ns: int
    peak_bytes: int
    events: Ints

    def schedule(self, ops: int) -> Schedule:
        """The ops of the events, in their order."""
        return Schedule.of_ops([int(event) % ops for event in self.events])


class Rounder:
    """Makes, measures and betters candidates of a condensed problem within a number of bytes, nothing fixed."""

    def __init__(self, condensed: Condensed, free_bytes: int) -> None:
        self.net = make_net(condensed.problem, condensed.in_place)
        self.ops = int(self.net[rows.OPS, 0]) - 1
        self.free_bytes = free_bytes
        self._state = make_room(self.net, free_bytes)

    def round(self, held: Flags) -> RoundedPlan:
        """The least that makes what is held."""
        complete(self.net, held, self._state)
        settle(self.net, self._state, EVENTS)
        return self._measured()

    def measure(self, events: Sequence[int]) -> RoundedPlan:
        """A candidate of any events."""
        self._load(events)
        settle(self.net, self._state, EVENTS)
        return self._measured()

    def better(self, candidate: RoundedPlan) -> RoundedPlan:
        """Without the recomputes that can go, the most expensive first; then put off where that helps, and again."""
        first = self._pruned(candidate)
        self._load(first.events)
        delay(self.net, self._state)
        return min(first, self._pruned(self._measured()), key=self.rank)

    def steps_to_better(self, candidate: RoundedPlan) -> int:
        """About how many steps are measured for that."""
        length = len(candidate.events)
        return 3 * (length - self.ops + 1) * length

    def rank(self, candidate: RoundedPlan) -> tuple[int, int]:
        """Excess, then time: less is better."""
        return max(0, candidate.peak_bytes - self.free_bytes), candidate.time_ns

    def _pruned(self, candidate: RoundedPlan) -> RoundedPlan:
        if candidate.peak_bytes > self.free_bytes:
            return candidate
        self._load(candidate.events)
        times = self.net[rows.TIME, candidate.events % self.ops]
        self._state[TRIES, : len(times)] = candidate.events[np.argsort(-times, kind="stable")]
        self._state[NUM, TRIES] = len(times)
        prune(self.net, self._state)
        return self._measured()

    def _load(self, events: Sequence[int] | Ints) -> None:
        self._state[EVENTS, : len(events)] = events
        self._state[NUM, EVENTS] = len(events)

    def _measured(self) -> RoundedPlan:
        length, cost, peak = (int(self._state[NUM, entry]) for entry in (EVENTS, COST, PEAK))
        return RoundedPlan(cost, peak, self._state[EVENTS, :length].copy())
