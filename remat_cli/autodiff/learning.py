"""How a training step learns, as parts of the graph: losses with their gradients, and optimizers.

A loss says what it compares with and how it is written. An optimizer takes one parameter and its gradient, and gives
the new parameter and state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import msgspec
import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import as_type, reshape
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
from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.present import present

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


def class_target(output: ir.Value, axis: int) -> tuple[ir.DataType, tuple[int, ...]]:
    """The index of a class for each place of an output, without its axis of classes."""
    shape = shape_of(output)
    return CLASS_INDEX, shape[:axis] + shape[axis + 1 :]


def same_target(output: ir.Value, axis: int) -> tuple[ir.DataType, tuple[int, ...]]:
    """A value for each element of an output, of its type."""
    return element_type(output), shape_of(output)


def _call(op_type: str, axis_matters: bool = False) -> Callable[[Recorder, ir.Value, ir.Value, int], ir.Value]:
    """A loss that is one op to the recorder, with a rule of its own."""

    def write(recorder: Recorder, output: ir.Value, target: ir.Value, axis: int) -> ir.Value:
        attributes = {"axis": ir.Attr("axis", ir.AttributeType.INT, axis)} if axis_matters else {}
        call = Call("loss", op_type, (output, target), attributes, domain=DOMAIN)
        return present(recorder.run(call, [""])[0], f"the result of {op_type}")

    return write


def dice(recorder: Recorder, output: ir.Value, target: ir.Value, axis: int) -> ir.Value:
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


def cross_entropy(tape: Tape, call: Call) -> WrittenForm:
    """Mean of minus the log probability of the right class; log probabilities are kept."""
    axis = call.integer("axis")
    log_chance = tape.op("LogSoftmax", call.input(0), axis=axis)
    index = tape.op("Unsqueeze", call.input(1), tape.ints(axis))
    right = tape.op("GatherElements", log_chance, index, axis=axis)
    return WrittenForm((tape.op("Neg", tape.op("ReduceMean", right, keepdims=0)),), (log_chance,))


def cross_entropy_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Probabilities less one at the right class, over the number of samples."""
    axis, shape, (log_chance,) = call.integer("axis"), call.shape(0), call.saved
    scale = _scaled(tape, grads[0], shape[axis] / prod(shape))
    chance = tape.op("Mul", tape.op("Exp", log_chance), scale)
    index = tape.op("Unsqueeze", call.input(1), tape.ints(axis))
    one = tape.op("Expand", reshape(tape, tape.op("Neg", scale), (1,)), tape.ints(*shape_of(index)))
    return {0: tape.op("ScatterElements", chance, index, one, axis=axis, reduction="add")}


def mean_squared_error(tape: Tape, call: Call) -> WrittenForm:
    """Mean of squared differences; the differences are kept."""
    difference = tape.op("Sub", call.input(0), call.input(1))
    mean = tape.op("ReduceMean", tape.op("Mul", difference, difference), keepdims=0)
    return WrittenForm((mean,), (difference,))


def mean_squared_error_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Twice the difference, over the number of elements."""
    return {0: tape.op("Mul", call.saved[0], _scaled(tape, grads[0], 2 / prod(call.shape(0))))}


def mean_absolute_error(tape: Tape, call: Call) -> WrittenForm:
    """Mean of absolute differences; the differences are kept."""
    difference = tape.op("Sub", call.input(0), call.input(1))
    return WrittenForm((tape.op("ReduceMean", tape.op("Abs", difference), keepdims=0),), (difference,))


def mean_absolute_error_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """The sign of the difference, over the number of elements."""
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
    f"{DOMAIN}:CrossEntropy": Rule(cross_entropy_gradient, cross_entropy, FIRST),
    f"{DOMAIN}:MeanSquaredError": Rule(mean_squared_error_gradient, mean_squared_error, FIRST),
    f"{DOMAIN}:MeanAbsoluteError": Rule(mean_absolute_error_gradient, mean_absolute_error, FIRST),
}
LOSSES: Mapping[str, Loss] = {
    "cross-entropy": Loss(class_target, _call("CrossEntropy", axis_matters=True)),
    "mse": Loss(same_target, _call("MeanSquaredError")),
    "l1": Loss(same_target, _call("MeanAbsoluteError")),
    "dice": Loss(same_target, dice),
}


Values = Sequence[ir.Value]


class Sgd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stochastic gradient descent; `weight_decay` pulls parameters towards zero as part of the gradient."""

    states: ClassVar[tuple[str, ...]] = ()
    weight_decay: float = 0.0

    def update(
        self, tape: Tape, parameter: ir.Value, grad: ir.Value, states: Values, shared: Values
    ) -> tuple[ir.Value, ...]:
        """Parameter less rate times gradient."""
        grad = _decayed(tape, grad, parameter, self.weight_decay)
        return (tape.op("Sub", parameter, tape.op("Mul", grad, _cast(tape, shared[0], parameter))),)


