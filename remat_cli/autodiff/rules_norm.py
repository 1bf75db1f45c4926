"""Gradients of normalisations with statistics per channel: of the batch, of an instance, of a group of channels.

The gradient is written with the input centred by an exact subtraction (what is left of a large mean would drown it)
and the inference form of BatchNormalization as a map that is affine per channel: one kernel, no temporaries. Next to
the gradient that flows in, at most two full-size tensors are alive at once.
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape, sum_per_channel
from remat_cli.autodiff.tape import (
    Call,
    Found,
    Grads,
    Rule,
    Rules,
    Tape,
    WrittenForm,
    element_type,
    known,
    only,
    shape_of,
)

EPSILON = 1e-5  # default of every op here
MOMENTUM = 0.9


@dataclass(frozen=True)
class _Statistics:
    """Mean and population variance per channel, and what is added to the variance."""

    mean: ir.Value
    variance: ir.Value
    epsilon: float


def batch_norm(tape: Tape, call: Call) -> WrittenForm:
    """Statistics by plain ops, so that the op has no state and may be recomputed; one kernel to apply them."""
    x = call.input(0)
    found = _statistics(tape, x, call.real("epsilon", EPSILON))
    y = _affine(tape, x, call.input(1), call.input(2), found)
    training = bool(call.integer("training_mode"))
    momentum = call.real("momentum", MOMENTUM)
    moved = {}
    for place, now in ((3, found.mean), (4, found.variance)):
        if training or _is_state(call, place):
            running = call.input(place)
            kept = tape.op("Mul", running, tape.scalar(momentum, running))
            moved[place] = tape.op("Add", kept, tape.op("Mul", now, tape.scalar(1 - momentum, now)))
    updates = tuple((call.input(place), new) for place, new in moved.items() if _is_state(call, place))
    return WrittenForm((y, *(moved.values() if training else ())), (found.mean, found.variance), updates)


def _is_state(call: Call, place: int) -> bool:
    """Whether a running statistic comes from outside: a constant one is frozen."""
    return known(call.input(place)) is None


def batch_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Scale and bias first; the gradient of the input follows from theirs."""
    grad = grads[0]
    if grad is None:
        return {}
    x = call.input(0)
    found = _saved(call)
    bias = sum_per_channel(tape, grad)
    if call.wanted == {2}:
        return {2: bias}
    apart = _apart(tape, x, found.mean)
    dot = sum_per_channel(tape, tape.op("Mul", grad, apart))
    result = {1: _scale_gradient(tape, dot, found), 2: bias}
    if 0 in call.wanted:
        result[0] = _input_gradient(tape, grad, apart, (bias, dot), call.input(1), found)
    return result


def frozen_batch_norm(tape: Tape, call: Call) -> WrittenForm:
    """The inference form with the running statistics as they are, which stay."""
    found = _Statistics(call.input(3), call.input(4), call.real("epsilon", EPSILON))
    y = _affine(tape, call.input(0), call.input(1), call.input(2), found)
    return WrittenForm((y, *((found.mean, found.variance) if call.integer("training_mode") else ())))


