"""The backward part in a line, and which of its values are the gradients of which forward values.

The order is that of least memory: what only ends here (gradients of weights, their updates) as soon as it can, then
what reads furthest along the forward line. Updates, and ops that depend on no value of that line, never stand in the
way of a cut: what they hold across one stays in memory all through.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_cli.core.problem import Problem
from remat_cli.solvers._chains.cuts import Line, Net, last_reads


@dataclass(frozen=True)
class Backward:
    """The backward ops in order, with what they read of the forward line.

    For each place: `reads` are places of the forward line; `bears` says whether its op counts in cuts, which updates
    and ops that depend on no value of the line do not.
    """

    ops: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    bears: tuple[bool, ...]


class Backwards:
    """What is known of backward ops before they are in order."""

    def __init__(self, problem: Problem, net: Net, line: Line, late: Sequence[int]) -> None:
        self.net = net
        self.late = sorted(late)
        self.members = set(late)
        place_of = {op: place for place, op in enumerate(line.ops)}
        self.reads = {op: tuple(place_of[s] for s in net.inputs[op] if s in place_of) for op in self.late}
        self.updates = {op for op in self.late if problem.ops[op].phase == "update"}
        self.inputs = {op: [s for s in net.inputs[op] if s in self.members] for op in self.late}
        self.readers = {op: [r for r in net.readers[op] if r in self.members] for op in self.late}
        self.rootless: set[int] = set()
        for op in self.late:
            if not self.reads[op] and self.rootless.issuperset(self.inputs[op]):
                self.rootless.add(op)

    def in_baseline_order(self) -> Backward:
        """Backward ops as they come."""
        return self._view(self.late)

    def by_need(self) -> Backward:
        """What ends here first, then what reads furthest along the line; ops without roots when they are read."""
        waits = {op: sum(s not in self.rootless for s in self.inputs[op]) for op in self.late}
        keys: dict[int, int] = {}
        emitted: dict[int, None] = {}
        ready = [self._entry(op, keys) for op in self.late if waits[op] == 0 and op not in self.rootless]
        heapq.heapify(ready)
        while ready:
            op = heapq.heappop(ready)[2]
            self.net.emit(op, self.rootless, emitted)
            for reader in self.readers[op]:
                waits[reader] -= 1
                if waits[reader] == 0:
                    heapq.heappush(ready, self._entry(reader, keys))
        for op in self.late:
            self.net.emit(op, self.rootless, emitted)
        return self._view(list(emitted))

    def _entry(self, op: int, keys: dict[int, int]) -> tuple[int, int, int]:
        roots = [keys[s] for s in self.inputs[op] if s not in self.rootless]
        keys[op] = max(self.reads[op]) if self.reads[op] else min(roots)
        ends_here = op in self.updates or self.updates.issuperset(self.readers[op])
        return 0 if ends_here else 1, -keys[op], op

    def _view(self, ops: list[int]) -> Backward:
        bears = tuple(op not in self.updates and op not in self.rootless for op in ops)
        return Backward(tuple(ops), tuple(self.reads[op] for op in ops), bears)


class GradientCuts:
    """Answers which place of the backward line goes with a place of the forward line, in linear time each."""

    def __init__(self, net: Net, backward: Backward, forward_places: int) -> None:
        reads = [r if bears else () for r, bears in zip(backward.reads, backward.bears, strict=True)]
        self.last_read = last_reads(
            net, backward.ops, {op for op, bears in zip(backward.ops, backward.bears, strict=True) if bears}
        )
        self.furthest = list(accumulate(self.last_read, max, initial=-1))[:-1]
        self.lowest = list(accumulate((min(r, default=forward_places) for r in reads), min))
        highest_first = accumulate((max(r, default=-1) for r in reversed(reads)), max, initial=-1)
        self.highest = list(highest_first)[-2::-1]

    def first(self, cut: int, start: int) -> int | None:
        """The first backward place from `start` on that one value passes, between what reads behind and before."""
        for place in range(start, len(self.last_read)):
            if self.lowest[place] < cut:
                return None
            if self.furthest[place] <= place < self.last_read[place] and self.highest[place] <= cut:
                return place
        return None

    def obstacle(self, cut: int) -> tuple[int | None, int | None]:
        """Two backward places in the way of forward place `cut`, of which there may be one or none.

        Two: the first reads from before the cut, the second, no earlier, from after it. One: a value made there goes
        past the cut beside the gradient.
        """
        places = range(len(self.last_read))
        beyond = next((place for place in places if self.lowest[place] < cut), len(places))
        late = next((place for place in reversed(places) if place > 0 and self.highest[place - 1] > cut), 0)
        if beyond < len(places) and late >= beyond:
            return beyond, late
        return next((place for place in places[:beyond] if self.last_read[place] >= beyond), None), None


def pair(net: Net, line: Line, backward: Backward) -> tuple[tuple[int, int], ...]:
    """Boundaries from the chain's input on: a forward op and the backward op that makes its gradient.

    Goes from the loss end to the input, and takes for each cut the first place that goes with it.
    """
    cuts = GradientCuts(net, backward, len(line.ops))
    place_of = {op: place for place, op in enumerate(line.ops)}
    found: list[tuple[int, int]] = []
    start = 0
    for op in reversed(line.cuts):
        place = cuts.first(place_of[op], start) if op != line.ops[-1] else None
        if place is not None:
            found.append((op, backward.ops[place]))
            start = place + 1
    return tuple(found[::-1])