class Momentum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gradient descent with a running sum of gradients (Sutskever et al. 2013), Nesterov's look ahead on request."""

    states: ClassVar[tuple[str, ...]] = ("momentum",)
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def update(
        self, tape: Tape, parameter: ir.Value, grad: ir.Value, states: Values, shared: Values
    ) -> tuple[ir.Value, ...]:
        """The running sum takes the place of the gradient."""
        grad = _decayed(tape, grad, parameter, self.weight_decay)
        factor = tape.scalar(self.momentum, parameter)
        speed = tape.op("Add", tape.op("Mul", states[0], factor), grad)
        step = tape.op("Add", tape.op("Mul", speed, factor), grad) if self.nesterov else speed
        return tape.op("Sub", parameter, tape.op("Mul", step, _cast(tape, shared[0], parameter))), speed


class Adam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adam (Kingma and Ba 2015); `weight_decay` is part of the gradient."""

    states: ClassVar[tuple[str, ...]] = ("mean", "square")
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def shared(self, tape: Tape, rate: ir.Value, count: ir.Value) -> tuple[ir.Value, ...]:
        """The rate for means that began at zero, and how far the mean of squares has come."""
        return _adam_shared(tape, self, rate, count)

    def update(
        self, tape: Tape, parameter: ir.Value, grad: ir.Value, states: Values, shared: Values
    ) -> tuple[ir.Value, ...]:
        """Running means of gradient and square, both corrected for their start at zero."""
        grad = _decayed(tape, grad, parameter, self.weight_decay)
        return _adam(tape, self, parameter, grad, states, shared)


class AdamW(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019)."""

    states: ClassVar[tuple[str, ...]] = ("mean", "square")
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    def shared(self, tape: Tape, rate: ir.Value, count: ir.Value) -> tuple[ir.Value, ...]:
        """As for Adam, and the share of a parameter that stays."""
        decay = tape.op("Mul", rate, tape.scalar(self.weight_decay, rate))
        return *_adam_shared(tape, self, rate, count), tape.op("Sub", tape.scalar(1.0, rate), decay)

    def update(
        self, tape: Tape, parameter: ir.Value, grad: ir.Value, states: Values, shared: Values
    ) -> tuple[ir.Value, ...]:
        """Shrink the parameter first, then move it as Adam does."""
        parameter = tape.op("Mul", parameter, _cast(tape, shared[2], parameter))
        return _adam(tape, self, parameter, grad, states, shared)


# Fields are options. `states` are suffixes of what is remembered of each parameter; `update` writes the new parameter
# and the new states, from numbers that all parameters share: float32, rank 0, the learning rate first.
Optimizer = Sgd | Momentum | Adam | AdamW
OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adam": Adam,
    "adamw": AdamW,
}


def make_optimizer(name: str, options: Mapping[str, Any]) -> Optimizer:
    """An optimizer with its options.

    Raises:
        ConfigError: it has no such option, or the value cannot be used.
    """
    kind = OPTIMIZERS[name]
    try:
        return msgspec.convert(dict(options), kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(kind))
        raise ConfigError(f"optimizer {name}: {error}; its options are: {known}") from None


def shared_numbers(tape: Tape, optimizer: Optimizer, rate: ir.Value, count: Callable[[], ir.Value]) -> Values:
    """Write the numbers that all parameters share; `count` gives how many steps there were, this one included."""
    if not isinstance(optimizer, Adam | AdamW):
        return (rate,)
    steps = count()
    with tape.within("update", "update"):
        return optimizer.shared(tape, rate, steps)


def _adam_shared(tape: Tape, options: Adam | AdamW, rate: ir.Value, count: ir.Value) -> tuple[ir.Value, ir.Value]:
    first, second = (
        tape.op("Sub", tape.scalar(1.0, count), tape.op("Pow", tape.scalar(beta, count), count))
        for beta in (options.beta1, options.beta2)
    )
    return tape.op("Div", rate, first), second


def _adam(
    tape: Tape, options: Adam | AdamW, parameter: ir.Value, grad: ir.Value, states: Values, shared: Values
) -> tuple[ir.Value, ...]:
    mean = _average(tape, states[0], grad, options.beta1)
    square = _average(tape, states[1], tape.op("Mul", grad, grad), options.beta2)
    spread = tape.op("Sqrt", tape.op("Div", square, _cast(tape, shared[1], parameter)))
    step = tape.op("Div", mean, tape.op("Add", spread, tape.scalar(options.epsilon, parameter)))
    return tape.op("Sub", parameter, tape.op("Mul", step, _cast(tape, shared[0], parameter))), mean, square


def _average(tape: Tape, state: ir.Value, new: ir.Value, keep: float) -> ir.Value:
    old = tape.op("Mul", state, tape.scalar(keep, state))
    return tape.op("Add", old, tape.op("Mul", new, tape.scalar(1 - keep, state)))


def _decayed(tape: Tape, grad: ir.Value, parameter: ir.Value, weight_decay: float) -> ir.Value:
    if not weight_decay:
        return grad
    return tape.op("Add", grad, tape.op("Mul", parameter, tape.scalar(weight_decay, parameter)))


def _cast(tape: Tape, number: ir.Value, like: ir.Value) -> ir.Value:
    return as_type(tape, number, element_type(like))
