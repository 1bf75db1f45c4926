"""Reverse mode: the forward pass as it is written and remembered, and the way back to what is trained."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from remat_cli.autodiff.rules import ZERO_GRADIENT
from remat_cli.autodiff.tape import Call, Found, Rules, Tape, WrittenForm, may_be_float, shape_of
from remat_cli.base.errors import RematError
from remat_cli.base.present import present


@dataclass
class Recorder:
    """Writes forward ops onto a tape and remembers them.

    `active` are the values that depend on something trained; `calls` are the ops that make one, in order; `updates`
    are new values of running statistics. `missing` counts the ops on the way that no rule is known for.
    """

    tape: Tape
    rules: Rules
    active: set[ir.Value] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    updates: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    missing: dict[ir.Value, str] = field(default_factory=dict)
    seed: int = 0

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: ir.Attr | int | float | str) -> ir.Value:
        """Write and remember an op with one result that is not from the model, such as a part of a loss."""
        given = {attr.name: attr for attr in ir.convenience.convert_attributes(attributes)}
        return present(self.run(Call("", op_type, inputs, given), [""])[0], f"the result of {op_type}")

    def run(self, call: Call, names: Sequence[str | None]) -> tuple[ir.Value | None, ...]:
        """Write and remember an op; `names` are those of its results, "" for any, None for one that is left out."""
        kind = rule_name(call.domain, call.op_type)
        rule = self.rules.get(kind)
        needs = rule.needs if rule is not None else frozenset() if kind in ZERO_GRADIENT else None
        wanted = frozenset(
            place
            for place, value in enumerate(call.inputs)
            if value in self.active and (needs is None or place in needs)
        )
        call = replace(call, wanted=wanted, seed=self.seed + len(self.tape.nodes))
        with self.tape.of_modules(call.scopes):
            form = rule.form(self.tape, call) if rule is not None and rule.form else None
            form = form or WrittenForm(self._plainly(call, names))
        for value, name in zip(form.outputs, names, strict=False):
            if value is not None and name and value.producer() is not None:
                value.name = name  # as in the model, where a training form made it
        self.updates += form.updates
        if wanted:
            call = replace(call, outputs=form.outputs, saved=form.saved)
            real = [value for value in form.outputs if value is not None and may_be_float(value)]
            self.active.update(real)
            self.calls.append(call)
            if rule is None:
                self.missing.update(dict.fromkeys(real, kind))
        return form.outputs

    def leading_to(self, ends: Sequence[ir.Value]) -> list[Call]:
        """The remembered ops that some of `ends` depend on, in order."""
        needed = set(ends)
        found: list[Call] = []
        for call in reversed(self.calls):
            if any(value in needed for value in call.outputs if value is not None):
                found.append(call)
                needed.update(call.input(position) for position in call.wanted)
        return found[::-1]

    def without_rule(self, ends: Sequence[ir.Value]) -> Counter[str]:
        """Kinds of ops on the way to `ends` that no rule is known for, and how many there are of each."""
        first = [next((v for v in call.outputs if v in self.missing), None) for call in self.leading_to(ends)]
        return Counter(self.missing[value] for value in first if value is not None)

    def _plainly(self, call: Call, names: Sequence[str | None]) -> tuple[ir.Value | None, ...]:
        """Write the op as it stands in the model."""
        node = ir.Node(
            call.domain,
            call.op_type,
            call.inputs,
            tuple(call.attributes.values()),
            num_outputs=len(names),
            name=call.name or None,
        )
        for value, name in zip(node.outputs, names, strict=True):
            value.name = "" if name is None else name or None
        written = self.tape.write(node, f"loss/{call.op_type}")
        return tuple(value if value.name else None for value in written)


def rule_name(domain: str, op_type: str) -> str:
    """How a rule is found: the op type, after its domain where that is not ONNX's own."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}:{op_type}"


Arrived = Callable[[ir.Value, ir.Value], None]


def write_gradients(
    tape: Tape,
    calls: Sequence[Call],
    rules: Rules,
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
        found: Found = {}
        if any(grad is not None for grad in flowing):
            scopes = (*call.scopes, "grad") if call.scopes else ()
            with tape.within("backward", f"{call.name or call.op_type}/grad", scopes):
                found = rules[rule_name(call.domain, call.op_type)].gradient(tape, call, flowing)
                for position in sorted(found.keys() & call.wanted, reverse=True):
                    _add(tape, grads, call, position, found[position])
        for position in call.wanted:
            value = call.input(position)
            missing[value] -= 1
            if not missing[value] and value in arrived and value in grads:
                arrived[value](value, grads.pop(value))


def _add(tape: Tape, grads: dict[ir.Value, ir.Value], call: Call, position: int, grad: ir.Value) -> None:
    """Add a gradient to those that have reached a value from its other readers."""
    value = call.input(position)
    if grad.shape is not None and shape_of(grad) != shape_of(value):
        raise RematError(
            f"the gradient rule of {call.op_type} gave shape {list(shape_of(grad))} for input {position} of "
            f"'{call.name}', which has {list(shape_of(value))}: a bug in the rule"
        )
    grads[value] = grad if value not in grads else tape.op("Add", grads[value], grad)
