"""Which tensors are held at each step, when whole ops run in a given order."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from remat_cli.core.schedule.graph import Tensor
from remat_cli.splitting.tiles.view import ModelView

LARGE_SHARE = 1 / 32  # of the largest tensor: smaller ones say nothing of where to cut
SOON = 12  # ops; what is not used for longer had better be made again than be held


@dataclass(frozen=True)
class Surroundings:
    """A region's boundary: entries that die inside it, exits, and bytes of all that lives on beside it."""

    dying: frozenset[str]
    exits: tuple[str, ...]
    context_bytes: int


class Timeline(Protocol):
    """Ops in an order, and what is held around them, as the search for regions asks for it."""

    @property
    def view(self) -> ModelView:
        """The model."""

    @property
    def order(self) -> tuple[int, ...]:
        """Its ops, one after another."""

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Bytes held during each step, beyond the fixed part."""

    @property
    def width_bytes(self) -> tuple[int, ...]:
        """Bytes held across each cut between steps: before the first op, between ops, and after the last."""

    def surroundings(self, start: int, stop: int) -> Surroundings:
        """The boundary of the region of ops at positions `start` to `stop` (exclusive)."""


@dataclass(frozen=True)
class TensorTimeline:
    """Whole ops in an order, and the bytes held during each step beyond the fixed part (as judged)."""

    view: ModelView
    order: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    @cached_property
    def position(self) -> dict[int, int]:
        """Where each op stands."""
        return {op: index for index, op in enumerate(self.order)}

    @cached_property
    def lives(self) -> dict[str, tuple[int, int]]:
        """Storage by the tensor that owns it: position of its making, and of its last read (the end if kept)."""
        lives: dict[str, tuple[int, int]] = {}
        for owner, made, last in self._uses:
            lives[owner] = (made[-1], max(last, lives.get(owner, made[-1:])[-1]))
        return lives

    @cached_property
    def width_bytes(self) -> tuple[int, ...]:
        """Bytes that live across each cut: before the first op, between ops, and after the last."""
        change = [0] * (len(self.order) + 2)
        for name, (first, last) in self.lives.items():
            size = self.view.tensors[name].size_bytes
            change[first + 1] += size
            change[min(last, len(self.order)) + 1] -= size
        widths, width = [], 0
        for position in range(len(self.order) + 1):
            width += change[position]
            widths.append(width)
        return tuple(widths)

    def surroundings(self, start: int, stop: int) -> Surroundings:
        """The boundary of the region of ops at positions `start` to `stop` (exclusive); kept, as searches ask again."""
        if (start, stop) in self._known:
            return self._known[start, stop]
        dying, context = set(), 0
        # last use of each storage made before, by owner; views that the region makes are joined: storage of their own
        found: dict[str, int] = {}
        for owner, made, last in self._uses:
            if made[-1] < start and not any(start <= at < stop for at in made):
                found[owner] = max(last, found.get(owner, -1))
        for name, last in found.items():
            if start <= last < stop:
                dying.add(name)
            elif last >= stop:
                context += self.view.tensors[name].size_bytes
        exits = _exits(self.view, self.order[start:stop])
        self._known[start, stop] = Surroundings(frozenset(dying), exits, context)
        return self._known[start, stop]

    @cached_property
    def _known(self) -> dict[tuple[int, int], Surroundings]:
        return {}

    @cached_property
    def _uses(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """Per tensor: owner of its storage, where it and all it is a view of are made, and its last use."""
        found = []
        for tensor in self.view.graph.tensors:
            chain = chain_of(self.view, tensor.name)
            made = tuple(-1 if each.producer is None else self.position[each.producer] for each in chain)
            reads = [self.position[op] for op in self.view.readers[tensor.name]]
            last = len(self.order) if tensor.kept else max(reads, default=made[0])  # what nobody reads dies at once
            if chain[-1].producer is not None:
                found.append((chain[-1].name, made, last))
        return tuple(found)


@dataclass(frozen=True)
class NeedyTimeline:
    """The ops of a model where each finds just what it needs: all that waits was dropped, to be made again.

    `needed_bytes` are by op the least that it needs in any order. So a region that fits here fits a plan in which
    enough of the rest is made again, which its solver has to find.
    """

    view: ModelView
    needed_bytes: tuple[int, ...]
    given: tuple[int, ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The ops, each as late as can be: what makes something stands right before who first reads it."""
        return demanded_order(self.view, self.given)

    @cached_property
    def memory_bytes(self) -> tuple[int, ...]:
        """The least that each step needs."""
        return tuple(self.needed_bytes[op] for op in self.order)

    @cached_property
    def width_bytes(self) -> tuple[int, ...]:
        """Bytes of large tensors across each cut that are used a little before and a little behind it."""
        widths, used = [0] * (len(self.order) + 1), defaultdict[str, list[int]](list)
        sizes = {name: tensor.size_bytes for name, tensor in self.view.tensors.items() if tensor.producer is not None}
        least_bytes = LARGE_SHARE * max(sizes.values(), default=0)
        for at, op in enumerate(self.order):
            names = (name for name in (*self.view.needs[op], *self.view.makes[op]) if name)
            for name in {owner_of(self.view, name).name for name in names}:
                used[name].append(at)
        for name, places in used.items():
            for before, behind in pairwise(places):
                is_held = behind - before <= SOON and sizes.get(name, 0) > least_bytes
                for cut in range(before + 1, behind + 1) if is_held else ():
                    widths[cut] += sizes[name]
        return tuple(widths)

    def surroundings(self, start: int, stop: int) -> Surroundings:
        """The boundary of a region, in which all that it reads dies, and beside which nothing is held."""
        view, inside = self.view, self.order[start:stop]
        owners = (owner_of(view, name) for op in inside for name in view.needs[op])
        entries = {each.name for each in owners if each.producer is not None and each.producer not in inside}
        return Surroundings(frozenset(entries), _exits(view, inside), 0)


def demanded_order(view: ModelView, order: Sequence[int]) -> tuple[int, ...]:
    """The ops in an order in which each stands behind what it reads, and no sooner than somebody needs it."""
    found = dict[int, None]()
    for last in order:
        if any(view.readers[name] for name in view.makes[last] if name):
            continue
        waiting = [last]
        while waiting:
            op = waiting[-1]
            makers = (view.tensors[name].producer for name in view.needs[op])
            missing = [maker for maker in makers if maker is not None and maker not in found]
            if missing:
                waiting.append(missing[0])
            else:
                found[waiting.pop()] = None
    return tuple(found)


def _exits(view: ModelView, ops: Collection[int]) -> tuple[str, ...]:
    """What some ops make that others read, or that leaves the model."""
    made = (name for op in ops for name in view.makes[op] if name)
    return tuple(name for name in made if view.tensors[name].kept or any(op not in ops for op in view.readers[name]))


def owner_of(view: ModelView, name: str) -> Tensor:
    """The tensor whose storage a tensor is kept in: its own, that of what it is a view of, or a model input's."""
    return chain_of(view, name)[-1]


def chain_of(view: ModelView, name: str) -> tuple[Tensor, ...]:
    """A tensor, what it is a view of, and so on to the owner of the storage."""
    chain = [view.tensors[name]]
    while (base := chain[-1].view_of) is not None and not chain[-1].kept:
        chain.append(view.graph.tensors[base])
    return tuple(chain)
