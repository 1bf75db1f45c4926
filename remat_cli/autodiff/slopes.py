"""Local derivatives: gradients that are the incoming one times something, and cheap ways to write steps and signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Gradient, Grads, only
from remat_cli.autodiff.tape import Tape, element_type

Slope = Callable[[Tape, Call], ir.Value]


def times(slope: Slope) -> Gradient:
    """The rule of an op of one input: incoming gradient times the op's slope."""

    def gradient(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
        return {0: tape.op("Mul", only(grads), slope(tape, call))}

    return gradient


def smallest(like: ir.Value) -> float:
    """About the smallest positive number that an element type holds at full precision."""
    return 2.0**-14 if element_type(like) == ir.DataType.FLOAT16 else 2.0**-126


def step(tape: Tape, value: ir.Value) -> ir.Value:
    """1 where a value is positive, else 0.

    HardSigmoid of an enormous slope: one pass, in place where it can be. Comparing and casting takes three times as
    long on the CPU provider, and Where needs a workspace. Double precision has no kernel for it there, but for Clip.
    """
    if element_type(value) == ir.DataType.DOUBLE:
        return tape.op("Clip", _steep(tape, value), tape.scalar(0, value), tape.scalar(1, value))
    return tape.op("HardSigmoid", value, alpha=1 / smallest(value), beta=0.0)


def sign(tape: Tape, value: ir.Value) -> ir.Value:
    """-1, 0 or 1; several times as fast as Sign on the CPU provider."""
    return tape.op("Clip", _steep(tape, value), tape.scalar(-1, value), tape.scalar(1, value))


def _steep(tape: Tape, value: ir.Value) -> ir.Value:
    """Beyond -1 or 1, unless it is 0."""
    return tape.op("Mul", value, tape.scalar(1 / smallest(value), value))


def one_minus(tape: Tape, value: ir.Value) -> ir.Value:
    """1 - value."""
    return tape.op("Sub", tape.scalar(1, value), value)


def as_numbers(tape: Tape, truth: ir.Value, like: ir.Value) -> ir.Value:
    """1 for true and 0 for false: multiplying by it needs less memory than Where."""
    return tape.op("Cast", truth, to=int(element_type(like)))


def shifted(tape: Tape, value: ir.Value, factor: float, offset: float) -> ir.Value:
    """Factor * value + offset."""
    scaled = value if factor == 1 else tape.op("Mul", value, tape.scalar(factor, value))
    return scaled if offset == 0 else tape.op("Add", scaled, tape.scalar(offset, value))
