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

Sketches are such parts: only large storage, chains shortened, the surroundings of one op.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from remat_cli.solvers.bounds.pressure import Pressure

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

    def _enter(self, items: int) -> None:
        if items not in self.seen:
            self.seen.add(items)
            self.open.append(items)

    def _exhaust(self) -> bool:
        """Visit everything in reach at this level, or what there is time for; True when the goal is found."""
        goal = self.game.goal
        while self.open:
            self.visits += 1
            if len(self.seen) > self.most_positions or (self.visits % _POLL == 0 and self.should_stop()):
                return False
            items = self.open.pop()
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
                most = max(need, fixed + self.game.weigh(kept))
                if most <= self.level:
                    self._enter(after)
                elif most < self.offered.get(after, most + 1):
                    self.offered[after] = most
                    heapq.heappush(self.beyond, (most, after, number, items))


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


# Choices of what to give up after a move double with each item it touches; lighter items are left out beyond this.
_MOST_TOUCHED = 9


@dataclass
class SketchStep:
    """An op over items (classes of at least some weight). `touches` are those that its working set counts."""

    op: int
    reads: set[int]
    makes: set[int]
    touches: set[int]
    working: int


@dataclass
class Sketch:
    """The steps of a problem over its large storage, by op; `maker[c]` is the op whose step makes item c.

    The step after the last op, if there is one, is the end: all kept tensors together, each in a buffer of its own.
    """

    weight: tuple[int, ...]
    steps: dict[int, SketchStep]
    maker: dict[int, int]

    def readers(self) -> dict[int, set[int]]:
        """The ops whose steps read each item."""
        readers: dict[int, set[int]] = {item: set() for item in self.maker}
        for step in self.steps.values():
            for item in step.reads:
                readers[item].add(step.op)
        return readers


def make_sketch(pressure: Pressure, least_weight: int) -> Sketch:
    """All items of at least a weight, and the ops that touch any; chains shortened where nothing is lost."""
    large = {root for root in set(pressure.class_of) if pressure.weight[root] >= max(1, least_weight)}
    steps: dict[int, SketchStep] = {}
    maker: dict[int, int] = {}
    for op, spec in enumerate(pressure.problem.ops):
        reads = {pressure.class_of[tensor] for tensor in spec.inputs} & large
        makes = ({pressure.class_of[tensor] for tensor in spec.outputs} & large) - reads
        if reads or makes:
            # Without the reads that are too many to choose from; they then count in the working set only.
            step = SketchStep(op, reads, makes, reads | makes, pressure.working[op])
            most = max(1, _MOST_TOUCHED - len(step.makes))
            step.reads = set(heapq.nlargest(most, step.reads, key=lambda item: (pressure.weight[item], item)))
            steps[op] = step
            maker.update(dict.fromkeys(makes, op))
    kept = pressure.kept
    items = {pressure.class_of[tensor] for tensor in kept} & large
    size = sum(pressure.problem.tensors[tensor].size_bytes for tensor in kept) // pressure.byte_unit
    end = SketchStep(len(pressure.problem.ops), items, set(), set(items), size)
    if end.reads:
        steps[end.op] = end
    sketch = Sketch(pressure.weight, steps, maker)
    # Run the only reader of an item directly after its maker, or its maker directly before it, until none is left.
    # v reads x alone and makes y alone. If x has no other reader and y weighs no more, y may be held wherever x is: u,
    # the maker of x, makes y instead. If y has one reader r and x weighs no more, x may be held wherever y is: r reads
    # x instead. Needs only fall, so this is valid; nothing is lost where v fits wherever u, or r, does.
    readers = sketch.readers()
    for op in sorted(sketch.steps):
        step = sketch.steps[op]
        if len(step.reads) == len(step.makes) == 1:
            (source,), (result,) = step.reads, step.makes
            if source in sketch.maker and not _join_maker(sketch, readers, step, source, result):
                _join_reader(sketch, readers, step, source, result)
    return sketch


def _join_maker(sketch: Sketch, readers: dict[int, set[int]], step: SketchStep, source: int, result: int) -> bool:
    maker = sketch.steps[sketch.maker[source]]
    beside = sum(sketch.weight[item] for item in (maker.reads | maker.makes) - step.touches)
    if readers[source] != {step.op} or sketch.weight[result] > sketch.weight[source]:
        return False
    if step.working + beside > maker.working:
        return False
    maker.makes = maker.makes - {source} | {result}
    maker.touches = maker.touches - {source} | {result}
    sketch.maker[result] = maker.op
    del sketch.maker[source], readers[source], sketch.steps[step.op]
    return True


def _join_reader(sketch: Sketch, readers: dict[int, set[int]], step: SketchStep, source: int, result: int) -> bool:
    if len(readers[result]) != 1 or sketch.weight[source] > sketch.weight[result]:
        return False
    (reader,) = (sketch.steps[op] for op in readers[result])
    beside = sum(sketch.weight[item] for item in (reader.reads - {result}) - step.touches)
    if step.working + beside > reader.working or source in reader.makes:
        return False
    reader.reads = reader.reads - {result} | {source}
    reader.touches = reader.touches - {result} | {source}
    readers[source] = readers[source] - {step.op} | {reader.op}
    del sketch.maker[result], readers[result], sketch.steps[step.op]
    return True


def make_game(sketch: Sketch, goal: int, most_items: int) -> Game:
    """The goal and the items nearest above it, breadth first, heavy ones first; all others are left out."""
    found: dict[int, None] = {}
    layer = [goal]
    while layer and len(found) < most_items:
        wanted = {item for op in layer for item in sketch.steps[op].reads if item not in found and item in sketch.maker}
        chosen = sorted(wanted, key=lambda item: (-sketch.weight[item], item))[: most_items - len(found)]
        found.update(dict.fromkeys(chosen))
        layer = sorted({sketch.maker[item] for item in chosen})
    items = list(found)
    number = {item: i for i, item in enumerate(items)}
    makers = sorted({sketch.maker[item] for item in items})
    weights = tuple(sketch.weight[item] for item in items)
    moves = tuple(_move(sketch.steps[op], number) for op in makers)
    return Game(weights, moves, _move(sketch.steps[goal], number), tuple(items))


def _move(step: SketchStep, number: dict[int, int]) -> Move:
    reads, makes, touches = (
        mask_of(number[item] for item in items if item in number) for items in (step.reads, step.makes, step.touches)
    )
    return Move(step.op, reads, makes, touches, step.working)
