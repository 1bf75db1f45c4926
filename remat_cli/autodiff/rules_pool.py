"""Gradients of pooling: over windows, and over whole images."""

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import as_numbers, pad, reshape, sign
from remat_cli.autodiff.rules_conv import image_gradient
from remat_cli.autodiff.rules_conv_window import LEADING, ConvWindow, resized, window_of
from remat_cli.autodiff.tape import (
    Array,
    Call,
    Found,
    Grads,
    Rule,
    Rules,
    Tape,
    WrittenForm,
    element_type,
    only,
    shape_of,
)
from remat_cli.base.errors import ModelError

WINDOW_ATTRIBUTES = ("kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode")


def max_pool_with_places(tape: Tape, call: Call) -> WrittenForm | None:
    """The same maxima, and where the first of each window is; only where asked for, since it takes longer."""
    if not call.wanted:
        return None
    if call.integer("storage_order"):
        raise ModelError(f"op '{call.name}' (MaxPool): gradients need indices in row-major order (storage_order 0)")
    given = {name: call.attributes[name] for name in WINDOW_ATTRIBUTES if name in call.attributes}
    return _max_pool(tape, call, given)


def global_max_pool_with_places(tape: Tape, call: Call) -> WrittenForm | None:
    """A maximum over one window, as large as the image."""
    return None if not call.wanted else _max_pool(tape, call, {"kernel_shape": call.shape()[LEADING:]})


def _max_pool(tape: Tape, call: Call, attributes: Mapping[str, object]) -> WrittenForm:
    maxima, places = tape.ops("MaxPool", [call.input(0)], 2, dict(attributes))
    # within a plane, by remainders: places that count over the whole tensor are others in a part of the batch
    plane = tape.op("Mod", places, tape.constant(np.array(_plane(call), np.int64)))
    return WrittenForm((maxima, places), (tape.op("Cast", plane, to=ir.DataType.INT32),))


def _plane(call: Call) -> int:
    """Elements of one channel of one image."""
    return prod(call.shape(0)[LEADING:])


def max_pool_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Each gradient goes to its window's maximum; they add up where windows overlap."""
    kernel = call.integers("kernel_shape")
    window = window_of(call, kernel, call.input(0), call.output())
    return {0: _scattered(tape, call, grads, "add" if window.overlaps else "none")}