def frozen_batch_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient through a map that is affine per channel: grad * scale / deviation."""
    grad = grads[0]
    if grad is None:
        return {}
    x, scale = call.input(0), call.input(1)
    found = _Statistics(call.input(3), call.input(4), call.real("epsilon", EPSILON))
    result = {}
    if 2 in call.wanted:
        result[2] = sum_per_channel(tape, grad)
    if 1 in call.wanted:
        product = tape.op("Mul", grad, _apart(tape, x, found.mean))
        result[1] = _scale_gradient(tape, sum_per_channel(tape, product), found)
    if 0 in call.wanted:
        slope = tape.op("Div", scale, _deviation(tape, found))
        result[0] = tape.op("Mul", grad, _column(tape, slope, grad))
    return result


def instance_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """As for one batch of as many channels as there are instances times channels; statistics computed once more."""
    grad, x = only(grads), call.input(0)
    batch, channels = call.shape()[:2]
    flat = (1, batch * channels, math.prod(call.shape()[2:]))
    grad, x = reshape(tape, grad, flat), reshape(tape, x, flat)
    mean = _mean(tape, x)
    apart = _apart(tape, x, mean)
    found = _Statistics(mean, _mean_square(tape, apart), call.real("epsilon", EPSILON))
    bias = sum_per_channel(tape, grad)
    dot = sum_per_channel(tape, tape.op("Mul", grad, apart))
    by_instance = {1: _scale_gradient(tape, dot, found), 2: bias}
    result = {place: _over_batch(tape, value, channels) for place, value in by_instance.items()}
    if 0 in call.wanted:
        scale = _for_each_instance(tape, call.input(1), batch)
        result[0] = reshape(tape, _input_gradient(tape, grad, apart, (bias, dot), scale, found), call.shape())
    return result


def group_norm(tape: Tape, call: Call) -> WrittenForm:
    """Statistics by group, then one affine map with a channel for each instance and channel.

    The runtime has no kernel for this op: it would fall apart into some thirty nodes.
    """
    x, (batch, channels) = call.input(0), call.shape()[:2]
    found = _statistics(tape, _by_group(tape, call, x), call.real("epsilon", EPSILON))
    scale, bias = (_for_each_instance(tape, call.input(place), batch) for place in (1, 2))
    flat = reshape(tape, x, (1, batch * channels, math.prod(call.shape()[2:])))
    y = _affine(tape, flat, scale, bias, _for_each_channel(tape, found, channels // _groups(call)))
    return WrittenForm((reshape(tape, y, call.shape()),), (found.mean, found.variance))


def group_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Sums by instance and channel give the gradients of scale and bias, and those by group the input's."""
    grad, (batch, channels) = only(grads), call.shape()[:2]
    flat = (1, batch * channels, math.prod(call.shape()[2:]))
    by_group = _saved(call)
    found = _for_each_channel(tape, by_group, channels // _groups(call))
    grad = reshape(tape, grad, flat)
    bias = sum_per_channel(tape, grad)
    apart = _apart(tape, reshape(tape, call.input(0), flat), found.mean)
    dot = sum_per_channel(tape, tape.op("Mul", grad, apart))
    by_instance = {1: _scale_gradient(tape, dot, found), 2: bias}
    result = {place: _over_batch(tape, value, channels) for place, value in by_instance.items()}
    if 0 in call.wanted:
        scale = _for_each_instance(tape, call.input(1), batch)
        sums = (
            _over_groups(tape, call, tape.op("Mul", scale, bias)),
            _over_groups(tape, call, tape.op("Mul", scale, dot)),
        )
        scaled = _by_group(tape, call, tape.op("Mul", grad, _column(tape, scale, grad)))
        apart = _by_group(tape, call, apart)
        ones = _full(tape, 1, by_group.mean)
        result[0] = reshape(tape, _input_gradient(tape, scaled, apart, sums, ones, by_group), call.shape())
    return result


def _statistics(tape: Tape, x: ir.Value, epsilon: float) -> _Statistics:
    """In two passes: the mean of squares less the square of the mean would lose all digits to a large mean."""
    mean = _mean(tape, x)
    centred = tape.op("Sub", x, _column(tape, mean, x))
    return _Statistics(mean, _mean_square(tape, centred), epsilon)


def _saved(call: Call) -> _Statistics:
    mean, variance = call.saved
    return _Statistics(mean, variance, call.real("epsilon", EPSILON))


def _apart(tape: Tape, x: ir.Value, mean: ir.Value) -> ir.Value:
    """Mean less value. Not value less mean, which the runtime would share with the forward pass and keep till here."""
    return tape.op("Sub", _column(tape, mean, x), x)


def _mean_square(tape: Tape, centred: ir.Value) -> ir.Value:
    """By channel; in two stages, since the runtime shares out the first among threads by what it leaves."""
    inner = [*range(2, len(shape_of(centred)))]
    squares = tape.op("ReduceSumSquare", centred, tape.ints(*(inner or [0])), keepdims=0)
    if inner:
        squares = tape.op("ReduceSum", squares, tape.ints(0), keepdims=0)
    return tape.op("Div", squares, tape.scalar(_count(centred), centred))


def _affine(tape: Tape, x: ir.Value, scale: ir.Value, bias: ir.Value, found: _Statistics) -> ir.Value:
    return tape.op("BatchNormalization", x, scale, bias, found.mean, found.variance, epsilon=found.epsilon)


def _input_gradient(
    tape: Tape,
    grad: ir.Value,
    apart: ir.Value,
    sums: tuple[ir.Value, ir.Value],
    scale: ir.Value,
    found: _Statistics,
) -> ir.Value:
    """Scale / deviation * (grad - mean(grad) - centred * mean(grad * centred) / variance).

    `sums` by channel are of the gradient, and of its product with `apart`, whose sign cancels.
    """
    size = tape.scalar(_count(grad), grad)
    slope = tape.op("Div", tape.op("Div", sums[1], size), _raised(tape, found))
    part = tape.op("Mul", apart, _column(tape, slope, apart))
    rest = _Statistics(tape.op("Div", sums[0], size), found.variance, found.epsilon)
    return _affine(tape, tape.op("Sub", grad, part), scale, _full(tape, 0, scale), rest)


def _scale_gradient(tape: Tape, dot: ir.Value, found: _Statistics) -> ir.Value:
    """The scale's gradient, from the sum of gradient times mean less value."""
    return tape.op("Div", dot, tape.op("Neg", _deviation(tape, found)))


def _raised(tape: Tape, found: _Statistics) -> ir.Value:
    return tape.op("Add", found.variance, tape.scalar(found.epsilon, found.variance))


def _deviation(tape: Tape, found: _Statistics) -> ir.Value:
    return tape.op("Sqrt", _raised(tape, found))


def _mean(tape: Tape, value: ir.Value) -> ir.Value:
    """Mean over all axes but the second."""
    return tape.op("Div", sum_per_channel(tape, value), tape.scalar(_count(value), value))


def _column(tape: Tape, vector: ir.Value, like: ir.Value) -> ir.Value:
    """A number per channel, to be broadcast against a tensor."""
    return reshape(tape, vector, (*shape_of(vector), *(1 for _ in shape_of(like)[2:])))


def _full(tape: Tape, number: float, like: ir.Value) -> ir.Value:
    return tape.constant(np.full(shape_of(like), number, element_type(like).numpy()))


def _count(value: ir.Value) -> int:
    """Elements per channel."""
    shape = shape_of(value)
    return shape[0] * math.prod(shape[2:])


def _groups(call: Call) -> int:
    return call.integer("num_groups", 1)


def _by_group(tape: Tape, call: Call, value: ir.Value) -> ir.Value:
    """A view with one channel for each instance and group."""
    groups = call.shape()[0] * _groups(call)
    return reshape(tape, value, (1, groups, math.prod(call.shape()) // groups))


def _over_groups(tape: Tape, call: Call, vector: ir.Value) -> ir.Value:
    """Sum numbers by instance and channel to numbers by instance and group."""
    groups = call.shape()[0] * _groups(call)
    return tape.op(
        "ReduceSum", reshape(tape, vector, (groups, math.prod(shape_of(vector)) // groups)), tape.ints(1), keepdims=0
    )


def _over_batch(tape: Tape, vector: ir.Value, channels: int) -> ir.Value:
    """Sum numbers by instance and channel to numbers by channel."""
    batch = math.prod(shape_of(vector)) // channels
    return tape.op("ReduceSum", reshape(tape, vector, (batch, channels)), tape.ints(0), keepdims=0)


def _for_each_instance(tape: Tape, vector: ir.Value, batch: int) -> ir.Value:
    """Numbers by channel, repeated for each instance."""
    (channels,) = shape_of(vector)
    if batch == 1:
        return vector
    return reshape(tape, tape.op("Expand", vector, tape.ints(batch, channels)), (batch * channels,))


def _for_each_channel(tape: Tape, found: _Statistics, repeats: int) -> _Statistics:
    """Statistics by group, repeated for each channel of the group."""
    return _Statistics(_repeated(tape, found.mean, repeats), _repeated(tape, found.variance, repeats), found.epsilon)


def _repeated(tape: Tape, vector: ir.Value, repeats: int) -> ir.Value:
    (groups,) = shape_of(vector)
    if repeats == 1:
        return vector
    wide = tape.op("Expand", reshape(tape, vector, (groups, 1)), tape.ints(groups, repeats))
    return reshape(tape, wide, (groups * repeats,))


BATCH_NORM = Rule(batch_norm_gradient, batch_norm, frozenset({0, 1, 2}))
BATCH_NORM_FROZEN = Rule(frozen_batch_norm_gradient, frozen_batch_norm, frozenset({0, 1, 2}))

RULES: Rules = {
    "BatchNormalization": BATCH_NORM,
    "InstanceNormalization": Rule(instance_norm_gradient),
    "GroupNormalization": Rule(group_norm_gradient, group_norm),
}
