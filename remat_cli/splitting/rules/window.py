"""Slicing rules of ops that look at a window or are spread over one: convolutions and pooling, plain or blocked."""

from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.splitting.rules.conv_channels import (
    CHANNELS,
    SPATIAL,
    SUM_INPUT,
    channels_of_convolution,
    channels_of_transposed,
)
from remat_cli.splitting.rules.matrix import are_runs_same, element_type, is_same_product
from remat_cli.splitting.tiles.op_view import MOST_THREADS, OpView, Shape, Slab, Sliced, of_first

_WIDEST_BUFFERED = 1900  # measured: rows of 2,050 elements and more are pooled element by element, in another order


@dataclass(frozen=True)
class OpWindow:
    """What one spatial axis of a windowed op looks like: all in elements; pads before and after."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Elements from the first to the last that one window touches."""
        return (self.kernel - 1) * self.dilation + 1


def convolution(op: OpView, slab: Slab) -> Sliced | None:
    """Conv with what its optimised forms add: a tensor summed to the result (input 3), and an activation."""
    if slab.axis == CHANNELS:
        return channels_of_convolution(op, slab)
    kernel = tuple(op.input_shape(1)[SPATIAL:])
    sliced = windowed(op, slab, kernel, sum_input=SUM_INPUT)
    if sliced is None:
        return None
    if op.key[0] != NCHWC:
        return sliced if _is_same_plain(op, slab, kernel) else None
    # blocked convolution computes each position alone, but takes a way of its own for 1x1 without padding
    is_padded = any(window.before or window.after for window in windows_of(op, kernel))
    is_exact = prod(kernel) > 1 or slab.axis == 0 or not is_padded or op.may_reassociate
    return sliced if is_exact else None


def pooling(op: OpView, slab: Slab) -> Sliced | None:
    """MaxPool, AveragePool, LpPool; windows over the end (`ceil_mode`) stay as they are.

    MaxPool with indices, which count over all that it reads, only by images whose places are all that is read of them.
    """
    is_auto_padded = op.text("auto_pad", "NOTSET") != "NOTSET"
    if op.node.op_type == "LpPool" and is_auto_padded:
        return None  # LpPool's own padding was measured not to be what ONNX defines
    if sum(shape is not None for shape in op.outputs) > 1 and not (slab.axis == 0 and _are_places_in_images(op)):
        return None
    kernel = op.integers("kernel_shape")
    if slab.axis < SPATIAL:
        return of_first(op, slab, slab) if slab.axis == 0 or op.key[0] != NCHWC else None
    sliced = windowed(op, slab, kernel)
    if sliced is None:
        return None
    pads = sliced.attributes["pads"]
    assert isinstance(pads, tuple)
    if any(pad >= size for pad, size in zip(pads, kernel * 2, strict=True)):
        return None  # the runtime refuses padding as large as the kernel
    if op.node.op_type == "MaxPool":
        # measured: along rows of plain layout, which zero wins, +0 or -0, depends on where in a row the window is
        kind = element_type(op)
        has_one_zero = kind is not None and kind.is_integer()
        is_exact = op.key[0] == NCHWC or slab.axis < len(op.output_shape) - 1 or has_one_zero
    else:
        # the runtime adds up in other ways where a window is all of the input, and where rows are too wide to buffer
        shape, need = op.input_shape(0), present(sliced.needs[0], "a slab of what a window reads")
        part = (*shape[: slab.axis], need.extent, *shape[slab.axis + 1 :])
        is_too_wide = slab.axis == len(shape) - 1 and shape[-1] > _WIDEST_BUFFERED
        is_exact = kernel not in (part[SPATIAL:], shape[SPATIAL:]) and not is_too_wide
    return sliced if is_exact or op.may_reassociate else None


def _are_places_in_images(op: OpView) -> bool:
    """Whether all that reads a pool's indices takes remainders that are the same wherever an image lies."""
    readers = op.node.outputs[1].consumers()
    divisors = [fixed_value(node.inputs[1]) if node.op_type == "Mod" else None for node in readers]
    known = [int(tensor.numpy().item()) for tensor in divisors if tensor is not None and tensor.size == 1]
    image = prod(op.input_shape(0)[1:])
    is_whole = op.node.outputs[1].is_graph_output()
    return len(known) == len(readers) > 0 and not is_whole and all(n > 0 and image % n == 0 for n in known)


