"""Gradients of ops that work element by element, with broadcasting."""

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import as_numbers, as_type, one_minus, shifted, sign, smallest, sum_to, times
from remat_cli.autodiff.tape import (
    FIRST,
    Call,
    Found,
    Gradient,
    Grads,
    Rule,
    Rules,
    Tape,
    element_type,
    known,
    only,
)


def add(tape: Tape, call: Call, grads: Grads) -> Found:
    """The same gradient for every input, summed to its shape."""
    return {position: sum_to(tape, only(grads), call.shape(position)) for position in sorted(call.wanted)}


def mean(tape: Tape, call: Call, grads: Grads) -> Found:
    """A sum's gradient, over the number of inputs."""
    return add(tape, call, [shifted(tape, only(grads), 1 / len(call.inputs), 0)])


def sub(tape: Tape, call: Call, grads: Grads) -> Found:
    """Summed before the sign is changed: fewer elements."""
    found = add(tape, call, grads)
    return {position: tape.op("Neg", grad) if position else grad for position, grad in found.items()}


def mul(tape: Tape, call: Call, grads: Grads) -> Found:
    """Each factor gets the gradient times the other one; that of a square is doubled."""
    grad = only(grads)
    if call.inputs[0] is call.inputs[1]:
        return {0: tape.op("Mul", tape.op("Add", grad, grad), call.input(0))}
    factors = {position: call.input(1 - position) for position in sorted(call.wanted, reverse=True)}
    return {
        position: sum_to(tape, tape.op("Mul", grad, factor), call.shape(position))
        for position, factor in factors.items()
    }


def div(tape: Tape, call: Call, grads: Grads) -> Found:
    """The divisor's gradient by the result, so that the dividend may die; divided after it is summed."""
    grad, found = only(grads), {}
    if 1 in call.wanted:
        summed = sum_to(tape, tape.op("Mul", grad, call.output()), call.shape(1))
        found[1] = tape.op("Neg", tape.op("Div", summed, call.input(1)))
    if 0 in call.wanted:
        found[0] = sum_to(tape, tape.op("Div", grad, call.input(1)), call.shape(0))
    return found


def mod(tape: Tape, call: Call, grads: Grads) -> Found:
    """The quotient, rounded to zero, is (result - dividend) / divisor, up to its sign."""
    grad, found = only(grads), {}
    if 1 in call.wanted:
        quotient = tape.op("Div", tape.op("Sub", call.output(), call.input(0)), call.input(1))
        found[1] = sum_to(tape, tape.op("Mul", grad, quotient), call.shape(1))
    if 0 in call.wanted:
        found[0] = sum_to(tape, grad, call.shape(0))
    return found


def pow_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """The exponent first, then the base, each by its own slope."""
    grad, found = only(grads), {}
    if 1 in call.wanted:
        # Slope y log x, and 0 where x is 0.
        base = call.input(0)
        is_zero = as_numbers(tape, tape.op("Equal", base, tape.scalar(0, base)), base)
        slope = tape.op("Mul", tape.op("Log", tape.op("Add", base, is_zero)), call.output())
        summed = sum_to(tape, tape.op("Mul", grad, slope), call.shape(1))
        found[1] = as_type(tape, summed, element_type(call.input(1)))  # which the base need not have
    if 0 in call.wanted:
        base, exponent = call.input(0), call.constant(1)
        if exponent is None:
            # Slope p x^(p-1) with a computed exponent, x^0 where p is 0.
            power = as_type(tape, call.input(1), element_type(base))
            is_zero = as_numbers(tape, tape.op("Equal", power, tape.scalar(0, power)), power)
            less = tape.op("Add", shifted(tape, power, 1, -1), is_zero)
            slope = tape.op("Mul", tape.op("Pow", base, less), power)
        else:
            # Where p is 0 the power is taken as 0, so that 0 times infinity does not come up at x = 0.
            known = exponent.astype(element_type(base).numpy())
            lower = np.where(known == 0, 0, known - 1).astype(known.dtype)
            if np.all((known > 0) & (known < 1)):  # finite at 0, for masks further back to make 0 of
                base = tape.op("Clip", base, tape.scalar(smallest(base), base))
            raised = base if np.all(lower == 1) else tape.op("Pow", base, tape.constant(lower))
            slope = tape.op("Mul", raised, tape.constant(known))
        found[0] = sum_to(tape, tape.op("Mul", grad, slope), call.shape(0))
    return found


def _extreme(beyond: str) -> Gradient:
    """Max and Min: the first input that equals the result takes the gradient, a constant before any other."""

    def gradient(tape: Tape, call: Call, grads: Grads) -> Found:
        rest = only(grads)
        found: dict[int, ir.Value] = {}
        for position in sorted(call.wanted):
            taken = rest
            if len(found) + 1 < len(call.inputs):
                # Where the result comes from this input; told from the result alone where the other is a constant.
                value, result = call.input(position), call.output()
                other = call.input(1 - position) if len(call.inputs) == 2 else None
                is_plain = other is None or known(other) is None
                is_own = tape.op("Equal", value, result) if is_plain else tape.op(beyond, result, other)
                taken = tape.op("Mul", rest, as_numbers(tape, is_own, result))
            found[position] = sum_to(tape, taken, call.shape(position))
            if len(found) < len(call.wanted):
                rest = tape.op("Sub", rest, taken)
        return found

    return gradient


