"""Blocks of networks of pictures as older exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from bench.drawn.sketch import OLD_RESIZE, Flow, Sketch

OPTIONAL_RESIZE = 12
ACTS = ("relu", "relu", "relu", "relu6", "swish", "hard_swish", "leaky", "prelu", "elu", "softsign")


def conv(s: Sketch, x: Flow, width: int, kernel: int = 3, **at: int) -> Flow:
    """A convolution, in the middle of moves where channels come last; `at`: stride, group, dilation."""
    stride, group, dilation = (at.get(name, 1) for name in ("stride", "group", "dilation"))
    y = s.second(x)
    inner = x.channels // group
    inputs = [y.name, s.scaled(width, inner, kernel, kernel)]
    if s.chance():
        inputs.append(s.weight(width, scale=0.1))
    rim = dilation * (kernel - 1) // 2
    how: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "group": group}
    how["dilations"] = [dilation] * 2
    if s.style.pads_alone:
        how["auto_pad"] = s.pick("SAME_UPPER", "SAME_UPPER", "SAME_LOWER")
        s.mark("auto_pad")
    elif s.style.name == "tf" and stride > 1 and s.chance():
        inputs[0] = s.pad(inputs[0], [0, 0, 0, 0, 0, 0, rim, rim])  # as tf.pad before a valid convolution
        how["pads"] = [rim, rim, 0, 0]
    else:
        how["pads"] = [rim] * 4
    made = Flow(s.op("Conv", *inputs, **how), width)
    return s.last(made) if x.is_last and s.chance(0.7) else made


def batch_norm(s: Sketch, x: Flow) -> Flow:
    """A norm of the batch, or what is left of it: Mul and Add, or Sub, Div, Mul, Add."""
    width = x.channels
    scale, shift, mean, variance = (
        s.positive(width),
        s.weight(width, scale=0.2),
        s.weight(width, scale=0.1),
        s.positive(width),
    )
    if x.is_last or s.chance(0.2):
        first = s.op("Mul", x.name, s.vector(scale, x, width))
        return replace(x, name=s.op("Add", first, s.vector(shift, x, width)))
    how = {"spatial": 1} if s.opset < 9 else {}
    return replace(
        x, name=s.op("BatchNormalization", x.name, scale, shift, mean, variance, epsilon=1e-5, momentum=0.9, **how)
    )


def act(s: Sketch, x: Flow) -> Flow:
    """An activation, often taken apart."""
    kind = s.style.act if s.chance(0.85) else s.pick(*ACTS)
    if kind == "relu":
        y = s.op("Relu", x.name)
    elif kind == "relu6":
        y = s.clip(x.name, 0.0, 6.0)
    elif kind == "swish":
        y = s.op("Mul", x.name, s.op("Sigmoid", x.name))
    elif kind == "hard_swish":
        s.mark("hard_swish")
        bounded = s.clip(s.op("Add", x.name, s.constant(3.0)), 0.0, 6.0)
        y = s.op("Div", s.op("Mul", x.name, bounded), s.constant(6.0))
        if s.chance(0.3):
            y = s.op("Mul", x.name, s.op("HardSigmoid", x.name, alpha=1 / 6, beta=0.5))
    elif kind == "leaky":
        y = s.op("LeakyRelu", x.name, alpha=0.1)
    elif kind == "prelu":
        slopes = s.dice.uniform(0.05, 0.4, (x.channels,) if x.is_last else (x.channels, 1, 1))
        y = s.op("PRelu", x.name, s.constant(slopes))
    else:
        y = s.op("Elu" if kind == "elu" else "Softsign", x.name)
    return replace(x, name=y)


def layer(s: Sketch, x: Flow, width: int, kernel: int = 3, **how: int) -> Flow:
    """Convolution, norm, activation."""
    return act(s, batch_norm(s, conv(s, x, width, kernel, **how)))


def add(s: Sketch, x: Flow, y: Flow) -> Flow:
    """The sum of two."""
    y = s.like(y, x)
    return replace(x, name=s.op("Sum" if s.style.name == "mxnet" and s.chance() else "Add", x.name, y.name))


def residual(s: Sketch, x: Flow) -> Flow:
    """ResNet's block."""
    y = layer(s, x, x.channels, s.pick(1, 3))
    return act(s, add(s, x, batch_norm(s, conv(s, y, x.channels))))


