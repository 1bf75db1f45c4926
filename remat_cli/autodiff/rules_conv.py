"""Gradient rules of convolutions: ConvTranspose for images, and weights at all groups as one convolution."""

from collections.abc import Callable
from math import prod

import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape, reverse, sum_per_channel
from remat_cli.autodiff.rules_conv_window import LEADING, ConvWindow, crop, fit, pairs, resized, tiled, window_of
from remat_cli.autodiff.tape import Call, Found, Grads, Rule, Rules, Tape, only, shape_of

WORTH_A_WORKSPACE = 0.9  # share of the other form's memory below which ConvTranspose is taken without strides
WORTH_SPEED = 1.5  # the same with strides


def image_gradient(tape: Tape, window: ConvWindow, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """Gradient of the image of a convolution with `weight` [results, image channels / group, kernel]."""
    # Where an axis has strides and dilations, the taps that reach an element do not lie side by side.
    is_apart = any(stride > 1 and step > 1 for stride, step in zip(window.strides, window.dilations, strict=True))
    if is_apart or _is_transposed_better(window, grad, weight, group):
        return transposed_image(tape, window, grad, weight, group)
    return gathered_image(tape, window, grad, weight, group)


def _is_transposed_better(window: ConvWindow, grad: ir.Value, weight: ir.Value, group: int) -> bool:
    """Whether ConvTranspose is to be preferred, by the elements that each form holds at most.

    ConvTranspose has the columns of one image and group as workspace. The other form has the turned weights and, with
    strides, its result twice when phases are interleaved. It is about as fast without strides, several times slower
    with them.
    """
    grads, (batch, filters) = prod(shape_of(grad)), (shape_of(grad)[0], shape_of(weight)[1])
    image = batch * group * filters * prod(window.sizes)
    columns = filters * prod(window.kernel) * prod(window.results)
    counts = zip(_phases(window), _taps(window), strict=True)
    turned = prod(shape_of(weight)[:LEADING]) * prod(phases * taps for phases, taps in counts)
    twice = max(_taps(window)) > 1
    gathered = max(grads + (1 + twice) * turned, grads + turned + image)
    if max(window.strides) == 1:
        return grads + image + columns <= WORTH_A_WORKSPACE * gathered
    return grads + image + columns <= WORTH_SPEED * max(gathered, 2 * image)


def transposed_image(tape: Tape, window: ConvWindow, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """The image's gradient as a ConvTranspose of the result's, whatever the strides and dilations."""
    return tape.op(
        "ConvTranspose",
        grad,
        weight,
        group=group,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*window.lows, *(max(high, 0) for high in window.highs)],
        output_padding=[max(-high, 0) for high in window.highs],
    )


def gathered_image(tape: Tape, window: ConvWindow, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """The image's gradient as a convolution of the result's, without strides, with the weights turned round.

    An element of the image at `stride * place + phase` is reached by every stride-th tap only: each phase is computed
    as channels of its own, from its taps alone, and the phases are interleaved afterwards.
    """
    # Zero taps before the others, so that phases begin at the image's edge and nothing need be cut off there, unless
    # that would make more taps for each phase.
    before = []
    for count, stride, low in zip(window.kernel, window.strides, window.lows, strict=True):
        shift = -low % stride
        before.append(shift if count > stride and -(-(count + shift) // stride) == -(-count // stride) else 0)
    weight = _by_phase(tape, window, weight, before, group)
    taps = shape_of(weight)[LEADING:]
    lows = [low + shift for low, shift in zip(window.lows, before, strict=True)]
    first = [low // stride for low, stride in zip(lows, window.strides, strict=True)]
    last = [(s - 1 + low) // stride for s, low, stride in zip(window.sizes, lows, window.strides, strict=True)]
    reach = [(count - 1) * step for count, step in zip(taps, window.dilations, strict=True)]
    grad, pads = fit(
        tape,
        grad,
        [r - q for r, q in zip(reach, first, strict=True)],
        [q - (result - 1) for q, result in zip(last, window.results, strict=True)],
    )
    parts = tape.op("Conv", grad, weight, group=group, dilations=window.dilations, pads=[*pads[0], *pads[1]])
    image = _interleaved(tape, parts, _phases(window), window.strides)
    starts = [low - q * stride for low, q, stride in zip(lows, first, window.strides, strict=True)]
    return resized(tape, image, window.sizes, starts)


def _phases(window: ConvWindow) -> list[int]:
    """By axis, into how many places within a stride any tap falls."""
    return [min(taps, stride) for taps, stride in zip(window.kernel, window.strides, strict=True)]


def _taps(window: ConvWindow) -> list[int]:
    """By axis, the most taps that any element of the image is reached by."""
    return [-(-taps // stride) for taps, stride in zip(window.kernel, window.strides, strict=True)]


def _by_phase(tape: Tape, window: ConvWindow, weight: ir.Value, before: list[int], group: int) -> ir.Value:
    """Weights with the channels exchanged, taps backwards, those of each phase a filter of their own."""
    results, channels = shape_of(weight)[:LEADING]
    phases, taps = _phases(window), _taps(window)
    after = [t * p - k - b for t, p, k, b in zip(taps, phases, window.kernel, before, strict=True)]
    if any(before) or any(after):
        weight = tape.op("Pad", weight, tape.ints(0, 0, *before, 0, 0, *after))
    if max(phases) > 1:
        weight = reshape(tape, weight, (group, results // group, channels, *pairs(taps, phases)))
        axes = [3 + 2 * axis for axis in range(window.rank)]
        order = [0, 2, *(axis + 1 for axis in axes), 1, *axes]
    else:
        weight = reshape(tape, weight, (group, results // group, channels, *taps))
        axes = [3 + axis for axis in range(window.rank)]
        order = [0, 2, 1, *axes]
    weight = tape.op("Transpose", reverse(tape, weight, axes), perm=order)
    return reshape(tape, weight, (group * channels * prod(phases), results // group, *taps))


def _interleaved(tape: Tape, parts: ir.Value, phases: list[int], strides: tuple[int, ...]) -> ir.Value:
    """Images from their phases, which lie in the channels; phases without taps are zeros."""
    if max(strides) == 1:
        return parts
    batch, channels, *places = shape_of(parts)
    rank = len(places)
    if rank == LEADING and set(phases) == set(strides) and len(set(phases)) == 1:
        return tape.op("DepthToSpace", parts, blocksize=phases[0], mode="CRD")
    tiles = reshape(tape, parts, (batch, channels // prod(phases), *phases, *places))
    inner = pairs(range(LEADING + rank, LEADING + 2 * rank), range(LEADING, LEADING + rank))
    tiles = (
        tape.op("Transpose", tiles, perm=[0, 1, *inner])
        if prod(phases) > 1
        else reshape(tape, tiles, (batch, channels, *pairs(places, phases)))
    )
    return tiled(tape, tiles, strides)


WORTH_A_PRODUCT = 2  # products of single images are so much faster that they may be larger than a copy
MOST_AXES = 3  # spatial axes of a convolution that the runtime computes without a full column matrix


def weight_gradient(tape: Tape, window: ConvWindow, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """Gradient of the weights [results, image channels / group, kernel] of a convolution.

    One weight gradient for each image of the batch, added up, needs no rearranged copy of image or gradient; it is
    the choice unless the gradients together are larger than such a copy.
    """
    batch, channels = shape_of(image)[:LEADING]
    results = shape_of(grad)[1]
    together = batch * results * channels // group * prod(window.kernel)
    reads_padding = any(window.lows) or max(window.highs) > 0
    is_pointwise = prod(window.kernel) == 1 and not reads_padding
    if is_pointwise:
        # What strides leave out is not carried along.
        ends = [size + min(high, 0) for size, high in zip(window.sizes, window.highs, strict=True)]
        image = crop(tape, image, [0] * window.rank, ends, window.strides)
        ones = (1,) * window.rank
        window = ConvWindow(window.results, window.results, ones, ones, ones, (0,) * window.rank)
        if batch == 1 or together <= WORTH_A_PRODUCT * prod(shape_of(grad)):
            return weight_by_product(tape, image, grad, group)
    if window.rank + (channels > group) > MOST_AXES:
        return weight_by_channels_as_batch(tape, window, image, grad, group)
    by_sample = batch == 1 or together <= prod(shape_of(grad))
    return (weight_by_sample if by_sample else weight_over_batch)(tape, window, image, grad, group)


def weight_by_product(tape: Tape, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """The weights' gradient by a matrix product for each image; the runtime fuses the transposition into it."""
    batch, channels, *sizes = shape_of(image)
    results = shape_of(grad)[1]
    flat = reshape(tape, image, (batch * group, channels // group, prod(sizes)))
    grad = reshape(tape, grad, (batch * group, results // group, prod(sizes)))
    products = tape.op("MatMul", grad, tape.op("Transpose", flat, perm=[0, 2, 1]))
    return _summed(tape, products, batch, (results, channels // group, *[1] * len(sizes)))


def weight_by_sample(tape: Tape, window: ConvWindow, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """The weights' gradient by one convolution: the images lie side by side as groups of one image."""
    batch, channels = shape_of(image)[:LEADING]
    results = shape_of(grad)[1]
    found = _correlated(tape, window, (image, grad), (batch * group, channels // group), (batch * results, 1))
    return _summed(tape, found, batch, (results, channels // group, *window.kernel))


def weight_over_batch(tape: Tape, window: ConvWindow, image: ir.Value, grad: ir.Value, group: int) -> ir.Value:
    """The weights' gradient with the batch as channels: it adds up at once, and the gradient has the batch inside."""
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
    tape: Tape, window: ConvWindow, read: tuple[ir.Value, ir.Value], image: tuple[int, int], kernel: tuple[int, int]
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


def weight_by_channels_as_batch(
    tape: Tape, window: ConvWindow, image: ir.Value, grad: ir.Value, group: int
) -> ir.Value:
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


IMAGE, WEIGHT, BIAS = 0, 1, 2


def conv(tape: Tape, call: Call, grads: Grads) -> Found:
    """Both gradients of a bilinear op are convolutions again."""
    return _bilinear(tape, call, grads, (call.input(IMAGE), only(grads)), image_gradient)


def conv_transpose(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient of a convolution's image, so image and result change places."""
    return _bilinear(tape, call, grads, (only(grads), call.input(IMAGE)), _convolved)


def _bilinear(
    tape: Tape, call: Call, grads: Grads, ends: tuple[ir.Value, ir.Value], image_form: Callable[..., ir.Value]
) -> Found:
    """Gradients where a convolution leads from the first of `ends` to the second; `image_form` writes the image's."""
    grad = only(grads)
    window = window_of(call, call.shape(WEIGHT)[LEADING:], *ends)
    group = call.integer("group", 1)
    found = {}
    if WEIGHT in call.wanted:
        found[WEIGHT] = weight_gradient(tape, window, *ends, group)
    if BIAS in call.wanted:
        found[BIAS] = sum_per_channel(tape, grad)
    if IMAGE in call.wanted:
        found[IMAGE] = image_form(tape, window, grad, call.input(WEIGHT), group)
    return found


def _convolved(tape: Tape, window: ConvWindow, image: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """A convolution with any padding, negative too."""
    image, (lows, highs) = fit(tape, image, window.lows, window.highs)
    return tape.op(
        "Conv",
        image,
        weight,
        group=group,
        strides=window.strides,
        dilations=window.dilations,
        pads=[*lows, *highs],
    )


RULES: Rules = {
    "Conv": Rule(conv),
    "ConvTranspose": Rule(conv_transpose),
}
