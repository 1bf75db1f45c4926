"""Small games of a problem (`_floor.game`): only large storage, chains shortened, the surroundings of one op."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from remat_cli.solvers._bounds.pressure import Pressure
from remat_cli.solvers._floor.game import Game, Move, mask_of

# Choices of what to give up after a move double with each item it touches; lighter items are left out beyond this.
_MOST_TOUCHED = 9


@dataclass
class Step:
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
    steps: dict[int, Step]
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
    steps: dict[int, Step] = {}
    maker: dict[int, int] = {}
    for op, spec in enumerate(pressure.problem.ops):
        reads = {pressure.class_of[tensor] for tensor in spec.inputs} & large
        makes = ({pressure.class_of[tensor] for tensor in spec.outputs} & large) - reads
        if reads or makes:
            steps[op] = _lightened(Step(op, reads, makes, reads | makes, pressure.working[op]), pressure.weight)
            maker.update(dict.fromkeys(makes, op))
    end = _end(pressure, large)
    if end.reads:
        steps[end.op] = end
    sketch = Sketch(pressure.weight, steps, maker)
    _shorten(sketch)
    return sketch


def _lightened(step: Step, weight: tuple[int, ...]) -> Step:
    """Without the reads that are too many to choose from; they then count in the working set only."""
    most = max(1, _MOST_TOUCHED - len(step.makes))
    step.reads = set(heapq.nlargest(most, step.reads, key=lambda item: (weight[item], item)))
    return step


def _end(pressure: Pressure, large: set[int]) -> Step:
    kept = pressure.kept
    items = {pressure.class_of[tensor] for tensor in kept} & large
    size = sum(pressure.problem.tensors[tensor].size_bytes for tensor in kept) // pressure.byte_unit
    return Step(len(pressure.problem.ops), items, set(), set(items), size)


def _shorten(sketch: Sketch) -> None:
    """Run the only reader of an item directly after its maker, or its maker directly before it, until none is left.

    v reads x alone and makes y alone. If x has no other reader and y weighs no more, y may be held wherever x is: u,
    the maker of x, makes y instead. If y has one reader r and x weighs no more, x may be held wherever y is: r reads
    x instead. Needs only fall, so this is valid; nothing is lost where v fits wherever u, or r, does.
    """
    readers = sketch.readers()
    for op in sorted(sketch.steps):
        step = sketch.steps[op]
        if len(step.reads) == len(step.makes) == 1:
            (source,), (result,) = step.reads, step.makes
            if source in sketch.maker and not _join_maker(sketch, readers, step, source, result):
                _join_reader(sketch, readers, step, source, result)


def _join_maker(sketch: Sketch, readers: dict[int, set[int]], step: Step, source: int, result: int) -> bool:
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


def _join_reader(sketch: Sketch, readers: dict[int, set[int]], step: Step, source: int, result: int) -> bool:
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
    items = _nearest(sketch, goal, most_items)
    number = {item: i for i, item in enumerate(items)}
    makers = sorted({sketch.maker[item] for item in items})
    weights = tuple(sketch.weight[item] for item in items)
    moves = tuple(_move(sketch.steps[op], number) for op in makers)
    return Game(weights, moves, _move(sketch.steps[goal], number), tuple(items))


def _nearest(sketch: Sketch, goal: int, most_items: int) -> list[int]:
    found: dict[int, None] = {}
    layer = [goal]
    while layer and len(found) < most_items:
        wanted = {item for op in layer for item in sketch.steps[op].reads if item not in found and item in sketch.maker}
        chosen = sorted(wanted, key=lambda item: (-sketch.weight[item], item))[: most_items - len(found)]
        found.update(dict.fromkeys(chosen))
        layer = sorted({sketch.maker[item] for item in chosen})
    return list(found)


def _move(step: Step, number: dict[int, int]) -> Move:
    reads, makes, touches = (
        mask_of(number[item] for item in items if item in number) for items in (step.reads, step.makes, step.touches)
    )
    return Move(step.op, reads, makes, touches, step.working)
