"""Gradients of reductions and of running sums."""

import math
from collections.abc import Mapping

import onnx_ir as ir

from remat_cli.autodiff.pieces import as_numbers, positive, reshape, shifted, sign, smallest
from remat_cli.autodiff.tape import FIRST, Call, Found, Gradient, Grads, Rule, Rules, Tape, constant_of, only, shape_of


def _axes(call: Call) -> tuple[int, ...]:
    """The axes that are reduced."""
    rank, given = len(call.shape()), constant_of(call, 1, "axes") if call.has(1) else None
    if given is None or not given.size:
        return () if call.integer("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted(positive(int(axis), rank) for axis in given))


def _kept(tape: Tape, call: Call, value: ir.Value) -> ir.Value:
    """A value of the result's shape with the reduced axes as ones, to broadcast against the input."""
    axes = _axes(call)
    return reshape(tape, value, tuple(1 if axis in axes else dim for axis, dim in enumerate(call.shape())))


def _expand(tape: Tape, call: Call, value: ir.Value) -> Found:
    """Every element of the input gets the value of the one it was reduced to."""
    wide = _kept(tape, call, value)
    return {0: wide if shape_of(wide) == call.shape() else tape.op("Expand", wide, tape.ints(*call.shape()))}


def reduce_sum(tape: Tape, call: Call, grads: Grads) -> Found:
    """Every element gets the gradient of its sum."""
    return _expand(tape, call, only(grads))


def reduce_mean(tape: Tape, call: Call, grads: Grads) -> Found:
    """Every element gets the gradient of its mean, over their number."""
    count = math.prod(call.shape()[axis] for axis in _axes(call))
    return _expand(tape, call, shifted(tape, only(grads), 1 / max(count, 1), 0))


def reduce_extreme(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient of a maximum or minimum is shared evenly by all that equal it."""
    axes, grad = _axes(call), _kept(tape, call, only(grads))
    if not axes:
        return {0: grad}
    chosen = as_numbers(tape, tape.op("Equal", call.input(0), _kept(tape, call, call.output())), grad)
    count = tape.op("ReduceSum", chosen, tape.ints(*axes), keepdims=1)
    return {0: tape.op("Mul", chosen, tape.op("Div", grad, count))}


def reduce_product(tape: Tape, call: Call, grads: Grads) -> Found:
    """The product of the others: that of all that are not 0, over the element, unless another one is 0."""
    value, axes, grad = call.input(0), _axes(call), _kept(tape, call, only(grads))
    if not axes:
        return {0: grad}
    is_zero = as_numbers(tape, tape.op("Equal", value, tape.scalar(0, value)), value)
    other_zeros = tape.op("Sub", tape.op("ReduceSum", is_zero, tape.ints(*axes), keepdims=1), is_zero)
    alone = as_numbers(tape, tape.op("Equal", other_zeros, tape.scalar(0, value)), value)
    without_zeros = tape.op("Add", value, is_zero)
    product = tape.op("ReduceProd", without_zeros, tape.ints(*axes), keepdims=1)
    others = tape.op("Div", tape.op("Mul", product, grad), without_zeros)
    return {0: tape.op("Mul", others, alone)}


def reduce_l1(tape: Tape, call: Call, grads: Grads) -> Found:
    """Slope sign(x)."""
    return {0: tape.op("Mul", sign(tape, call.input(0)), _kept(tape, call, only(grads)))}


def reduce_l2(tape: Tape, call: Call, grads: Grads) -> Found:
    """Slope x / y, and 0 where all of x is 0."""
    norm = tape.op("Clip", call.output(), tape.scalar(smallest(call.output()) ** 0.5, call.output()))
    return {0: tape.op("Mul", call.input(0), _kept(tape, call, tape.op("Div", grads[0], norm)))}


def reduce_log_sum(tape: Tape, call: Call, grads: Grads) -> Found:
    """Slope 1 / sum = exp(-y): the input is not needed."""
    inverse = tape.op("Exp", tape.op("Neg", call.output()))
    return _expand(tape, call, tape.op("Mul", grads[0], inverse))


def reduce_log_sum_exp(tape: Tape, call: Call, grads: Grads) -> Found:
    """Slope exp(x - y)."""
    share = tape.op("Exp", tape.op("Sub", call.input(0), _kept(tape, call, call.output())))
    return {0: tape.op("Mul", share, _kept(tape, call, only(grads)))}


def reduce_sum_square(tape: Tape, call: Call, grads: Grads) -> Found:
    """Slope 2 x."""
    return {0: tape.op("Mul", call.input(0), _kept(tape, call, shifted(tape, only(grads), 2, 0)))}


def running_sum(tape: Tape, call: Call, grads: Grads) -> Found:
    """A running sum of the gradient, from the other end."""
    back, exclusive = 1 - call.integer("reverse"), call.integer("exclusive")
    return {0: tape.op("CumSum", grads[0], call.input(1), exclusive=exclusive, reverse=back)}


GRADIENTS: Mapping[str, Gradient] = {
    "CumSum": running_sum,
    "ReduceL1": reduce_l1,
    "ReduceL2": reduce_l2,
    "ReduceLogSum": reduce_log_sum,
    "ReduceLogSumExp": reduce_log_sum_exp,
    "ReduceMax": reduce_extreme,
    "ReduceMean": reduce_mean,
    "ReduceMin": reduce_extreme,
    "ReduceProd": reduce_product,
    "ReduceSum": reduce_sum,
    "ReduceSumSquare": reduce_sum_square,
}
RULES: Rules = {op_type: Rule(gradient, needs=FIRST) for op_type, gradient in GRADIENTS.items()}
