"""Blocks of convolutional networks: pictures in, pictures out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.torch_like.drawing import Drawing, Tensor
from tests.torch_like.layers import (
    activation,
    batch_norm,
    conv,
    conv_norm,
    conv_transpose,
    gelu,
    global_mean,
    group_norm,
    hard_swish,
    layer_norm,
    linear,
    pool,
    prelu,
    relu,
    reshape,
    resize,
    scaled,
    silu,
    slice_axis,
    split,
    transpose,
)

LEAST_SIDE = 16  # pictures are made smaller only above it


def can_shrink(x: Tensor) -> bool:
    return min(x.shape[2:]) >= 2 * LEAST_SIDE and all(side % 2 == 0 for side in x.shape[2:])


def plain(d: Drawing, x: Tensor) -> Tensor:
    """One to three convolutions, the first perhaps with a stride or a dilation."""
    stride = 2 if can_shrink(x) and d.chance(0.4) else 1
    width = d.pick(x.shape[1], x.shape[1], min(64, 2 * x.shape[1]))
    y = conv_norm(d, x, width, d.pick(3, 3, 5), stride=stride)
    for _ in range(int(d.dice.integers(3))):
        y = conv_norm(d, y, width, dilation=d.pick(1, 1, 2))
    return y


def residual(d: Drawing, x: Tensor) -> Tensor:
    """Basic or bottleneck block of ResNet, the shortcut perhaps with a convolution."""
    width, act = x.shape[1], d.pick(relu, silu, relu)
    y = act(d, batch_norm(d, conv(d, x, width // 2, 1))) if d.chance() else x
    y = act(d, batch_norm(d, conv(d, y, y.shape[1], 3, group=d.pick(1, 1, 4))))
    y = batch_norm(d, conv(d, y, width, d.pick(1, 3)))
    shortcut = batch_norm(d, conv(d, x, width, 1)) if d.chance(0.3) else x
    return act(d, d.op("Add", y, shortcut) if d.chance() else d.op("Add", shortcut, y))


def squeeze_excite(d: Drawing, x: Tensor) -> Tensor:
    """Every channel times a share that is made of all channels, by convolutions or by linear layers."""
    width = x.shape[1]
    if d.chance(0.6):
        share = conv(d, d.op("Relu", conv(d, global_mean(d, x), max(4, width // 4), 1)), width, 1)
    else:
        flat = d.op("Flatten", global_mean(d, x)) if d.chance() else reshape(d, global_mean(d, x), (x.shape[0], width))
        flat = linear(d, silu(d, linear(d, flat, max(4, width // 4))), width)
        share = reshape(d, flat, (x.shape[0], width, 1, 1))
    gate = d.op("HardSigmoid", share, alpha=1 / 6) if d.chance(0.3) else d.op("Sigmoid", share)
    return d.op("Mul", x, gate) if d.chance() else d.op("Mul", gate, x)


def inverted(d: Drawing, x: Tensor) -> Tensor:
    """Inverted residual block: widen, convolve every channel alone, squeeze and excite, narrow."""
    width, act = x.shape[1], d.pick(silu, hard_swish, relu)
    wide = min(96, width * d.pick(2, 3))
    y = act(d, batch_norm(d, conv(d, x, wide, 1, bias=False)))
    y = act(d, batch_norm(d, conv(d, y, wide, d.pick(3, 5), group=wide, dilation=d.pick(1, 1, 2), bias=False)))
    if d.chance(0.6):
        d.mark("squeeze_excite")
        y = squeeze_excite(d, y)
    y = batch_norm(d, conv(d, y, width, 1, bias=False))
    return d.op("Add", x, y)


def dense(d: Drawing, x: Tensor) -> Tensor:
    """Dense block: every layer sees all before it; then a transition."""
    parts = [x]
    for _ in range(int(d.dice.integers(2, 5))):
        joined = d.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        parts.append(conv(d, relu(d, batch_norm(d, joined)), 16, 3))
    y = conv_norm(d, d.op("Concat", *parts, axis=1), x.shape[1], 1)
    return d.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2]) if can_shrink(y) and d.chance(0.4) else y


def inception(d: Drawing, x: Tensor) -> Tensor:
    """Branches of several kernels and a pool, joined."""
    width = x.shape[1] // 4 * 2
    branches = [conv_norm(d, x, width, kernel) for kernel in (1, 3, 5)[: int(d.dice.integers(2, 4))]]
    pooled = d.op(d.pick("MaxPool", "AveragePool"), x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    branches.append(conv_norm(d, pooled, width, 1))
    return conv_norm(d, d.op("Concat", *branches, axis=1), x.shape[1], 1)


def split_and_join(d: Drawing, x: Tensor) -> Tensor:
    """Half of the channels goes through convolutions, as in YOLO's C2f and in ShuffleNet with its shuffle."""
    width = x.shape[1] // 4 * 4
    y = conv_norm(d, x, width, 1)
    if d.chance(0.7):
        kept, worked = split(d, y, 2, 1)
    else:
        kept, worked = slice_axis(d, y, 1, 0, width // 2), slice_axis(d, y, 1, width // 2, width)
    parts = [kept, worked]
    for _ in range(int(d.dice.integers(1, 4))):
        step = silu(d, conv(d, silu(d, conv(d, parts[-1], width // 2)), width // 2))
        parts.append(d.op("Add", parts[-1], step) if d.chance() else step)
    y = d.op("Concat", *parts, axis=1)
    if d.chance(0.4):
        d.mark("channel_shuffle")
        n, c, h, w = y.shape
        y = reshape(d, transpose(d, reshape(d, y, (n, 2, c // 2, h, w)), 0, 2, 1, 3, 4), (n, c, h, w))
    return silu(d, conv(d, y, x.shape[1], 1))


def convnext(d: Drawing, x: Tensor) -> Tensor:
    """ConvNeXt block: a wide depthwise convolution, then a little network on the channels of every pixel."""
    width = x.shape[1]
    y = transpose(d, conv(d, x, width, 7, group=width), 0, 2, 3, 1)
    y = linear(d, gelu(d, linear(d, layer_norm(d, y), 3 * width)), width)
    y = d.op("Mul", d.weight(width, scale=0.5), y) if d.chance() else y
    return d.op("Add", x, transpose(d, y, 0, 3, 1, 2))


def channels_first_norm(d: Drawing, x: Tensor) -> Tensor:
    """Layer normalisation between two transposes, then a convolution."""
    y = transpose(d, layer_norm(d, transpose(d, x, 0, 2, 3, 1)), 0, 3, 1, 2)
    return activation(d, conv(d, y, x.shape[1], 3))


def grouped(d: Drawing, x: Tensor) -> Tensor:
    """Block of a diffusion network: group norm, SiLU, convolution, twice; a shortcut."""
    y = conv(d, silu(d, group_norm(d, x)), x.shape[1], 3)
    if d.chance():
        when = linear(d, silu(d, d.weight(x.shape[0], 32)), x.shape[1])
        y = d.op("Add", y, reshape(d, when, (x.shape[0], x.shape[1], 1, 1)))
    y = conv(d, silu(d, group_norm(d, y)), x.shape[1], 3)
    y = d.op("Add", conv(d, x, x.shape[1], 1) if d.chance(0.3) else x, y)
    return scaled(d, y, 0.7)


def atrous(d: Drawing, x: Tensor) -> Tensor:
    """Atrous spatial pyramid pooling, with the mean of the picture spread over it."""
    parts = [conv_norm(d, x, 16, 1), *(conv_norm(d, x, 16, 3, dilation=rate) for rate in (2, 4))]
    mean = conv_norm(d, global_mean(d, x), 16, 1)
    whole = (*mean.shape[:2], *x.shape[2:])
    mean = d.op("Expand", mean, d.ints(*whole)) if d.chance() else resize(d, mean, x.shape[2:])
    return conv_norm(d, d.op("Concat", *parts, mean, axis=1), x.shape[1], 1)


def pixel_shuffle(d: Drawing, x: Tensor) -> Tensor:
    """Pixels out of channels, by one op or by its parts, and sometimes back."""
    n, c, h, w = x.shape
    y = conv(d, x, 4 * (c // 2), 3)
    if d.chance():
        y = d.op("DepthToSpace", y, blocksize=2, mode=d.pick("CRD", "DCR"))
    else:
        y = transpose(d, reshape(d, y, (n, c // 2, 2, 2, h, w)), 0, 1, 4, 2, 5, 3)
        y = reshape(d, y, (n, c // 2, 2 * h, 2 * w))
    y = prelu(d, y)
    if d.chance(0.4):
        y = d.op("SpaceToDepth", y, blocksize=2)
        return conv(d, y, c, 1)
    return conv_norm(d, y, c, 3, stride=2)


def pooled(d: Drawing, x: Tensor) -> Tensor:
    """Pools of all kinds: one after another as in YOLO's SPPF, or one that rounds up."""
    if d.chance() or not can_shrink(x):
        y = conv_norm(d, x, x.shape[1] // 2, 1)
        parts = [y]
        for _ in range(3):
            parts.append(d.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
        return conv_norm(d, d.op("Concat", *parts, axis=1), x.shape[1], 1)
    y = pool(d, conv_norm(d, x, x.shape[1]), 3, 2, ceil=True)
    return y if all(side % 2 == 0 for side in y.shape[2:]) else resize(d, y, [side // 2 for side in x.shape[2:]])


def padded(d: Drawing, x: Tensor) -> Tensor:
    """A pad of some mode, a convolution without its own, sometimes a crop."""
    mode = d.pick("constant", "reflect", "edge")
    d.mark(f"pad_{mode}")
    more = [d.constant(0.5)] if mode == "constant" and d.chance() else []
    y = d.op("Pad", x, d.ints(0, 0, 2, 2, 0, 0, 2, 2), *more, mode=mode)
    y = activation(d, conv(d, y, x.shape[1], 3, pad=0))
    y = slice_axis(d, slice_axis(d, y, 2, 1, -1), 3, 1, -1)
    return d.op("Add", x, y) if d.chance() else y


def focus(d: Drawing, x: Tensor) -> Tensor:
    """Every second pixel four times, as YOLO's Focus; then convolutions back to the size."""
    parts = []
    for row in range(2):
        for column in range(2):
            rows = slice_axis(d, x, 2, row, 2**31, 2)
            parts.append(slice_axis(d, rows, 3, column, 2**31, 2))
    y = conv_norm(d, d.op("Concat", *parts, axis=1), x.shape[1], 3)
    return resize(d, y, x.shape[2:])


def self_gated(d: Drawing, x: Tensor) -> Tensor:
    """Spatial attention: mean and maximum over channels make a mask."""
    if d.opset >= 18:
        peak = d.op("ReduceMax", x, d.ints(1), keepdims=1)
        level = d.op("ReduceMean", x, d.ints(1), keepdims=1)
    else:
        peak = d.op("ReduceMax", x, axes=[1], keepdims=1)
        level = d.op("ReduceMean", x, axes=[1], keepdims=1)
    mask = d.op("Sigmoid", conv(d, d.op("Concat", level, peak, axis=1), 1, 7))
    return d.op("Mul", x, mask)


def rrdb(d: Drawing, x: Tensor) -> Tensor:
    """Residual dense block of super-resolution: growing concatenations, the result scaled and added."""
    parts = [x]
    for _ in range(3):
        joined = parts[0] if len(parts) == 1 else d.op("Concat", *parts, axis=1)
        parts.append(d.op("LeakyRelu", conv(d, joined, 16), alpha=0.2))
    y = conv(d, d.op("Concat", *parts, axis=1), x.shape[1])
    return d.op("Add", d.op("Mul", y, d.constant(0.2)), x)


def upsampled(d: Drawing, x: Tensor) -> Tensor:
    """Twice the size by a transposed convolution or an interpolation, and half of it again."""
    if d.chance():
        y = conv_transpose(d, x, x.shape[1] // 2, d.pick(2, 4))
    else:
        y = conv(d, resize(d, x, [2 * side for side in x.shape[2:]]), x.shape[1] // 2)
    return conv_norm(d, activation(d, y), x.shape[1], stride=2)


def cumulative(d: Drawing, x: Tensor) -> Tensor:
    """Positions by cumulative sums of a mask, as DETR makes them, added to a picture."""
    ones = d.op("Sigmoid", mean_channel(d, x))
    rows, columns = (d.op("CumSum", ones, d.constant(axis, np.int64)) for axis in (2, 3))
    both = d.op("Concat", rows, columns, axis=1)
    where = d.op("Sin", both) if d.chance() else d.op("Div", both, d.constant(float(max(x.shape[2:]))))
    return d.op("Add", x, conv(d, where, x.shape[1], 1))


def mean_channel(d: Drawing, x: Tensor) -> Tensor:
    return d.op("ReduceMean", x, d.ints(1)) if d.opset >= 18 else d.op("ReduceMean", x, axes=[1])


PICTURE_BLOCKS: dict[str, Callable[[Drawing, Tensor], Tensor]] = {
    block.__name__: block
    for block in (
        plain,
        residual,
        squeeze_excite,
        inverted,
        dense,
        inception,
        split_and_join,
        convnext,
        channels_first_norm,
        grouped,
        atrous,
        pixel_shuffle,
        pooled,
        padded,
        focus,
        self_gated,
        rrdb,
        upsampled,
        cumulative,
    )
}
