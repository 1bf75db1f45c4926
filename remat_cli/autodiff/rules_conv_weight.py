"""Gradient of a convolution's weights: convolutions of the image whose kernel is the gradient of the result."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape
from remat_cli.autodiff.rules_conv_window import LEADING, Window, crop, fit
from remat_cli.autodiff.tape import Tape, shape_of

WORTH_A_PRODUCT = 2  # products of single images are so much faster that they may be larger than a copy
MOST_AXES = 3  # spatial axes of a convolution that the runtime computes without a full column matrix


def weight_gradient(tape: Tape, window: Window, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """Gradient of the weights [results, image channels / group, kernel] of a convolution.

    One weight gradient for each image of the batch, added up, needs no rearranged copy of image or gradient; it is
    the choice unless the gradients together are larger than such a copy.
    """
    batch, channels = shape_of(image)[:LEADING]
    results = shape_of(grad)[1]
    together = batch * results * channels // group * prod(window.kernel)
    if _is_pointwise(window):
        # What strides leave out is not carried along.
        image = _read_only(tape, window, image)
        ones = (1,) * window.rank
        window = Window(window.results, window.results, ones, ones, ones, (0,) * window.rank)
        if batch == 1 or together <= WORTH_A_PRODUCT * prod(shape_of(grad)):
            return _by_product(tape, image, grad, group)
    if window.rank + (channels > group) > MOST_AXES:
        return _channels_as_batch(tape, window, image, grad, group)
    by_sample = batch == 1 or together <= prod(shape_of(grad))
    return (_by_sample if by_sample else _over_batch)(tape, window, image, grad, group)


def _is_pointwise(window: Window) -> bool:
    """Whether each result reads one element, none of them padding."""
    return prod(window.kernel) == 1 and not any(window.lows) and max(window.highs) <= 0


def _read_only(tape: Tape, window: Window, image: ir.Value) -> ir.Value:
    ends = [size + min(high, 0) for size, high in zip(window.sizes, window.highs, strict=True)]
    return crop(tape, image, [0] * window.rank, ends, window.strides)


def _by_product(tape: Tape, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """A matrix product for each image; the runtime's optimiser fuses the transposition into it."""
    batch, channels, *sizes = shape_of(image)
    results = shape_of(grad)[1]
    flat = reshape(tape, image, (batch * group, channels // group, prod(sizes)))
    grad = reshape(tape, grad, (batch * group, results // group, prod(sizes)))
    products = tape.op("MatMul", grad, tape.op("Transpose", flat, perm=[0, 2, 1]))
    return _summed(tape, products, batch, (results, channels // group, *[1] * len(sizes)))


def _by_sample(tape: Tape, window: Window, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """The images side by side as groups of one image."""
    batch, channels = shape_of(image)[:LEADING]
    results = shape_of(grad)[1]
    found = _correlated(tape, window, (image, grad), (batch * group, channels // group), (batch * results, 1))
    return _summed(tape, found, batch, (results, channels // group, *window.kernel))


def _over_batch(tape: Tape, window: Window, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """The batch as channels: adds up over it at once, from a gradient with the batch inside."""
    batch, channels = shape_of(image)[:LEADING]
    results = shape_of(grad)[1]
    axes = range(LEADING, LEADING + window.rank)
    if group > 1:
        image = reshape(tape, image, (batch, group, channels // group, *window.sizes))
        image = tape.op("Transpose", image, perm=[1, 0, *range(2, 3 + window.rank)])
        image = reshape(tape, image, (batch, channels, *window.sizes))
    grad = tape.op("Transpose", grad, perm=[1, 0, *axes])
    found = _correlated(tape, window, (image, grad), (group * batch, channels // group), (results, batch))
    return reshape(tape, found, (results, channels // group, *window.kernel))


def _correlated(
    tape: Tape, window: Window, read: tuple[ir.Value, ir.Value], image: tuple[int, int], kernel: tuple[int, int]
) -> ir.Value:
    """Convolve an image of `image` (channels, planes) with the gradient as kernel of `kernel` (results, channels).

    Planes are an axis of space with a kernel of one: channels of the forward image that must not be added up. Strides
    and dilations change places.
    """
    fitted, (lows, highs) = fit(tape, read[0], window.lows, window.highs)
    planes = image[1:] if image[1] > 1 else ()
    one, zero = (1,) * len(planes), (0,) * len(planes)
    return tape.op(
        "Conv",
        reshape(tape, fitted, (1, image[0], *planes, *shape_of(fitted)[LEADING:])),
        reshape(tape, read[1], (*kernel, *one, *window.results)),
        group=image[0] // kernel[1],
        strides=[*one, *window.dilations],
        dilations=[*one, *window.strides],
        pads=[*zero, *lows, *zero, *highs],
    )


def _channels_as_batch(tape: Tape, window: Window, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """For images of three axes, where none is left for planes: channels and batch change places in both."""
    axes = range(window.rank)
    batch, channels = shape_of(image)[:LEADING]
    fitted, (lows, highs) = fit(tape, image, window.lows, window.highs)
    sizes = shape_of(fitted)[LEADING:]
    fitted = reshape(tape, fitted, (batch, group, channels // group, *sizes))
    fitted = tape.op("Transpose", fitted, perm=[2, 1, 0, *(3 + axis for axis in axes)])
    found = tape.op(
        "Conv",
        reshape(tape, fitted, (channels // group, group * batch, *sizes)),
        tape.op("Transpose", grad, perm=[1, 0, *(LEADING + axis for axis in axes)]),
        group=group,
        strides=window.dilations,
        dilations=window.strides,
        pads=[*lows, *highs],
    )
    return tape.op("Transpose", found, perm=[1, 0, *(LEADING + axis for axis in axes)])


def _summed(tape: Tape, found: ir.Value, batch: int, shape: tuple[int, ...]) -> ir.Value:
    """Add up the gradients of the images of a batch."""
    if batch == 1:
        return reshape(tape, found, shape)
    return tape.op("ReduceSum", reshape(tape, found, (batch, *shape)), tape.ints(0), keepdims=0)
