"""Slicing rule of ConvTranspose: each element of the input is spread over a window of the output."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from remat_cli.splitting.op_view import OpView, Shape, Sliced
from remat_cli.splitting.products import is_same_product
from remat_cli.splitting.slab import Slab

SPATIAL = 2


@dataclass(frozen=True)
class Spread:
    """One spatial axis: element i is spread over `reach` places from i * `stride` - `before` on.

    `after` places are cut off at the end, `extra` added.
    """

    stride: int
    reach: int
    before: int
    after: int
    extra: int


def transposed_convolution(op: OpView, slab: Slab) -> Sliced | None:
    """ConvTranspose: along the batch, or along a spatial axis with the padding that leaves the slab."""
    others = (None,) * (len(op.inputs) - 1)
    if slab.axis == 1 or op.integers("output_shape"):
        return None
    if slab.axis == 0:
        return Sliced((slab, *others), slab) if _is_same(op, 1.0) else None
    spreads = _spreads(op)
    if spreads is None:
        return None
    index, size = slab.axis - SPATIAL, op.input_shape(0)[slab.axis]
    need, spread = _cut(spreads[index], size, slab)
    if not _is_same(op, need.extent / size):
        return None
    changed = (*spreads[:index], spread, *spreads[index + 1 :])
    pads = tuple(s.before for s in changed) + tuple(s.after for s in changed)
    extras = tuple(s.extra for s in changed)
    return Sliced((need, *others), slab, {"pads": pads, "output_padding": extras, "auto_pad": "NOTSET"})


def _cut(spread: Spread, size: int, slab: Slab) -> tuple[Slab, Spread]:
    """What a slab reads, and the spread that makes just it: cut off or added at both ends."""
    stride, reach, before = spread.stride, spread.reach, spread.before
    first = min((slab.start + before) // stride, -(-(slab.start + before - reach + 1) // stride))
    last = min(size - 1, (slab.stop - 1 + before) // stride)
    need = Slab(slab.axis, min(max(0, first), last), last + 1)
    missing = slab.stop - (last * stride + reach - before)
    cut_before = slab.start - (need.start * stride - before)
    return need, Spread(stride, reach, cut_before, max(0, -missing), max(0, missing))


def _spreads(op: OpView) -> tuple[Spread, ...] | None:
    """One per spatial axis, `auto_pad` resolved; None where they do not explain the output's shape."""
    kernel = op.input_shape(1)[SPATIAL:]
    count = len(kernel)
    strides = op.integers("strides") or (1,) * count
    dilations = op.integers("dilations") or (1,) * count
    extras = op.integers("output_padding") or (0,) * count
    pads = _pads(op, count)
    if pads is None:
        return None
    reaches = tuple((kernel[i] - 1) * dilations[i] + 1 for i in range(count))
    spreads = tuple(Spread(strides[i], reaches[i], pads[i], pads[i + count], extras[i]) for i in range(count))
    return spreads if _extents(spreads, op.input_shape(0)) == op.output_shape[SPATIAL:] else None


def _pads(op: OpView, count: int) -> Shape | None:
    """Rows cut off before and after each axis; None where the runtime chooses them by the output's size."""
    mode = op.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * (2 * count)
    return (op.integers("pads") or (0,) * (2 * count)) if mode == "NOTSET" else None


def _extents(spreads: tuple[Spread, ...], shape: Shape) -> Shape:
    return tuple(
        (size - 1) * s.stride + s.reach - s.before - s.after + s.extra
        for s, size in zip(spreads, shape[SPATIAL:], strict=True)
    )


def _is_same(op: OpView, part: float) -> bool:
    """Whether the product of weight and input, which is then spread, has the same bits with part of its columns."""
    columns = prod(op.input_shape(0)[SPATIAL:])
    terms = op.input_shape(1)[0] // op.integer("group", 1)
    return is_same_product(op, 1, terms, (columns, round(columns * part)))
