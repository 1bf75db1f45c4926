"""What is alive where, when whole ops run in a given order, and in a line why splitting cannot lower the peak."""

from dataclasses import dataclass
from functools import cached_property

from remat_cli.base.units import format_bytes
from remat_cli.core.graph import Tensor
from remat_cli.splitting.op_view import Slab
from remat_cli.splitting.view import ModelView


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
        found = self._known.get((start, stop))
        if found is None:
            found = self._known[start, stop] = self._surroundings(start, stop)
        return found

    @cached_property
    def _known(self) -> dict[tuple[int, int], Surroundings]:
        return {}

    def _surroundings(self, start: int, stop: int) -> Surroundings:
        dying, context = set(), 0
        for name, last in self._last_uses(start, stop).items():
            if start <= last < stop:
                dying.add(name)
            elif last >= stop:
                context += self.view.tensors[name].size_bytes
        return Surroundings(frozenset(dying), self._exits(start, stop), context)

    def _last_uses(self, start: int, stop: int) -> dict[str, int]:
        """Last use of each storage made before a region; views that the region makes are joined: storage of their own.

        By the owner's name; the end for what is kept.
        """
        found: dict[str, int] = {}
        for owner, made, last in self._uses:
            if made[-1] < start and not any(start <= at < stop for at in made):
                found[owner] = max(last, found.get(owner, -1))
        return found

    @cached_property
    def _uses(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """Per tensor: owner of its storage, where it and all it is a view of are made, and its last use."""
        chains = [chain_of(self.view, tensor.name) for tensor in self.view.graph.tensors]
        return tuple(
            (chain[-1].name, tuple(self._made_at(link) for link in chain), self._last_use(chain[0]))
            for chain in chains
            if chain[-1].producer is not None
        )

    def _made_at(self, tensor: Tensor) -> int:
        return -1 if tensor.producer is None else self.position[tensor.producer]

    def _last_use(self, tensor: Tensor) -> int:
        """Position of the last op that reads it (that makes it, if none does), or the end where it is kept."""
        if tensor.kept:
            return len(self.order)
        return max((self.position[op] for op in self.view.readers[tensor.name]), default=self._made_at(tensor))

    def _exits(self, start: int, stop: int) -> tuple[str, ...]:
        exits = []
        for op in self.order[start:stop]:
            for name in self.view.makes[op]:
                if name and (self.view.tensors[name].kept or self._is_read_from(name, stop)):
                    exits.append(name)
        return tuple(exits)

    def _is_read_from(self, name: str, stop: int) -> bool:
        return any(self.position[op] >= stop for op in self.view.readers[name])


def owner_of(view: ModelView, name: str) -> Tensor:
    """The tensor whose storage a tensor is kept in: its own, that of what it is a view of, or a model input's."""
    return chain_of(view, name)[-1]


def chain_of(view: ModelView, name: str) -> tuple[Tensor, ...]:
    """A tensor, what it is a view of, and so on to the owner of the storage."""
    chain = [view.tensors[name]]
    while (base := chain[-1].view_of) is not None and not chain[-1].kept:
        chain.append(view.graph.tensors[base])
    return tuple(chain)


@dataclass(frozen=True)
class SplitObstacle:
    """One line that names the reason; `is_final` where no splitting of these kinds whatever could get around it."""

    text: str
    is_final: bool


def explain(
    timeline: TensorTimeline, position: int | None, floor_op: int | None, free_bytes: int
) -> SplitObstacle | None:
    """What stands in the way of `free_bytes` (fixed part left out).

    `position` is the step at which the search for regions was stuck, `floor_op` the op that whole ops cannot do
    without, None where either is not known.
    """
    view = timeline.view
    return (
        _outputs(view, free_bytes)
        or (None if floor_op is None else _op(view, floor_op, free_bytes))
        or (None if position is None else _step(view, timeline.order[position]))
    )


def is_cuttable(view: ModelView, op: int) -> bool:
    """Whether there is an axis along which the op can be cut."""
    shapes = [shape for shape in view.ops[op].outputs if shape is not None]
    shape = shapes[0] if shapes else ()
    return any(extent > 1 and _is_cut_along(view, op, axis, extent) for axis, extent in enumerate(shape))


def _is_cut_along(view: ModelView, op: int, axis: int, extent: int) -> bool:
    """Whether some half, third or quarter of the output can be made by itself."""
    return any(
        view.slice(op, Slab(axis, 0, max(1, extent // parts))) is not None for parts in (2, 3, 4) if extent >= parts
    )


def _outputs(view: ModelView, free_bytes: int) -> SplitObstacle | None:
    kept = [tensor for tensor in view.graph.tensors if tensor.kept]
    if sum(tensor.size_bytes for tensor in kept) <= free_bytes:
        return None
    largest = max(kept, key=lambda tensor: tensor.size_bytes)
    return SplitObstacle(
        f"'{largest.name}' ({format_bytes(largest.size_bytes)}) is a model output and must exist whole", is_final=True
    )


def _op(view: ModelView, op: int, free_bytes: int) -> SplitObstacle | None:
    """An op that does not fit and cannot be cut."""
    name, size = _largest(view, op)
    if not name or is_cuttable(view, op) or _working_set(view, op) <= free_bytes:
        return None
    node = view.graph.ops[op]
    condition = "" if view.may_reassociate else " so that its bits stay the same"
    return SplitObstacle(
        f"'{name}' ({format_bytes(size)}) must exist whole: op '{node.name}' ({node.op_type}) cannot be cut{condition}",
        is_final=True,
    )


def _step(view: ModelView, op: int) -> SplitObstacle | None:
    """A step that no region found makes small enough."""
    name, size = _largest(view, op)
    node = view.graph.ops[op]
    if not name:
        return None
    reason = "cannot be cut" if not is_cuttable(view, op) else "was in no region that fits"
    return SplitObstacle(
        f"'{name}' ({format_bytes(size)}) is too large, and op '{node.name}' ({node.op_type}) {reason}", False
    )


def _largest(view: ModelView, op: int) -> tuple[str, int]:
    """The largest tensor an op reads or makes; model inputs are the caller's."""
    spec = view.graph.ops[op]
    tensors = [view.graph.tensors[i] for i in (*spec.inputs, *spec.outputs)]
    made = [tensor for tensor in tensors if tensor.producer is not None]
    largest = max(made, key=lambda tensor: tensor.size_bytes, default=None)
    return ("", 0) if largest is None else (largest.name, largest.size_bytes)


def _working_set(view: ModelView, op: int) -> int:
    """What an op must hold at least: what it reads, and of what it makes only what no input's storage can take."""
    spec, tensors = view.graph.ops[op], view.graph.tensors
    shared = {result for _, result in spec.in_place}
    held = (*spec.inputs, *(i for i in spec.outputs if i not in shared))
    owners = {owner.name: owner for i in held if (owner := owner_of(view, tensors[i].name)).producer is not None}
    return sum(owner.size_bytes for owner in owners.values())
