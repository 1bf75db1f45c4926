"""Slicing rule of Pad: rows of padding go to the tiles that they lie in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_cli.splitting.op_view import OpView, Shape, Sliced
from remat_cli.splitting.slab import Slab

_PADS, _AXES = 1, 3  # input positions


@dataclass(frozen=True)
class Padded:
    """A part of the input, the rows put before and after it, and the part of the output they make."""

    need: Slab
    before: int
    after: int
    makes: Slab


def padding(op: OpView, slab: Slab) -> Sliced | None:
    """Pad with known amounts: along other axes in any mode; along a padded one by constants, edges or reflection."""
    pads, axes = _amounts(op), _axes(op)
    if pads is None or axes is None:
        return None
    others = (None,) * (len(op.inputs) - 1)
    place = axes.index(slab.axis) if slab.axis in axes else -1
    before, after = (pads[place], pads[place + len(axes)]) if place >= 0 else (0, 0)
    if before == after == 0:
        return Sliced((slab, *others), slab)
    padded = _part(op, slab, before, after)
    if padded is None:
        return None
    changed = list(pads)
    changed[place], changed[place + len(axes)] = padded.before, padded.after
    if len(op.inputs) == 1:
        return Sliced((padded.need,), padded.makes, {"pads": tuple(changed)})
    return Sliced((padded.need, *others), padded.makes, constants={_PADS: np.array(changed, np.int64)})


def _part(op: OpView, slab: Slab, before: int, after: int) -> Padded | None:
    size, mode = op.input_shape(0)[slab.axis], op.text("mode", "constant")
    if mode in ("constant", "edge"):
        return _repeated(slab, size, before)
    if mode == "reflect" and min(before, after) >= 0:
        return _reflected(slab, size, before, after)
    return None


def _repeated(slab: Slab, size: int, before: int) -> Padded:
    """Padding that does not look into the input; at least one row of the input comes with it."""
    first, last = max(0, before), max(0, before) + size - max(0, -before) - 1
    start, stop = min(slab.start, last), max(slab.stop, first + 1)
    need = Slab(slab.axis, max(0, start - before), min(size, stop - before))
    makes = Slab(slab.axis, start, stop)
    return Padded(need, need.start - (start - before), (stop - before) - need.stop, makes)


def _reflected(slab: Slab, size: int, before: int, after: int) -> Padded:
    """Padding that mirrors the input: all of it, with the rows it mirrors, or none."""
    start, stop = slab.start - before, slab.stop - before
    has_before, has_after = start < 0, stop > size
    first = 0 if has_before else start
    last = size if has_after else stop
    last = max(last, min(size, before + 1)) if has_before else last
    first = min(first, max(0, size - after - 1)) if has_after else first
    kept_before, kept_after = before if has_before else 0, after if has_after else 0
    makes = Slab(slab.axis, first + before - kept_before, last + before + kept_after)
    return Padded(Slab(slab.axis, first, last), kept_before, kept_after, makes)


def _amounts(op: OpView) -> Shape | None:
    """Rows before each padded axis, then after each; None where not known before the run."""
    if len(op.inputs) == 1:
        return op.integers("pads") or None
    constant = op.constant(_PADS) if op.weights[_PADS] else None
    return None if constant is None else tuple(int(value) for value in np.ravel(constant))


def _axes(op: OpView) -> Shape | None:
    rank = len(op.output_shape)
    if not op.has_input(_AXES):
        return tuple(range(rank))
    constant = op.constant(_AXES) if op.weights[_AXES] else None
    return None if constant is None else tuple(int(value) % rank for value in np.ravel(constant))
