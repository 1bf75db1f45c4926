"""Gradient of local response normalisation, from its input alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.call import Call, Grads, Rule
from remat_cli.autodiff.shapes import reshape
from remat_cli.autodiff.tape import Array, Tape, element_type, shape_of


def _lrn(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    """With s = bias + alpha mean(x^2): dy / s^beta - 2 alpha beta x mean'(dy x / s^beta / s).

    `mean` is over the channels around each, `mean'` over those whose mean has it.
    """
    x = call.input(0)
    alpha, beta = call.real("alpha", 1e-4), round(call.real("beta", 0.75), 6)
    near = _neighbours(call.shape()[1], call.integer("size")) / call.integer("size")
    s = _mixed(tape, tape.op("Mul", x, x), alpha * near)
    s = tape.op("Add", s, tape.scalar(call.real("bias", 1.0), like=x))
    direct = tape.op("Div", grads[0], _power(tape, s, beta))
    through = tape.op("Div", tape.op("Mul", direct, x), s)
    through = tape.op("Mul", _mixed(tape, through, 2 * alpha * beta * near.T), x)
    return {0: tape.op("Sub", direct, through)}


def _neighbours(channels: int, size: int) -> Array:
    """Which channels (columns) are around each (rows)."""
    ahead = np.arange(channels)[None, :] - np.arange(channels)[:, None]
    return ((-((size - 1) // 2) <= ahead) & (ahead <= size // 2)).astype(np.float64)


def _mixed(tape: Tape, value: ir.Value, weights: Array) -> ir.Value:
    """Channels as weighted sums of channels: a convolution of one tap is several times faster than a pooling."""
    batch, channels, *sizes = shape_of(value)
    filters = tape.constant(weights[:, :, None].astype(element_type(value).numpy()))
    found = tape.op("Conv", reshape(tape, value, (batch, channels, prod(sizes))), filters)
    return reshape(tape, found, shape_of(value))


def _power(tape: Tape, value: ir.Value, exponent: float) -> ir.Value:
    """A power; the usual one by square roots, which are ten times faster."""
    if exponent != 0.75:
        return tape.op("Pow", value, tape.scalar(exponent, like=value))
    root = tape.op("Sqrt", value)
    return tape.op("Mul", root, tape.op("Sqrt", root))


RULES: Mapping[str, Rule] = {"LRN": Rule(_lrn)}
