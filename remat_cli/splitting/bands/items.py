"""Along which axis each op is cut when a whole model runs by items of its batch, as a training step by micro-batches.

One label leads to the next: from an input of the model through all that is computed of each item by itself, up to the
sums over the batch, which go on from tile to tile. What mixes items in another way is left whole.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from remat_cli.splitting.bands.bands import Banding, even_counts
from remat_cli.splitting.tiles.op_view import SUMMED
from remat_cli.splitting.tiles.view import ModelView

LEAST_TILES = 2
MOST_SEEDS = 6  # inputs of the model that are tried as the one with a batch


def item_axes(
    view: ModelView, order: Sequence[int], forbidden: Collection[int], goes_on: bool = False
) -> Mapping[int, int]:
    """By op the axis along which it is cut by items, from that input of the model that leads furthest.

    `goes_on`: items are cut anew behind an op that is forbidden, of what it makes whole.
    """
    read = dict.fromkeys(name for op in order for name in view.reads[op] if _is_input(view, name))
    ways = [_spread(view, order, seed, forbidden, goes_on) for seed in islice(read, MOST_SEEDS)]
    best = max(ways, key=lambda axes: sum(_made_bytes(view, op) for op in axes), default={})
    # The same with ops on what is whole that only ops cut alike read: numbers of a mask are made tile by tile too.
    found = dict(best)
    for op in reversed(order):
        makers = (view.tensors[name].producer for name in view.reads[op] if name in view.tensors)
        if op in found or op in forbidden or any(maker in found for maker in makers):
            continue
        made = [name for name in view.makes[op] if name]
        asked = {_asked(view, found, reader, name) for name in made for reader in view.readers.get(name, ())}
        axis = asked.pop() if len(asked) == 1 else None
        if axis is None or any(view.tensors[name].kept for name in made) or view.extent(op, axis) < 2:
            continue
        if view.axes_read(op, axis) is not None:
            found[op] = axis
    return found


def _asked(view: ModelView, axes: Mapping[int, int], reader: int, name: str) -> int | None:
    """Along which axis an op reads slabs of a tensor; None where it reads all of it, or in two ways."""
    needs = view.axes_read(reader, axes[reader]) if reader in axes else None
    asked = {need for read, need in zip(view.reads[reader], needs or (), strict=False) if read == name}
    return asked.pop() if len(asked) == 1 else None


def light_sums(view: ModelView, axes: Mapping[int, int]) -> Mapping[int, int]:
    """The same without sums over the batch that are larger than what they add up.

    A sum that goes on from tile to tile is held all the while, as are all others; one that is made whole waits for what
    it adds up, and is gone as soon as it has been used.
    """
    return {op: axis for op, axis in axes.items() if axis != SUMMED or _made_bytes(view, op) <= _added_bytes(view, op)}


def item_bandings(view: ModelView, axes: Mapping[int, int], most_tiles: int) -> Iterator[Banding]:
    """The model cut by items into ever more tiles, all as long."""
    for tiles in even_counts(view, axes, axes):
        if tiles <= most_tiles:
            yield Banding(axes, dict.fromkeys(axes, 0), (tiles,))


def doubled_bandings(view: ModelView, axes: Mapping[int, int], most_tiles: int) -> Iterator[Banding]:
    """The same, each time into twice as many; sums over the batch are left whole where tiles are not all as long."""
    whole = {op: axis for op, axis in axes.items() if axis != SUMMED}
    items, even = min((view.extent(op, axis) for op, axis in whole.items()), default=1), even_counts(view, axes, axes)
    tiles = LEAST_TILES
    while tiles <= min(items, most_tiles):
        cut = axes if tiles in even else whole
        yield Banding(cut, dict.fromkeys(cut, 0), (tiles,))
        tiles *= 2


def _is_input(view: ModelView, name: str) -> bool:
    return name in view.tensors and view.tensors[name].producer is None and len(view.tensors[name].shape) > 0


def _made_bytes(view: ModelView, op: int) -> int:
    return sum(view.tensors[name].size_bytes for name in view.makes[op] if name)


def _added_bytes(view: ModelView, op: int) -> int:
    """Bytes of what a sum adds up, of all items."""
    needs = view.axes_read(op, SUMMED) or ()
    reads = (name for name, need in zip(view.reads[op], needs, strict=False) if need is not None)
    return sum(view.tensors[name].size_bytes for name in dict.fromkeys(reads))


def _spread(
    view: ModelView, order: Sequence[int], seed: str, forbidden: Collection[int], goes_on: bool
) -> dict[int, int]:
    """Labels from one input on; other inputs are cut as what is read beside them asks."""
    known, found = {seed: 0}, dict[int, int]()
    for op in order:
        reads = [name for name in view.reads[op] if name in known]
        if not reads or (op in forbidden and not goes_on):
            continue
        for axis in (*range(len(view.ops[op].output_shape)), SUMMED):
            needs = view.axes_read(op, axis) if view.extent(op, axis) > 1 else None
            read = {} if needs is None else dict(zip(view.reads[op], needs, strict=True))
            if read and all(read[name] == known[name] for name in reads):
                if op not in forbidden:
                    found[op] = axis
                known.update({name: need for name, need in read.items() if need is not None and _is_input(view, name)})
                if axis != SUMMED:
                    known.update({name: axis for name in view.makes[op] if name})
                break
    return found
