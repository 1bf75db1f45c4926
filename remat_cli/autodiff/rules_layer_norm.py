"""Gradients of normalisations over some axes of each element: layers, vectors, chosen axes, nearby channels."""

from dataclasses import replace
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape, sign, sum_to
from remat_cli.autodiff.tape import Array, Call, Found, Grads, Rule, Rules, Tape, WrittenForm, element_type, shape_of
from remat_cli.base.errors import ModelError

LAYER_EPSILON = 1e-5  # defaults of the ops
SKIP_EPSILON = 1e-12
STANDARD_EPSILON = 1e-9  # added to the deviation by MeanVarianceNormalization, which has no attribute for it


def layer_norm(tape: Tape, call: Call) -> WrittenForm:
    """With mean and inverse deviation as further results where they have the type of the input."""
    real = element_type(call.input(0))
    saves = real == call.integer("stash_type", ir.DataType.FLOAT.value)
    axis, epsilon = call.integer("axis", -1), call.real("epsilon", LAYER_EPSILON)
    attributes = {"axis": axis, "epsilon": epsilon, "stash_type": call.integer("stash_type", 1)}
    inputs = call.inputs[: 3 if call.has(2) else 2]  # the runtime crashes on a bias that is there but empty
    results = tape.ops("LayerNormalization", inputs, 3 if saves else 1, attributes)
    return WrittenForm(results, results[1:])


def layer_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Layers as rows of a matrix: scale, bias, then input, with three full-size tensors alive at once.

    Sums over rows and along them are products with a vector, which need no temporaries.

    Raises:
        ModelError: the scale differs from row to row.
    """
    if grads[0] is None:
        return {}
    scale, dims = call.input(1), _normalised(call)
    size = prod(dims)
    rows = (prod(call.shape()) // size, size)
    grad, x = reshape(tape, grads[0], rows), reshape(tape, call.input(0), rows)
    if len(shape_of(scale)) > len(dims):
        raise ModelError(
            f"op '{call.name}' ({call.op_type}): no gradient for a scale of more dimensions than it scales"
        )
    if shape_of(scale) != dims and prod(shape_of(scale)) != size:
        scale = tape.op("Expand", scale, tape.ints(*dims))
    scale = reshape(tape, scale, (1, size))
    apart, inverse = _centred(tape, call, x)
    result = {}
    if 2 in call.wanted:
        result[2] = _to_parameter(tape, call, 2, tape.op("ReduceSum", grad, tape.ints(0), keepdims=1))
    product = tape.op("Mul", grad, apart)
    if 1 in call.wanted:
        weights = reshape(tape, tape.op("Neg", inverse), (1, rows[0]))
        result[1] = _to_parameter(tape, call, 1, tape.op("Gemm", weights, product))
    if 0 in call.wanted:
        result[0] = reshape(tape, _rows_gradient(tape, (grad, apart, product), scale, inverse), call.shape())
    return result


def _rows_gradient(
    tape: Tape, parts: tuple[ir.Value, ir.Value, ir.Value], scale: ir.Value, inverse: ir.Value
) -> ir.Value:
    """(grad * scale - mean of it - centred * mean(grad * scale * centred) / variance) / deviation.

    `parts` are the gradient, mean less value, and their product.
    """
    grad, apart, product = parts
    size = shape_of(scale)[1]
    weights = tape.op("Div", reshape(tape, scale, (size, 1)), tape.scalar(size, scale))
    slope = tape.op("Mul", tape.op("MatMul", product, weights), tape.op("Mul", inverse, inverse))
    mean = tape.op("MatMul", grad, weights)
    scaled = tape.op("Mul", grad, scale)
    rest = tape.op("Sub", scaled, tape.op("Mul", apart, slope))
    return tape.op("Mul", tape.op("Sub", rest, mean), inverse)


def _centred(tape: Tape, call: Call, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Mean less value, and the inverse deviation of each row: as saved, or computed once more."""
    count = shape_of(x)[0]
    if call.saved:
        mean, inverse = (reshape(tape, saved, (count, 1)) for saved in call.saved)
        return tape.op("Sub", mean, x), inverse
    mean = tape.op("ReduceMean", x, tape.ints(1))
    apart = tape.op("Sub", mean, x)
    variance = _mean_square(tape, apart, (1,))
    raised = tape.op("Add", variance, tape.scalar(call.real("epsilon", LAYER_EPSILON), x))
    return apart, tape.op("Reciprocal", tape.op("Sqrt", raised))


