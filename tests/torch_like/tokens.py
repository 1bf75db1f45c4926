"""Blocks of transformers: tokens in, tokens out; and the ways between tokens and pictures."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.torch_like.attention import attention, padding_mask, weighted
from tests.torch_like.drawing import Drawing, Tensor
from tests.torch_like.layers import (
    activation,
    conv,
    gelu,
    layer_norm,
    linear,
    reshape,
    scaled,
    silu,
    slice_axis,
    split,
    token_norm,
    transpose,
    unsqueeze,
)


def mlp(d: Drawing, x: Tensor) -> Tensor:
    """The little network of a transformer block, plain or gated."""
    wide = x.shape[-1] * d.pick(2, 3, 4)
    if d.chance(0.3):
        d.mark("gated_mlp")
        if d.chance():
            gate, value = split(d, linear(d, x, 2 * wide, bias=False), 2, x.rank - 1)
        else:
            gate, value = linear(d, x, wide, bias=False), linear(d, x, wide, bias=False)
        return linear(d, d.op("Mul", d.pick(silu, gelu)(d, gate), value), x.shape[-1], bias=False)
    return linear(d, gelu(d, linear(d, x, wide)), x.shape[-1])


def transformer(d: Drawing, x: Tensor) -> Tensor:
    """Attention and a little network, normalised before or after."""
    mask = padding_mask(d, *x.shape[:2]) if d.chance(0.2) else None
    if d.chance(0.7):
        x = d.op("Add", x, attention(d, token_norm(d, x), mask=mask))
        return d.op("Add", x, mlp(d, token_norm(d, x)))
    x = layer_norm(d, d.op("Add", attention(d, x, mask=mask), x))
    return layer_norm(d, d.op("Add", mlp(d, x), x))


def cross(d: Drawing, x: Tensor) -> Tensor:
    """Attention to tokens of another input or to fewer tokens of this one."""
    n, t, c = x.shape
    if d.chance():
        memory = d.input(d.unique("context").strip("/").replace("/", "_"), (n, 77, 32))
        memory = linear(d, memory, c)
    else:
        memory = layer_norm(d, slice_axis(d, x, 1, 0, max(8, t // 2)))
    return d.op("Add", x, attention(d, layer_norm(d, x), memory))


def window(d: Drawing, x: Tensor) -> Tensor:
    """Swin: attention inside windows, perhaps of a rolled picture."""
    d.mark("window")
    n, t, c = x.shape
    rows, columns = sides_of(t)
    side = 4
    if rows % side or columns % side:
        return transformer(d, x)
    y = reshape(d, layer_norm(d, x), (n, rows, columns, c))
    shift = side // 2 if d.chance() else 0
    y = roll(d, roll(d, y, 1, shift), 2, shift) if shift else y
    y = transpose(d, reshape(d, y, (n, rows // side, side, columns // side, side, c)), 0, 1, 3, 2, 4, 5)
    y = attention(d, reshape(d, y, (-1, side * side, c)))
    y = reshape(d, y, (n, rows // side, columns // side, side, side, c))
    y = reshape(d, transpose(d, y, 0, 1, 3, 2, 4, 5), (n, rows, columns, c))
    y = roll(d, roll(d, y, 1, -shift), 2, -shift) if shift else y
    x = d.op("Add", x, reshape(d, y, x.shape))
    return d.op("Add", x, mlp(d, layer_norm(d, x)))


def roll(d: Drawing, x: Tensor, axis: int, shift: int) -> Tensor:
    """What leaves one end of an axis comes in at the other."""
    front, back = slice_axis(d, x, axis, shift, 2**31), slice_axis(d, x, axis, 0, shift)
    return d.op("Concat", front, back, axis=axis)


def merging(d: Drawing, x: Tensor) -> Tensor:
    """Swin: four neighbours become one token, and wider; where the picture is large enough."""
    n, t, c = x.shape
    rows, columns = sides_of(t)
    if rows % 8 or columns % 8 or c > 96:
        return transformer(d, x)
    y = reshape(d, x, (n, rows, columns, c))
    parts = []
    for column in range(2):
        for row in range(2):
            parts.append(slice_axis(d, slice_axis(d, y, 1, row, 2**31, 2), 2, column, 2**31, 2))
    y = reshape(d, d.op("Concat", *parts, axis=3), (n, t // 4, 4 * c))
    return linear(d, layer_norm(d, y), 2 * c, bias=False)


def segformer(d: Drawing, x: Tensor) -> Tensor:
    """SegFormer: attention to a smaller picture, and a depthwise convolution inside the little network."""
    _, t, c = x.shape
    rows, columns = sides_of(t)
    normed = layer_norm(d, x)
    smaller = conv(d, to_picture(d, normed, rows, columns), c, 2, stride=2, pad=0)
    memory = layer_norm(d, to_tokens(d, smaller))
    x = d.op("Add", x, attention(d, normed, memory))
    y = linear(d, layer_norm(d, x), 3 * c)
    y = to_tokens(d, conv(d, to_picture(d, y, rows, columns), 3 * c, 3, group=3 * c))
    return d.op("Add", x, linear(d, gelu(d, y), c))


def linear_attention(d: Drawing, x: Tensor) -> Tensor:
    """Attention whose keys meet the values first, and channel attention as in Restormer."""
    c = x.shape[2]
    q, k, v = split(d, linear(d, layer_norm(d, x), 3 * c), 3, 2)
    if d.chance():
        keys = d.op("Softmax", k, axis=1)
        y = d.op("MatMul", d.op("Softmax", q, axis=-1), d.op("MatMul", transpose(d, keys, 0, 2, 1), v))
    else:
        across = (transpose(d, part, 0, 2, 1) for part in (q, k, v))
        y = transpose(d, weighted(d, *(unsqueeze(d, part, 1) for part in across)), 0, 1, 3, 2)
        y = reshape(d, y, x.shape)
    return d.op("Add", x, linear(d, y, c))


def einsum_attention(d: Drawing, x: Tensor) -> Tensor:
    """Attention written with Einsum."""
    n, t, c = x.shape
    heads = 2
    parts = split(d, linear(d, layer_norm(d, x), 3 * c), 3, 2)
    q, k, v = (reshape(d, part, (n, t, heads, c // heads)) for part in parts)
    scores = d.op("Einsum", q, k, equation="nqhd,nkhd->nhqk")
    shares = d.op("Softmax", scaled(d, scores, 1 / math.sqrt(c // heads)), axis=-1)
    y = d.op("Einsum", shares, v, equation="nhqk,nkhd->nqhd")
    return d.op("Add", x, linear(d, reshape(d, y, x.shape), c))


def mixer(d: Drawing, x: Tensor) -> Tensor:
    """MLP-Mixer: a little network across tokens between two transposes."""
    y = transpose(d, layer_norm(d, x), 0, 2, 1)
    y = linear(d, gelu(d, linear(d, y, 48)), x.shape[1])
    return d.op("Add", x, transpose(d, y, 0, 2, 1))


def class_token(d: Drawing, x: Tensor) -> Tensor:
    """A class token and positions joined to the tokens; it is taken away again after a block, for an output.

    It comes last, so that it sees the others under causal masks too.
    """
    n, t, c = x.shape
    token = d.op("Expand", d.weight(1, 1, c), d.ints(n, 1, c))
    y = d.op("Add", d.op("Concat", x, token, axis=1), d.weight(1, t + 1, c, scale=0.3))
    y = transformer(d, y)
    last = d.op("Gather", y, d.constant(t, np.int64), axis=1) if d.chance() else slice_axis(d, y, 1, t, t + 1)
    last = last if last.rank == 2 else reshape(d, last, (n, c))
    d.outputs.append(linear(d, last, 10))
    return slice_axis(d, y, 1, 0, t)


def sides_of(tokens: int) -> tuple[int, int]:
    """Rows and columns of the most square picture of so many tokens."""
    rows = max(side for side in range(1, math.isqrt(tokens) + 1) if tokens % side == 0)
    return rows, tokens // rows


def to_picture(d: Drawing, x: Tensor, rows: int, columns: int) -> Tensor:
    """Tokens to a picture, channels first."""
    n, _, c = x.shape
    if d.chance():
        return reshape(d, transpose(d, x, 0, 2, 1), (n, c, rows, columns))
    return transpose(d, reshape(d, x, (n, rows, columns, c)), 0, 3, 1, 2)


def to_tokens(d: Drawing, x: Tensor) -> Tensor:
    """A picture to tokens, channels last."""
    n, c, rows, columns = x.shape
    if d.chance():
        return transpose(d, reshape(d, x, (n, c, rows * columns)), 0, 2, 1)
    return reshape(d, transpose(d, x, 0, 2, 3, 1), (n, rows * columns, c))


def gated_tokens(d: Drawing, x: Tensor) -> Tensor:
    """Attention along tokens of a convolution as in a Conformer: GLU, depthwise 1-D convolution, an activation."""
    y = transpose(d, layer_norm(d, x), 0, 2, 1)
    front, back = split(d, conv(d, y, 2 * x.shape[2], 1), 2, 1)
    y = d.op("Mul", front, d.op("Sigmoid", back))
    y = activation(d, conv(d, y, x.shape[2], 7, group=x.shape[2]))
    return d.op("Add", x, transpose(d, conv(d, y, x.shape[2], 1), 0, 2, 1))


TOKEN_BLOCKS: dict[str, Callable[[Drawing, Tensor], Tensor]] = {
    block.__name__: block
    for block in (
        transformer,
        cross,
        window,
        merging,
        segformer,
        linear_attention,
        einsum_attention,
        mixer,
        class_token,
        gated_tokens,
    )
}