def batch_only(op: OpView, slab: Slab) -> Sliced | None:
    """Global pooling and normalisations over all of an image: one batch item never looks at another."""
    return of_first(op, slab, slab) if slab.axis == 0 else None


def kernel_of(op: OpView) -> Shape:
    """How far a window of a convolution or of pooling reaches along each spatial axis, in elements that it looks at."""
    return op.integers("kernel_shape") or op.input_shape(1)[SPATIAL:]


def windows_of(op: OpView, kernel: tuple[int, ...], first: int = SPATIAL) -> tuple[OpWindow, ...]:
    """One window per spatial axis, of which `first` is the outermost; `auto_pad` resolved as ONNX defines it."""
    count = len(kernel)
    strides = op.integers("strides") or (1,) * count
    dilations = op.integers("dilations") or (1,) * count
    pads = op.integers("pads") or (0,) * (2 * count)
    sizes = op.input_shape(0)[first:]
    mode = op.text("auto_pad", "NOTSET")
    windows = []
    for i in range(count):
        window = OpWindow(kernel[i], strides[i], dilations[i], pads[i], pads[i + count])
        if mode != "NOTSET":
            outputs = -(-sizes[i] // window.stride)
            total = max(0, (outputs - 1) * window.stride + window.reach - sizes[i]) if mode != "VALID" else 0
            small, large = total // 2, total - total // 2
            before, after = (small, large) if mode == "SAME_UPPER" else (large, small)
            window = replace(window, before=before, after=after)
        windows.append(window)
    return tuple(windows)


def windowed(
    op: OpView, slab: Slab, kernel: tuple[int, ...], first: int = SPATIAL, sum_input: int | None = None
) -> Sliced | None:
    """A slab along the batch or a spatial axis, with the padding left to it; `first` is the outermost spatial axis."""
    others: list[Slab | None] = [None] * (len(op.inputs) - 1)
    if sum_input is not None and op.has_input(sum_input):
        others[sum_input - 1] = slab
    if slab.axis == 0:
        return Sliced((slab, *others), slab)
    windows, index = windows_of(op, kernel, first), slab.axis - first
    if not 0 <= index < len(windows) or not _explains_shape(op, windows, first):
        return None
    window, size = windows[index], op.input_shape(0)[slab.axis]
    start = slab.start * window.stride - window.before
    stop = (slab.stop - 1) * window.stride - window.before + window.reach
    if stop <= 0 or start >= size:
        return None
    # A last window that leaves even the padded input (`ceil_mode`) leaves that of the slab by as much.
    need = Slab(slab.axis, max(0, start), min(size, stop))
    window = replace(window, before=need.start - start, after=min(stop - need.stop, window.after))
    changed = *windows[:index], window, *windows[index + 1 :]
    pads = tuple(each.before for each in changed) + tuple(each.after for each in changed)
    return Sliced((need, *others), slab, {"pads": pads, "auto_pad": "NOTSET"})


def _explains_shape(op: OpView, windows: tuple[OpWindow, ...], first: int) -> bool:
    """Whether the windows give as many outputs as the op has, so that nothing about its padding is misread.

    The runtime's own padding (SAME) was measured to leave out dilations, and to cut rows off at both ends where strides
    leave out more than one row there.
    """
    is_own = op.text("auto_pad", "NOTSET").startswith("SAME")
    if is_own and any(window.dilation > 1 for window in windows):
        return False
    spatial = slice(first, first + len(windows))
    sizes, outputs = op.input_shape(0)[spatial], op.output_shape[spatial]
    for window, size, extent in zip(windows, sizes, outputs, strict=True):
        if is_own and size - (extent - 1) * window.stride - window.reach > 1:
            return False
        room = size + window.before + window.after - window.reach
        least = room // window.stride + 1
        most = -(-room // window.stride) + 1 if op.integer("ceil_mode", 0) else least
        # With ceil_mode, some versions drop a last window that would start in the padding, and some do not.
        if not least - 1 <= extent <= most or (extent < least and not op.integer("ceil_mode", 0)):
            return False
    return True


def _is_same_plain(op: OpView, slab: Slab, kernel: tuple[int, ...]) -> bool:
    """Plain convolution is a matrix product: terms per output, by positions of an image, for each group."""
    channels, group = op.input_shape(1)[1], op.integer("group", 1)
    if channels == 1 and group < op.output_shape[1] and kernel == (7, 7) and not op.may_reassociate:
        return False  # measured: has a way of its own, which depends on size and padding
    if slab.axis == 0 and slab.extent > 1 and element_type(op) == ir.DataType.FLOAT:
        return True  # measured: threads take whole images where there are several, and share one where it is alone
    positions = prod(op.output_shape[SPATIAL:])
    part = positions if slab.axis == 0 else positions // op.output_shape[slab.axis] * slab.extent
    terms, columns = channels * prod(kernel), (positions, part)
    if is_same_product(op, 1, terms, columns):
        return True
    # The more threads, the fewer numbers of positions will do, with gaps between: ranges of sizes have no use for them.
    is_asked = element_type(op) == ir.DataType.FLOAT and op.threads < MOST_THREADS
    return is_asked and are_runs_same(op.output_shape[CHANNELS] // group, terms, columns, op.threads)


@dataclass(frozen=True)
class Spread:
    """One spatial axis: element i is spread over `reach` places from i * `stride` - `before` on.

    `after` places are cut off at the end, `extra` added.
    """

    stride: int
    reach: int
    before: int
    after: int
    extra: int


def transposed_convolution(op: OpView, slab: Slab) -> Sliced | None:
    """ConvTranspose: along the batch, or along a spatial axis with the padding that leaves the slab."""
    others = (None,) * (len(op.inputs) - 1)
    if slab.axis == CHANNELS:
        return channels_of_transposed(op, slab)
    if slab.axis == 0:
        return Sliced((slab, *others), slab) if _is_same(op, 1.0) else None
    spreads = None if op.integers("output_shape") else _spreads(op)  # which would be that of the whole in tiles too
    if spreads is None:
        return None
    index, size = slab.axis - SPATIAL, op.input_shape(0)[slab.axis]
    # what the slab reads, and the spread that makes just it: cut off or added at both ends
    stride, reach, before = spreads[index].stride, spreads[index].reach, spreads[index].before
    first = min((slab.start + before) // stride, -(-(slab.start + before - reach + 1) // stride))
    last = min(size - 1, (slab.stop - 1 + before) // stride)
    need = Slab(slab.axis, min(max(0, first), last), last + 1)
    missing = slab.stop - (last * stride + reach - before)
    cut_before = slab.start - (need.start * stride - before)
    spread = Spread(stride, reach, cut_before, max(0, -missing), max(0, missing))
    if not _is_same(op, need.extent / size):
        return None
    changed = (*spreads[:index], spread, *spreads[index + 1 :])
    pads = tuple(s.before for s in changed) + tuple(s.after for s in changed)
    extras = tuple(s.extra for s in changed)
    return Sliced((need, *others), slab, {"pads": pads, "output_padding": extras, "auto_pad": "NOTSET"})


def _spreads(op: OpView) -> tuple[Spread, ...] | None:
    """One per spatial axis, `auto_pad` resolved; None where they do not explain the output's shape."""
    kernel = op.input_shape(1)[SPATIAL:]
    count = len(kernel)
    strides = op.integers("strides") or (1,) * count
    dilations = op.integers("dilations") or (1,) * count
    extras = op.integers("output_padding") or (0,) * count
    mode, none = op.text("auto_pad", "NOTSET"), (0,) * (2 * count)
    reaches = tuple((kernel[i] - 1) * dilations[i] + 1 for i in range(count))
    whole = tuple((op.input_shape(0)[SPATIAL + i] - 1) * strides[i] + reaches[i] + extras[i] for i in range(count))
    if mode.startswith("SAME"):
        # measured: the runtime cuts off what is more than the output, half of it at each end
        cut = [all_places - extent for all_places, extent in zip(whole, op.output_shape[SPATIAL:], strict=True)]
        before = [each // 2 if mode == "SAME_UPPER" else each - each // 2 for each in cut]
        pads = (*before, *(each - first for each, first in zip(cut, before, strict=True)))
    else:
        pads = none if mode == "VALID" else op.integers("pads") or none
    spreads = tuple(Spread(strides[i], reaches[i], pads[i], pads[i + count], extras[i]) for i in range(count))
    extents = tuple(all_places - s.before - s.after for s, all_places in zip(spreads, whole, strict=True))
    return spreads if extents == op.output_shape[SPATIAL:] and min(pads, default=0) >= 0 else None


def _is_same(op: OpView, part: float) -> bool:
    """Whether the product of weight and input, which is then spread, has the same bits with part of its columns."""
    columns = prod(op.input_shape(0)[SPATIAL:])
    terms = op.input_shape(1)[0] // op.integer("group", 1)
    return is_same_product(op, 1, terms, (columns, round(columns * part)))
