"""Slicing rules of ops that treat every element, or every line across the cut, by itself.

The runtime computes some functions (Elu, Softplus, Log, sine ...) in packets of four, and another way at the end of a
buffer, or of a thread's share of it, so that the same element may have other bits in a slice. Those were found by
measuring (`tests/splitting/test_rules_pointwise.py`); `by_packets` is their rule.
"""

from math import prod

import numpy as np
import onnx_ir as ir

from remat_cli.onnx_io.read.interface import fixed_value
from remat_cli.ort_rules.shares import PACKET, SHARES_PER_THREAD, is_all_packets
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, broadcast_need, of_first

MOVING = frozenset({"Identity", "Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze"})
MOST_BEHIND = 4  # ops that are asked where numbers come from
LEAST_SUMMAND = 1e-3  # so that sums are not so small that they are taken for zero
_SMALL_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

SHARED_CYCLES = {"Celu": 1, "Elu": 30, "Log": 15, "LRN": 320, "Mish": 15, "Selu": 4, "Softplus": 15}
"""Cycles that the runtime says an element of these ops takes, which decide how threads share them; others run alone."""


def elementwise(op: OpView, slab: Slab) -> Sliced | None:
    """Each output element depends on the elements at its place, inputs broadcast from the right (numpy's rule)."""
    rank, extent = len(op.output_shape), op.output_shape[slab.axis]
    return Sliced(tuple(broadcast_need(shape, rank, extent, slab) for shape in op.inputs), slab)


def transcendental(op: OpView, slab: Slab) -> Sliced | None:
    """Functions that are exact in single and half precision only: doubles have another way at a buffer's end."""
    return elementwise(op, slab) if op.may_reassociate or _element_type(op, 0) in _SMALL_FLOATS else None


def extremum(op: OpView, slab: Slab) -> Sliced | None:
    """Min and Max: which zero wins, +0 or -0, depends on the place in the buffer; so zeros have one source or sign."""
    element_type = _element_type(op, 0)
    if element_type is None:
        return None
    constants = map(op.constant, range(len(op.inputs)))
    may_be_zero = sum(constant is None or not np.all(constant != 0) for constant in constants)
    is_same = may_be_zero <= 1 or element_type.is_integer() or all(map(_is_never_minus_zero, op.node.inputs))
    return elementwise(op, slab) if is_same or op.may_reassociate else None


def _is_never_minus_zero(value: ir.Value | None, depth: int = MOST_BEHIND) -> bool:
    """Whether no element is -0: of a constant, of a sum with a constant that is not small, of the least of such.

    What cancels out becomes +0 in a sum, as x + 3 does where x is -3.
    """
    if value is None:
        return False
    constant = fixed_value(value)
    if constant is not None:
        array = constant.numpy()
        return not np.any(np.signbit(array) & (array == 0))
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or depth == 0:
        return False
    if node.op_type in ("Add", "Sub"):
        given = map(fixed_value, node.inputs)
        return any(array is not None and bool(np.all(np.abs(array.numpy()) >= LEAST_SUMMAND)) for array in given)
    if node.op_type in ("Min", "Max"):
        return all(_is_never_minus_zero(read, depth - 1) for read in node.inputs)
    return node.op_type in MOVING and _is_never_minus_zero(node.inputs[0], depth - 1)


def choice(op: OpView, slab: Slab) -> Sliced | None:
    """Where: whether -0 becomes +0 depends on which inputs are repeated along the rows."""
    return elementwise(op, slab) if keeps_rows(op, slab) or op.may_reassociate else None


def power(op: OpView, slab: Slab) -> Sliced | None:
    """Pow with one exponent for all, which the runtime knows (squares, cubes) unless rows have one element each."""
    has_one_exponent = op.input_shape(0) == op.output_shape and prod(op.input_shape(1)) == 1
    is_exact = has_one_exponent and keeps_rows(op, slab)
    return elementwise(op, slab) if is_exact or _may_round_otherwise(op) else None


