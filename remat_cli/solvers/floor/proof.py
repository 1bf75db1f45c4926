"""A proved least budget for any order and any number of recomputes: stronger than the working set of one op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits, ProvedFloor
from remat_cli.solvers.bounds.pressure import Pressure, make_pressure
from remat_cli.solvers.floor.game import Game, least_peak, make_game, make_sketch


class _Round(NamedTuple):
    """Items of at least 1/share of the floor, at most so many, searched in at most so many positions per goal."""

    share: int
    items: int
    positions: int


_ROUNDS = (
    _Round(3, 6, 300),
    _Round(6, 10, 1_000),
    _Round(12, 14, 5_000),
    _Round(24, 20, 20_000),
    _Round(96, 28, 100_000),
    _Round(1 << 60, 1 << 60, 500_000),
)


def proved_floor(problem: Problem, limits: Limits) -> ProvedFloor:
    """The best floor provable within the limits, at least `working_set_floor`. The problem's budget plays no role.

    The first rounds, which say most, take a fraction of a second for a hundred ops; all of them may take very long.
    """
    *_, last = [_of_single_steps(problem), *improving_floors(problem, limits)]
    return last


def impossible(problem: Problem, limits: Limits) -> ProvedFloor | None:
    """A floor above the budget, or None if none is found within the limits; quicker than to look for the best floor."""
    floor = _of_single_steps(problem)
    budget = problem.memories[0].budget_bytes
    if floor.bytes > budget or len(problem.devices) != 1:
        return floor if floor.bytes > budget else None
    pressure = make_pressure(problem)
    return next(_climb(_Climb(problem, pressure, pressure.capacity), limits), None)


def improving_floors(problem: Problem, limits: Limits) -> Iterator[ProvedFloor]:
    """Every rise of the floor above that of single steps, as it is proved; one device only.

    Plays games on ever larger parts of the problem until all of it has been played or time is up.
    """
    if len(problem.devices) == 1:
        pressure = make_pressure(problem)
        known = (working_set_floor(problem).bytes[0] - problem.memories[0].fixed_bytes) // pressure.byte_unit
        yield from _climb(_Climb(problem, pressure, known), limits)


def _climb(climb: _Climb, limits: Limits) -> Iterator[ProvedFloor]:
    for round_ in _ROUNDS:
        if limits.is_over:
            return
        yield from climb.play(round_, limits)


def _of_single_steps(problem: Problem) -> ProvedFloor:
    floor = working_set_floor(problem)
    return ProvedFloor(floor.bytes[0], () if floor.ops[0] is None else (floor.ops[0],))


@dataclass
class _Climb:
    """`least` is what is known so far, in the units of `pressure`; `won[g]` the last game that reached goal g."""

    problem: Problem
    pressure: Pressure
    least: int
    won: dict[int, Game] = field(default_factory=dict)
    positions: int = 0

    def play(self, round_: _Round, limits: Limits) -> Iterator[ProvedFloor]:
        """Play one round of the proof over all goals."""
        sketch = make_sketch(self.pressure, self.least // round_.share)
        for goal in sorted(sketch.steps):
            if limits.is_over:
                return
            game = make_game(sketch, goal, round_.items)
            if game == self.won.get(goal):
                continue
            wall = least_peak(game, self.least, round_.positions, lambda: limits.is_over)
            self.positions += wall.positions
            if wall.is_exact:
                self.won[goal] = game
            if wall.move is not None:
                self.least = wall.least
                count = len(self.problem.ops)
                ops = tuple(dict.fromkeys(op for op in (goal, wall.move.op) if op < count))
                total = self.problem.memories[0].fixed_bytes + self.least * self.pressure.byte_unit
                yield ProvedFloor(total, ops, wall.held, {"positions": self.positions})