def _mean_square(tape: Tape, centred: ir.Value, axes: tuple[int, ...]) -> ir.Value:
    size = prod(shape_of(centred)[axis] for axis in axes)
    squares = tape.op("ReduceSumSquare", centred, tape.ints(*axes))
    return tape.op("Div", squares, tape.scalar(size, centred))


def _to_parameter(tape: Tape, call: Call, position: int, row: ir.Value) -> ir.Value:
    """The gradient of scale or bias from that of one row."""
    return sum_to(tape, reshape(tape, row, _normalised(call)), call.shape(position))


def _normalised(call: Call) -> tuple[int, ...]:
    return call.shape()[call.integer("axis", -1) % len(call.shape()) :]


def skip_layer_norm(tape: Tape, call: Call) -> WrittenForm:
    """Addition and layer normalisation in ops of the standard; the second and third result are never there."""
    total = tape.op("Add", call.input(0), call.input(1))
    if call.has(4):
        total = tape.op("Add", total, call.input(4))
    form = layer_norm(tape, _layers_of(call, total))
    return WrittenForm((form.outputs[0], None, None, total), (total, *form.saved))


def skip_layer_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """What reaches the sum, through the layers and directly, reaches all that was added."""
    total, *saved = call.saved
    places = {0: frozenset({0, 1, 4}), 1: frozenset({2}), 2: frozenset({3})}
    wanted = frozenset(place for place, theirs in places.items() if theirs & call.wanted)
    inner = replace(_layers_of(call, total), saved=tuple(saved), wanted=wanted)
    found = layer_norm_gradient(tape, inner, grads)
    result = {place + 1: found[place] for place in (1, 2) if place in found}
    direct = grads[3] if len(grads) > 3 else None
    arrived = [grad for grad in (found.get(0), direct) if grad is not None]
    if arrived and 0 in wanted:
        grad = arrived[0] if len(arrived) == 1 else tape.op("Add", *arrived)
        result |= {place: sum_to(tape, grad, call.shape(place)) for place in (0, 1, 4) if place in call.wanted}
    return result


def _layers_of(call: Call, total: ir.Value) -> Call:
    """The layer normalisation that is inside a SkipLayerNormalization."""
    epsilon = ir.AttrFloat32("epsilon", call.real("epsilon", SKIP_EPSILON))
    bias = call.input(3) if call.has(3) else None
    return replace(call, inputs=(total, call.input(2), bias), attributes={"epsilon": epsilon})


def lp_norm(tape: Tape, call: Call) -> WrittenForm:
    """Divided by its norm, as plain ops: only the CPU provider has a kernel, and the norm is wanted later."""
    x = call.input(0)
    axis = tape.ints(call.integer("axis", -1))
    norm = tape.op("ReduceL1" if call.integer("p", 2) == 1 else "ReduceL2", x, axis)
    zero = tape.scalar(0, x)
    inverse = tape.op("Where", tape.op("Equal", norm, zero), zero, tape.op("Reciprocal", norm))
    return WrittenForm((tape.op("Mul", x, inverse),), (inverse,))


def lp_norm_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """(grad - y sum(grad y)) / norm, sign(y) for the first y where p is 1; zero where the norm is, for want of any."""
    y, axis = call.output(), tape.ints(call.integer("axis", -1))
    dot = tape.op("ReduceSum", tape.op("Mul", grads[0], y), axis)
    direction = sign(tape, y) if call.integer("p", 2) == 1 else y
    return {0: tape.op("Mul", tape.op("Sub", grads[0], tape.op("Mul", direction, dot)), call.saved[0])}