def by_packets(op: OpView, slab: Slab) -> Sliced | None:
    """Functions computed in packets of elements: in the whole op and in the slab all of them must be in one.

    Where the slab alone would have others it is longer, if a little is enough.
    """
    if _may_round_otherwise(op):
        return first_input(op, slab)
    shape, cycles = op.output_shape, SHARED_CYCLES.get(op.node.op_type)
    row = prod(shape) // shape[slab.axis]
    if not is_in_packets(op):
        return None
    for extent in range(
        slab.extent, min(shape[slab.axis], slab.extent + PACKET * SHARES_PER_THREAD * op.own_threads) + 1
    ):
        if is_all_packets(extent * row, cycles, op.own_threads):
            start = min(slab.start, shape[slab.axis] - extent)
            return first_input(op, Slab(slab.axis, start, start + extent))
    return None


def is_in_packets(op: OpView) -> bool:
    """Whether all elements of the whole op are computed in packets."""
    is_known = _element_type(op, 0) == ir.DataType.FLOAT and op.input_shape(0) == op.output_shape
    return is_known and is_all_packets(prod(op.output_shape), SHARED_CYCLES.get(op.node.op_type), op.own_threads)


def across_channels(op: OpView, slab: Slab) -> Sliced | None:
    """LRN: sums over channels, and a power computed in packets."""
    return None if slab.axis == 1 else by_packets(op, slab)


def first_input(op: OpView, slab: Slab) -> Sliced | None:
    """Like the first input, element by element; whatever else it reads (bounds, slopes) it reads whole."""
    if op.input_shape(0) != op.output_shape:
        return None
    return of_first(op, slab, slab)


CONVERTED_ALIKE = frozenset({ir.DataType.INT32, ir.DataType.INT64})


def conversion(op: OpView, slab: Slab) -> Sliced | None:
    """Cast; from floats to integers only where processors convert one number as they convert many.

    That is so for signed ones of 32 and 64 bits. Numbers out of range become others in blocks than alone elsewhere.
    """
    source, target = _element_type(op, 0), ir.DataType(op.integer("to", 0))
    if source is None or ir.DataType.STRING in (source, target):
        return None
    if source.is_floating_point() and target.is_integer() and target not in CONVERTED_ALIKE:
        return None
    return first_input(op, slab)


def dropout(op: OpView, slab: Slab) -> Sliced | None:
    """Dropout that passes its input on: not in training, mask unread."""
    training = op.constant(2)
    if op.has_input(2) and (training is None or bool(training.any())):
        return None
    return first_input(op, slab) if sum(shape is not None for shape in op.outputs) == 1 else None


def quantisation(op: OpView, slab: Slab) -> Sliced | None:
    """QuantizeLinear and its inverse, with one scale, or one per position of another axis than the cut one."""
    shape = op.input_shape(0)
    axis = op.integer("axis", 1) % max(1, len(shape))
    has_one_scale = prod(op.input_shape(1)) == 1
    if op.integer("block_size", 0) or not (has_one_scale or slab.axis != axis):
        return None
    return first_input(op, slab)


def along_own_axis(op: OpView, slab: Slab) -> Sliced | None:
    """LpNormalization: lines along its own axis (default: the last) stay whole."""
    axis = op.integer("axis", -1) % len(op.output_shape)
    return None if slab.axis == axis else first_input(op, slab)


def keeps_rows(op: OpView, slab: Slab) -> bool:
    """Whether the innermost axis with more than one element stays so; how inputs are repeated goes by that axis."""
    return slab.extent > 1 or prod(op.output_shape[slab.axis + 1 :]) > 1 or op.output_shape[slab.axis] == 1


def _element_type(op: OpView, position: int) -> ir.DataType | None:
    value = op.node.inputs[position]
    return None if value is None else value.dtype


def _may_round_otherwise(op: OpView) -> bool:
    """Whether other last bits are allowed, and the type is fine enough for them not to matter."""
    return op.may_reassociate and _element_type(op, 0) in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
