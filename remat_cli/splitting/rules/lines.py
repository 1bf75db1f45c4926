"""Slicing rules of ops that treat a tensor line by line: softmax, normalisations, sorting, running sums, reductions.

Measured with ONNX Runtime 1.31.1: lines of 15 to 1,000 elements, along the last and inner axes, 1, 2 and 4 threads:
each line gets the same bits whatever other lines there are. A cut along the line itself is refused.
"""

import math
from collections.abc import Iterable
from itertools import groupby

import onnx_ir as ir

from remat_cli.onnx_io.read.op_facts import is_by_rows
from remat_cli.splitting.rules.matrix import element_type
from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab, Sliced, broadcast_need, of_first

FLATTENING_ENDS = 13  # before this version softmax treats all axes from `axis` on as one line


def softmax(op: OpView, slab: Slab) -> Sliced | None:
    """Softmax, LogSoftmax, Hardmax: lines along `axis`; before ONNX 13 all axes from `axis` on are one line.

    In double precision exponentials have another way at a buffer's end: measured, half of the ops differed in a slab.
    """
    rank = len(op.output_shape)
    if _is_double(op) and not op.may_reassociate:
        return None
    if op.opset < FLATTENING_ENDS:
        return _lines(op, slab, range(op.integer("axis", 1) % rank, rank))
    return _lines(op, slab, range(op.integer("axis", -1) % rank, op.integer("axis", -1) % rank + 1))


def normalisation(op: OpView, slab: Slab) -> Sliced | None:
    """LayerNormalization, RMSNormalization and the like: mean and deviation over the axes from `axis` on.

    Mean and deviation may be outputs too, one for each line. Scale and bias are read along the line only.
    """
    rank = len(op.output_shape)
    line = range(op.integer("axis", -1) % rank, rank)
    # a scale that has an axis, longer than 1, before those of the line differs between lines
    beside = [shape[: max(0, len(shape) - len(line))] for shape in op.inputs[1:] if shape is not None]
    return None if any(math.prod(shape) != 1 for shape in beside) else _lines(op, slab, line)


def skip_normalisation(op: OpView, slab: Slab) -> Sliced | None:
    """SkipLayerNormalization: the sum of two tensors (output 3) and its normalisation over the last axis (output 0)."""
    rank, extent = len(op.output_shape), op.output_shape[slab.axis]
    if slab.axis == rank - 1:
        return None
    skip = broadcast_need(op.inputs[1], rank, extent, slab)
    return Sliced((slab, skip, *[None] * (len(op.inputs) - 2)), slab)


def running(op: OpView, slab: Slab) -> Sliced | None:
    """CumSum: sums along the axis that its second input tells; None where that is not known before the run."""
    axis = op.constant(1)
    if axis is None or axis.size != 1:
        return None
    line = int(axis.reshape(())) % len(op.output_shape)
    return _lines(op, slab, range(line, line + 1))


def best(op: OpView, slab: Slab) -> Sliced | None:
    """TopK: both outputs along `axis`, which becomes shorter."""
    line = op.integer("axis", -1) % len(op.output_shape)
    return _lines(op, slab, range(line, line + 1))


def _lines(op: OpView, slab: Slab, line: range) -> Sliced | None:
    """A slab across lines reads the same slab of the first input and all of the others."""
    if slab.axis in line:
        return None
    return of_first(op, slab, slab)


# Measured with ONNX Runtime 1.31.1 on 16 shapes, all slabs, 1, 2 and 4 threads: every reduction but Sum and Mean gives
# each result the same bits whatever others there are. Sum and Mean have quick ways for some patterns of kept (K) and
# reduced (R) axes, once neighbours of a kind are joined:
#
# * KR: four at a time from the first place in memory that divides by 16 bytes, so bits depend on where a line begins;
# * KRK, RKR: only taken where the first (second) group has at least 2 positions, and as many as there are threads, of
#   which the runtime counts four for each on processors with cores of two kinds;
# * RK, and longer patterns: no difference found.
#
# In double precision slabs along the second K of KRK differed in two of five ops.
ALIGNED = 16  # elements: 64 bytes, where the runtime's buffers begin; lines of a multiple of it all begin alike
COUNTED_PER_THREAD = 4  # at most


def reduction(op: OpView, slab: Slab) -> Sliced | None:
    """Max, Min, Prod and the like: each result by itself."""
    axes = reduced_axes(op)
    return None if axes is None else _reduce(op, slab, axes)


