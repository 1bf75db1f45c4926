"""Gradient of Resize: along each axis the result is a product of the input with a constant matrix."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import positive, sum_repeats, ungather, untransform
from remat_cli.autodiff.tape import FIRST, Array, Call, Found, Grads, Rule, Rules, Tape, constant_of, only, shape_of
from remat_cli.base.errors import ModelError


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: sizes, and the scale that coordinates are computed with."""

    axis: int
    old: int
    new: int
    scale: float


def resize(tape: Tape, call: Call, grads: Grads) -> Found:
    """The axis that shrinks most goes first, so that the others have less to do."""
    transformation = call.text("coordinate_transformation_mode", "half_pixel")
    if call.integer("antialias") or transformation not in COORDINATES:
        what = "antialias=1" if call.integer("antialias") else f"coordinate_transformation_mode={transformation}"
        raise ModelError(f"op '{call.name}' (Resize): no gradient is known for {what}")
    grad = only(grads)
    old = call.shape()
    places = [positive(axis, len(old)) for axis in call.integers("axes", range(len(old)))]
    if call.has(2) and shape_of(call.input(2)) != (0,):
        scales = [float(scale) for scale in constant_of(call, 2, "scales")]
    else:
        sizes = constant_of(call, 3, "sizes").tolist()
        scales = [size / max(1, old[axis]) for size, axis in zip(sizes, places, strict=True)]
        policy = call.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":  # proportions are kept: one scale for all axes
            scales = [min(scales) if policy == "not_larger" else max(scales)] * len(scales)
    new = shape_of(grad)
    axes = [Axis(axis, old[axis], new[axis], scale) for axis, scale in zip(places, scales, strict=True)]
    axes.sort(key=lambda a: a.old / max(1, a.new))
    if call.text("mode", "nearest") == "nearest":
        return {0: _undo_nearest(tape, call, grad, axes)}
    weigh = _linear if call.text("mode") == "linear" else _cubic
    for axis in axes:
        matrix = weigh(call, axis)
        if not np.array_equal(matrix, np.eye(axis.old)):
            grad = untransform(tape, grad, axis.axis, matrix)
    return {0: grad}


def _undo_nearest(tape: Tape, call: Call, grad: ir.Value, axes: list[Axis]) -> ir.Value:
    """Sum what was read from the same element; axes of a whole factor are summed at once."""
    places: dict[Axis, Array] = {}
    whole = {}
    for axis in axes:
        # In the runtime's precision, since halves are rounded.
        at = ROUNDINGS[call.text("nearest_mode", "round_prefer_floor")](_coordinates(call, axis, np.float32))
        places[axis] = np.clip(at.astype(np.int64), 0, axis.old - 1)
        factor = axis.new // max(1, axis.old)
        if factor > 1 and np.array_equal(places[axis], np.repeat(np.arange(axis.old), factor)):
            whole[axis.axis] = factor
    grad = sum_repeats(tape, grad, whole)
    for axis in axes:
        if axis.axis not in whole:
            grad = ungather(tape, grad, axis.axis, places[axis], axis.old)
    return grad


def _linear(call: Call, axis: Axis) -> Array:
    """Weights of the two neighbours; the outermost elements go on for ever."""
    at = np.clip(_coordinates(call, axis, np.float64), 0, axis.old - 1)
    left = np.floor(at).astype(np.int64)
    return _matrix(axis, left[:, None] + np.arange(2), np.stack([1 - at + left, at - left], 1))


def _cubic(call: Call, axis: Axis) -> Array:
    """Weights of four neighbours, by the convolution kernel of Keys 1981."""
    at = _coordinates(call, axis, np.float64)
    left = np.floor(at).astype(np.int64)
    a = call.real("cubic_coeff_a", -0.75)
    taps = left[:, None] + np.arange(-1, 3)
    gap = np.abs(at[:, None] - taps)
    near = ((a + 2) * gap - (a + 3)) * gap**2 + 1
    far = ((gap - 5) * gap + 8) * gap * a - 4 * a
    weights = np.where(gap <= 1, near, far)
    if call.integer("exclude_outside"):
        weights = np.where((taps < 0) | (taps >= axis.old), 0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return _matrix(axis, taps, weights)


def _matrix(axis: Axis, taps: Array, weights: Array) -> Array:
    """Weights of [new, old], taps outside counted to the outermost elements."""
    matrix = np.zeros((axis.new, axis.old))
    np.add.at(matrix, (np.arange(axis.new)[:, None], np.clip(taps, 0, axis.old - 1)), weights)
    return matrix


def _coordinates(call: Call, axis: Axis, precision: type[np.floating]) -> Array:
    """Where each new element lies among the old ones."""
    if axis.scale == 1 and axis.old == axis.new:
        return np.arange(axis.new, dtype=precision)
    name = call.text("coordinate_transformation_mode", "half_pixel")
    return COORDINATES[name](np.arange(axis.new, dtype=precision), axis, precision(axis.scale))


def half_pixel(at: Array, axis: Axis, scale: np.floating) -> Array:
    """Coordinates of the middles of pixels: (at + 0.5) / scale - 0.5."""
    found: Array = (at + at.dtype.type(0.5)) / scale - at.dtype.type(0.5)
    return found


def half_pixel_symmetric(at: Array, axis: Axis, scale: np.floating) -> Array:
    """Half pixels about the centre, where the new size is not the old one times the scale."""
    adjustment = at.dtype.type(axis.new) / (scale * at.dtype.type(axis.old))
    offset = at.dtype.type(axis.old / 2) * (1 - adjustment)
    # The runtime goes on in double precision here; what is nearest hangs on the last bit.
    wide = float(offset) + (at.astype(np.float64) + 0.5) / float(scale) - 0.5
    return wide.astype(at.dtype)


COORDINATES: Mapping[str, Callable[[Array, Axis, np.floating], Array]] = {
    "half_pixel": half_pixel,
    "half_pixel_symmetric": half_pixel_symmetric,
    "pytorch_half_pixel": lambda at, axis, scale: half_pixel(at, axis, scale) if axis.new > 1 else at * 0,
    "align_corners": lambda at, axis, scale: at * at.dtype.type(axis.old - 1) / at.dtype.type(max(1, axis.new - 1)),
    "asymmetric": lambda at, axis, scale: at / scale,
}
ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
RULES: Rules = {"Resize": Rule(resize, needs=FIRST)}
