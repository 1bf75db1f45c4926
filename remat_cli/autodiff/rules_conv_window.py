"""Windows that slide over an image: where convolution and pooling look, and fitting images to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape
from remat_cli.autodiff.tape import Call, Tape, shape_of

LEADING = 2  # axes before the spatial ones: batch and channels


@dataclass(frozen=True)
class ConvWindow:
    """Which elements of an image each result reads, by spatial axis.

    Result `o` reads `o * stride - low + tap * dilation` for every tap of the kernel; what lies outside is padding.
    """

    sizes: tuple[int, ...]
    results: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    lows: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.sizes)

    @property
    def spans(self) -> tuple[int, ...]:
        """Elements from the first to the last one that a result reads."""
        return tuple((taps - 1) * step + 1 for taps, step in zip(self.kernel, self.dilations, strict=True))

    @property
    def highs(self) -> tuple[int, ...]:
        """Padding behind the image that the last result reads; negative where it leaves elements unread."""
        last = zip(self.results, self.strides, self.spans, self.lows, self.sizes, strict=True)
        return tuple((result - 1) * stride + span - low - size for result, stride, span, low, size in last)

    @property
    def overlaps(self) -> bool:
        """Whether two results may read the same element."""
        return any(span > stride for span, stride in zip(self.spans, self.strides, strict=True))


def window_of(call: Call, kernel: Sequence[int], image: ir.Value, result: ir.Value) -> ConvWindow:
    """The window of a convolution or pooling from `image` to `result`."""
    rank = len(kernel)
    sizes, results = shape_of(image)[LEADING:], shape_of(result)[LEADING:]
    strides = call.integers("strides", [1] * rank)
    # One tap has no distance to others: such axes need not be treated as dilated.
    given = call.integers("dilations", [1] * rank)
    dilations = tuple(1 if taps == 1 else step for taps, step in zip(kernel, given, strict=True))
    tight = ConvWindow(sizes, results, tuple(kernel), strides, dilations, (0,) * rank)
    how = call.text("auto_pad", "NOTSET")
    if how == "VALID":
        return tight
    if how in ("NOTSET", "") and "output_shape" not in call.attributes:
        return replace(tight, lows=call.integers("pads", [0] * 2 * rank)[:rank])
    extra = 0 if how == "SAME_UPPER" else 1
    # Padding on both sides together; the padding of a transposed convolution's result counts as read.
    unread = call.integers("output_padding", [0] * rank)
    missing = [max(high + more, 0) for high, more in zip(tight.highs, unread, strict=True)]
    return replace(tight, lows=tuple((total + extra) // 2 for total in missing))


def fit(
    tape: Tape, image: ir.Value, lows: Sequence[int], highs: Sequence[int]
) -> tuple[ir.Value, tuple[list[int], list[int]]]:
    """Cut off what negative paddings say; returns the image and the paddings that are left."""
    sizes = shape_of(image)[LEADING:]
    starts = [max(-low, 0) for low in lows]
    image = crop(tape, image, starts, [size + min(high, 0) for size, high in zip(sizes, highs, strict=True)])
    return image, ([max(low, 0) for low in lows], [max(high, 0) for high in highs])


def crop(
    tape: Tape, image: ir.Value, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None
) -> ir.Value:
    """Part of an image; the image itself where that is all of it."""
    steps = steps or [1] * len(starts)
    if not any(starts) and tuple(ends) == shape_of(image)[LEADING:] and set(steps) == {1}:
        return image
    axes = range(LEADING, LEADING + len(starts))
    return tape.op("Slice", image, tape.ints(*starts), tape.ints(*ends), tape.ints(*axes), tape.ints(*steps))


def pairs(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Two lists, element by element in turn."""
    return tuple(chain.from_iterable(zip(first, second, strict=True)))


def tiled(tape: Tape, tiles: ir.Value, strides: Sequence[int]) -> ir.Value:
    """Images from tiles [batch, channels, rows, height, columns, width ...], each grown with zeros to the strides."""
    dims = shape_of(tiles)
    counts, sizes = dims[LEADING::2], dims[LEADING + 1 :: 2]
    missing = [stride - size for stride, size in zip(strides, sizes, strict=True)]
    if any(missing):
        before = [0] * len(dims)
        tiles = tape.op("Pad", tiles, tape.ints(*before, 0, 0, *pairs([0] * len(missing), missing)))
    return reshape(tape, tiles, (*dims[:LEADING], *(c * s for c, s in zip(counts, strides, strict=True))))


def resized(tape: Tape, image: ir.Value, sizes: Sequence[int], starts: Sequence[int] | None = None) -> ir.Value:
    """An image from `starts` on (its first element), of given sizes: cut, or grown with zeros at the end."""
    starts = starts or [0] * len(sizes)
    there = shape_of(image)[LEADING:]
    ends = [min(start + size, limit) for start, size, limit in zip(starts, sizes, there, strict=True)]
    image = crop(tape, image, starts, ends)
    missing = [size - got for size, got in zip(sizes, shape_of(image)[LEADING:], strict=True)]
    if not any(missing):
        return image
    before = [0] * (LEADING + len(sizes))
    return tape.op("Pad", image, tape.ints(*before, 0, 0, *missing))
