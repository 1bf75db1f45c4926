"""Slicing rules of quantised ops: sums of integers are exact in any order, and each result is rounded by itself.

Measured with ONNX Runtime 1.31.1 (x86-64 with AVX-512; 1, 2, 4 and 8 threads; scales chosen so that many results lie
half way between two roundings): the ways that the runtime has for packets of results and for the rest round alike.
Where they do not is said with the rule. Without rows are ops that quantise by the range of all they read
(DynamicQuantizeLinear, DynamicQuantizeMatMul): a part has another range, so that they are taken apart
(`recast/dynamic.py`). DynamicQuantizeLSTM has none either: what it reads, and what it remembers after each step, is
quantised by the range of all items of the batch, so that 33 of 37 parts of batches differ, and 21 of 37 where only
what is remembered has another range (1.32.0, 1, 2 and 4 threads). Its two ways through time come apart
(`recast/directions.py`). Along time only what is read has another range, since what is remembered has one each step:
stretches that read both ends of the range of all have the bits of the whole, of one item and a few more cases
(`recast/steps.py`).
"""

import math

import onnx_ir as ir

from remat_cli.base.present import present
from remat_cli.splitting.rules.conv_channels import SPATIAL
from remat_cli.splitting.rules.matrix import Product, element_type, has_same_bits
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
    """QAttention without past: by items of the batch, each with its mask.

    A mask of one axis has two bounds, not one length, of each item where it is longer than the batch: it is refused.
    0 of 958 slabs differ (1.32.0; 1 to 128 words, weights of both signs, scales of each column, 1, 2, 4 and 8 threads).
    """
    if slab.axis != 0 or op.has_input(PAST) or any(shape is not None for shape in op.outputs[1:]):
        return None
    items = op.input_shape(0)[0]
    if op.has_input(MASK) and op.input_shape(MASK)[0] != items:
        return None
    needs: list[Slab | None] = [slab, *[None] * (len(op.inputs) - 1)]
    if op.has_input(MASK):
        needs[MASK] = slab
    return Sliced(tuple(needs), slab)


BLOCK_ZERO_POINTS, GROUPS_OF_TERMS = 3, 4  # inputs of MatMulNBits
BLOCK_BITS = (4, 8)
FLOAT_SUMS, INTEGER_SUMS = (0, 1), 4  # accuracy levels
PACKET_ROWS, SHARED_ROWS = 4, 128  # rows that are computed together; that a thread gets at once
PACKET_COLUMNS = 16  # four would do on x86-64


def block_product(op: OpView, slab: Slab) -> Sliced | None:
    """MatMulNBits by columns, and by rows: two and more, by packets of four where its sums are of integers.

    Measured with ONNX Runtime 1.32.0 (K 64 to 640, N 8 to 256, blocks of 16 to 256, 1, 2 and 4 threads). A row alone
    takes another kernel, also one that is left over where threads get 128 at once: nearly all differed. Else of 4 bits
    at levels 0 and 1 none of 1,900 slabs did; of 8 bits those of which a product of the matrix in floats would add up
    otherwise. At level 4 rows go two at a time on x86-64 with AVX-512, the last alone where they are odd, and four at a
    time on arm64: of slabs that begin and end with a packet none differed, of others a third. There a row that is left
    over is computed as one alone is: of slabs from a packet to the end, of one row too, none of 311 differed (wholes of
    129 to 897 rows, 1 to 8 threads; not measured on arm64). Columns go in packets as well (`_by_columns`). Levels 2
    and 3, other bits and rearranged terms were not measured: refused.
    """
    level, bits, rank = op.integer("accuracy_level", 0), op.integer("bits", 4), len(op.output_shape)
    points = op.node.inputs[BLOCK_ZERO_POINTS] if op.has_input(BLOCK_ZERO_POINTS) else None
    is_float = element_type(op) == ir.DataType.FLOAT and (points is None or points.dtype == ir.DataType.UINT8)
    if bits not in BLOCK_BITS or level not in (*FLOAT_SUMS, INTEGER_SUMS):
        return None
    if op.has_input(GROUPS_OF_TERMS) or not is_float:
        return None
    if slab.axis == rank - 1:
        return _by_columns(op, slab)
    inner = math.prod(op.output_shape[slab.axis + 1 : -1])
    whole, first, count = op.output_shape[slab.axis] * inner, slab.start * inner, slab.extent * inner
    lists = math.prod(op.output_shape[: slab.axis])
    if level == INTEGER_SUMS:
        is_last = lists == 1 and first + count == whole
        parts = (first, *(() if is_last else (count,)), *(() if lists == 1 else (whole,)))
        if any(part % PACKET_ROWS for part in parts):
            return None
        if not op.is_portable:
            return of_first(op, slab, slab)
    sizes = (op.output_shape[-1], op.input_shape(0)[-1], 1, False, False)
    all_rows, rows = (Product(lists * each, *sizes) for each in (whole, count))
    is_alone = any(each.rows % SHARED_ROWS == 1 for each in (all_rows, rows))
    is_exact = not is_alone and has_same_bits(all_rows, rows, 0, op.threads)
    return of_first(op, slab, slab) if is_exact else None


def packet_rows(op: OpView) -> int:
    """How many rows a MatMulNBits computes together."""
    return PACKET_ROWS if op.integer("accuracy_level", 0) == INTEGER_SUMS else 1


def _by_columns(op: OpView, slab: Slab) -> Sliced | None:
    """Columns of a MatMulNBits in packets, each with its part of the matrix, scales, zero points and bias.

    Measured with ONNX Runtime 1.32.0 (K 64 to 640, N 16 to 300, blocks of 16 to 128, 1 to 130 rows, 1, 2, 4 and 8
    threads, zero points or none): of slabs that begin and end at a multiple of four none of 1,907 differed, of others
    many. On arm64 (Cortex-A53, A76 and one with SME, emulated; 1, 2 and 4 threads) none of 259 slabs of packets of 4
    bits; of 8 bits 10 and 26 of 65 on the first two, and on x86-64 of several rows a sixth at levels 0 and 1: refused.
    """
    columns = op.output_shape[-1]
    if op.integer("bits", 4) > BLOCK_BITS[0]:
        return None
    start = slab.start // PACKET_COLUMNS * PACKET_COLUMNS
    stop = min(columns, -(-slab.stop // PACKET_COLUMNS) * PACKET_COLUMNS)
    needs: list[Slab | None] = [None]
    for shape in op.inputs[1:]:
        each = 0 if shape is None else shape[0] // columns  # of a list of numbers, so many are of one column
        needs.append(None if shape is None else Slab(0, start * each, stop * each))
    return Sliced(tuple(needs), Slab(slab.axis, start, stop), {"N": stop - start})


def block_gather(op: OpView, slab: Slab) -> Sliced | None:
    """GatherBlockQuantized of rows of a table: by where indices stand; the table is not cut.

    0 of 3,275 slabs differ (1.32.0; 4 and 8 bits, blocks of 16 to 64, zero points or none, 1, 2, 4 and 8 threads).
    """
    if op.integer("gather_axis", 0) or slab.axis >= len(op.input_shape(1)):
        return None
    return Sliced((None, slab, *[None] * (len(op.inputs) - 2)), slab)
