"""Reverse mode: from the end of the forward pass back to what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Rule
from remat_cli.autodiff.recorder import rule_name
from remat_cli.autodiff.tape import Tape, shape_of
from remat_cli.base.errors import RematError

Arrived = Callable[[ir.Value, ir.Value], None]


def write_gradients(
    tape: Tape,
    calls: Sequence[Call],
    rules: Mapping[str, Rule],
    ends: Mapping[ir.Value, ir.Value],
    arrived: Mapping[ir.Value, Arrived],
) -> None:
    """Write the backward pass of `calls` in reverse, beginning with the gradients of `ends`.

    `arrived` are what is trained, each with what to do once its gradient is complete: at once, so that the gradient
    need not wait in memory for the end of the pass.

    Raises:
        RematError: a rule gave a gradient of another shape than the value's: a bug in the rule.
    """
    grads: dict[ir.Value, ir.Value] = dict(ends)
    missing = Counter(call.input(position) for call in calls for position in call.wanted)
    for call in reversed(calls):
        flowing = tuple(None if value is None else grads.pop(value, None) for value in call.outputs)
        found: Mapping[int, ir.Value] = {}
        if any(grad is not None for grad in flowing):
            with tape.within("backward", f"{call.name or call.op_type}/grad"):
                found = rules[rule_name(call.domain, call.op_type)].gradient(tape, call, flowing)
                for position in sorted(found.keys() & call.wanted, reverse=True):
                    _add(tape, grads, call, position, found[position])
        for position in call.wanted:
            value = call.input(position)
            missing[value] -= 1
            if not missing[value] and value in arrived and value in grads:
                arrived[value](value, grads.pop(value))


def _add(tape: Tape, grads: dict[ir.Value, ir.Value], call: Call, position: int, grad: ir.Value) -> None:
    """Add to what has reached a value from its other readers."""
    value = call.input(position)
    if grad.shape is not None and shape_of(grad) != shape_of(value):
        raise RematError(
            f"the gradient rule of {call.op_type} gave shape {list(shape_of(grad))} for input {position} of "
            f"'{call.name}', which has {list(shape_of(value))}: a bug in the rule"
        )
    grads[value] = grad if value not in grads else tape.op("Add", grads[value], grad)
