"""How ops are cut along what they add up: each tile adds its part to the sum of the tiles before.

Measured with ONNX Runtime 1.32.0 (1 to 4 threads): a sum over the outermost axis is made row by row, so that the sum so
far may be put in front of the rows that follow. A product of matrices adds to what it is given run by run, so that
products of whole runs may be added up one after the other, and a product of one row adds four terms at a time. An index
that is added to adds in the order in which they come. All these have the bits of the whole; others are close.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from remat_cli.splitting.rules.lines import reduced_axes
from remat_cli.splitting.rules.matrix import REASSOCIATED, element_type, first_run
from remat_cli.splitting.tiles.op_view import SUMMED, OpView, Slab, Sliced, SumSoFar

TERMS_AT_ONCE = 4  # of a product of a single row


@dataclass(frozen=True)
class Adding:
    """How many positions an op adds up, and what each needs of the inputs; `so_far` is where the sum so far goes.

    Slabs have the bits of the whole where their bounds are multiples of `exact` (0: nowhere).
    """

    length: int
    axes: tuple[int | None, ...]
    so_far: SumSoFar | int
    exact: int


def cut_sum(op: OpView, adding: Adding, slab: Slab) -> Sliced | None:
    """The op cut down to some of the positions that it adds up; None where bits are others and must not be."""
    bounds = {slab.start, *({slab.stop} if slab.stop < adding.length else ())}
    is_exact = adding.exact > 0 and all(bound % adding.exact == 0 for bound in bounds)
    if not is_exact and not (op.may_reassociate and element_type(op) in REASSOCIATED):
        return None
    needs = [None if axis is None else Slab(axis, slab.start, slab.stop) for axis in adding.axes]
    changed = {"keepdims": 1} if adding.so_far is SumSoFar.FIRST_ROW and slab.stop < adding.length else {}
    return Sliced(tuple(needs), Slab(SUMMED, slab.start, slab.stop), changed, so_far=adding.so_far)


def reduced(op: OpView) -> Adding | None:
    """ReduceSum, along the first axis that goes."""
    axes, shape = reduced_axes(op), op.input_shape(0)
    if axes is None or element_type(op) not in REASSOCIATED:
        return None
    long = sorted(axis for axis in axes if shape[axis] > 1)
    if not long:
        return None
    others = (None,) * (len(op.inputs) - 1)
    before, behind = prod(shape[: long[0]]), prod(shape[long[0] + 1 :])
    is_by_rows = len(axes) == len(long) == 1 and before == 1 and behind > 1 and element_type(op) == ir.DataType.FLOAT
    so_far = SumSoFar.FIRST_ROW if is_by_rows else SumSoFar.ADDED
    return Adding(shape[long[0]], (long[0], *others), so_far, int(is_by_rows))


BIAS = 2  # of a Gemm, where the sum so far goes


def product(op: OpView) -> Adding | None:
    """Gemm: the sum so far takes the place of the bias, which the first tile adds."""
    turned = [op.integer(name, 0) != 0 for name in ("transA", "transB")]
    scales = [op.node.attributes.get(name) for name in ("alpha", "beta")]
    if op.weights[0] or op.weights[1] or element_type(op) not in REASSOCIATED or op.text("activation", ""):
        return None
    if op.has_input(BIAS) and any(scale is not None and scale.as_float() != 1.0 for scale in scales):
        return None
    depth = op.input_shape(0)[0 if turned[0] else 1]
    is_scaled = scales[0] is not None and scales[0].as_float() != 1.0
    rows, columns = op.output_shape
    exact = 0  # of how many terms runs are on any number of threads; none where that differs
    if not is_scaled and element_type(op) == ir.DataType.FLOAT:
        if rows == 1:
            exact = 0 if any(turned) else TERMS_AT_ONCE
        elif columns != 1:
            exact = first_run(rows, columns, depth, turned[0], op.threads)
    axes = (0 if turned[0] else 1, 1 if turned[1] else 0, *[None] * (len(op.inputs) - BIAS))
    return Adding(depth, axes, BIAS, exact)


def matrices(op: OpView) -> Adding | None:
    """MatMul of two matrices."""
    left, right = op.inputs[0], op.inputs[1]
    if left is None or right is None or len(left) != 2 or len(right) != 2 or op.weights[0] or op.weights[1]:
        return None
    turned = [op.integer(name, 0) != 0 for name in ("transA", "transB")]
    return Adding(left[0 if turned[0] else 1], (0 if turned[0] else 1, 1 if turned[1] else 0), SumSoFar.ADDED, 0)


CHANNELS, LEADING = 1, 2


def convolution(op: OpView) -> Adding | None:
    """Conv in one group over the channels of what it reads, as the weights of a training step have the batch there."""
    if op.integer("group", 1) > 1 or op.weights[1] or len(op.inputs) > LEADING:
        return None
    return Adding(op.input_shape(0)[CHANNELS], (CHANNELS, CHANNELS), SumSoFar.ADDED, 0)


def scattered(op: OpView) -> Adding | None:
    """ScatterElements that adds, along its own axis: to what came before, in the order of the indices."""
    own = op.integer("axis", 0) % len(op.output_shape)
    if op.text("reduction", "none") != "add" or element_type(op) not in REASSOCIATED:
        return None
    length, is_float = op.input_shape(1)[own], element_type(op) == ir.DataType.FLOAT
    is_outermost = prod(op.input_shape(1)[:own]) == 1
    return Adding(length, (None, own, own), 0, int(is_float and is_outermost))


Adds = Callable[[OpView], Adding | None]
