"""Pieces of graph that rules are made of: slopes, signs, sums over what was broadcast, and ways to move values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.tape import Array, Call, Found, Gradient, Grads, Tape, element_type, only, shape_of

Slope = Callable[[Tape, Call], ir.Value]


def times(slope: Slope) -> Gradient:
    """The rule of an op of one input: incoming gradient times the op's slope."""

    def gradient(tape: Tape, call: Call, grads: Grads) -> Found:
        return {0: tape.op("Mul", only(grads), slope(tape, call))}

    return gradient


def smallest(like: ir.Value) -> float:
    """About the smallest positive number that an element type holds at full precision."""
    return 2.0**-14 if element_type(like) == ir.DataType.FLOAT16 else 2.0**-126


def step(tape: Tape, value: ir.Value) -> ir.Value:
    """1 where a value is positive, else 0.

    HardSigmoid of an enormous slope: one pass, in place where it can be. Comparing and casting takes three times as
    long on the CPU provider, and Where needs a workspace. Double precision has no kernel for it there, but for Clip.
    """
    if element_type(value) == ir.DataType.DOUBLE:
        return tape.op("Clip", _steep(tape, value), tape.scalar(0, value), tape.scalar(1, value))
    return tape.op("HardSigmoid", value, alpha=1 / smallest(value), beta=0.0)


def sign(tape: Tape, value: ir.Value) -> ir.Value:
    """-1, 0 or 1; several times as fast as Sign on the CPU provider."""
    return tape.op("Clip", _steep(tape, value), tape.scalar(-1, value), tape.scalar(1, value))


def _steep(tape: Tape, value: ir.Value) -> ir.Value:
    """A value times a very large number: beyond -1 or 1, unless it is 0."""
    return tape.op("Mul", value, tape.scalar(1 / smallest(value), value))


def one_minus(tape: Tape, value: ir.Value) -> ir.Value:
    """1 - value."""
    return tape.op("Sub", tape.scalar(1, value), value)


def as_type(tape: Tape, value: ir.Value, kind: ir.DataType) -> ir.Value:
    """A value in another element type; the value itself where it has that type."""
    return value if value.dtype == kind else tape.op("Cast", value, to=int(kind))


def as_numbers(tape: Tape, truth: ir.Value, like: ir.Value) -> ir.Value:
    """1 for true and 0 for false: multiplying by it needs less memory than Where."""
    return tape.op("Cast", truth, to=int(element_type(like)))


def shifted(tape: Tape, value: ir.Value, factor: float, offset: float) -> ir.Value:
    """Factor * value + offset."""
    scaled = value if factor == 1 else tape.op("Mul", value, tape.scalar(factor, value))
    return scaled if offset == 0 else tape.op("Add", scaled, tape.scalar(offset, value))


