"""Attention as exporters write it: how queries, keys and values are made, masked, weighted and joined."""

from __future__ import annotations

import math

import numpy as np

from tests.torch_like.drawing import BOOL, INT64, Drawing, Tensor
from tests.torch_like.layers import linear, reshape, scaled, slice_axis, split, squeeze, transpose, unsqueeze


def attention(d: Drawing, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Self or cross attention on tokens (rows, tokens, channels); `mask` is added to the scores."""
    width = x.shape[2]
    heads = d.pick(*[heads for heads in (2, 4) if width % heads == 0])
    if memory is None and d.chance(0.5):
        d.mark("fused_qkv")
        q, k, v = _fused(d, x, heads)
    else:
        d.mark("separate_qkv" if memory is None else "cross_attention")
        source = memory or x
        q, k, v = (_heads(d, linear(d, one, width), heads) for one in (x, source, source))
    if d.chance(0.2):
        d.mark("rotary")
        q, k = _rotated(d, q), _rotated(d, k)
    y = weighted(d, q, k, v, mask, is_causal=memory is None and mask is None and d.chance(0.3))
    y = transpose(d, y, 0, 2, 1, 3)
    return linear(d, reshape(d, y, x.shape), width)


def _fused(d: Drawing, x: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one linear layer, taken apart in one of the ways of real models."""
    n, t, c = x.shape
    both = linear(d, x, 3 * c)
    if d.chance(0.3):
        parts = split(d, both, 3, 2)
        q, k, v = (_heads(d, part, heads) for part in parts)
        return q, k, v
    five = transpose(d, reshape(d, both, (n, t, 3, heads, c // heads)), 2, 0, 3, 1, 4)
    how = d.pick("gather", "split", "slice")
    if how == "gather":
        q, k, v = (d.op("Gather", five, d.constant(at, np.int64), axis=0) for at in range(3))
    elif how == "split":
        q, k, v = (squeeze(d, part, 0) for part in split(d, five, 3, 0))
    else:
        q, k, v = (squeeze(d, slice_axis(d, five, 0, at, at + 1), 0) for at in range(3))
    return q, k, v


def _heads(d: Drawing, x: Tensor, heads: int) -> Tensor:
    """(rows, tokens, channels) to (rows, heads, tokens, channels of a head)."""
    n, t, c = x.shape
    return transpose(d, reshape(d, x, (n, t, heads, c // heads)), 0, 2, 1, 3)


def _rotated(d: Drawing, x: Tensor) -> Tensor:
    """Rotary positions: halves of channels exchanged and negated."""
    t, c = x.shape[2:]
    angles = np.outer(np.arange(t), 1 / 100 ** (np.arange(c // 2) / (c // 2)))
    angles = np.concatenate([angles, angles], 1)[None, None]
    cosine, sine = d.constant(np.cos(angles)), d.constant(np.sin(angles))
    front, back = slice_axis(d, x, 3, 0, c // 2), slice_axis(d, x, 3, c // 2, 2**31)
    turned = d.op("Concat", d.op("Neg", back), front, axis=3)
    return d.op("Add", d.op("Mul", x, cosine), d.op("Mul", turned, sine))


def weighted(
    d: Drawing, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, is_causal: bool = False
) -> Tensor:
    """Values weighted by the softmax of scaled scores."""
    width = q.shape[-1]
    scale = 1 / math.sqrt(width)
    where = d.pick("scores", "q", "both")
    if where == "q":
        q = scaled(d, q, scale)
    elif where == "both":
        root = _root(d, scale)
        q, k = d.op("Mul", q, root), d.op("Mul", k, root)
    axes = list(range(q.rank))
    scores = d.op("MatMul", q, transpose(d, k, *axes[:-2], axes[-1], axes[-2]))
    if where == "scores":
        scores = scaled(d, scores, scale)
    if mask is not None:
        scores = d.op("Add", scores, mask)
    if is_causal:
        scores = _causal(d, scores)
    if d.chance(0.25):
        d.mark("relative_bias")
        scores = d.op("Add", scores, _relative_bias(d, scores))
    return d.op("MatMul", d.op("Softmax", scores, axis=-1), v)


def _root(d: Drawing, scale: float) -> Tensor:
    """The root of a scale, as a number or as an op on one."""
    return d.op("Sqrt", d.constant(scale)) if d.chance() else d.constant(math.sqrt(scale))


def _causal(d: Drawing, scores: Tensor) -> Tensor:
    """Scores of later tokens made very small, in one of the ways of exporters."""
    rows, columns = scores.shape[-2:]
    how = d.pick("where", "add", "computed", "trilu")
    d.mark(f"causal_{how}")
    lower = np.tril(np.ones((1, 1, rows, columns), bool), columns - rows)
    if how == "where":
        return d.op("Where", d.constant(lower, np.bool_), scores, d.constant(-1e4))
    if how == "add":
        return d.op("Add", scores, d.constant(np.where(lower, 0.0, -1e4)))
    if how == "trilu" and d.has("Trilu"):
        full = d.op("ConstantOfShape", d.ints(rows, columns))
        high = d.op("Trilu", d.op("Add", full, d.constant(-1e4)), d.constant(1, np.int64), upper=1)
        return d.op("Add", scores, high)
    at = d.constant(np.arange(rows)[:, None], np.int64)
    to = d.constant(np.arange(columns)[None], np.int64)
    later = unsqueeze(d, d.op("Greater", to, at), 0, 1)
    if d.chance():
        later = d.op("Expand", later, d.ints(scores.shape[0], 1, rows, columns))
    return d.op("Where", later, d.constant(-1e4), scores)


def _relative_bias(d: Drawing, scores: Tensor) -> Tensor:
    """A bias per head and distance, gathered from a table."""
    heads, rows, columns = scores.shape[-3:]
    table = d.weight(rows + columns, heads, scale=0.5)
    away = np.arange(rows)[:, None] - np.arange(columns)[None] + columns
    if d.chance():
        bias = d.op("Gather", table, d.constant(away, np.int64), axis=0)
        return unsqueeze(d, transpose(d, bias, 2, 0, 1), 0)
    flat = d.op("Gather", table, d.constant(away.reshape(-1), np.int64), axis=0)
    return unsqueeze(d, transpose(d, reshape(d, flat, (rows, columns, heads)), 2, 0, 1), 0)


def padding_mask(d: Drawing, rows: int, tokens: int) -> Tensor:
    """What is added to scores for tokens that an input says are padding: (rows, 1, 1, tokens)."""
    d.mark("padding_mask")
    dtype = d.pick(INT64, BOOL)
    given = d.input(d.unique("mask").strip("/").replace("/", "_"), (rows, tokens), dtype)
    if dtype == BOOL:
        kept = unsqueeze(d, given, 1, 2)
        return d.op("Where", kept, d.constant(0.0), d.constant(-8.0))
    share = d.op("Cast", unsqueeze(d, given, 1, 2), to=1)
    return d.op("Mul", d.op("Sub", d.constant(1.0), share), d.constant(-8.0))
