"""Shapes put right: sums over what was broadcast, and views."""

from __future__ import annotations

import onnx_ir as ir

from remat_cli.autodiff.tape import Tape, shape_of


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
