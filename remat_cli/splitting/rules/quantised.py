"""Slicing rules of quantised ops: sums of integers are exact in any order, and each result is rounded by itself.

Measured with ONNX Runtime 1.31.1 (x86-64 with AVX-512; 1, 2, 4 and 8 threads; scales chosen so that many results lie
half way between two roundings): the ways that the runtime has for packets of results and for the rest round alike.
Where they do not is said with the rule. Without rows are ops that quantise by the range of all they read
(DynamicQuantizeLinear, DynamicQuantizeMatMul): a part has another range, so that they are taken apart
(`recast/dynamic.py`).
"""

from remat_cli.base.present import present
from remat_cli.splitting.rules.conv_channels import SPATIAL
from remat_cli.splitting.rules.pointwise import elementwise, keeps_rows
from remat_cli.splitting.rules.window import windowed
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, broadcast_need, of_first

WEIGHT = {"QLinearConv": 3, "ConvInteger": 1}  # input position
MASK, PAST = 5, 8  # inputs of QAttention
FLATTENING_ENDS = 13  # before this version softmax treats all axes from `axis` on as one line


def convolution(op: OpView, slab: Slab) -> Sliced | None:
    """QLinearConv and ConvInteger, along the batch and spatial axes; padding holds the zero point."""
    kernel = op.input_shape(WEIGHT[op.node.op_type])[SPATIAL:]
    return windowed(op, slab, kernel, _first_spatial(op))


def pooling(op: OpView, slab: Slab) -> Sliced | None:
    """NhwcMaxPool and QLinearAveragePool, along the batch and spatial axes."""
    kernel, first = op.integers("kernel_shape"), _first_spatial(op)
    sliced = windowed(op, slab, kernel, first)
    if sliced is None or slab.axis == 0:
        return sliced
    need = present(sliced.needs[0], "a slab of what a window reads")
    part = *op.input_shape(0)[: need.axis], need.extent, *op.input_shape(0)[need.axis + 1 :]
    # the average of a window that is all of what a slab reads was measured to be rounded in another way
    is_one_window = part[first : first + len(kernel)] == kernel
    return None if op.node.op_type == "QLinearAveragePool" and is_one_window else sliced


def _first_spatial(op: OpView) -> int:
    return 1 if op.node.op_type == "NhwcMaxPool" or op.integer("channels_last", 0) else SPATIAL


def concatenation(op: OpView, slab: Slab) -> Sliced | None:
    """QLinearConcat cut along another axis than its own; inputs come with scale and zero point, as does the output."""
    if slab.axis == op.integer("axis", 0) % len(op.output_shape):
        return None
    joined = (len(op.inputs) - 2) // 3
    return Sliced((None, None, *(slab, None, None) * joined), slab)


def addition(op: OpView, slab: Slab) -> Sliced | None:
    """QLinearAdd: measured to add its terms in another order where the first input has one element to a row."""
    return elementwise(op, slab) if keeps_rows(op, slab) else None


def softmax(op: OpView, slab: Slab) -> Sliced | None:
    """QLinearSoftmax: lines along `axis`; before ONNX 13, told by an attribute, all axes from `axis` on are one."""
    rank = len(op.output_shape)
    axis = op.integer("axis", -1) % rank
    line = range(axis, rank if op.integer("opset", 0) < FLATTENING_ENDS else axis + 1)
    return None if slab.axis in line else of_first(op, slab, slab)


def gemm(op: OpView, slab: Slab) -> Sliced | None:
    """QGemm by rows, its bias broadcast to [rows, columns]; scales and zero points are one, or one per column."""
    if slab.axis != 0:
        return None
    rows = Slab(1 if op.integer("transA", 0) else 0, slab.start, slab.stop)
    others = (broadcast_need(shape, 2, op.output_shape[0], slab) for shape in op.inputs[4:])
    return Sliced((rows, None, None, None, *others), slab)


def attention(op: OpView, slab: Slab) -> Sliced | None:
    """QAttention without mask or past: by items of the batch."""
    is_plain = not op.has_input(MASK) and not op.has_input(PAST) and all(shape is None for shape in op.outputs[1:])
    return of_first(op, slab, slab) if slab.axis == 0 and is_plain else None
