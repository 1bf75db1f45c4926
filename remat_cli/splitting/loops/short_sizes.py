"""Sizes for which a region need not run in tiles: the whole then holds no more than a tile does for the largest sizes.

Loops cost time that short inputs would see, above all where each makes again what all of them read, such as a bias of
positions. What is whole has the bits of the user's model without a proof.
"""

from __future__ import annotations

import math

from remat_cli.core.values.sizes import SizeBound
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.loops.windows.window_estimate import whole_up_to
from remat_cli.splitting.rules.record import ElementKind, WindowKind
from remat_cli.splitting.tiles.view import ModelView

LARGE_SHARE = 1 / 16  # of the largest tensor: smaller ones may grow as they like


def short_sizes(sized: SizedView, region: LoopRegion, tiling: Tiling) -> SizeBound | None:
    """The sizes at which a region runs whole; None where it never may.

    Where every tile makes something again, or has other bits where it is small, they are those for which the largest
    tensor is a tile's, else those of one tile: beyond these, tiles stay nearer to the processor. A region that reads a
    matrix of weights always runs in its loop: the runtime packs such weights for each branch anew. So does one along a
    length that does not vary.
    """
    if not region.length.terms:
        return None
    if region.windows is not None:
        return _as_large(sized, region, whole_up_to(sized, region, tiling))
    if packs_weights(sized, region):
        return None
    return (
        _as_large(sized, region, tiling.rows)
        if region.copies or _minds_size(sized, region)
        else SizeBound((region.length,), tiling.rows)
    )


def single_sizes(sized: SizedView, region: LoopRegion, tiling: Tiling) -> SizeBound | None:
    """The sizes at which a region that always runs in its loop is one tile there, of more rows than others have.

    None where all tiles have as few rows: none of its ops has other bits where it is small.
    """
    is_in_loop = region.length.terms and region.windows is None and packs_weights(sized, region)
    return _as_large(sized, region, tiling.rows) if is_in_loop and _minds_size(sized, region) else None


def _minds_size(sized: SizedView, region: LoopRegion) -> bool:
    """Whether some op has other bits where it is small."""
    rules = (sized.view.rules[op] for op in region.own)
    return any(rule.has_windows or rule.elements is ElementKind.PACKETS for rule in rules)


def _as_large(sized: SizedView, region: LoopRegion, rows: int) -> SizeBound:
    """Sizes for which the region's largest tensor is no larger than so many rows of it at the largest sizes.

    They are those of so many rows where some other large tensor grows with other lengths than that one.
    """
    names = [name for op in region.own for name in sized.view.makes[op] if name]
    largest = max(names, key=lambda name: (sized.sizes[name], name))
    shape, dims, axis = sized.view.tensors[largest].shape, sized.dims[largest], region.axes[largest]
    others = [at for at, dim in enumerate(dims) if dim.terms and at != axis]
    least_bytes = sized.sizes[largest] * LARGE_SHARE
    grows = {name for at in (*others, axis) for name in dims[at].names}
    for name in names if not region.copies else ():
        if sized.sizes[name] >= least_bytes and not grows <= {each for dim in sized.dims[name] for each in dim.names}:
            return SizeBound((region.length,), rows)
    factors = (*(dims[at] for at in others), region.length)
    return SizeBound(factors, math.prod(shape[at] for at in others) * rows)


def packs_weights(sized: SizedView, region: LoopRegion) -> bool:
    """Whether the runtime may pack weights of a region's ops: not for bodies within bodies, where bits differ then.

    Those of convolutions it does not pack.
    """
    if region.windows is not None:
        return False
    view = sized.view
    specs = (view.ops[op] for op in region.own if view.rules[op].windows in (None, WindowKind.BESIDE))
    weights = (shape for spec in specs for shape, is_weight in zip(spec.inputs, spec.weights, strict=True) if is_weight)
    return any(sum(size > 1 for size in shape or ()) > 1 for shape in weights)


def shared_by(view: ModelView, region: LoopRegion) -> list[str]:
    """What a region's own ops read of what it makes again, where it is made but once for all regions that run whole.

    Nothing where windows are among that: all of it would be there at once, beside what makes it, and that may be more
    than any tile holds. Such regions make it again for themselves at short sizes too.
    """
    if region.windows is not None or any(view.rules[op].has_windows for op in region.copies):
        return []
    made = (name for op in sorted(region.copies) for name in view.makes[op] if name)
    return [name for name in made if any(reader in region.own for reader in view.readers[name])]


def cone_of(view: ModelView, region: LoopRegion, name: str) -> LoopRegion:
    """The part of a region, all of it copies, that makes one of the tensors which it makes again."""
    makers = {made: op for op in region.copies for made in view.makes[op] if made}
    ops, waiting = set[int](), [name]
    while waiting:
        op = makers.get(waiting.pop())
        if op is not None and op not in ops:
            ops.add(op)
            waiting += view.reads[op]
    axes = {made: region.axes[made] for op in ops for made in view.makes[op] if made}
    reads = {key: axis for key, axis in region.reads.items() if key[0] in ops}
    return LoopRegion(region.length, ops, set(ops), axes, reads)
