"""Small pieces of graph that rules are made of: slopes, steps and signs, sums over what was broadcast, views."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Found, Gradient, Grads, only
from remat_cli.autodiff.tape import Tape, element_type, shape_of

Slope = Callable[[Tape, Call], ir.Value]


def times(slope: Slope) -> Gradient:
    """The rule of an op of one input: incoming gradient times the op's slope."""

    def gradient(tape: Tape, call: Call, grads: Grads) -> Found:
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


def as_type(tape: Tape, value: ir.Value, kind: ir.DataType) -> ir.Value:
    """A value in another element type; the value itself where it has that type."""
    return value if value.dtype == kind else tape.op("Cast", value, to=int(kind))


def as_numbers(tape: Tape, truth: ir.Value, like: ir.Value) -> ir.Value:
    """1 for true and 0 for false: multiplying by it needs less memory than Where."""
    return tape.op("Cast", truth, to=int(element_type(like)))


def shifted(tape: Tape, value: ir.Value, factor: float, offset: float) -> ir.Value:
    """Factor * value + offset."""
    scaled = value if factor == 1 else tape.op("Mul", value, tape.scalar(factor, value))
    return scaled if offset == 0 else tape.op("Add", scaled, tape.scalar(offset, value))


def sum_to(tape: Tape, grad: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Undo broadcasting: sum over the axes along which a value of `shape` was repeated."""
    wide = shape_of(grad)
    if wide == shape:
        return grad
    extra = len(wide) - len(shape)
    repeated = [extra + axis for axis, dim in enumerate(shape) if dim == 1 and wide[extra + axis] != 1]
    axes = (*range(extra), *repeated)
    if axes:
        grad = tape.op("ReduceSum", grad, tape.ints(*axes), keepdims=0)
    return reshape(tape, grad, shape)


def reshape(tape: Tape, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """A view of other dimensions; the value itself where they are the same."""
    return (
        value
        if shape_of(value) == shape
        else tape.op("Reshape", value, tape.ints(*shape), allowzero=1 if 0 in shape else None)
    )


def positive(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis % rank if rank else 0
