"""Medians over seeds and comparisons of solvers, from the runs of a bench. What was not reached counts as worst."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from remat_cli.report.bench_run import BenchRun

SAME_PERCENT = 0.005  # overheads nearer than this are equal
LEAST_SECONDS = 1e-4  # times are recorded to this

Row: TypeAlias = tuple[str, str, str]
"""Instance, budget, order."""


@dataclass(frozen=True)
class Group:
    """The runs of one solver on one instance under one budget: one per seed."""

    row: Row
    label: str
    runs: tuple[BenchRun, ...]

    def median(self, value: Callable[[BenchRun], float | None]) -> float | None:
        """The median over seeds; None counts as larger than any number, and None comes out if the median is that."""
        numbers = [math.inf if (found := value(run)) is None else found for run in self.runs]
        middle = statistics.median(numbers)
        return middle if math.isfinite(middle) else None

    @property
    def overhead_percent(self) -> float | None:
        """Median overhead; None where half the runs or more found no plan."""
        return self.median(lambda run: run.overhead_percent)

    @property
    def bound_percent(self) -> float | None:
        """Median bound; a run without one counts as 0, which every plan takes at least."""
        bounds = [run.lower_bound_percent for run in self.runs if run.status not in ("error", "crashed", "overran")]
        if all(bound is None for bound in bounds):
            return None
        return statistics.median(bound or 0.0 for bound in bounds)

    @property
    def target_percent(self) -> float | None:
        """The published overhead."""
        return self.runs[0].target_percent

    def seconds_to(self, overhead_percent: float) -> float | None:
        """Median time until a plan with at most this overhead was there."""
        return self.median(lambda run: seconds_to(run, overhead_percent))


@dataclass(frozen=True)
class Duel:
    """Two solvers on all rows that both ran: who is better where, and how much sooner one reaches the other's result.

    `speed_up` is the median, over the rows in which the first reaches the median overhead that the second ends with,
    of the second's time to it divided by the first's; `reached` counts these rows. `only_first` and `only_second` are
    rows in which just one of them finds plans.
    """

    first: str
    second: str
    rows: int
    better: int
    equal: int
    worse: int
    only_first: int
    only_second: int
    reached: int
    speed_up: float | None


def group_runs(runs: Iterable[BenchRun]) -> tuple[Group, ...]:
    """Runs by row and solver, rows in the order of the file."""
    found: dict[tuple[Row, str], list[BenchRun]] = {}
    for run in runs:
        found.setdefault(((run.instance, run.budget, run.order), run.label), []).append(run)
    rows = list(dict.fromkeys(row for row, _ in found))
    labels = list(dict.fromkeys(label for _, label in found))
    pairs = sorted(found, key=lambda pair: (rows.index(pair[0]), labels.index(pair[1])))
    return tuple(Group(row, label, tuple(found[row, label])) for row, label in pairs)


def seconds_to(run: BenchRun, overhead_percent: float) -> float | None:
    """When a run first had a plan with at most this overhead (printed figures are rounded: a hair more is allowed)."""
    limit = overhead_percent + 1e-9
    times = (seconds for seconds, overhead, _ in run.trace if overhead is not None and overhead <= limit)
    return next((max(LEAST_SECONDS, seconds) for seconds in times), None)


def speed_up(group: Group, reference: Group | None) -> float | None:
    """How many times sooner than the reference a solver is at the target.

    Where there is no target, or the reference never gets there, at what the reference ends with.
    """
    if reference is None or reference is group:
        return None
    goals = [goal for goal in (group.target_percent, reference.overhead_percent) if goal is not None]
    reached = next((goal for goal in goals if reference.seconds_to(goal) is not None), None)
    return _sooner(group, reference, reached)


def duel(groups: Sequence[Group], first: str, second: str) -> Duel:
    """Compare two solvers on the rows that both ran."""
    mine = {group.row: group for group in groups if group.label == first}
    theirs = {group.row: group for group in groups if group.label == second}
    pairs = [(mine[row], theirs[row]) for row in mine if row in theirs]
    signs = [_compare(one.overhead_percent, other.overhead_percent) for one, other in pairs]
    ratios = [ratio for one, other in pairs if (ratio := _sooner(one, other, other.overhead_percent)) is not None]
    return Duel(
        first=first,
        second=second,
        rows=len(pairs),
        better=signs.count("better"),
        equal=signs.count("equal"),
        worse=signs.count("worse"),
        only_first=signs.count("only first"),
        only_second=signs.count("only second"),
        reached=len(ratios),
        speed_up=statistics.median(ratios) if ratios else None,
    )


def _compare(one: float | None, other: float | None) -> str:
    if one is None or other is None:
        return "neither" if one is other else ("only second" if one is None else "only first")
    if abs(one - other) <= SAME_PERCENT:
        return "equal"
    return "better" if one < other else "worse"


def _sooner(one: Group, other: Group, goal: float | None) -> float | None:
    """The other's time to an overhead divided by this one's."""
    slow, fast = (None, None) if goal is None else (other.seconds_to(goal), one.seconds_to(goal))
    return None if slow is None or fast is None else slow / fast


def smallest_fraction(runs: Iterable[BenchRun]) -> float | None:
    """The smallest budget, as a fraction of the baseline's peak, under which one of these runs found a plan."""
    fractions = [float(run.budget) for run in runs if run.has_plan]
    return min(fractions, default=None)


def moves_per_second(run: BenchRun) -> float | None:
    """Search moves per second and core: as the solver says, else moves by CPU time, bounds and all included."""
    said = _find(run.facts, "moves_per_second_per_core")
    if said:
        return max(said)
    moves = _find(run.facts, "moves")
    return sum(moves) / run.cpu_seconds if moves and run.cpu_seconds else None


def _find(facts: Mapping[str, Any], key: str) -> list[float]:
    """All numbers of that name in nested facts."""
    own = [facts[key]] if isinstance(facts.get(key), int | float) else []
    nested = [found for value in facts.values() if isinstance(value, dict) for found in _find(value, key)]
    return own + nested
