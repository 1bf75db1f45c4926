"""Along which axis each op is cut when a whole model runs by items of its batch, as a training step by micro-batches.

One label leads to the next: from an input of the model through all that is computed of each item by itself, up to the
sums over the batch, which go on from tile to tile. What mixes items in another way is left whole.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from remat_cli.splitting.bands.bands import Banding, axes_read, even_counts
from remat_cli.splitting.tiles.op_view import SUMMED
from remat_cli.splitting.tiles.view import ModelView

MOST_SEEDS = 6  # inputs of the model that are tried as the one with a batch


def item_axes(view: ModelView, order: Sequence[int], forbidden: Collection[int]) -> Mapping[int, int]:
    """By op the axis along which it is cut by items, from that input of the model that leads furthest."""
    ways = [_spread(view, order, seed, forbidden) for seed in _seeds(view, order)]
    return max(ways, key=lambda axes: sum(_made_bytes(view, op) for op in axes), default={})


def item_bandings(view: ModelView, axes: Mapping[int, int], most_tiles: int) -> Iterator[Banding]:
    """The model cut by items into ever more tiles, all as long."""
    for tiles in even_counts(view, axes, axes):
        if tiles <= most_tiles:
            yield Banding(axes, dict.fromkeys(axes, 0), (tiles,))


def _seeds(view: ModelView, order: Sequence[int]) -> tuple[str, ...]:
    """The inputs of the model that are read first: data, and what is learnt."""
    read = (name for op in order for name in view.reads[op] if _is_input(view, name))
    return tuple(islice(dict.fromkeys(read), MOST_SEEDS))


def _is_input(view: ModelView, name: str) -> bool:
    return name in view.tensors and view.tensors[name].producer is None and len(view.tensors[name].shape) > 0


def _made_bytes(view: ModelView, op: int) -> int:
    return sum(view.tensors[name].size_bytes for name in view.makes[op] if name)


def _spread(view: ModelView, order: Sequence[int], seed: str, forbidden: Collection[int]) -> dict[int, int]:
    """Labels from one input on; other inputs are cut as what is read beside them asks."""
    known, found = {seed: 0}, dict[int, int]()
    for op in order:
        reads = [name for name in view.reads[op] if name in known]
        if not reads or op in forbidden:
            continue
        for axis in (*range(len(view.ops[op].output_shape)), SUMMED):
            needs = axes_read(view, op, axis) if view.extent(op, axis) > 1 else None
            read = {} if needs is None else dict(zip(view.reads[op], needs, strict=True))
            if read and all(read[name] == known[name] for name in reads):
                found[op] = axis
                known.update({name: need for name, need in read.items() if need is not None and _is_input(view, name)})
                if axis != SUMMED:
                    known.update({name: axis for name in view.makes[op] if name})
                break
    return found
