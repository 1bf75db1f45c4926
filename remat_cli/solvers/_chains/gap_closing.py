"""Spend what a schedule leaves of its budget: values that would be recomputed are kept instead.

A gap is the time between the last read of a value and its recompute. To close it the value is held all through, which
saves the recompute and every one that ran only for it, and lets go what those read. Whatever made the schedule, the
most time saved per byte and step goes first, until nothing more fits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.solvers._sharing import Condensed
from remat_cli.solvers.base import Limits

NOTHING = -(2**62)  # what a step takes that is no longer there


def close_gaps(condensed: Condensed, schedule: Schedule, limits: Limits) -> Schedule:
    """The schedule of the condensed problem with gaps closed, as far as the judge finds it within the budget.

    Never slower, and the schedule itself where nothing can be closed or time is over.
    """
    original = condensed.original
    budget = original.memories[0].budget_bytes
    closed = closings(condensed.problem, schedule, lambda: limits.is_over)
    while closed:
        gone = frozenset().union(*closed)
        changed = Schedule(tuple(step for place, step in enumerate(schedule.steps) if place not in gone))
        spelled = condensed.expand(changed, budget, limits.judge)
        if limits.judge(original, spelled).peak <= budget:
            return changed
        closed = closed[: len(closed) // 2]  # views may need more, spelled out, than was counted
    return schedule


def closings(problem: Problem, schedule: Schedule, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
    """Steps to leave out of a one-device schedule, gap by gap, in the order in which they were found to fit."""
    steps = _Steps(problem, schedule.op_ids())
    found: list[frozenset[int]] = []
    while True:
        before = len(found)
        found += _pass(steps, should_stop)
        if len(found) == before or should_stop():
            return found


def _pass(steps: _Steps, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
    """Try every gap once, the best first; what is worth less than when it was ranked goes back into the queue."""
    queue = []
    for place in steps.repeats():
        if should_stop():
            return []
        queue.append((-steps.closing(place).worth, place))
    heapq.heapify(queue)
    found: list[frozenset[int]] = []
    while queue and not should_stop():
        _, place = heapq.heappop(queue)
        if steps.is_gone(place):
            continue
        closing = steps.closing(place)
        if queue and -closing.worth > queue[0][0]:
            heapq.heappush(queue, (-closing.worth, place))
        elif steps.fits(closing):
            steps.leave_out(closing)
            found.append(closing.gone)
    return found


@dataclass
class _Value:
    """An instance: its size, the step that makes it and those that read it, in order; the end is past the last."""

    size_bytes: int
    place: int
    readers: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The last step at which it is there."""
        return self.readers[-1] if self.readers else self.place


@dataclass(frozen=True)
class _Closing:
    """What closing a gap does: steps that go, time saved per byte and step, and (first, past last, bytes) that change.

    `place` is the recompute whose readers take the value made before.
    """

    place: int
    gone: frozenset[int]
    worth: float
    changes: tuple[tuple[int, int, int], ...]