def summation(op: OpView, slab: Slab) -> Sliced | None:
    """Sum and Mean: where the runtime takes the same way for part and whole, or need not; some more around a slab.

    What more is made lets all lines of a part begin in memory as those of the whole do, where they otherwise would not.
    """
    axes = reduced_axes(op)
    sliced = None if axes is None else _reduce(op, slab, axes)
    need = None if sliced is None else sliced.needs[0]
    if axes is None or need is None:
        return None
    shape = op.input_shape(0)
    longer = [axis for axis in range(len(shape)) if shape[axis] != 1]  # axes of one position may not be seen as axes
    if op.may_reassociate:
        return sliced
    wide = with_lines_alike(shape, need, axes) if longer and longer[-1] in axes else need
    ways = (_same_pattern(op, wide, axes, seen) for seen in (range(len(shape)), longer))
    is_part = wide == need or wide.extent < shape[wide.axis]
    makes = slab._replace(start=wide.start, stop=wide.stop)
    return of_first(op, wide, makes) if is_part and not _is_double(op) and all(ways) else None


def by_rows(op: OpView, slab: Slab) -> Sliced | None:
    """Scan without states: the same rows of all that it reads; rows are views, and those of a slab begin alike."""
    if slab.axis != 0 or not is_by_rows(op.node):
        return None
    inner = [math.prod(shape[1:]) for shape in (*op.inputs, *op.outputs) if shape is not None]
    together = 1 if op.may_reassociate else math.lcm(*(ALIGNED // math.gcd(ALIGNED, line) for line in inner))
    makes = slab._replace(start=slab.start // together * together)
    return Sliced(tuple(makes for _ in op.inputs), makes)


def best_place(op: OpView, slab: Slab) -> Sliced | None:
    """ArgMax, ArgMin: the place of one element along `axis`."""
    return _reduce(op, slab, frozenset({op.integer("axis", 0) % len(op.input_shape(0))}))


def _is_double(op: OpView) -> bool:
    return element_type(op) == ir.DataType.DOUBLE


def reduced_axes(op: OpView) -> frozenset[int] | None:
    """Axes that go, from the attribute or a constant input; None where they are not known before the run."""
    rank = len(op.input_shape(0))
    axes = op.integers("axes")
    if op.has_input(1):
        constant = op.constant(1)
        if constant is None:
            return None
        axes = tuple(int(axis) for axis in constant.reshape(-1))
    if not axes and not op.integer("noop_with_empty_axes", 0):
        return frozenset(range(rank))
    return frozenset(axis % rank for axis in axes)


def _reduce(op: OpView, slab: Slab, axes: frozenset[int]) -> Sliced | None:
    """A slab along an axis that stays reads the same slab of the input."""
    rank = len(op.input_shape(0))
    stays = [axis for axis in range(rank) if axis not in axes]
    axis = slab.axis if op.integer("keepdims", 1) else stays[slab.axis]
    if axis in axes:
        return None
    return of_first(op, Slab(axis, slab.start, slab.stop), slab)


def _same_pattern(op: OpView, need: Slab, axes: frozenset[int], seen: Iterable[int]) -> bool:
    """Whether lines begin alike in memory, and the quick way is taken for both or neither at any count of threads."""
    shape = op.input_shape(0)
    # neighbouring axes that are all kept or all reduced are one
    groups = [tuple(members) for _, members in groupby(seen, lambda axis: axis in axes)]
    pattern = "".join("R" if members[0] in axes else "K" for members in groups)
    if pattern in ("KR", "RKR") and not lines_begin_alike(shape, need, math.prod(shape[a] for a in groups[-1])):
        return False
    if pattern in ("", "K", "KR", "RK"):
        return True
    cut = next((index for index, members in enumerate(groups) if need.axis in members), 0)
    positions = need.extent * math.prod(shape[axis] for axis in groups[cut] if axis != need.axis)
    is_counted = (pattern, cut) in (("KRK", 0), ("RKR", 1))
    return positions >= (COUNTED_PER_THREAD * op.threads if is_counted else 2)


def with_lines_alike(shape: Shape, need: Slab, axes: frozenset[int]) -> Slab:
    """The least slab around one of which all lines of the last, reduced axes begin in memory as those of the whole do.

    It begins a multiple of 64 bytes behind the first position, and where other axes lie before it is as much longer or
    shorter than the whole.
    """
    inner = math.prod(shape[need.axis + 1 :])
    together = ALIGNED // math.gcd(ALIGNED, inner)  # positions
    start, whole = need.start // together * together, shape[need.axis]
    kept = [axis for axis in range(len(shape)) if axis not in axes and shape[axis] > 1]
    if math.prod(shape[max(kept, default=-1) + 1 :]) % ALIGNED == 0:
        return need
    if math.prod(shape[: need.axis]) == 1:
        return need._replace(start=start)
    extent = need.stop - start
    extent += (whole - extent) % together
    start = min(start, whole - extent)
    return need._replace(start=start, stop=start + extent)


def lines_begin_alike(shape: Shape, need: Slab, line: int) -> bool:
    """Whether lines of the last, reduced axes lie at the same place in memory, up to a multiple of 64 bytes."""
    inner = math.prod(shape[need.axis + 1 :])
    is_first_cut = math.prod(shape[: need.axis]) == 1
    is_as_long = is_first_cut or (shape[need.axis] - need.extent) * inner % ALIGNED == 0
    return line % ALIGNED == 0 or (is_as_long and need.start * inner % ALIGNED == 0)