def mean_variance(tape: Tape, call: Call) -> WrittenForm:
    """In plain ops: only the CPU provider has a kernel, and the deviation is wanted later."""
    x, axes = call.input(0), _chosen_axes(call)
    centred = tape.op("Sub", x, tape.op("ReduceMean", x, tape.ints(*axes)))
    deviation = tape.op("Sqrt", _mean_square(tape, centred, axes))
    return WrittenForm((tape.op("Div", centred, _above_zero(tape, deviation)),), (deviation,))


def mean_variance_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """From the result: (grad - mean(grad) - y * mean(grad * y)) / deviation, but for what is added to that."""
    y, grad, deviation, over = call.output(), grads[0], call.saved[0], tape.ints(*_chosen_axes(call))
    raised = _above_zero(tape, deviation)
    least = tape.scalar(float(np.finfo(element_type(y).numpy()).tiny), y)  # a constant input: 0 / tiny, not 0 / 0
    ratio = tape.op("Div", raised, tape.op("Max", deviation, least))
    slope = tape.op("Mul", tape.op("ReduceMean", tape.op("Mul", grad, y), over), ratio)
    rest = tape.op("Sub", grad, tape.op("Mul", y, slope))
    return {0: tape.op("Div", tape.op("Sub", rest, tape.op("ReduceMean", grad, over)), raised)}


def _chosen_axes(call: Call) -> tuple[int, ...]:
    return tuple(axis % len(call.shape()) for axis in call.integers("axes", (0, 2, 3)))


def _above_zero(tape: Tape, deviation: ir.Value) -> ir.Value:
    return tape.op("Add", deviation, tape.scalar(STANDARD_EPSILON, deviation))


def lrn(tape: Tape, call: Call, grads: Grads) -> Found:
    """With s = bias + alpha mean(x^2): dy / s^beta - 2 alpha beta x mean'(dy x / s^beta / s).

    `mean` is over the channels around each, `mean'` over those whose mean has it.
    """
    x = call.input(0)
    alpha, beta = call.real("alpha", 1e-4), round(call.real("beta", 0.75), 6)
    size, places = call.integer("size"), np.arange(call.shape()[1])
    ahead = places[None, :] - places[:, None]
    is_near = (-((size - 1) // 2) <= ahead) & (ahead <= size // 2)  # which channels (columns) are around each (rows)
    near = is_near.astype(np.float64) / size
    s = _mixed(tape, tape.op("Mul", x, x), alpha * near)
    s = tape.op("Add", s, tape.scalar(call.real("bias", 1.0), like=x))
    if beta == 0.75:  # the usual one: two square roots are ten times faster than a power
        root = tape.op("Sqrt", s)
        power = tape.op("Mul", root, tape.op("Sqrt", root))
    else:
        power = tape.op("Pow", s, tape.scalar(beta, like=s))
    direct = tape.op("Div", grads[0], power)
    through = tape.op("Div", tape.op("Mul", direct, x), s)
    through = tape.op("Mul", _mixed(tape, through, 2 * alpha * beta * near.T), x)
    return {0: tape.op("Sub", direct, through)}


def _mixed(tape: Tape, value: ir.Value, weights: Array) -> ir.Value:
    """Channels as weighted sums of channels: a convolution of one tap is several times faster than a pooling."""
    batch, channels, *sizes = shape_of(value)
    filters = tape.constant(weights[:, :, None].astype(element_type(value).numpy()))
    found = tape.op("Conv", reshape(tape, value, (batch, channels, prod(sizes))), filters)
    return reshape(tape, found, shape_of(value))


RULES: Rules = {
    "LayerNormalization": Rule(layer_norm_gradient, layer_norm),
    "com.microsoft:SkipLayerNormalization": Rule(skip_layer_norm_gradient, skip_layer_norm),
    "LpNormalization": Rule(lp_norm_gradient, lp_norm),
    "MeanVarianceNormalization": Rule(mean_variance_gradient, mean_variance),
    "LRN": Rule(lrn),
}