def where(tape: Tape, call: Call, grads: Grads) -> Found:
    """One product and one difference: what the first input does not take, the second does."""
    grad, truth, found = only(grads), call.input(0), {}
    if 1 in call.wanted:
        taken = tape.op("Mul", grad, as_numbers(tape, truth, grad))
        found[1] = sum_to(tape, taken, call.shape(1))
        if 2 in call.wanted:
            found[2] = sum_to(tape, tape.op("Sub", grad, taken), call.shape(2))
    elif 2 in call.wanted:
        taken = tape.op("Mul", grad, as_numbers(tape, tape.op("Not", truth), grad))
        found[2] = sum_to(tape, taken, call.shape(2))
    return found


def clip(tape: Tape, call: Call, grads: Grads) -> Found:
    """Passes where the result lies strictly between the bounds, which take no gradient."""
    tests = [
        tape.op(test, call.output(), call.input(place))
        for place, test in ((1, "Greater"), (2, "Less"))
        if call.has(place)
    ]
    if not tests:
        return {0: only(grads)}
    inside = tests[0] if len(tests) == 1 else tape.op("And", *tests)
    return {0: tape.op("Mul", grads[0], as_numbers(tape, inside, only(grads)))}


def cast(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient in the input's own type."""
    return {0: as_type(tape, only(grads), element_type(call.input(0)))}


def sqrt(tape: Tape, call: Call) -> ir.Value:
    """1 / (2 y), very steep but finite at 0, so that a mask further back makes 0 of it."""
    root = tape.op("Clip", call.output(), tape.scalar(smallest(call.output()) ** 0.5, call.output()))
    return tape.op("Div", tape.scalar(0.5, root), root)


def _square_plus(tape: Tape, value: ir.Value) -> ir.Value:
    """1 + value²."""
    return shifted(tape, tape.op("Mul", value, value), 1, 1)


def _one_minus_square(tape: Tape, value: ir.Value) -> ir.Value:
    """1 - value², precise near 1."""
    return tape.op("Mul", one_minus(tape, value), shifted(tape, value, 1, 1))


def _inverse_root(tape: Tape, value: ir.Value) -> ir.Value:
    """1 / sqrt(value), finite at 0."""
    return tape.op("Reciprocal", tape.op("Sqrt", tape.op("Clip", value, tape.scalar(smallest(value), value))))


def sinh(tape: Tape, call: Call) -> ir.Value:
    """Cosh has no CUDA kernel; |sinh x| + exp(-|x|) equals it, without overflow."""
    decay = tape.op("Exp", tape.op("Neg", tape.op("Abs", call.input(0))))
    return tape.op("Add", tape.op("Abs", call.output()), decay)


def acosh(tape: Tape, call: Call) -> ir.Value:
    """Slope 1 / sqrt((x - 1) (x + 1))."""
    value = call.input(0)
    return _inverse_root(tape, tape.op("Mul", shifted(tape, value, 1, -1), shifted(tape, value, 1, 1)))


RULES: Rules = {
    "Abs": Rule(times(lambda tape, call: sign(tape, call.input(0)))),
    "Acos": Rule(times(lambda tape, call: tape.op("Neg", _inverse_root(tape, _one_minus_square(tape, call.input(0)))))),
    "Acosh": Rule(times(acosh)),
    "Add": Rule(add),
    "Asin": Rule(times(lambda tape, call: _inverse_root(tape, _one_minus_square(tape, call.input(0))))),
    "Asinh": Rule(times(lambda tape, call: _inverse_root(tape, _square_plus(tape, call.input(0))))),
    "Atan": Rule(times(lambda tape, call: tape.op("Reciprocal", _square_plus(tape, call.input(0))))),
    "Atanh": Rule(times(lambda tape, call: tape.op("Reciprocal", _one_minus_square(tape, call.input(0))))),
    "Cast": Rule(cast),
    "CastLike": Rule(cast, needs=FIRST),
    "Clip": Rule(clip, needs=FIRST),
    "Cos": Rule(times(lambda tape, call: tape.op("Neg", tape.op("Sin", call.input(0))))),
    "Cosh": Rule(times(lambda tape, call: tape.op("Mul", tape.op("Tanh", call.input(0)), call.output()))),
    "Div": Rule(div),
    "Exp": Rule(times(lambda tape, call: call.output())),
    "Identity": Rule(lambda tape, call, grads: {0: only(grads)}),
    "Log": Rule(lambda tape, call, grads: {0: tape.op("Div", grads[0], call.input(0))}),
    "Max": Rule(_extreme("Greater")),
    "Mean": Rule(mean),
    "Min": Rule(_extreme("Less")),
    "Mod": Rule(mod),
    "Mul": Rule(mul),
    "Neg": Rule(lambda tape, call, grads: {0: tape.op("Neg", grads[0])}),
    "Pow": Rule(pow_gradient),
    "Reciprocal": Rule(times(lambda tape, call: tape.op("Neg", tape.op("Mul", call.output(), call.output())))),
    "Sin": Rule(times(lambda tape, call: tape.op("Cos", call.input(0)))),
    "Sinh": Rule(times(sinh)),
    "Sqrt": Rule(times(sqrt)),
    "Sub": Rule(sub),
    "Sum": Rule(add),
    "Tan": Rule(times(lambda tape, call: _square_plus(tape, call.output()))),
    "Where": Rule(where, needs=frozenset({1, 2})),
}
