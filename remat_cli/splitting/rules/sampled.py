"""Slicing rules of ops that sample images at given places, fold columns into images, or transform signals."""

from math import prod

import numpy as np

from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first


def grid_sample(op: OpView, slab: Slab) -> Sliced | None:
    """GridSample: by batch, by channels, or by places of the grid, which may look anywhere in the image."""
    if slab.axis == 0:
        return Sliced((slab, slab), slab)
    return Sliced((slab, None) if slab.axis == 1 else (None, slab._replace(axis=slab.axis - 1)), slab)


def affine_grid(op: OpView, slab: Slab) -> Sliced | None:
    """AffineGrid: by batch; places are spread over all of an axis."""
    size = op.constant(1)
    if slab.axis != 0 or size is None:
        return None
    changed = np.array(size)
    changed[0] = slab.extent
    return Sliced((slab, None), slab, constants={1: changed})


def regions(op: OpView, slab: Slab) -> Sliced | None:
    """RoiAlign, MaxRoiPool, CropAndResize: by regions, each of which may be of any image, or by channels."""
    if slab.axis > 1:
        return None
    image, region = (slab, None) if slab.axis == 1 else (None, slab)
    return Sliced((image, region, region, None)[: len(op.inputs)], slab)


def deformable(op: OpView, slab: Slab) -> Sliced | None:
    """DeformConv: by batch."""
    if slab.axis != 0:
        return None
    needs = tuple(slab if place in (0, 2, 4) and shape else None for place, shape in enumerate(op.inputs))
    return Sliced(needs, slab)


def fold(op: OpView, slab: Slab) -> Sliced | None:
    """Col2Im: by batch, or by channels, each of which is made of as many rows as a block has elements."""
    if slab.axis == 0:
        return of_first(op, slab, slab)
    block = op.constant(2)
    if slab.axis != 1 or block is None:
        return None
    rows = prod(int(extent) for extent in block)
    return of_first(op, Slab(1, slab.start * rows, slab.stop * rows), slab)


def spectrum(op: OpView, slab: Slab) -> Sliced | None:
    """DFT: lines along its own axis; the last axis is that of real and imaginary parts."""
    rank = len(op.output_shape)
    axis = (
        op.constant(2) if op.has_input(2) else np.asarray(op.integer("axis", 1 if op.opset < AXIS_INPUT_SINCE else -2))
    )
    if axis is None or slab.axis in (int(axis) % rank, rank - 1):
        return None
    return of_first(op, slab, slab)


AXIS_INPUT_SINCE = 20


def frames(op: OpView, slab: Slab) -> Sliced | None:
    """STFT: by batch, or by frames with the part of the signal that they cover."""
    step = op.constant(1)
    if slab.axis == 0:
        return of_first(op, slab, slab)
    if slab.axis != 1 or step is None:
        return None
    length = op.constant(3) if op.has_input(3) else np.asarray(op.input_shape(2)[0])
    if length is None:
        return None
    start = slab.start * int(step)
    return of_first(op, Slab(1, start, (slab.stop - 1) * int(step) + int(length)), slab)