def inverted(s: Sketch, x: Flow) -> Flow:
    """MobileNet's block, with a share for each channel by convolutions or by linear layers."""
    wide = 2 * x.channels
    y = layer(s, x, wide, 1)
    y = layer(s, y, wide, s.pick(3, 5), group=wide)
    if s.chance():
        s.mark("squeeze_excite")
        z = s.second(y)
        mean = s.op("GlobalAveragePool", z.name) if s.chance() else s.mean(z.name, 2, 3)
        if s.chance():
            share = s.op("Relu", s.op("Conv", mean, s.scaled(8, wide, 1, 1), kernel_shape=[1, 1]))
            share = s.op("Conv", share, s.scaled(wide, 8, 1, 1), kernel_shape=[1, 1])
        else:
            flat = s.op("Flatten", mean) if s.chance() else s.op("Reshape", mean, s.ints(-1, wide))
            flat = s.op("Relu", dense(s, flat, wide, 8))
            share = s.op("Reshape", dense(s, flat, 8, wide), s.ints(-1, wide, 1, 1))
        gate = s.op("HardSigmoid", share, alpha=0.2) if s.chance() else s.op("Sigmoid", share)
        y = replace(z, name=s.op("Mul", z.name, gate))
    return add(s, x, batch_norm(s, conv(s, y, x.channels, 1)))


def dense(s: Sketch, x: str, before: int, after: int) -> str:
    """A linear layer of rows."""
    if s.style.name in ("mxnet", "paddle") and s.chance(0.7):
        return s.op("Gemm", x, s.scaled(after, before), s.weight(after, scale=0.1), transB=1, alpha=1.0, beta=1.0)
    y = s.op("MatMul", x, s.weight(before, after, scale=before**-0.5))
    return s.op("Add", y, s.weight(after, scale=0.1))


def inception(s: Sketch, x: Flow) -> Flow:
    """Branches joined by channel."""
    each = x.channels // 4
    parts = [
        layer(s, x, each, 1),
        layer(s, layer(s, x, each, 1), each, 3),
        layer(s, x, 2 * each, 3, dilation=1 if s.style.pads_alone else 2),
    ]
    joined = s.op("Concat", *(s.second(part).name for part in parts), axis=1)
    return Flow(joined, 4 * each)


def shuffled(s: Sketch, x: Flow) -> Flow:
    """ShuffleNet: halves of the channels, one of them changed, and all of them mixed."""
    y = s.second(x)
    half = x.channels // 2
    one, other = s.split(y.name, [half, half], 1)
    made = layer(s, Flow(other, half), half, 3, group=half)
    joined = s.op("Concat", one, s.second(made).name, axis=1)
    shape = s.shape(joined)
    if s.chance():
        split = s.reshape(joined, 0, 2, half, (shape, 2), (shape, 3))
    else:
        split = s.reshape(joined, (shape, 0), 2, half, (shape, 2), (shape, 3))
    back = s.op("Transpose", split, perm=[0, 2, 1, 3, 4])
    return Flow(s.reshape(back, (shape, 0), x.channels, (shape, 2), (shape, 3)), x.channels)


def local_norm(s: Sketch, x: Flow) -> Flow:
    """AlexNet's norm across channels."""
    y = s.second(x)
    return replace(y, name=s.op("LRN", y.name, size=5, alpha=1e-4, beta=0.75, bias=2.0))


def instance_norm(s: Sketch, x: Flow) -> Flow:
    """A norm of each picture, as one op or as means and roots."""
    width = x.channels
    if s.chance():
        y = s.second(conv(s, x, width))
        return act(
            s, replace(y, name=s.op("InstanceNormalization", y.name, s.positive(width), s.weight(width), epsilon=1e-5))
        )
    y = conv(s, x, width)
    axes = (1, 2) if y.is_last else (2, 3)
    centred = s.op("Sub", y.name, s.mean(y.name, *axes))
    variance = s.mean(s.op("Mul", centred, centred), *axes)
    root = s.op("Reciprocal", s.op("Sqrt", s.op("Add", variance, s.constant(1e-3))))
    return act(s, replace(y, name=s.op("Mul", s.op("Mul", centred, root), s.vector(s.positive(width), y, width))))


