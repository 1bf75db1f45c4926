"""Blocks in other element types: halves between casts, and quantised convolutions between pairs of Q and DQ."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from tests.torch_like.drawing import FLOAT, FLOAT16, Drawing, Tensor


def half_picture(d: Drawing, x: Tensor) -> Tensor:
    """Convolutions in float16 between casts, with a residual; what lacks a kernel is cast by the runtime."""
    half = d.op("Cast", x, to=FLOAT16)
    y = d.op("Relu", _half_conv(d, half, x.shape[1]))
    y = _half_conv(d, y, x.shape[1])
    return d.op("Add", x, d.op("Cast", d.op(d.pick("Add", "Mul"), d.op("Sigmoid", y), half), to=FLOAT))


def _half_conv(d: Drawing, x: Tensor, width: int) -> Tensor:
    scale = math.sqrt(1.6 / (x.shape[1] * 9))
    weight = d.constant(d.dice.normal(0, scale, (width, x.shape[1], 3, 3)), np.float16)
    return d.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def half_tokens(d: Drawing, x: Tensor) -> Tensor:
    """A little network in float16; its norm in float32, as mixed precision has it."""
    width = x.shape[-1]
    half = d.op("Cast", x, to=FLOAT16)
    up = d.constant(d.dice.normal(0, 1 / math.sqrt(width), (width, 2 * width)), np.float16)
    down = d.constant(d.dice.normal(0, 0.7 / math.sqrt(width), (2 * width, width)), np.float16)
    y = d.op("MatMul", half, up)
    y = d.op("Mul", y, d.op("Sigmoid", y)) if d.chance() else d.op("Tanh", y)
    y = d.op("MatMul", y, down)
    if d.chance():
        y = d.op("Softmax", y, axis=-1)
    # Without an op between, the runtime fuses a norm that follows with the cast, and refuses the result for its types.
    return d.op("Add", d.op("Cast", d.op("Add", half, y), to=FLOAT), x)


def quantised(d: Drawing, x: Tensor) -> Tensor:
    """Quantised convolutions as tools write them: weights, inputs and results between Q and DQ."""
    kind = d.pick(TensorProto.UINT8, TensorProto.INT8)
    y = _around(d, x, kind)
    for group in d.pick((1,), (1, x.shape[1]), (1, 1)):
        y = d.op("Relu", _quantised_conv(d, y, x.shape[1], group)) if d.chance() else _quantised_conv(d, y, x.shape[1])
        y = _around(d, y, kind)
    return _around(d, d.op("Add", _around(d, x, kind), y), kind) if d.chance() else y


def _around(d: Drawing, x: Tensor, kind: int) -> Tensor:
    """A tensor through eight bits."""
    scale = d.constant(8 / 127)
    zero = d.constant(128, np.uint8) if kind == TensorProto.UINT8 else d.constant(0, np.int8)
    return d.op("DequantizeLinear", d.op("QuantizeLinear", x, scale, zero), scale, zero)


def _quantised_conv(d: Drawing, x: Tensor, width: int, group: int = 1) -> Tensor:
    inner = x.shape[1] // group
    scale = math.sqrt(1.6 / (inner * 9))
    bits = np.clip(np.round(d.dice.normal(0, 32, (width, inner, 3, 3))), -127, 127)
    steps, zeros = d.constant(np.full(width, scale / 32)), d.constant(np.zeros(width), np.int8)
    weight = d.op("DequantizeLinear", d.constant(bits, np.int8), steps, zeros, axis=0)
    return d.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=group)
