"""Gradients of softmax and its logarithm, from the results only."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Grads, Rule
from remat_cli.autodiff.tape import Tape


def _softmax(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    """Result * (grad - sum(grad * result))."""
    y = call.output()
    total = tape.op("ReduceSum", tape.op("Mul", grads[0], y), tape.ints(call.integer("axis", -1)))
    return {0: tape.op("Mul", y, tape.op("Sub", grads[0], total))}


def _log_softmax(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    """Grad - exp(result) * sum(grad)."""
    total = tape.op("ReduceSum", grads[0], tape.ints(call.integer("axis", -1)))
    return {0: tape.op("Sub", grads[0], tape.op("Mul", tape.op("Exp", call.output()), total))}


RULES: Mapping[str, Rule] = {
    "Softmax": Rule(_softmax),
    "LogSoftmax": Rule(_log_softmax),
}