def sum_to(tape: Tape, grad: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Undo broadcasting: sum over the axes along which a value of `shape` was repeated."""
    wide = shape_of(grad)
    if wide == shape:
        return grad
    extra = len(wide) - len(shape)
    if extra > 1 and wide[extra:] == shape:  # one axis to be summed, as for rows of a matrix
        wide, extra = (prod(wide[:extra]), *shape), 1
        grad = reshape(tape, grad, wide)
    repeated = [extra + axis for axis, dim in enumerate(shape) if dim == 1 and wide[extra + axis] != 1]
    axes = (*range(extra), *repeated)
    if axes:
        grad = tape.op("ReduceSum", grad, tape.ints(*axes), keepdims=0)
    return reshape(tape, grad, shape)


def sum_per_channel(tape: Tape, value: ir.Value) -> ir.Value:
    """Sum over all axes but the second: of each image by itself, and then over the batch.

    So images may be added up one after the other, and threads share the first part out by images and channels.
    """
    rank = len(shape_of(value))
    if rank > 2:
        value = tape.op("ReduceSum", value, tape.ints(*range(2, rank)), keepdims=0)
    batch, channels = shape_of(value)
    return reshape(tape, value, (channels,)) if batch == 1 else tape.op("ReduceSum", value, tape.ints(0), keepdims=0)


def reshape(tape: Tape, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """A view of other dimensions; the value itself where they are the same."""
    return (
        value
        if shape_of(value) == shape
        else tape.op("Reshape", value, tape.ints(*shape), allowzero=1 if 0 in shape else None)
    )


def positive(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis % rank if rank else 0


LARGEST_MATRIX = 1 << 20  # elements of a map of indices that may be stored as a matrix
LARGEST_ONE_HOT = 128  # rows up to which a product takes a third of the time of a scatter (10 to 20 ns an element)
SCATTER_WORKSPACE = 3  # elements of scratch memory that a scatter takes for each that it adds
_TO_THE_FRONT = -(1 << 62)


@dataclass(frozen=True)
class AxisCut:
    """What a slice reads along an axis: `count` elements from `start`, `step` apart."""

    axis: int
    start: int
    step: int
    count: int

    @property
    def ascending(self) -> AxisCut:
        """The same elements from the first to the last."""
        return self if self.step > 0 else AxisCut(self.axis, self.last, -self.step, self.count)

    @property
    def last(self) -> int:
        """The element that is read last."""
        return self.start + (self.count - 1) * self.step


def unslice(tape: Tape, grad: ir.Value, shape: tuple[int, ...], cuts: Sequence[AxisCut]) -> ir.Value:
    """Put what slices read back in its place, zeros elsewhere."""
    if any(cut.count == 0 for cut in cuts):
        return zeros(tape, shape, grad)
    grad = reverse(tape, grad, [cut.axis for cut in cuts if cut.step < 0])
    ascending = [cut.ascending for cut in cuts]
    # Zeros between elements: each gets its own row, which is padded.
    stepped = [cut for cut in ascending if cut.step > 1 and cut.count > 1]
    if stepped:
        now = shape_of(grad)
        steps = {cut.axis: cut.step for cut in stepped}
        rows = [dim for axis, size in enumerate(now) for dim in ((size, 1) if axis in steps else (size,))]
        missing = [gap for axis in range(len(now)) for gap in ((0, steps[axis] - 1) if axis in steps else (0,))]
        wide = pad(tape, reshape(tape, grad, tuple(rows)), [0] * len(rows), missing)
        wide = reshape(tape, wide, tuple(size * steps.get(axis, 1) for axis, size in enumerate(now)))
        grad = window(tape, wide, {cut.axis: (0, (cut.count - 1) * cut.step + 1) for cut in stepped})
    before, after = [0] * len(shape), [0] * len(shape)
    for cut in ascending:
        before[cut.axis], after[cut.axis] = cut.start, shape[cut.axis] - cut.last - 1
    return pad(tape, grad, before, after)


def reverse(tape: Tape, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Turn the order along some axes."""
    turned = [axis for axis in axes if shape_of(value)[axis] > 1]
    if not turned:
        return value
    ones, ends = [-1] * len(turned), [_TO_THE_FRONT] * len(turned)
    return tape.op("Slice", value, tape.ints(*ones), tape.ints(*ends), tape.ints(*turned), tape.ints(*ones))


def pad(tape: Tape, value: ir.Value, before: Sequence[int], after: Sequence[int]) -> ir.Value:
    """Put zeros around a value."""
    return tape.op("Pad", value, tape.ints(*before, *after)) if any(before) or any(after) else value


def window(tape: Tape, value: ir.Value, bounds: Mapping[int, tuple[int, int]]) -> ir.Value:
    """What lies within bounds, by axis."""
    shape = shape_of(value)
    bounds = {axis: pair for axis, pair in bounds.items() if pair != (0, shape[axis])}
    if not bounds:
        return value
    starts, ends = (tape.ints(*(pair[side] for pair in bounds.values())) for side in (0, 1))
    return tape.op("Slice", value, starts, ends, tape.ints(*bounds))


def sum_repeats(tape: Tape, grad: ir.Value, repeats: Mapping[int, int]) -> ir.Value:
    """Undo repeating each element along some axes: sum over neighbours."""
    shape = shape_of(grad)
    parts: list[int] = []
    summed: list[int] = []
    for axis, size in enumerate(shape):
        factor = repeats.get(axis, 1)
        parts += [size // factor, factor] if factor > 1 else [size]
        summed += [len(parts) - 1] if factor > 1 else []
    if not summed:
        return grad
    return tape.op("ReduceSum", reshape(tape, grad, tuple(parts)), tape.ints(*summed), keepdims=0)


def transform(tape: Tape, value: ir.Value, axis: int, matrix: ir.Value) -> ir.Value:
    """Product along an axis with a matrix of [new size, present size]."""
    shape = shape_of(value)
    size = shape_of(matrix)[0]
    flat = reshape(tape, value, (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])))
    return reshape(tape, tape.op("MatMul", matrix, flat), (*shape[:axis], size, *shape[axis + 1 :]))


