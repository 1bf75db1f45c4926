"""Which tensors are held at each step, when whole ops run in a given order."""

from dataclasses import dataclass
from functools import cached_property

from remat_cli.core.schedule.graph import Tensor
from remat_cli.splitting.tiles.view import ModelView


@dataclass(frozen=True)
class Surroundings:
    """A region's boundary: entries that die inside it, exits, and bytes of all that lives on beside it."""

    dying: frozenset[str]
    exits: tuple[str, ...]
    context_bytes: int


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
        made_inside = (name for op in self.order[start:stop] for name in self.view.makes[op] if name)
        exits = tuple(
            name
            for name in made_inside
            if self.view.tensors[name].kept or any(self.position[op] >= stop for op in self.view.readers[name])
        )
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


def owner_of(view: ModelView, name: str) -> Tensor:
    """The tensor whose storage a tensor is kept in: its own, that of what it is a view of, or a model input's."""
    return chain_of(view, name)[-1]


def chain_of(view: ModelView, name: str) -> tuple[Tensor, ...]:
    """A tensor, what it is a view of, and so on to the owner of the storage."""
    chain = [view.tensors[name]]
    while (base := chain[-1].view_of) is not None and not chain[-1].kept:
        chain.append(view.graph.tensors[base])
    return tuple(chain)
