"""Losses as parts of the graph: what they compare with, how they are written, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape
from remat_cli.autodiff.reverse import Recorder
from remat_cli.autodiff.tape import (
    FIRST,
    Call,
    Found,
    Grads,
    Rule,
    Rules,
    Tape,
    WrittenForm,
    element_type,
    known,
    shape_of,
)
from remat_cli.base.errors import ModelError

DOMAIN = "remat"
CLASS_INDEX = ir.DataType.INT64
SMOOTH = 1.0  # keeps dice defined where neither result nor target has anything


@dataclass(frozen=True)
class Loss:
    """`target` gives element type and shape of what an output is compared with; `write` records the loss, a number."""

    target: Callable[[ir.Value, int], tuple[ir.DataType, tuple[int, ...]]]
    write: Callable[[Recorder, ir.Value, ir.Value, int], ir.Value]


def class_axis_of(output: ir.Value, chosen: int | None) -> int:
    """The axis of classes: the one that was chosen, the last of [batch, sequence, classes], else the second.

    Raises:
        ModelError: there is no such axis.
    """
    rank = len(shape_of(output))
    axis = (rank - 1 if rank == 3 else 1) if chosen is None else chosen
    if not -rank <= axis < rank:
        raise ModelError(
            f"output '{output.name}' of shape {list(shape_of(output))} has no axis {axis} for classes: set --class-axis"
        )
    return axis % rank


def _class_target(output: ir.Value, axis: int) -> tuple[ir.DataType, tuple[int, ...]]:
    shape = shape_of(output)
    return CLASS_INDEX, shape[:axis] + shape[axis + 1 :]


def _same_target(output: ir.Value, axis: int) -> tuple[ir.DataType, tuple[int, ...]]:
    return element_type(output), shape_of(output)


def _call(op_type: str, axis_matters: bool = False) -> Callable[[Recorder, ir.Value, ir.Value, int], ir.Value]:
    """A loss that is one op to the recorder, with a rule of its own."""

    def write(recorder: Recorder, output: ir.Value, target: ir.Value, axis: int) -> ir.Value:
        attributes = {"axis": ir.Attr("axis", ir.AttributeType.INT, axis)} if axis_matters else {}
        result = recorder.run(Call("loss", op_type, (output, target), attributes, domain=DOMAIN), [""])[0]
        assert result is not None
        return result

    return write


def _dice(recorder: Recorder, output: ir.Value, target: ir.Value, axis: int) -> ir.Value:
    """One minus the overlap of sigmoid and target, for each sample and channel, averaged."""
    tape, rank = recorder.tape, len(shape_of(output))
    axes = tape.ints(*range(min(2, rank - 1), rank))
    chance = recorder.op("Sigmoid", output)
    overlap = recorder.op("ReduceSum", recorder.op("Mul", chance, target), axes, keepdims=0)
    sizes = recorder.op(
        "Add", recorder.op("ReduceSum", chance, axes, keepdims=0), tape.op("ReduceSum", target, axes, keepdims=0)
    )
    smooth = tape.scalar(SMOOTH, output)
    twice = recorder.op("Add", recorder.op("Mul", overlap, tape.scalar(2.0, output)), smooth)
    share = recorder.op("Div", twice, recorder.op("Add", sizes, smooth))
    mean = recorder.op("ReduceMean", share, keepdims=0)
    return recorder.op("Sub", tape.scalar(1.0, output), mean)


def _cross_entropy_form(tape: Tape, call: Call) -> WrittenForm:
    """Mean of minus the log probability of the right class; log probabilities are kept."""
    axis = call.integer("axis")
    log_chance = tape.op("LogSoftmax", call.input(0), axis=axis)
    index = tape.op("Unsqueeze", call.input(1), tape.ints(axis))
    right = tape.op("GatherElements", log_chance, index, axis=axis)
    return WrittenForm((tape.op("Neg", tape.op("ReduceMean", right, keepdims=0)),), (log_chance,))


def _cross_entropy(tape: Tape, call: Call, grads: Grads) -> Found:
    """Probabilities less one at the right class, over the number of samples."""
    axis, shape, (log_chance,) = call.integer("axis"), call.shape(0), call.saved
    scale = _scaled(tape, grads[0], shape[axis] / prod(shape))
    chance = tape.op("Mul", tape.op("Exp", log_chance), scale)
    index = tape.op("Unsqueeze", call.input(1), tape.ints(axis))
    one = tape.op("Expand", reshape(tape, tape.op("Neg", scale), (1,)), tape.ints(*shape_of(index)))
    return {0: tape.op("ScatterElements", chance, index, one, axis=axis, reduction="add")}


def _mse_form(tape: Tape, call: Call) -> WrittenForm:
    """Mean of squared differences; the differences are kept."""
    difference = tape.op("Sub", call.input(0), call.input(1))
    mean = tape.op("ReduceMean", tape.op("Mul", difference, difference), keepdims=0)
    return WrittenForm((mean,), (difference,))


def _mse(tape: Tape, call: Call, grads: Grads) -> Found:
    return {0: tape.op("Mul", call.saved[0], _scaled(tape, grads[0], 2 / prod(call.shape(0))))}


def _l1_form(tape: Tape, call: Call) -> WrittenForm:
    """Mean of absolute differences; the differences are kept."""
    difference = tape.op("Sub", call.input(0), call.input(1))
    return WrittenForm((tape.op("ReduceMean", tape.op("Abs", difference), keepdims=0),), (difference,))


def _l1(tape: Tape, call: Call, grads: Grads) -> Found:
    sign = tape.op("Sign", call.saved[0])
    return {0: tape.op("Mul", sign, _scaled(tape, grads[0], 1 / prod(call.shape(0))))}


def _scaled(tape: Tape, grad: ir.Value | None, factor: float) -> ir.Value:
    """The gradient of a number times a factor: a constant where it is one, as at the end of the graph."""
    assert grad is not None
    array = known(grad)
    if array is None:
        return tape.op("Mul", grad, tape.scalar(factor, grad))
    return tape.constant(np.asarray(array * factor, array.dtype))


LOSS_RULES: Rules = {
    f"{DOMAIN}:CrossEntropy": Rule(_cross_entropy, _cross_entropy_form, FIRST),
    f"{DOMAIN}:MeanSquaredError": Rule(_mse, _mse_form, FIRST),
    f"{DOMAIN}:MeanAbsoluteError": Rule(_l1, _l1_form, FIRST),
}
LOSSES: Mapping[str, Loss] = {
    "cross-entropy": Loss(_class_target, _call("CrossEntropy", axis_matters=True)),
    "mse": Loss(_same_target, _call("MeanSquaredError")),
    "l1": Loss(_same_target, _call("MeanAbsoluteError")),
    "dice": Loss(_same_target, _dice),
}
