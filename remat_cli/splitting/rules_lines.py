"""Slicing rules of ops that treat a tensor line by line: softmax, normalisations, sorting and running sums.

Measured with ONNX Runtime 1.31.1: lines of 15 to 1,000 elements, along the last and inner axes, 1, 2 and 4 threads:
each line gets the same bits whatever other lines there are. A cut along the line itself is refused.
"""

from __future__ import annotations

import math

from remat_cli.splitting.op_view import OpView, Sliced
from remat_cli.splitting.rules_matrix import broadcast_need
from remat_cli.splitting.slab import Slab

FLATTENING_ENDS = 13  # before this version softmax treats all axes from `axis` on as one line


def softmax(op: OpView, slab: Slab) -> Sliced | None:
    """Softmax, LogSoftmax, Hardmax: lines along `axis`; before ONNX 13 all axes from `axis` on are one line."""
    rank = len(op.output_shape)
    if op.opset < FLATTENING_ENDS:
        return _lines(op, slab, range(op.integer("axis", 1) % rank, rank))
    return _lines(op, slab, range(op.integer("axis", -1) % rank, op.integer("axis", -1) % rank + 1))


def normalisation(op: OpView, slab: Slab) -> Sliced | None:
    """LayerNormalization, RMSNormalization and the like: mean and deviation over the axes from `axis` on.

    Further outputs have other shapes, so they must be left out. Scale and bias are read along the line only.
    """
    rank = len(op.output_shape)
    if _has_further_outputs(op) or any(_is_broadcast_before(op, place, rank) for place in range(1, len(op.inputs))):
        return None
    return _lines(op, slab, range(op.integer("axis", -1) % rank, rank))


def skip_normalisation(op: OpView, slab: Slab) -> Sliced | None:
    """SkipLayerNormalization: the sum of two tensors (output 3) and its normalisation over the last axis (output 0)."""
    rank, extent = len(op.output_shape), op.output_shape[slab.axis]
    if slab.axis == rank - 1 or any(shape is not None for shape in op.outputs[1:3]):
        return None
    skip = broadcast_need(op.inputs[1], rank, extent, slab)
    return Sliced((slab, skip, *[None] * (len(op.inputs) - 2)), slab)


def running(op: OpView, slab: Slab) -> Sliced | None:
    """CumSum: sums along the axis that its second input tells; None where that is not known before the run."""
    axis = op.constant(1)
    if axis is None or axis.size != 1:
        return None
    line = int(axis.reshape(())) % len(op.output_shape)
    return _lines(op, slab, range(line, line + 1))


def best(op: OpView, slab: Slab) -> Sliced | None:
    """TopK: both outputs along `axis`, which becomes shorter."""
    line = op.integer("axis", -1) % len(op.output_shape)
    return _lines(op, slab, range(line, line + 1))


def _lines(op: OpView, slab: Slab, line: range) -> Sliced | None:
    """A slab across lines reads the same slab of the first input and all of the others."""
    if slab.axis in line:
        return None
    return Sliced((slab, *[None] * (len(op.inputs) - 1)), slab)


def _has_further_outputs(op: OpView) -> bool:
    return any(shape is not None for shape in op.outputs[1:])


def _is_broadcast_before(op: OpView, place: int, rank: int) -> bool:
    """Whether a scale differs between lines: it has an axis, longer than 1, before those of the line."""
    shape, axis = op.inputs[place], op.integer("axis", -1) % rank
    return shape is not None and math.prod(shape[: max(0, len(shape) - (rank - axis))]) != 1
