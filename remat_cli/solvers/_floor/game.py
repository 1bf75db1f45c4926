"""A pebble game whose least peak is a lower bound on the memory of every schedule, and the search that plays it.

A position is the set of items in memory; an item is a class of tensors that share storage (`_bounds.pressure`). A
move runs an op: its items must be there, the items that it makes appear, and any of those it touches may be given up,
for good. Ops may run any number of times. A move needs the working set of its op and the weights of all items that the
op does not touch; a position needs the weights of its items. The least over all plays of the greatest need is at most
the peak of any schedule that runs the goal:

* At a step of the schedule, its op's working set and the weights of the other classes with an instance in memory fit
  (facts 1 and 2 there). Instances come and go only at steps whose op touches their class, at their births and last
  reads, so the steps up to that of the goal are moves. What stays after a step lies in different storages, so the
  weights of that fit too.
* Fewer items, with all ops that make the remaining ones: what is left out counts as there whenever it is read, and
  steps of other ops count as nothing. An item whose last reader is left out is given up at its last remaining step.

So the game may be played on any part of a problem. Items below a size, and items far from the goal, are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

_POLL = 256  # visits between two looks at the clock


@dataclass(frozen=True)
class Move:
    """Running an op: sets of items as bit masks, the working set in the units of the item weights."""

    op: int
    reads: int
    makes: int
    touches: int
    working: int


@dataclass(frozen=True)
class Game:
    """Items with weights, moves that make them, and the move to reach. `classes[i]` says what item i stands for."""

    weights: tuple[int, ...]
    moves: tuple[Move, ...]
    goal: Move
    classes: tuple[int, ...]

    def weigh(self, items: int) -> int:
        """Sum of the weights of a set."""
        total = 0
        while items:
            low = items & -items
            total += self.weights[low.bit_length() - 1]
            items ^= low
        return total


@dataclass(frozen=True)
class Wall:
    """No play to the goal needs less than `least`; the move and the items (classes) there that stand in the way.

    `move` is None when nothing beyond what was known before is proved. `is_exact`: a play with `least` exists.
    """

    least: int
    move: Move | None
    held: tuple[int, ...]
    is_exact: bool
    positions: int


def least_peak(game: Game, known: int, most_positions: int, should_stop: Callable[[], bool] = lambda: False) -> Wall:
    """Search all positions in reach with need at most `known`, then raise that by as little as opens a new one.

    Complete at each level before the next is begun, so whenever it stops, the level it stands at is proved.
    """
    return _Search(game, known, most_positions, should_stop).run()


@dataclass
class _Search:
    """`beyond` holds positions that need more than the present level, the cheapest first: (need, items, move, from)."""

    game: Game
    level: int
    most_positions: int
    should_stop: Callable[[], bool]
    seen: set[int] = field(default_factory=set)
    open: list[int] = field(default_factory=list)
    beyond: list[tuple[int, int, int, int]] = field(default_factory=list)
    offered: dict[int, int] = field(default_factory=dict)
    wall: tuple[int, int] | None = None
    visits: int = 0

    def run(self) -> Wall:
        goal = len(self.game.moves)
        self._enter(0)
        while not self._exhaust():
            is_stopped = bool(self.open)
            if is_stopped or not self.beyond:
                return self._result(False)
            self.level, items, number, before = heapq.heappop(self.beyond)
            self.wall = number, before
            if number == goal:
                return self._result(True)
            self._enter(items)
        return self._result(True)

    def _result(self, is_exact: bool) -> Wall:
        if self.wall is None:
            return Wall(self.level, None, (), is_exact, len(self.seen))
        number, before = self.wall
        move = self.game.goal if number == len(self.game.moves) else self.game.moves[number]
        held = tuple(name for i, name in enumerate(self.game.classes) if before >> i & 1 and not move.touches >> i & 1)
        return Wall(self.level, move, held, is_exact, len(self.seen))

    def _is_over(self) -> bool:
        self.visits += 1
        return len(self.seen) > self.most_positions or (self.visits % _POLL == 0 and self.should_stop())

    def _enter(self, items: int) -> None:
        if items not in self.seen:
            self.seen.add(items)
            self.open.append(items)

    def _exhaust(self) -> bool:
        """Visit everything in reach at this level, or what there is time for; True when the goal is found."""
        while self.open and not self._is_over():
            if self._visit(self.open.pop()):
                return True
        return False

    def _visit(self, items: int) -> bool:
        goal = self.game.goal
        if not goal.reads & ~items:
            need = goal.working + self.game.weigh(items & ~goal.touches)
            if need <= self.level:
                return True
            heapq.heappush(self.beyond, (need, -1, len(self.game.moves), items))
        for number, move in enumerate(self.game.moves):
            if not move.reads & ~items and move.makes & ~items:
                self._play(items, number, move)
        return False

    def _play(self, items: int, number: int, move: Move) -> None:
        """Run an op and keep every choice of what it touches and that is there, with something new in it."""
        others = items & ~move.touches
        fixed = self.game.weigh(others)
        need = move.working + fixed
        there = (items | move.makes) & move.touches
        new = move.makes & ~items
        for kept in subsets(there):
            after = others | kept
            if kept & new and after not in self.seen:
                self._offer(max(need, fixed + self.game.weigh(kept)), after, number, items)

    def _offer(self, need: int, after: int, number: int, before: int) -> None:
        if need <= self.level:
            self._enter(after)
        elif need < self.offered.get(after, need + 1):
            self.offered[after] = need
            heapq.heappush(self.beyond, (need, after, number, before))


def subsets(items: int) -> Iterator[int]:
    """All subsets of a bit set, the empty one first and all of it last."""
    subset = 0
    while True:
        yield subset
        if subset == items:
            return
        subset = (subset - items) & items


def mask_of(items: Iterable[int]) -> int:
    """A set of small numbers as bits."""
    return sum(1 << item for item in set(items))
