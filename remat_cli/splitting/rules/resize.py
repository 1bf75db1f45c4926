"""Slicing rules of Resize and Upsample: sizes are enlarged by whole factors and shrunk by powers of two."""

from fractions import Fraction

import numpy as np

from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab, Sliced

# Where these place an output element depends on its distance from the start only, not on how long the axis is.
_SHIFTABLE = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
_SIZES = 3  # input position


def resizing(op: OpView, slab: Slab) -> Sliced | None:
    """Resize, Upsample, also blocked: axes that keep their extent, and resized ones where positions are exact."""
    if op.key[0] == NCHWC and slab.axis == 1:
        return None
    factor = _factor(op, slab.axis)
    if factor is None or is_entangled(op):
        return None
    mode, axis, up, down = op.text("mode", "nearest"), slab.axis, factor.numerator, factor.denominator
    is_row_by_row = mode == "nearest" or axis < len(op.output_shape) - 3 or (mode == "cubic" and axis < 2)
    if factor == 1 and is_row_by_row:
        return _sliced(op, slab, slab)
    # rounding errors, where they are allowed, move an element's place a little but never to another row's value
    is_linear = mode in ("linear", "bilinear") and 1 in (up, down)
    # where factors are powers of two, or whole for `nearest`, no rounding error depends on the row
    are_powers = up & (up - 1) == 0 and down & (down - 1) == 0
    is_exact = is_linear and are_powers
    if mode == "nearest":
        is_exact = down == 1 or (up == 1 and are_powers)
    if coordinates_of(op) not in _SHIFTABLE or not (is_exact or (op.may_reassociate and is_linear)):
        return None
    if factor < 1:
        start, stop = slab.start, slab.stop
        if slab.extent == 1 and op.output_shape[axis] > 1:  # one alone `pytorch_half_pixel` places in another way
            start, stop = (start - 1, stop) if start else (start, stop + 1)
        return _sliced(op, Slab(axis, start * down, stop * down), Slab(axis, start, stop))
    halo = 0 if _looks_at_own_row(op) else 1
    need = Slab(axis, max(0, slab.start // up - halo), min(op.input_shape(0)[axis], -(-slab.stop // up) + halo))
    return _sliced(op, need, Slab(axis, need.start * up, need.stop * up))


def _looks_at_own_row(op: OpView) -> bool:
    """Whether each element of an enlarged axis comes from the row it was enlarged from; they may be next to it."""
    if op.text("mode", "nearest") != "nearest":
        return False
    rounding = op.text("nearest_mode", "round_prefer_floor" if op.opset >= 11 else "floor")
    is_old = op.node.op_type == "Upsample" or op.opset < 11
    if coordinates_of(op) in ("half_pixel", "pytorch_half_pixel"):
        return rounding.startswith("round")
    return is_old or rounding == "floor"


def is_entangled(op: OpView) -> bool:
    """Whether an axis depends on more than its own factor, or an element on many rows."""
    is_stretched = op.text("keep_aspect_ratio_policy", "stretch") == "stretch"
    return not is_stretched or op.integer("antialias", 0) == 1 or coordinates_of(op) == "tf_crop_and_resize"


def coordinates_of(op: OpView) -> str:
    """How an element's place in the input is found."""
    is_old = op.node.op_type == "Upsample" or op.opset < 11
    return op.text("coordinate_transformation_mode", "asymmetric" if is_old else "half_pixel")


def _factor(op: OpView, axis: int) -> Fraction | None:
    """By how much an axis grows, None where not known before the run, or where sizes are no whole multiples."""
    source, target = op.input_shape(0)[axis], op.output_shape[axis]
    if has_sizes(op):
        return Fraction(target, source) if op.is_fixed(_SIZES) else None
    scales = scales_of(op)
    axes = axes_of(op)
    if scales is None:
        return None
    return Fraction(scales[axes.index(axis)]) if axis in axes else Fraction(1)


def scales_of(op: OpView) -> tuple[float, ...] | None:
    """By how much each axis grows, where the op says so; None where that is not known before the run."""
    attribute = op.node.attributes.get("scales")
    if attribute is not None:
        values = attribute.as_ints() if op.key[0] == NCHWC else attribute.as_floats()
        return tuple(float(value) for value in values)
    position = 1 if op.node.op_type == "Upsample" or op.opset < 11 else 2
    constant = op.constant(position) if op.has_input(position) and op.weights[position] else None
    return None if constant is None else tuple(float(value) for value in np.ravel(constant))


def has_sizes(op: OpView) -> bool:
    """Whether the op says how long axes become, not by how much they grow."""
    return op.node.op_type == "Resize" and op.opset >= 11 and op.has_input(_SIZES) and op.input_shape(_SIZES) != (0,)


def axes_of(op: OpView) -> Shape:
    """The axes that scales or sizes speak of."""
    rank = len(op.output_shape)
    return tuple(axis % rank for axis in op.integers("axes")) or tuple(range(rank))


def _sliced(op: OpView, need: Slab, makes: Slab) -> Sliced:
    needs = (need, *[None] * (len(op.inputs) - 1))
    axes = axes_of(op)
    if not has_sizes(op) or makes.axis not in axes:
        return Sliced(needs, makes)
    sizes = np.array([op.output_shape[axis] for axis in axes], np.int64)
    sizes[axes.index(makes.axis)] = makes.extent
    return Sliced(needs, makes, constants={_SIZES: sizes})
