"""Slicing rules of ops that place elements by indices, counts or positions; they compute nothing, so all are exact."""

import numpy as np

from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first


def gather_points(op: OpView, slab: Slab) -> Sliced | None:
    """GatherND: along the axes of the indices those are cut, along those that both begin with both, else the data."""
    shared, indices = op.integer("batch_dims", 0), op.input_shape(1)
    outer = len(indices) - 1
    if slab.axis < shared:
        return Sliced((slab, slab), slab)
    if slab.axis < outer:
        return Sliced((None, slab), slab)
    return Sliced((slab._replace(axis=slab.axis - outer + shared + indices[-1]), None), slab)


def scatter_points(op: OpView, slab: Slab) -> Sliced | None:
    """ScatterND: along axes that no index names, in which data and updates are cut alike."""
    indices = op.input_shape(1)
    if slab.axis < indices[-1]:
        return None
    return Sliced((slab, None, slab._replace(axis=slab.axis - indices[-1] + len(indices) - 1)), slab)


def scatter_elements(op: OpView, slab: Slab) -> Sliced | None:
    """ScatterElements: along other axes than its own, where there is an update for each position."""
    own = op.integer("axis", 0) % len(op.output_shape)
    if slab.axis == own or op.input_shape(1)[slab.axis] != op.output_shape[slab.axis]:
        return None
    return Sliced((slab, slab, slab), slab)


def scatter_rows(op: OpView, slab: Slab) -> Sliced | None:
    """TensorScatter: along other axes than its own; by batch with where each item begins."""
    if slab.axis == op.integer("axis", -2) % len(op.output_shape):
        return None
    starts = slab if slab.axis == 0 and op.has_input(2) else None
    return Sliced((slab, slab, starts)[: len(op.inputs)], slab)


def one_hot(op: OpView, slab: Slab) -> Sliced | None:
    """OneHot: along every axis of the indices."""
    own = op.integer("axis", -1) % len(op.output_shape)
    if slab.axis == own:
        return None
    return of_first(op, slab._replace(axis=slab.axis - (slab.axis > own)), slab)


def triangle(op: OpView, slab: Slab) -> Sliced | None:
    """Trilu: along rows and columns with the diagonal moved by as much."""
    moved = {len(op.output_shape) - 2: slab.start, len(op.output_shape) - 1: -slab.start}.get(slab.axis, 0)
    diagonal = op.constant(1) if op.has_input(1) else None
    if not moved:
        return of_first(op, slab, slab)
    if diagonal is None:
        return None
    return Sliced((slab, None), slab, constants={1: diagonal + np.asarray(moved, diagonal.dtype)})


def reversal(op: OpView, slab: Slab) -> Sliced | None:
    """ReverseSequence: along other axes than that of time; by batch with the lengths."""
    time, batch = op.integer("time_axis", 0), op.integer("batch_axis", 1)
    if slab.axis == time:
        return None
    return Sliced((slab, slab._replace(axis=0) if slab.axis == batch else None), slab)


WORDS, SEGMENTS, POSITIONS, MASK, PLACES = 0, 1, 3, 7, 8  # inputs of EmbedLayerNormalization
COUNTS = 1  # its second output, of each item of the batch


def embedding(op: OpView, slab: Slab) -> Sliced | None:
    """EmbedLayerNormalization, of bytes too: by batch, or by words with the positions that they have.

    That of bytes always tells how many words there are, so that it goes by batch alone: 0 of 902 slabs differ (1.32.0;
    1, 2, 4 and 8 threads).
    """
    counts = op.outputs[COUNTS] if len(op.outputs) > COUNTS else None
    if slab.axis > 1 or (slab.axis == 1 and counts is not None):
        return None
    needs: list[Slab | None] = [None] * len(op.inputs)
    tells_places = op.node.op_type == "EmbedLayerNormalization" and op.has_input(PLACES)
    for place in (WORDS, SEGMENTS, MASK, *((PLACES,) if tells_places else ())):
        shape = op.inputs[place] if op.has_input(place) else None
        if shape is not None and shape[slab.axis] == op.output_shape[slab.axis]:
            needs[place] = slab
    if slab.axis == 1 and not tells_places:
        needs[POSITIONS] = slab._replace(axis=0)
    return Sliced(tuple(needs), slab)