def dropped(s: Sketch, x: Flow) -> Flow:
    """A block with what is only there for training."""
    y = layer(s, x, x.channels)
    if s.opset >= 12:
        return replace(y, name=s.ops("Dropout", y.name, s.constant(0.3), count=2)[0])
    return replace(y, name=s.op("Dropout", y.name, ratio=0.3))


def choosing(s: Sketch, x: Flow) -> Flow:
    """An `If` that asks for the rank or the channels, as traced code leaves it."""
    y = s.second(layer(s, x, x.channels))
    same = s.op(
        "Equal", s.op("Gather", s.op("Shape", y.name), s.constant(1, np.int64)), s.constant(x.channels, np.int64)
    )
    branches = {}
    for name, op in (("then_branch", "Relu"), ("else_branch", "Identity")):
        result = f"{y.name}_{name}"
        info = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([helper.make_node(op, [y.name], [result])], name, [], [info])
    s.mark("if")
    return replace(y, name=s.op("If", same, **branches))


BLOCKS: tuple[Callable[[Sketch, Flow], Flow], ...] = (
    residual,
    residual,
    inverted,
    inverted,
    inception,
    shuffled,
    local_norm,
    instance_norm,
    dropped,
)


def shrink(s: Sketch, x: Flow, width: int) -> Flow:
    """Half as high and wide: by a stride, or by windows."""
    if s.chance():
        return layer(s, x, width, 3, stride=2)
    y = s.second(x)
    kernel = s.pick(2, 2, 3)
    how: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [2, 2]}
    if s.style.pads_alone:
        how["auto_pad"] = "SAME_UPPER"
    elif kernel == 2 and s.opset >= 10:
        how |= {"pads": [0] * 4, "ceil_mode": int(s.chance())}
    else:
        how["pads"] = [kernel // 2] * 2 + [(kernel - 1) // 2] * 2 if kernel == 3 else [0] * 4
    kind = s.pick("MaxPool", "AveragePool")
    return layer(s, replace(y, name=s.op(kind, y.name, **how)), width, 1)


def grow(s: Sketch, x: Flow, fine: Flow) -> Flow:
    """Twice as high and wide, and joined with what was there before."""
    y = s.second(conv(s, x, fine.channels, 1))
    kind = s.pick("scales", "sizes", "transposed")
    if kind == "transposed":
        s.mark("ConvTranspose")
        how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
        kernel = 2
        if s.style.pads_alone:
            how["auto_pad"] = "SAME_UPPER"
        elif s.chance():
            kernel = 3
            how = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
        y = replace(
            y, name=s.op("ConvTranspose", y.name, s.scaled(fine.channels, fine.channels, kernel, kernel), **how)
        )
    elif kind == "sizes" and OLD_RESIZE <= s.opset < 13 + (not s.style.has_int32):
        s.mark("resize_to_sizes")
        shape = s.shape(s.second(fine).name)
        size = s.sizes((s.shape(y.name), 0), fine.channels, (shape, 2), (shape, 3))
        # Until opset 13 both had to be there, if only without values.
        none = ["", ""] if s.opset > OPTIONAL_RESIZE else [s.constant([]), s.constant([])]
        y = replace(y, name=s.op("Resize", y.name, *none, size, **_resize(s)))
    else:
        y = replace(y, name=upsample(s, y.name))
    y = s.like(y, fine)
    if s.chance():
        return layer(s, add(s, fine, y), fine.channels)
    joined = s.op("Concat", fine.name, y.name, axis=3 if fine.is_last else 1)
    return layer(s, Flow(joined, 2 * fine.channels, fine.is_last), fine.channels)


def _resize(s: Sketch) -> dict[str, Any]:
    mode, places = s.pick(
        ("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"), ("linear", "asymmetric")
    )
    how = {"mode": mode, "coordinate_transformation_mode": places}
    return how | ({"nearest_mode": "floor"} if mode == "nearest" else {})


def upsample(s: Sketch, x: str) -> str:
    """Twice the size by scales, in the op that the operator set has."""
    scales = [1.0, 1.0, 2.0, 2.0]
    mode = s.pick("nearest", "nearest", "linear")
    if s.opset < 9:
        return s.op("Upsample", x, mode=mode, scales=scales)
    if s.opset < OLD_RESIZE:
        return s.op("Upsample" if s.opset == 9 else "Resize", x, s.constant(scales), mode=mode)
    return s.op("Resize", x, s.constant([]), s.constant(scales), **_resize(s))
