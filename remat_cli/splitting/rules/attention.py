"""Slicing rules of attention: by items of the batch, by heads, by queries.

Measured with ONNX Runtime 1.31.1 (1 to 16 threads; up to 512 queries and 1,024 keys; heads of 8 to 128): slabs of the
batch and of heads have the bits of the whole. Along queries a single one differs (a product of one row goes its own way
in the runtime). Masks of causal attention depend on the position, so that is not cut along queries.
"""

import numpy as np
import onnx_ir as ir

from remat_cli.onnx_io.read.op_facts import ONNX
from remat_cli.splitting.rules.matrix import element_type
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, broadcast_need

Needs = tuple[Slab | None, ...]
MASK, PAST_KEY, PAST_VALUE, LENGTHS = 3, 4, 5, 6  # inputs of Attention beside query, key and value
_ATTENTION_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def attention(op: OpView, slab: Slab) -> Sliced | None:
    """ONNX Attention, 4-D [batch, heads, queries, size] or 3-D; what it remembers is made by batch and heads only.

    Measured in half precision as well: no slab of 540 ops differed that is not refused in single precision.
    """
    if element_type(op) not in _ATTENTION_TYPES:
        return None
    has_heads = len(op.output_shape) == 4
    if slab.axis == 0:
        past: Needs = tuple(slab if shape else None for shape in op.inputs[PAST_KEY:])
        return Sliced((slab, slab, slab, *_mask(op, slab, 0), *past), slab)
    if slab.axis == 1 and has_heads:  # heads of the query with those of the keys that they read, in whole groups
        group, rest = divmod(op.input_shape(0)[1], op.input_shape(1)[1])
        if rest or slab.start % group or slab.stop % group or (group > 1 and not _makes_one(op)):
            return None
        shared = Slab(1, slab.start // group, slab.stop // group)
        past = tuple(shared if shape and len(shape) == 4 else None for shape in op.inputs[PAST_KEY:])
        return Sliced((slab, shared, shared, *_mask(op, slab, 1), *past), slab)
    has_past = any(map(op.has_input, (PAST_KEY, PAST_VALUE, LENGTHS)))
    is_whole = has_past or not _makes_one(op) or op.integer("is_causal", 0)
    if is_whole or slab.axis != (2 if has_heads else 1) or (slab.extent == 1 and not op.may_reassociate):
        return None
    nothing: Needs = (None,) * (len(op.inputs) - PAST_KEY)
    return Sliced((slab, None, None, *_mask(op, slab, 2), *nothing), slab)


def _mask(op: OpView, slab: Slab, axis: int) -> Needs:
    """What is read of the mask, if it may be given; it is broadcast to [batch, heads, queries, keys]."""
    if len(op.inputs) <= MASK:
        return ()
    return (broadcast_need(op.inputs[MASK], 4, op.output_shape[slab.axis], slab._replace(axis=axis)),)


BIAS, PADDING, SCORES, MEMORY, FURTHER = 3, 4, 5, (6, 7), 8  # inputs of MultiHeadAttention; FURTHER: of a decoder


def multi_head(op: OpView, slab: Slab) -> Sliced | None:
    """The runtime's MultiHeadAttention of a 3-D query: by batch whatever else it reads, by queries without a past.

    With a past 0 of 754 slabs of the batch differ (1.32.0; 1 to 8 threads). Heads come apart (`recast/grouped.py`).
    """
    is_known = element_type(op) == ir.DataType.FLOAT and len(op.input_shape(0)) == 3
    if not is_known or any(map(op.has_input, range(FURTHER, len(op.inputs)))):
        return None
    if slab.axis == 0 and not _has_packed_padding(op, PADDING):
        return Sliced(_needs_of_batch(op, slab, (BIAS,), SCORES), slab)
    if slab.axis != 1 or not _may_cut_queries(op, slab):
        return None
    padding = op.inputs[PADDING] if op.has_input(PADDING) else None
    needs: Needs = (slab, None, None, None, slab if padding and len(padding) == 3 else None)
    scores = slab._replace(axis=2) if op.has_input(SCORES) else None
    return Sliced((*needs, scores, None, None, None, None)[: len(op.inputs)], slab)


def _may_cut_queries(op: OpView, slab: Slab) -> bool:
    """Whether only what is made of the queries is read, and part and whole go the same way.

    Without mask and bias of the scores the runtime goes block by block, else over all queries at once.
    """
    if op.integer("unidirectional", 0) or any(map(op.has_input, MEMORY)) or not _makes_one(op):
        return False
    if op.may_reassociate or op.has_input(PADDING) or op.has_input(SCORES):
        return op.may_reassociate or min(slab.extent, op.output_shape[1]) > 1
    # Blocks are as long as a key's and a value's head, shorter only where the second-level cache is below 16 times the
    # square of that, in bytes. Both are [batch, heads, length, size], or [batch, length, heads of all sizes].
    heads = (op.input_shape(place) for place in (1, 2))
    block = sum(shape[3] if len(shape) == 4 else shape[2] // op.integer("num_heads", 1) for shape in heads)
    return all(extent > 1 and extent % block != 1 for extent in (slab.extent, op.output_shape[1]))


def _has_packed_padding(op: OpView, place: int) -> bool:
    """Whether a mask is one list of lengths and bounds of all items, which is not cut."""
    shape = op.inputs[place] if op.has_input(place) else None
    return shape is not None and len(shape) == 1 and shape[0] != op.output_shape[0]


def _needs_of_batch(op: OpView, slab: Slab, whole: tuple[int, ...], scores: int) -> Needs:
    """The same items of every input but the `whole` ones; what is added to `scores` may be one for all."""
    needs = [slab if shape and place not in whole else None for place, shape in enumerate(op.inputs)]
    if op.has_input(scores):
        needs[scores] = broadcast_need(op.inputs[scores], 4, op.output_shape[0], slab)
    return tuple(needs)


def packed(op: OpView, slab: Slab) -> Sliced | None:
    """The runtime's Attention with packed weights, with mask or bias of the scores but no past: by batch."""
    is_plain = element_type(op) == ir.DataType.FLOAT and _makes_one(op) and op.weights[1]
    has_past = op.has_input(4) or any(map(op.has_input, range(6, len(op.inputs))))
    if slab.axis != 0 or not is_plain or has_past or _has_packed_padding(op, 3):
        return None
    return Sliced(_needs_of_batch(op, slab, (1, 2), 5), slab)


def _makes_one(op: OpView) -> bool:
    """Whether only the first output is read."""
    return all(shape is None for shape in op.outputs[1:])


ITEMS = range(6)  # inputs of GroupQueryAttention that have something of each item: queries to lengths of the past
PLACES, BIAS_OF_SCORES, SINKS = 9, 10, 11


def grouped(op: OpView, slab: Slab) -> Sliced | None:
    """GroupQueryAttention by items of the batch, with keys and values of the past and those that are made.

    Measured with ONNX Runtime 1.32.0: 0 of 99 slabs differ (1, 2 and 4 threads; items of one length and of several,
    rotated, windows, capped scores, bias, sinks). Groups of heads go apart as well, 0 of 110, but keys and values that
    are made lie along another axis there than the result (`recast/grouped.py`). Quantised pasts and norms of queries
    were not measured: refused.

    Nor is it cut by queries. A second call, on the keys and values that the first one made, has the bits of the whole
    where it has two queries and more and none is left over of blocks that are as long as two heads (0 of 2,642 parts
    differ; 355 of 752 others do). But lengths that inputs tell may be shorter than a first prompt: queries behind them
    are computed on what is before the end, which no later call can be told. And of several items the runtime takes no
    prompt behind a past.
    """
    if (
        slab.axis != 0
        or element_type(op) != ir.DataType.FLOAT
        or any(map(op.has_input, range(SINKS + 1, len(op.inputs))))
    ):
        return None
    needs = [slab if shape and place in ITEMS else None for place, shape in enumerate(op.inputs)]
    for place, rank in ((PLACES, 2), (BIAS_OF_SCORES, 4)):
        if op.has_input(place):
            needs[place] = broadcast_need(op.inputs[place], rank, op.output_shape[0], slab)
    return Sliced(tuple(needs), slab)


def rotary(op: OpView, slab: Slab) -> Sliced | None:
    """RotaryEmbedding: by batch, by heads where they are an axis, by positions with what tells the angle of each."""
    positions, *tables = (3, 1, 2) if op.key[0] == ONNX else (1, 2, 3)
    rank = len(op.output_shape)
    axis = {0: 0, rank - 2: 1}.get(slab.axis)  # of what tells angles, [batch, positions, ...]
    if slab.axis == rank - 1:
        return None
    needs: list[Slab | None] = [slab, *[None] * (len(op.inputs) - 1)]
    constants = {}
    for place in (positions, *tables):
        shape = op.inputs[place] if op.has_input(place) else None
        tells_angles = shape is not None and len(shape) == (2 if place == positions else 3)
        if tells_angles and axis is not None:
            needs[place] = slab._replace(axis=axis)
    if axis == 1 and op.has_input(positions) and len(op.input_shape(positions)) == 1:
        first = op.constant(positions)
        if first is None:
            return None
        constants[positions] = first + np.asarray(slab.start, first.dtype)
    return Sliced(tuple(needs), slab, constants=constants)
