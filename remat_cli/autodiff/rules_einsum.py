"""Gradients of Einsum, each of which is again an Einsum."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.autodiff.call import Call, Grads, Rule, only
from remat_cli.autodiff.shapes import reshape
from remat_cli.autodiff.tape import Tape, shape_of
from remat_cli.base.errors import ModelError

DOTS = "..."


@dataclass(frozen=True)
class _Equation:
    """Labels of each operand and of the result, without dots, and the size that belongs to each label."""

    operands: tuple[str, ...]
    result: str
    sizes: Mapping[str, int]


def _einsum(tape: Tape, call: Call, grads: Grads) -> Mapping[int, ir.Value]:
    """The result's gradient takes the place of the operand that a gradient is asked for."""
    equation = _parsed(call)
    operands = [_without_broadcast(tape, call.input(i), equation, i) for i in range(len(call.inputs))]
    grad = only(grads)
    result = {}
    for place in sorted(call.wanted, reverse=True):
        others = [(grad, equation.result), *operands[:place], *operands[place + 1 :]]
        found = _contracted(tape, others, operands[place][1], equation.sizes)
        result[place] = reshape(tape, found, call.shape(place))
    return result


def _contracted(tape: Tape, factors: Sequence[tuple[ir.Value, str]], wanted: str, sizes: Mapping[str, int]) -> ir.Value:
    """A product of factors summed to the wanted labels, repeated along those that no factor has."""
    there = "".join(label for label in wanted if any(label in labels for _, labels in factors))
    value, labels = factors[0]
    if len(factors) > 1 or labels != there:
        equation = f"{','.join(labels for _, labels in factors)}->{there}"
        value = tape.op("Einsum", *(factor for factor, _ in factors), equation=equation)
    if there == wanted:
        return value
    narrow = reshape(tape, value, tuple(sizes[label] if label in there else 1 for label in wanted))
    return tape.op("Expand", narrow, tape.ints(*(sizes[label] for label in wanted)))


def _without_broadcast(tape: Tape, value: ir.Value, equation: _Equation, place: int) -> tuple[ir.Value, str]:
    """An operand as a view without the axes along which it is repeated."""
    labels, shape = equation.operands[place], shape_of(value)
    kept = "".join(label for label, dim in zip(labels, shape, strict=True) if dim == equation.sizes[label])
    return reshape(tape, value, tuple(equation.sizes[label] for label in kept)), kept


def _parsed(call: Call) -> _Equation:
    """The equation with its dots spelt out.

    Raises:
        ModelError: an operand has a label twice.
    """
    text = call.text("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    ranks = [len(call.shape(place)) - len(term.replace(DOTS, "")) for place, term in enumerate(terms)]
    dots = "".join(letter for letter in string.ascii_letters if letter not in text)[: max(ranks)]
    operands = tuple(term.replace(DOTS, dots[len(dots) - rank :]) for term, rank in zip(terms, ranks, strict=True))
    if any(len(set(labels)) < len(labels) for labels in operands):
        raise ModelError(f"op '{call.name}' (Einsum '{text}'): no gradient for a label that an operand has twice")
    result = right.replace(DOTS, dots) if arrow else (dots if DOTS in left else "") + _labels_once(left)
    return _Equation(operands, result, _sizes(call, operands))


def _labels_once(left: str) -> str:
    """The result's labels where an equation has no arrow."""
    return "".join(sorted(label for label in set(left) - set(",.") if left.count(label) == 1))


def _sizes(call: Call, operands: Sequence[str]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for place, labels in enumerate(operands):
        for label, dim in zip(labels, call.shape(place), strict=True):
            sizes[label] = dim if sizes.get(label, 1) == 1 else sizes[label]
    return sizes


RULES: Mapping[str, Rule] = {
    "Einsum": Rule(_einsum),
}
