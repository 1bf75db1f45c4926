"""Slicing rules of fused attention: by items of a batch, by heads, by query positions.

Measured with ONNX Runtime 1.31.1 (1 to 16 threads; up to 512 queries and 1,024 keys; heads of 8 to 128): slabs of the
batch and of heads have the bits of the whole. Along queries a single one differs (a product of one row goes its own way
in the runtime). Masks of causal attention depend on the position, so that is not cut along queries.
"""

from __future__ import annotations

import onnx_ir as ir

from remat_cli.splitting.op_view import OpView, Shape, Slab, Sliced, broadcast_need, of_first
from remat_cli.splitting.rules_matrix import element_type

Needs = tuple[Slab | None, ...]
MASK, PAST_KEY, PAST_VALUE, LENGTHS = 3, 4, 5, 6  # inputs of Attention beside query, key and value


def attention(op: OpView, slab: Slab) -> Sliced | None:
    """ONNX Attention without a past, only its first output read: 4-D [batch, heads, queries, size], or 3-D."""
    if not _is_plain(op) or any(map(op.has_input, (PAST_KEY, PAST_VALUE, LENGTHS))):
        return None
    if len(op.output_shape) == 4:
        return _attention_4d(op, slab)
    return _attention_3d(op, slab)


def _attention_4d(op: OpView, slab: Slab) -> Sliced | None:
    if slab.axis == 0:
        return _with_mask(op, slab, (slab, slab, slab), 0)
    if slab.axis == 1:
        shared = _shared_heads(op.input_shape(0), op.input_shape(1), slab)
        return None if shared is None else _with_mask(op, slab, (slab, shared, shared), 1)
    if slab.axis == 2 and _may_cut_queries(op, slab):
        return _with_mask(op, slab, (slab, None, None), 2)
    return None


def _attention_3d(op: OpView, slab: Slab) -> Sliced | None:
    if slab.axis == 0:
        return _with_mask(op, slab, (slab, slab, slab), 0)
    if slab.axis == 1 and _may_cut_queries(op, slab):
        return _with_mask(op, slab, (slab, None, None), 2)
    return None


def _may_cut_queries(op: OpView, slab: Slab) -> bool:
    return op.integer("is_causal", 0) == 0 and (slab.extent > 1 or op.may_reassociate)


def _shared_heads(query: Shape, key: Shape, slab: Slab) -> Slab | None:
    """Heads of keys that a slab of query heads reads: whole groups that share one, else None."""
    group, rest = divmod(query[1], key[1])
    if rest or slab.start % group or slab.stop % group:
        return None
    return Slab(1, slab.start // group, slab.stop // group)


def _with_mask(op: OpView, slab: Slab, needs: Needs, axis: int) -> Sliced | None:
    """Adds what is read of the mask, which is broadcast to [batch, heads, queries, keys]; `axis` is one of those."""
    mask = op.inputs[MASK] if op.has_input(MASK) else None
    extent = op.output_shape[slab.axis]
    part = broadcast_need(mask, 4, extent, Slab(axis, slab.start, slab.stop))
    rest = (part, *[None] * len(op.inputs))[: len(op.inputs) - 3]
    return Sliced((*needs, *rest), slab)


def multi_head(op: OpView, slab: Slab) -> Sliced | None:
    """The runtime's MultiHeadAttention of plain 3-D query, key and value, with or without a bias."""
    if not _is_plain(op) or any(map(op.has_input, range(4, len(op.inputs)))):
        return None
    if any(not op.has_input(place) or len(op.input_shape(place)) != 3 for place in range(3)):
        return None
    rest: Needs = (None,) * (len(op.inputs) - 3)
    if slab.axis == 0:
        return Sliced((slab, slab, slab, *rest), slab)
    if slab.axis != 1 or op.integer("unidirectional", 0):
        return None
    if op.may_reassociate or not _leaves_one_query(op, slab):
        return Sliced((slab, None, None, *rest), slab)
    return None


def _leaves_one_query(op: OpView, slab: Slab) -> bool:
    """Whether part or whole ends in a block of one query: blocks are as long as a key's and a value's head.

    Shorter only where the second-level cache is below 16 times the square of that, in bytes.
    """
    width = op.input_shape(1)[2] + op.input_shape(2)[2]
    block = width // op.integer("num_heads", 1)
    return any(extent == 1 or extent % block == 1 for extent in (slab.extent, op.output_shape[1]))


def packed(op: OpView, slab: Slab) -> Sliced | None:
    """The runtime's Attention with packed weights, without mask or past: by items of the batch."""
    if slab.axis != 0 or not _is_plain(op):
        return None
    if any(map(op.has_input, range(3, len(op.inputs)))) or not op.weights[1]:
        return None
    return of_first(op, slab, slab)


def _is_plain(op: OpView) -> bool:
    """Whether it is in float32, which alone was measured, and only the first output is read."""
    return element_type(op) == ir.DataType.FLOAT and all(shape is None for shape in op.outputs[1:])