class _Steps:
    """A schedule from which steps go, with the bytes of every step; exact where nothing shares storage."""

    def __init__(self, problem: Problem, ops: list[int]) -> None:
        self.problem, self.ops = problem, ops
        self.free_bytes = problem.memories[0].free_bytes
        self.runs: dict[int, list[int]] = {}
        self.made: list[list[_Value]] = []
        self.read: list[list[_Value]] = []
        self._link()
        self.bytes = self._curve()

    def _link(self) -> None:
        newest: dict[int, _Value] = {}
        for place, op in enumerate(self.ops):
            spec = self.problem.ops[op]
            self.runs.setdefault(op, []).append(place)
            self.read.append([newest[tensor] for tensor in dict.fromkeys(spec.inputs)])
            for value in self.read[-1]:
                value.readers.append(place)
            self.made.append([_Value(self.problem.tensors[t].size_bytes, place) for t in spec.outputs])
            newest.update(zip(spec.outputs, self.made[-1], strict=True))
        for tensor, value in newest.items():
            if self.problem.tensors[tensor].kept:
                value.readers.append(len(self.ops))

    def _curve(self) -> npt.NDArray[np.int64]:
        change = [0] * (len(self.ops) + 2)
        for value in (value for values in self.made for value in values):
            change[value.place] += value.size_bytes
            change[value.last + 1] -= value.size_bytes
        live = np.array(list(accumulate(change))[: len(self.ops)], dtype=np.int64)
        return live + np.array([self.problem.ops[op].workspace_bytes[0] for op in self.ops], dtype=np.int64)

    def is_gone(self, place: int) -> bool:
        """Whether a step has been left out."""
        return int(self.bytes[place]) < 0

    def repeats(self) -> list[int]:
        """The recomputes that are left."""
        return sorted(place for places in self.runs.values() for place in places[1:])

    def closing(self, place: int) -> _Closing:
        """What it takes and brings to close the gap before a recompute."""
        gone = self._go_with(place)
        changes = [*self._given_up(gone), *self._held_instead(place)]
        saved = sum(self.problem.ops[self.ops[step]].time_ns[0] or 0 for step in gone)
        cost = sum((end - begin) * size for begin, end, size in changes)
        return _Closing(place, gone, saved / cost if cost > 0 else math.inf, tuple(changes))

    def fits(self, closing: _Closing) -> bool:
        """Whether no step gets more than the budget through it; those that had more already do not count."""
        after = self._after(closing)
        grown = [(begin, end) for begin, end, size in closing.changes if size > 0]
        return all(after[begin:end].max(initial=NOTHING) <= self.free_bytes for begin, end in grown)

    def leave_out(self, closing: _Closing) -> None:
        """Close a gap."""
        self.bytes = self._after(closing)
        for before, value in self._instances(closing.place):
            before.readers += value.readers
            for step in value.readers:
                if step < len(self.ops):
                    self.read[step] = [before if read is value else read for read in self.read[step]]
        for step in closing.gone:
            self.runs[self.ops[step]].remove(step)
            for value in self.read[step]:
                value.readers.remove(step)

    def _after(self, closing: _Closing) -> npt.NDArray[np.int64]:
        after = self.bytes.copy()
        for begin, end, size in closing.changes:
            after[begin:end] += size
        after[list(closing.gone)] = NOTHING
        return after

    def _go_with(self, place: int) -> frozenset[int]:
        """A recompute and those that ran only for it."""
        gone = {place}
        waiting = list(self.read[place])
        while waiting:
            step = waiting.pop().place
            is_repeat = self.runs[self.ops[step]][0] != step
            if step not in gone and is_repeat and all(gone.issuperset(value.readers) for value in self.made[step]):
                gone.add(step)
                waiting += self.read[step]
        return frozenset(gone)

    def _instances(self, place: int) -> list[tuple[_Value, _Value]]:
        """Each result of a recompute with the instance made before it."""
        runs = self.runs[self.ops[place]]
        before = self.made[runs[runs.index(place) - 1]]
        return list(zip(before, self.made[place], strict=True))

    def _held_instead(self, place: int) -> Iterable[tuple[int, int, int]]:
        """What it takes to hold the values made before; up to the recompute, from when on the bytes are the same."""
        for before, value in self._instances(place):
            if value.readers:
                yield before.last + 1, place, value.size_bytes

    def _given_up(self, gone: frozenset[int]) -> Iterable[tuple[int, int, int]]:
        """What steps that go had made, other than the first of them, and what they were the last to read."""
        values = {id(value): value for step in gone for value in self.read[step]}
        for value in values.values():
            left = [reader for reader in value.readers if reader not in gone]
            begin = value.place if value.place in gone else max([value.place, *left[-1:]]) + 1
            yield begin, value.last + 1, -value.size_bytes
