"""Optimizers as parts of the graph: one parameter and its gradient in, the new parameter and state out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import onnx_ir as ir

from remat_cli.autodiff.pieces import as_type
from remat_cli.autodiff.tape import Tape, element_type
from remat_cli.base.errors import ConfigError

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
