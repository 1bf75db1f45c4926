"""A forward op as its gradient rule sees it, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.autodiff.tape import Array, Tape, known, shape_of
from remat_cli.base.errors import ModelError

Grads = Sequence[ir.Value | None]  # by output; None where none flows back


def only(grads: Grads) -> ir.Value:
    """The gradient of an op's one result."""
    grad = grads[0]
    assert grad is not None
    return grad


@dataclass(frozen=True)
class Call:
    """One op of the forward pass.

    `inputs` and `outputs` are by position, None where an optional one is left out; `outputs` is empty until the op is
    written. `saved` is what its training form keeps for the gradient. `wanted` are the positions of inputs whose
    gradients are asked for. `seed` differs from call to call, for random ops.
    """

    name: str
    op_type: str
    inputs: tuple[ir.Value | None, ...]
    attributes: Mapping[str, ir.Attr]
    outputs: tuple[ir.Value | None, ...] = ()
    saved: tuple[ir.Value, ...] = ()
    wanted: frozenset[int] = frozenset()
    domain: str = ""
    seed: int = 0

    def input(self, position: int) -> ir.Value:
        """An input that the op cannot do without."""
        value = self.inputs[position]
        assert value is not None
        return value

    def output(self, position: int = 0) -> ir.Value:
        """A result that exists."""
        value = self.outputs[position]
        assert value is not None
        return value

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input."""
        return shape_of(self.input(position))

    def constant(self, position: int) -> Array | None:
        """Elements of an input that is a constant; None if it is left out or computed."""
        return known(self.inputs[position]) if self.has(position) else None

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return self.attributes[name].as_int() if name in self.attributes else default

    def real(self, name: str, default: float = 0.0) -> float:
        """A real attribute."""
        return self.attributes[name].as_float() if name in self.attributes else default

    def text(self, name: str, default: str = "") -> str:
        """A text attribute."""
        return self.attributes[name].as_string() if name in self.attributes else default

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """An attribute that lists integers."""
        return tuple(self.attributes[name].as_ints()) if name in self.attributes else tuple(default)


@dataclass(frozen=True)
class Form:
    """An op as it was written into the training step.

    `outputs` are by position those of the op; `saved` is what its gradient needs besides inputs and outputs;
    `updates` are pairs of a state that came in (running statistics) and its new value.
    """

    outputs: tuple[ir.Value | None, ...]
    saved: tuple[ir.Value, ...] = ()
    updates: tuple[tuple[ir.Value, ir.Value], ...] = ()


Found = Mapping[int, ir.Value]  # gradients of inputs, by position
Gradient = Callable[[Tape, Call, Grads], Found]
TrainingForm = Callable[[Tape, Call], Form | None]  # None: as it stands


@dataclass(frozen=True)
class Rule:
    """How gradients flow back through an op.

    `gradient(tape, call, grads)` writes ops and returns the gradients of inputs by position, those of `call.wanted`
    (more are ignored); weights first, since what they read may then die. `form` writes the op where a training step
    needs it in another form than the model has it. `needs` are the positions of inputs that a gradient flows to;
    None means all real ones.
    """

    gradient: Gradient
    form: TrainingForm | None = None
    needs: frozenset[int] | None = None


Rules = Mapping[str, Rule]  # by op type, after its domain where that is not ONNX's own
FIRST = frozenset({0})  # for `needs`: gradients flow to the first input only


def constant_of(call: Call, position: int, what: str) -> Array:
    """Elements of an input that must be a constant.

    Raises:
        ModelError: it is computed.
    """
    array = call.constant(position)
    if array is None:
        raise ModelError(
            f"op '{call.name}' ({call.op_type}): its {what} are computed, and its gradient needs constants "
            "(simplify the model first, or export it with fixed shapes)"
        )
    return array
