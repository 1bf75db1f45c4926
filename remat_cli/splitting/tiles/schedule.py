"""The order of a model's steps: as late as whole ops ask for them, and at once where that frees memory."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from remat_cli.splitting.tiles.estimate import piece_bytes
from remat_cli.splitting.tiles.steps import JoinStep, RunStep, Step, WholeStep, reads_of, results_of
from remat_cli.splitting.tiles.view import ModelView


def in_order(view: ModelView, steps: Sequence[Step]) -> list[Step]:
    """Orders steps so that little is held at once: whole ops as they stand, the rest when one of them needs it.

    A step that frees more than it makes, being the last to read something, runs as soon as it can: rows that the next
    tile shares are cut off a band, which then goes; a second reader of a band follows the first.
    """
    scheduler = _Scheduler(view, steps)
    for index in scheduler.sums:  # before whole ops, for some of which all tiles would have to run
        scheduler.run(index)
    for index, step in enumerate(steps):
        if isinstance(step, WholeStep) or not scheduler.readers[index]:
            scheduler.run(index)
    return [steps[index] for index in scheduler.order]


@dataclass
class _Scheduler:
    """`order` grows; `left` counts the steps yet to read a piece, `waits` the pieces that a step still lacks."""

    view: ModelView
    steps: Sequence[Step]
    order: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    @cached_property
    def maker(self) -> dict[str, int]:
        """By name of a piece the step that makes it."""
        return {piece.name: index for index, step in enumerate(self.steps) for piece in results_of(step)}

    @cached_property
    def sums(self) -> list[int]:
        """Steps that add up positions, those of one tile of a turn after each other, and tiles in order."""
        found = [(step.turn, step.tile, index) for index, step in enumerate(self.steps) if isinstance(step, RunStep)]
        return [index for turn, _, index in sorted((turn, tile, index) for turn, tile, index in found if turn)]

    @cached_property
    def turns(self) -> dict[int, list[int]]:
        """By step that adds up positions those of the tile before, of the same turn."""
        by_tile: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for index in self.sums:
            step = self.steps[index]
            if isinstance(step, RunStep) and step.turn is not None:
                by_tile[step.turn][step.tile].append(index)
        found: dict[int, list[int]] = {}
        for tiles in by_tile.values():
            ordered = [tiles[tile] for tile in sorted(tiles)]
            for before, after in pairwise(ordered):
                found.update(dict.fromkeys(after, before))
        return found

    @cached_property
    def sources(self) -> list[list[int]]:
        """By step those it waits for, in the order in which it reads."""
        return [
            list(
                dict.fromkeys(
                    [*self.turns.get(index, ()), *(self.maker[p.name] for p in reads_of(step) if p.name in self.maker)]
                )
            )
            for index, step in enumerate(self.steps)
        ]

    @cached_property
    def readers(self) -> list[list[int]]:
        """By step those that wait for it."""
        found: list[list[int]] = [[] for _ in self.steps]
        for index, sources in enumerate(self.sources):
            for source in sources:
                found[source].append(index)
        return found

    @cached_property
    def left(self) -> dict[str, set[int]]:
        """By name of a piece the steps yet to read it."""
        found: dict[str, set[int]] = defaultdict(set)
        for index, step in enumerate(self.steps):
            for piece in reads_of(step):
                found[piece.name].add(index)
        return found

    def run(self, target: int) -> None:
        """Runs a step, and before it all that it waits for."""
        stack = [target]
        while stack:
            index = stack[-1]
            if index in self.done:
                stack.pop()
                continue
            missing = [source for source in self.sources[index] if source not in self.done]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            # Run a step, and then each step that has become the last reader of something and frees more than it
            # makes.
            pending = [index]
            while pending:
                step = pending.pop()
                if step in self.done:
                    continue
                self.order.append(step)
                self.done.add(step)
                touched = (*reads_of(self.steps[step]), *results_of(self.steps[step]))
                for piece in touched:
                    self.left[piece.name].discard(step)
                for piece in touched:
                    last = next(iter(self.left[piece.name]), None) if len(self.left[piece.name]) == 1 else None
                    if last is not None and last not in self.done and self._is_relief(last):
                        pending.append(last)

    def _is_relief(self, index: int) -> bool:
        """Whether a step can run and frees more than it makes."""
        step = self.steps[index]
        if isinstance(step, WholeStep | JoinStep) or any(source not in self.done for source in self.sources[index]):
            return False
        freed = {
            p.name: piece_bytes(self.view, p)
            for p in reads_of(step)
            if self.left[p.name] == {index} and p.name in self.maker
        }
        return sum(freed.values()) > sum(piece_bytes(self.view, piece) for piece in results_of(step))
