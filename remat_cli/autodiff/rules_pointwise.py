"""Gradients of ops that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Grads, Rule
from remat_cli.autodiff.forms import sum_to
from remat_cli.autodiff.tape import Tape


def _relu(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    """The sign of the result is 1 where the input passed and 0 elsewhere."""
    return {0: tape.op("Mul", grads[0], tape.op("Sign", call.output()))}


def _add(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    grad = grads[0]
    assert grad is not None
    return {position: sum_to(tape, grad, call.shape(position)) for position in call.wanted}


RULES: Mapping[str, Rule] = {
    "Relu": Rule(_relu),
    "Add": Rule(_add),
}