def untransform(tape: Tape, grad: ir.Value, axis: int, matrix: Array) -> ir.Value:
    """Undo a product along an axis with a constant matrix of [size of `grad`, size of what was read]."""
    matrix = matrix.astype(element_type(grad).numpy())
    if axis == len(shape_of(grad)) - 1:
        return tape.op("MatMul", grad, tape.constant(matrix))
    return transform(tape, grad, axis, tape.constant(np.ascontiguousarray(matrix.T)))


def ungather(tape: Tape, grad: ir.Value, axis: int, places: Array, size: int) -> ir.Value:
    """Undo a gather at constant places of an axis that has `size` elements: the cheapest form that fits."""
    places = np.where(places < 0, places + size, places)
    count = len(places)
    if count == size and np.array_equal(places, np.arange(size)):
        return grad
    factor = count // size if size else 0
    if factor > 1 and np.array_equal(places, np.repeat(np.arange(size), factor)):  # each is read so often in a row
        return sum_repeats(tape, grad, {axis: factor})
    shape = shape_of(grad)
    steps = np.unique(np.diff(places))
    if count and len(steps) < 2 and (count == 1 or steps[0] != 0):
        cut = AxisCut(axis, int(places[0]), int(steps[0]) if count > 1 else 1, count)
        return unslice(tape, grad, (*shape[:axis], size, *shape[axis + 1 :]), [cut])
    if len(np.unique(places)) == count:
        # each place is read at most once: gather back, from a zero where it was not read
        back = np.full(size, count, np.int64)
        back[places] = np.arange(count)
        if count < size:
            grad = pad(tape, grad, [0] * len(shape), [int(place == axis) for place in range(len(shape))])
        return tape.op("Gather", grad, tape.constant(back), axis=axis)
    if count * size <= LARGEST_MATRIX:
        return untransform(tape, grad, axis, (places[:, None] == np.arange(size)))
    nothing = tape.op("Cast", zeros(tape, (count,), grad), to=ir.DataType.INT64)
    hidden = tape.op("Add", tape.constant(places.astype(np.int64)), nothing)  # else spread beforehand, held for good
    return scatter_add(tape, grad, axis, hidden, size)


def scatter_add(tape: Tape, grad: ir.Value, axis: int, indices: ir.Value, size: int) -> ir.Value:
    """Undo a gather at computed places (a vector) of an axis that has `size` elements.

    ScatterND with reduction is no choice: on the CPU provider its threads race where an index occurs twice.
    """
    shape = shape_of(grad)
    result = (*shape[:axis], size, *shape[axis + 1 :])
    if size <= min(LARGEST_ONE_HOT, SCATTER_WORKSPACE * prod(shape[:axis]) * prod(shape[axis + 1 :])):
        pair = tape.constant(np.array([0, 1], element_type(grad).numpy()))
        if indices.dtype is not ir.DataType.INT64:
            indices = tape.op("Cast", indices, to=ir.DataType.INT64)  # as wide as the depth, for want of other kernels
        chosen = tape.op("OneHot", indices, tape.constant(np.array(size, np.int64)), pair, axis=0)
        return transform(tape, grad, axis, chosen)
    # Half as wide indices: they are repeated for every element, and the kernel keeps a copy of its own.
    short = tape.op("Cast", indices, to=ir.DataType.INT32)
    column = reshape(tape, short, tuple(size if place == axis else 1 for place, size in enumerate(shape)))
    wide = tape.op("Expand", column, tape.ints(*shape))
    return tape.op("ScatterElements", zeros(tape, result, grad), wide, grad, axis=axis, reduction="add")


def zeros(tape: Tape, shape: tuple[int, ...], live: ir.Value) -> ir.Value:
    """Zeros of the type of `live`: padding around nothing, which is read from it.

    Constant ones the runtime would compute beforehand and hold in memory for good.
    """
    flat = reshape(tape, live, (prod(shape_of(live)),))
    core = (0, *(min(dim, 1) for dim in shape[1:]))
    nothing = reshape(tape, tape.op("Slice", flat, tape.ints(0), tape.ints(0), tape.ints(0)), core)
    return pad(tape, nothing, [0] * len(core), [dim - there for dim, there in zip(shape, core, strict=True)])
