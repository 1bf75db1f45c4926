"""Gradient of a convolution's image: the form that takes the least memory, of those that are fast."""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from remat_cli.autodiff.moves import reverse
from remat_cli.autodiff.pieces import reshape
from remat_cli.autodiff.rules_conv_window import LEADING, Window, fit, pairs, resized, tiled
from remat_cli.autodiff.tape import Tape, shape_of

WORTH_A_WORKSPACE = 0.9  # share of the other form's memory below which ConvTranspose is taken without strides
WORTH_SPEED = 1.5  # the same with strides


def image_gradient(tape: Tape, window: Window, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """Gradient of the image of a convolution with `weight` [results, image channels / group, kernel]."""
    if _is_transposed_better(window, grad, weight, group) or _has_dilated_strides(window):
        return _transposed(tape, window, grad, weight, group)
    return _gathered(tape, window, grad, weight, group)


def _is_transposed_better(window: Window, grad: ir.Value, weight: ir.Value, group: int) -> bool:
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


def _has_dilated_strides(window: Window) -> bool:
    """Whether an axis has both: then the taps that reach an element do not lie side by side."""
    return any(stride > 1 and step > 1 for stride, step in zip(window.strides, window.dilations, strict=True))


def _transposed(tape: Tape, window: Window, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
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


def _gathered(tape: Tape, window: Window, grad: ir.Value, weight: ir.Value, group: int) -> ir.Value:
    """Convolve the gradient once, without strides, with the weights turned round.

    An element of the image at `stride * place + phase` is reached by every stride-th tap only: each phase is computed
    as channels of its own, from its taps alone, and the phases are interleaved afterwards.
    """
    before = _taps_before(window)
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


def _phases(window: Window) -> list[int]:
    """By axis, into how many places within a stride any tap falls."""
    return [min(taps, stride) for taps, stride in zip(window.kernel, window.strides, strict=True)]


def _taps(window: Window) -> list[int]:
    """By axis, the most taps that any element of the image is reached by."""
    return [-(-taps // stride) for taps, stride in zip(window.kernel, window.strides, strict=True)]


def _taps_before(window: Window) -> list[int]:
    """Zero taps before the others, so that phases begin at the image's edge and nothing need be cut off there.

    None where that would make more taps for each phase.
    """
    shifts = []
    for taps, stride, low in zip(window.kernel, window.strides, window.lows, strict=True):
        shift = -low % stride
        shifts.append(shift if taps > stride and -(-(taps + shift) // stride) == -(-taps // stride) else 0)
    return shifts


def _by_phase(tape: Tape, window: Window, weight: ir.Value, before: list[int], group: int) -> ir.Value:
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
