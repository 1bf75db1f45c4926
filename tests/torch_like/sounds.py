"""Blocks of audio networks: (rows, channels, time) in and out."""

from __future__ import annotations

from collections.abc import Callable

from tests.torch_like.drawing import Drawing, Tensor
from tests.torch_like.layers import (
    activation,
    batch_norm,
    conv,
    conv_transpose,
    global_mean,
    group_norm,
    layer_norm,
    prelu,
    relu,
    reshape,
    slice_axis,
    split,
    transpose,
)


def gated(d: Drawing, x: Tensor) -> Tensor:
    """Demucs: a strided convolution, GLU, a transposed convolution back, with a skip."""
    y = relu(d, conv(d, x, 2 * x.shape[1], 8, stride=4, pad=2))
    front, back = split(d, conv(d, y, 2 * y.shape[1], 1), 2, 1)
    y = d.op("Mul", front, d.op("Sigmoid", back))
    y = conv_transpose(d, y, x.shape[1], 8, 4)
    y = y if y.shape == x.shape else slice_axis(d, y, 2, 0, x.shape[2])
    return d.op("Add", x, y)


def temporal(d: Drawing, x: Tensor) -> Tensor:
    """Conv-TasNet: one by one, PReLU, norm over everything, depthwise dilated, PReLU, one by one, skip."""
    wide = 2 * x.shape[1]
    y = group_norm(d, prelu(d, conv(d, x, wide, 1)))
    y = prelu(d, conv(d, y, wide, 3, group=wide, dilation=d.pick(1, 2, 4)))
    return d.op("Add", conv(d, group_norm(d, y), x.shape[1], 1), x)


def wavenet(d: Drawing, x: Tensor) -> Tensor:
    """WaveNet: tanh times sigmoid of dilated convolutions, a residual and a skip."""
    pairs = conv(d, x, 2 * x.shape[1], 3, dilation=d.pick(1, 2, 4))
    front, back = split(d, pairs, 2, 1)
    y = d.op("Mul", d.op("Tanh", front), d.op("Sigmoid", back))
    if d.chance():
        skip = conv(d, y, 8, 1)
        d.outputs.append(global_mean(d, skip))
    return d.op("Add", x, conv(d, y, x.shape[1], 1))


def causal(d: Drawing, x: Tensor) -> Tensor:
    """A convolution that sees only the past: a pad on one side, or a crop of what is too much."""
    if d.chance():
        y = conv(d, d.op("Pad", x, d.ints(0, 0, 4, 0, 0, 0)), x.shape[1], 5, pad=0)
    else:
        y = slice_axis(d, conv(d, x, x.shape[1], 5, pad=4), 2, 0, -4)
    return d.op("Add", x, activation(d, y))


def resblock(d: Drawing, x: Tensor) -> Tensor:
    """HiFi-GAN: sums of dilated residual branches, averaged."""
    branches = []
    for kernel in (3, 7):
        y = x
        for dilation in (1, 3):
            step = d.op("LeakyRelu", conv(d, d.op("LeakyRelu", y, alpha=0.1), y.shape[1], kernel, dilation=dilation))
            y = d.op("Add", conv(d, step, y.shape[1], kernel), y)
        branches.append(y)
    total = d.op("Add", *branches)
    return d.op("Div", total, d.constant(2.0))


def normed(d: Drawing, x: Tensor) -> Tensor:
    """A layer norm over channels between two transposes."""
    y = transpose(d, layer_norm(d, transpose(d, x, 0, 2, 1)), 0, 2, 1)
    return activation(d, batch_norm(d, conv(d, y, x.shape[1], 5, group=d.pick(1, x.shape[1]))))


def chunked(d: Drawing, x: Tensor) -> Tensor:
    """Dual-path: time cut into chunks, a network inside every chunk, and back."""
    n, c, t = x.shape
    y = transpose(d, reshape(d, x, (n, c, t // 32, 32)), 0, 2, 1, 3)
    y = reshape(d, y, (n * t // 32, c, 32))
    y = prelu(d, conv(d, y, c, 3))
    y = transpose(d, reshape(d, y, (n, t // 32, c, 32)), 0, 2, 1, 3)
    return d.op("Add", x, reshape(d, y, x.shape))


SOUND_BLOCKS: dict[str, Callable[[Drawing, Tensor], Tensor]] = {
    block.__name__: block for block in (gated, temporal, wavenet, causal, resblock, normed, chunked)
}
