"""Figures of `bench/classics.py` from its rows: proved optima, ratios to them, and `auto` against the best classic."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from remat_cli.contest.report.bench_run import FAILED, BenchRun

Rows: TypeAlias = Sequence[BenchRun]
Place: TypeAlias = tuple[str, str]
"""Instance and budget."""

RATIO, FREE, PUBLISHED, LONG = "ratio", "free order", "published", "ten minutes"
BEST = "auto"
REFUSED = "cannot take this problem"


@dataclass(frozen=True)
class Optimum:
    """The least time with the order kept; `is_proved`, or only the best that any solver found.

    `solvers` are those that proved it, or found it; `gap_percent` is how far the best proved bound is below it, in
    percent of the baseline's time.
    """

    time: int
    overhead_percent: float
    is_proved: bool
    solvers: tuple[str, ...]
    gap_percent: float


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of time over optimum, over the budgets for which there is a plan; `places` are all budgets."""

    mean: float | None
    feasible: int
    places: int
    is_proved: bool


@dataclass(frozen=True)
class Duel:
    """`auto` and the best classic under one budget; times are None without a plan."""

    place: Place
    order: str
    auto: BenchRun
    rival: BenchRun | None

    @property
    def is_lost(self) -> bool:
        """Whether the classic has a plan that is better, or the only one."""
        if self.rival is None or self.rival.time is None:
            return False
        return self.auto.time is None or self.auto.time > self.rival.time

    @property
    def is_won(self) -> bool:
        """Whether `auto` has a plan that is better, or the only one."""
        if self.auto.time is None:
            return False
        return self.rival is None or self.rival.time is None or self.auto.time < self.rival.time


def of_suite(rows: Rows, *suites: str) -> list[BenchRun]:
    """The rows of these suites."""
    return [row for row in rows if row.suite in suites]


def place_of(row: BenchRun) -> Place:
    """Instance and budget of a row."""
    return row.instance, row.budget


def places_of(rows: Iterable[BenchRun]) -> list[Place]:
    """Every instance and budget once, in the order of the rows."""
    return list(dict.fromkeys(place_of(row) for row in rows))


def networks_of(rows: Rows, *suites: str) -> list[str]:
    """Every instance of these suites once."""
    return list(dict.fromkeys(row.instance for row in of_suite(rows, *suites)))


def labels_of(rows: Iterable[BenchRun]) -> list[str]:
    """Every solver once, `auto` last."""
    labels = dict.fromkeys(row.label for row in rows)
    return sorted(labels, key=lambda label: label == BEST)


def is_refusal(row: BenchRun) -> bool:
    """Whether the solver does not take such a problem, which is no failure."""
    return row.status == "error" and REFUSED in row.message


def failures(rows: Rows) -> list[BenchRun]:
    """Rows that must not be there: broken promises, and processes that died."""
    return [row for row in rows if row.status in FAILED and not is_refusal(row)]


def optimum(rows: Rows, place: Place) -> Optimum | None:
    """The least time of plans in the order of the stages, proved where a solver of any suite proved it.

    Checkmate's stages are a part of the space that `auto` proves for (first computations in order); the least proved
    time is thus the one that no row can be below. None where nothing was found.
    """
    mine = [row for row in rows if place_of(row) == place and row.order == "keep" and row.time is not None]
    if not mine:
        return None
    best = min(mine, key=_time)
    winners = [row for row in mine if row.time == best.time]
    proved = [row for row in winners if row.status == "optimal"]
    names = dict.fromkeys(row.label for row in proved or winners)
    overhead = best.overhead_percent or 0.0
    bounds = [row.lower_bound_percent or 0.0 for row in mine if row.space in ("free", "first_in_order")]
    gap = 0.0 if proved else overhead - max(bounds, default=0.0)
    return Optimum(best.time or 0, overhead, bool(proved), tuple(names), gap)


def ratio(rows: Rows, network: str, label: str, order: str = "keep") -> Ratio | None:
    """A solver's ratio to the optimum on a network; None where it has no row or does not take the problem."""
    here = [row for row in of_suite(rows, RATIO, FREE) if row.instance == network]
    mine = [row for row in here if (row.label, row.order) == (label, order)]
    if not mine or all(is_refusal(row) for row in mine):
        return None
    factors, proofs = [], []
    for row in mine:
        best = optimum(rows, place_of(row))
        if row.time is not None and best is not None:
            factors.append(row.time / best.time)
            proofs.append(best.is_proved)
    mean = statistics.geometric_mean(factors) if factors else None
    return Ratio(mean, len(factors), len(mine), all(proofs))


def duels(rows: Rows, order: str) -> list[Duel]:
    """`auto` in an order against the best classic under every budget of the bench.

    In free order the plans of classics that keep the order count as well, for they are legal there. Of several runs
    of `auto` under one budget the worst counts.
    """
    found = []
    for place in places_of(rows):
        here = [row for row in rows if place_of(row) == place]
        mine = [row for row in here if row.label == BEST and row.order == order]
        if mine:
            rivals = [
                row for row in here if row.label != BEST and row.time is not None and row.order in ("keep", order)
            ]
            worst = max(mine, key=_time)
            found.append(Duel(place, order, worst, min(rivals, key=_time, default=None)))
    return found


def _time(row: BenchRun) -> float:
    return float("inf") if row.time is None else row.time