def global_max_pool_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Each gradient goes to the maximum of its image."""
    return {0: _scattered(tape, call, grads, "none")}


def _scattered(tape: Tape, call: Call, grads: Grads, reduction: str) -> ir.Value:
    """Each gradient goes to where the maximum was; places count over a plane."""
    grad, places = only(grads), call.saved[0]
    planes = call.shape()[:LEADING]
    windows = (*planes, prod(shape_of(grad)[LEADING:]))
    flat, places = reshape(tape, grad, windows), reshape(tape, places, windows)
    # zeros around nothing that is read of each image, so that they may be made image by image
    nothing = tape.op("Slice", flat, tape.ints(0), tape.ints(0), tape.ints(LEADING))
    start = pad(tape, nothing, [0, 0, 0], [0, 0, _plane(call)])
    found = tape.op("ScatterElements", start, places, flat, axis=LEADING, reduction=reduction)
    return reshape(tape, found, call.shape())


def average_pool(tape: Tape, call: Call, grads: Grads) -> Found:
    """Divide by the elements counted, and give every element what its windows have."""
    grad = only(grads)
    window = window_of(call, call.integers("kernel_shape"), call.input(0), grad)
    # How many elements each result is an average of, [1, 1, results].
    is_padding_counted = call.integer("count_include_pad") == 1
    is_given = call.text("auto_pad", "NOTSET") in ("NOTSET", "")
    highs = call.integers("pads", [0] * 2 * window.rank)[window.rank :] if is_given else window.highs
    counts = np.ones((1, 1))
    for axis in range(window.rank):
        places = np.arange(window.results[axis])[:, None] * window.strides[axis] - window.lows[axis]
        places = places + np.arange(window.kernel[axis])[None, :] * window.dilations[axis]
        first, last = 0, window.sizes[axis]
        if is_padding_counted:  # as far as it was asked for: results of `ceil_mode` may reach beyond that
            first, last = -window.lows[axis], window.sizes[axis] + max(highs[axis], 0)
        counts = counts[..., None] * np.sum((first <= places) & (places < last), axis=1)
    shares = 1.0 / counts
    pads_of_taps = [*zip(window.lows, window.kernel, strict=True), *zip(window.highs, window.kernel, strict=True)]
    is_narrow = all(0 <= pad < taps for pad, taps in pads_of_taps)
    if {*window.strides, *window.dilations} == {1} and is_narrow:  # every place begins a window: an average itself
        grad = _weighted(tape, grad, shares * prod(window.kernel))
        lows = [taps - 1 - low for taps, low in zip(window.kernel, window.lows, strict=True)]
        pads = [*lows, *(taps - 1 - high for taps, high in zip(window.kernel, window.highs, strict=True))]
        return {0: tape.op("AveragePool", grad, kernel_shape=window.kernel, pads=pads, count_include_pad=1)}
    return {0: _spread(tape, window, _weighted(tape, grad, shares))}


def _weighted(tape: Tape, grad: ir.Value, factors: Array) -> ir.Value:
    """A gradient times constant factors; one number where they are all the same."""
    if np.all(factors == factors.flat[0]):
        same = float(factors.flat[0])
        return grad if same == 1.0 else tape.op("Mul", grad, tape.scalar(same, like=grad))
    return tape.op("Mul", grad, tape.constant(factors.astype(element_type(grad).numpy())))


def _spread(tape: Tape, window: ConvWindow, grad: ir.Value) -> ir.Value:
    """Sum for every element over the results that read it."""
    is_tiling = window.kernel == window.strides and set(window.dilations) == {1} and not any(window.lows)
    if is_tiling:  # windows lie side by side, without gaps
        scales = tape.constant(np.array([1, 1, *window.kernel], np.float32))
        how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return resized(tape, tape.op("Resize", grad, None, scales, **how), window.sizes)
    channels = shape_of(grad)[1]
    ones = tape.constant(np.ones((channels, 1, *window.kernel), element_type(grad).numpy()))
    return image_gradient(tape, window, grad, ones, channels)


def global_average_pool(tape: Tape, call: Call, grads: Grads) -> Found:
    """Every element of an image gets the same share of its gradient."""
    grad = only(grads)
    share = tape.op("Mul", grad, tape.scalar(1.0 / prod(call.shape()[LEADING:]), like=grad))
    return {0: tape.op("Expand", share, tape.ints(*call.shape()))}


def lp_pool(tape: Tape, call: Call, grads: Grads) -> Found:
    """Of (sum of |x|^p)^(1/p): sign(x) |x|^(p-1) times the sum over windows of the gradient times y^(1-p)."""
    grad, x, y = only(grads), call.input(0), call.output()
    power = call.integer("p", 2)
    window = window_of(call, call.integers("kernel_shape"), x, grad)
    if power > 1:
        # Where all of a window is zero so is the gradient; a norm of one keeps infinity away from it.
        empty = as_numbers(tape, tape.op("Equal", y, tape.scalar(0, like=y)), y)
        norm = tape.op("Add", y, empty)
        grad = tape.op("Mul", grad, tape.op("Pow", norm, tape.scalar(1 - power, like=y)))
    found = tape.op("Mul", _spread(tape, window, grad), sign(tape, x))
    if power > 1:
        found = tape.op("Mul", found, tape.op("Pow", tape.op("Abs", x), tape.scalar(power - 1, like=x)))
    return {0: found}


RULES: Rules = {
    "MaxPool": Rule(max_pool_gradient, form=max_pool_with_places),
    "GlobalMaxPool": Rule(global_max_pool_gradient, form=global_max_pool_with_places),
    "AveragePool": Rule(average_pool),
    "GlobalAveragePool": Rule(global_average_pool),
    "LpPool": Rule(lp_pool),
}
