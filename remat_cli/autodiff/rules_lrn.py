"""Gradient of local response normalisation, from its input alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Grads, Rule
from remat_cli.autodiff.forms import reshape
from remat_cli.autodiff.tape import Tape, shape_of


def _lrn(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    """With s = bias + alpha mean(x^2): dy s^-beta - 2 alpha beta x mean'(dy x s^-beta / s).

    `mean` is over the channels around each, `mean'` over those whose mean has it.
    """
    x = call.input(0)
    size, alpha, beta = call.integer("size"), call.real("alpha", 1e-4), call.real("beta", 0.75)
    before, after = (size - 1) // 2, size // 2
    squares = _mean(tape, tape.op("Mul", x, x), before, after)
    squares = tape.op("Mul", squares, tape.scalar(alpha, like=x))
    s = tape.op("Add", squares, tape.scalar(call.real("bias", 1.0), like=x))
    direct = tape.op("Mul", grads[0], tape.op("Pow", s, tape.scalar(-beta, like=x)))
    through = tape.op("Div", tape.op("Mul", direct, x), s)
    through = tape.op("Mul", _mean(tape, through, after, before), x)
    return {0: tape.op("Sub", direct, tape.op("Mul", through, tape.scalar(2 * alpha * beta, like=x)))}


def _mean(tape: Tape, value: ir.Value, before: int, after: int) -> ir.Value:
    """Mean over channels from `before` ahead to `after` behind; zeros where there are none."""
    batch, channels, *sizes = shape_of(value)
    planes = reshape(tape, value, (batch, 1, channels, prod(sizes)))
    kernel = [before + after + 1, 1]
    means = tape.op("AveragePool", planes, kernel_shape=kernel, pads=[before, 0, after, 0], count_include_pad=1)
    return reshape(tape, means, shape_of(value))


RULES: Mapping[str, Rule] = {"LRN": Rule(_lrn)}
