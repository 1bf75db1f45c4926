"""Layers as exporters write them: convolutions, norms, activations, linear layers, and moves of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.torch_like.drawing import FLOAT16, Drawing, Tensor


def conv(
    d: Drawing,
    x: Tensor,
    width: int,
    kernel: int = 3,
    *,
    stride: int = 1,
    dilation: int = 1,
    group: int = 1,
    bias: bool = True,
    pad: int | None = None,
) -> Tensor:
    """A convolution of one or two dimensions that keeps the size but for its stride."""
    axes = x.rank - 2
    inner = x.shape[1] // group
    weight = d.weight(width, inner, *[kernel] * axes, scale=math.sqrt(1.6 / (inner * kernel**axes)))
    rim = dilation * (kernel - 1) // 2 if pad is None else pad
    return d.op(
        "Conv",
        x,
        weight,
        *([d.weight(width, scale=0.1)] if bias else []),
        kernel_shape=[kernel] * axes,
        strides=[stride] * axes,
        dilations=[dilation] * axes,
        group=group,
        pads=[rim] * (2 * axes),
    )


def conv_transpose(d: Drawing, x: Tensor, width: int, kernel: int = 2, stride: int = 2) -> Tensor:
    """A transposed convolution that makes every side `stride` times as long."""
    axes = x.rank - 2
    weight = d.weight(x.shape[1], width, *[kernel] * axes, scale=math.sqrt(1.6 / x.shape[1]))
    more = kernel - stride
    pads = [more // 2] * axes + [more - more // 2] * axes
    bias = d.weight(width, scale=0.1)
    sides = [kernel] * axes
    return d.op("ConvTranspose", x, weight, bias, kernel_shape=sides, strides=[stride] * axes, pads=pads)


def batch_norm(d: Drawing, x: Tensor) -> Tensor:
    """Batch normalisation with the statistics of training."""
    width = x.shape[1]
    scale, shift = d.positive(width), d.weight(width, scale=0.2)
    return d.op("BatchNormalization", x, scale, shift, d.weight(width, scale=0.1), d.positive(width), epsilon=1e-5)


def conv_norm(d: Drawing, x: Tensor, width: int, kernel: int = 3, act: bool = True, **options: int) -> Tensor:
    """Convolution, batch normalisation, mostly an activation."""
    has_norm = d.chance(0.7)
    y = conv(d, x, width, kernel, bias=not has_norm, **options)
    y = batch_norm(d, y) if has_norm else y
    return activation(d, y) if act else y


def relu(d: Drawing, x: Tensor) -> Tensor:
    return d.op("Relu", x)


def silu(d: Drawing, x: Tensor) -> Tensor:
    return d.op("Mul", x, d.op("Sigmoid", x))


def hard_swish(d: Drawing, x: Tensor) -> Tensor:
    if d.has("HardSwish") and d.chance():
        return d.op("HardSwish", x)
    if d.chance():
        return d.op("Mul", x, d.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    bounded = d.op("Clip", d.op("Add", x, d.constant(3.0)), d.constant(0.0), d.constant(6.0))
    return d.op("Div", d.op("Mul", x, bounded), d.constant(6.0))


def clip(d: Drawing, x: Tensor) -> Tensor:
    return d.op("Clip", x, d.constant(0.0), d.constant(6.0))


def leaky(d: Drawing, x: Tensor) -> Tensor:
    return d.op("LeakyRelu", x, alpha=float(d.pick(0.01, 0.1, 0.2)))


def gelu(d: Drawing, x: Tensor) -> Tensor:
    """GELU as one op, by Erf in the two orders that exporters write, or by Tanh."""
    form = d.pick("op", "erf", "erf", "erf half first", "tanh", "quick")
    if form == "op" and d.has("Gelu"):
        return d.op("Gelu", x, approximate=d.pick("none", "tanh"))
    if form == "quick":
        return d.op("Mul", x, d.op("Sigmoid", d.op("Mul", x, d.constant(1.702))))
    if form == "tanh":
        cubed = d.op("Mul", d.op("Pow", x, d.constant(3.0)), d.constant(0.044715))
        inner = d.op("Mul", d.op("Add", x, cubed), d.constant(math.sqrt(2 / math.pi)))
        shares = d.op("Add", d.op("Tanh", inner), d.constant(1.0))
        return d.op("Mul", d.op("Mul", x, d.constant(0.5)), shares)
    shares = d.op("Add", d.op("Erf", d.op("Div", x, d.constant(math.sqrt(2)))), d.constant(1.0))
    if form == "erf half first":
        return d.op("Mul", d.op("Mul", x, d.constant(0.5)), shares)
    return d.op("Mul", d.op("Mul", x, shares), d.constant(0.5))


def mish(d: Drawing, x: Tensor) -> Tensor:
    if d.has("Mish") and d.chance():
        return d.op("Mish", x)
    return d.op("Mul", x, d.op("Tanh", d.op("Softplus", x)))


def elu(d: Drawing, x: Tensor) -> Tensor:
    return d.op("Elu", x)


def prelu(d: Drawing, x: Tensor) -> Tensor:
    """PReLU with one slope per channel, channels second."""
    slopes = d.dice.uniform(0.05, 0.4, (x.shape[1], *[1] * (x.rank - 2)))
    return d.op("PRelu", x, d.constant(slopes))


ACTIVATIONS = {
    "relu": relu,
    "silu": silu,
    "hard_swish": hard_swish,
    "clip": clip,
    "leaky": leaky,
    "gelu": gelu,
    "mish": mish,
    "elu": elu,
    "prelu": prelu,
}


def activation(d: Drawing, x: Tensor) -> Tensor:
    """One of the activations; channels are second."""
    name = d.pick(*ACTIVATIONS)
    d.mark(name)
    return ACTIVATIONS[name](d, x)


def linear(d: Drawing, x: Tensor, width: int, *, bias: bool = True) -> Tensor:
    """A linear layer on the last axis: MatMul and Add, in either order of inputs, or Gemm on rows."""
    inner = x.shape[-1]
    scale = 1 / math.sqrt(inner)
    if x.rank == 2 or d.chance(0.2):
        rows = reshape(d, x, (-1, inner)) if x.rank != 2 else x
        y = d.op("Gemm", rows, d.weight(width, inner, scale=scale), d.weight(width, scale=0.1), transB=1)
        return y if x.rank == 2 else reshape(d, y, (*x.shape[:-1], width))
    y = d.op("MatMul", x, d.weight(inner, width, scale=scale))
    if not bias:
        return y
    shift = d.weight(width, scale=0.1)
    return d.op("Add", shift, y) if d.chance() else d.op("Add", y, shift)


def mean(d: Drawing, x: Tensor, axes: Sequence[int]) -> Tensor:
    """The mean over axes, which stay."""
    if d.opset >= 18:
        return d.op("ReduceMean", x, d.ints(*axes), keepdims=1)
    return d.op("ReduceMean", x, axes=list(axes), keepdims=1)


def layer_norm(d: Drawing, x: Tensor) -> Tensor:
    """Layer normalisation over the last axis, as one op or as its parts."""
    width = x.shape[-1]
    scale, shift = d.positive(width), d.weight(width, scale=0.1)
    if d.has("LayerNormalization") and d.chance(0.6):
        return d.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=1e-5)
    d.mark("unfused_layer_norm")
    centred = d.op("Sub", x, mean(d, x, [-1]))
    squared = d.op("Pow", centred, d.constant(2.0)) if d.chance(0.7) else d.op("Mul", centred, centred)
    deviation = d.op("Sqrt", d.op("Add", mean(d, squared, [-1]), d.constant(1e-5)))
    return d.op("Add", d.op("Mul", d.op("Div", centred, deviation), scale), shift)


def rms_norm(d: Drawing, x: Tensor) -> Tensor:
    """Root-mean-square normalisation over the last axis."""
    d.mark("rms_norm")
    power = d.op("Add", mean(d, d.op("Pow", x, d.constant(2.0)), [-1]), d.constant(1e-6))
    if d.chance():
        inverse = d.op("Div", d.constant(1.0), d.op("Sqrt", power))
    else:
        inverse = d.op("Reciprocal", d.op("Sqrt", power))
    return d.op("Mul", d.positive(x.shape[-1]), d.op("Mul", x, inverse))


def token_norm(d: Drawing, x: Tensor) -> Tensor:
    return rms_norm(d, x) if d.chance(0.25) else layer_norm(d, x)


def group_norm(d: Drawing, x: Tensor) -> Tensor:
    """Group normalisation as exporters write it: an instance normalisation of rows of groups."""
    d.mark("group_norm")
    width = x.shape[1]
    groups = max(group for group in (1, 2, 4, 8) if width % group == 0)
    rows = reshape(d, x, (x.shape[0], groups, -1))
    ones, zeros = d.constant(np.ones(groups)), d.constant(np.zeros(groups))
    y = reshape(d, d.op("InstanceNormalization", rows, ones, zeros, epsilon=1e-5), x.shape)
    sides = [1] * (x.rank - 2)
    y = d.op("Mul", y, d.positive(width, *sides))
    return d.op("Add", y, d.weight(width, *sides, scale=0.1))


def reshape(d: Drawing, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Another shape, given as a constant, or computed from the shape of the input."""
    size = math.prod(x.shape)
    rest = math.prod(side for side in shape if side != -1)
    whole = [size // rest if side == -1 else side for side in shape]
    if not d.has_shape_chains or d.chance(0.4) or x.dtype == FLOAT16:
        return d.op("Reshape", x, d.ints(*shape))
    d.mark("shape_chain")
    sides = d.op("Shape", x)
    parts = [_side(d, x, sides, side) for side in whole]
    target = d.op("Concat", *parts, axis=0)
    return d.op("Reshape", x, target, shape=whole)


def _side(d: Drawing, x: Tensor, sides: Tensor, side: int) -> Tensor:
    """One entry of a target shape: taken from the input's shape where it is there, sometimes by a product."""
    if side not in x.shape or d.chance(0.3):
        return d.ints(side)
    at = x.shape.index(side)
    if d.chance(0.3):
        return d.op("Slice", sides, d.ints(at), d.ints(at + 1), d.ints(0))
    one = d.op("Gather", sides, d.constant(at, np.int64), axis=0)
    if d.chance(0.3):
        one = d.op("Div", d.op("Mul", one, d.constant(2, np.int64)), d.constant(2, np.int64))
    return d.op("Unsqueeze", one, d.ints(0))


def transpose(d: Drawing, x: Tensor, *perm: int) -> Tensor:
    return d.op("Transpose", x, perm=list(perm))


def unsqueeze(d: Drawing, x: Tensor, *axes: int) -> Tensor:
    return d.op("Unsqueeze", x, d.ints(*axes))


def squeeze(d: Drawing, x: Tensor, *axes: int) -> Tensor:
    return d.op("Squeeze", x, d.ints(*axes))


def slice_axis(d: Drawing, x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
    """A part of one axis."""
    more = [d.ints(step)] if step != 1 or d.chance() else []
    return d.op("Slice", x, d.ints(start), d.ints(end), d.ints(axis), *more)


def split(d: Drawing, x: Tensor, count: int, axis: int) -> tuple[Tensor, ...]:
    """Equal parts, with their sizes given or not."""
    sides = [x.shape[axis] // count] * count
    if d.opset >= 18 and d.chance():
        return d.ops("Split", x, count=count, axis=axis, num_outputs=count)
    return d.ops("Split", x, d.ints(*sides), count=count, axis=axis)


def resize(d: Drawing, x: Tensor, sides: Sequence[int]) -> Tensor:
    """A picture of another size, by scales or by sizes, in one of the modes of exporters."""
    mode, coordinates = d.pick(
        ("nearest", "asymmetric"),
        ("nearest", "asymmetric"),
        ("nearest", "half_pixel"),
        ("linear", "half_pixel"),
        ("linear", "pytorch_half_pixel"),
        ("linear", "align_corners"),
        ("linear", "asymmetric"),
        ("cubic", "half_pixel"),
    )
    d.mark(f"resize_{mode}_{coordinates}")
    how = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        how["nearest_mode"] = "floor"
    if d.chance() and all(side % old == 0 for side, old in zip(sides, x.shape[2:], strict=True)):
        scales = [1.0, 1.0, *(side / old for side, old in zip(sides, x.shape[2:], strict=True))]
        return d.op("Resize", x, None, d.constant(scales), **how)
    if d.has_shape_chains and d.chance():
        d.mark("shape_chain")
        whole = (*x.shape[:2], *sides)
        front = d.op("Slice", d.op("Shape", x), d.ints(0), d.ints(2), d.ints(0))
        return d.op("Resize", x, None, None, d.op("Concat", front, d.ints(*sides), axis=0), shape=whole, **how)
    return d.op("Resize", x, None, None, d.ints(*x.shape[:2], *sides), **how)


def pool(d: Drawing, x: Tensor, kernel: int = 2, stride: int = 2, *, ceil: bool = False) -> Tensor:
    """The greatest or the mean of windows."""
    axes = x.rank - 2
    kind = d.pick("MaxPool", "AveragePool")
    rim = 1 if kernel == 3 else 0
    how = {"kernel_shape": [kernel] * axes, "strides": [stride] * axes, "pads": [rim] * (2 * axes)}
    more = {"count_include_pad": int(d.chance())} if kind == "AveragePool" else {}
    return d.op(kind, x, **how, ceil_mode=int(ceil), **more)


def global_mean(d: Drawing, x: Tensor) -> Tensor:
    """The mean of every channel of a picture or of a sound."""
    return d.op("GlobalAveragePool", x) if d.chance() else mean(d, x, list(range(2, x.rank)))


def scaled(d: Drawing, x: Tensor, value: float) -> Tensor:
    """Times a number, written as Mul or as Div."""
    return d.op("Mul", x, d.constant(value)) if d.chance() else d.op("Div", x, d.constant(1 / value))
