"""When a part of a matrix product has the bits of the whole: facts of the CPU's single precision kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from remat_cli.splitting.op_view import OpView

# Measured (ONNX Runtime 1.31.1, x86-64 with AVX-512): terms are added in blocks of 128, and of 256, 512 or 1,024 where
# there are at most 64, 32 or 16 columns. Threads share columns out in multiples of 16, so that one of them may have so
# few although there are more in all: with two threads products of up to 144 columns differed from larger ones.
_BLOCK_TERMS = 128
_FEW_COLUMNS = 64
_COLUMN_BLOCK = 16


def is_same_product(op: OpView, weight: int, terms: int, columns: tuple[int, int]) -> bool:
    """Whether each result, a sum of `terms` products, has the same bits with either number of columns.

    `weight` is the position of the input that tells the element type. Holds for up to `op.threads` threads. Where terms
    may be added in another order, any number of columns is as good.
    """
    value = op.node.inputs[weight]
    if value is None or value.dtype != ir.DataType.FLOAT:
        return False
    if op.may_reassociate:
        return True
    if terms <= _BLOCK_TERMS:
        return min(columns) > 1  # a single column is a product of matrix and vector, added in another order
    return min(columns) > op.threads * (_FEW_COLUMNS + _COLUMN_BLOCK * (op.threads - 1))


# How the runtime's CPU library cuts a product up.
#
# Each element is summed over `depth` one by one, in runs whose sums are then added. How long the runs are depends on
# the columns that one thread computes, and on nothing else; which columns those are depends on the sizes and on how
# many threads there are. A thread that computes a single row goes another way altogether. Source: `MlasGemmBatch`,
# `MlasSgemmOperation` of ONNX Runtime. Measured with version 1.31.1 (AVX-512; 1 to 32 threads; depth up to 4,096;
# batches up to 12): none of some 10,000 slabs that this accepts differed from the whole. Against a constant second
# matrix no slab of rows differed at all: that one is packed beforehand, in runs of 256.
WORK_PER_THREAD = 65_536  # multiplications below which no further thread is asked
COLUMN_BLOCK = 16  # threads get columns in multiples of this
RUN = 128


class Product(NamedTuple):
    """`matrices` float32 matrices [rows, columns], each sums of `depth` products.

    `is_turned` tells that the first factor is stored transposed, `is_scaled` that the product is multiplied by a
    factor other than 1.
    """

    rows: int
    columns: int
    depth: int
    matrices: int
    is_turned: bool
    is_scaled: bool


def has_same_bits(whole: Product, part: Product, first_column: int, threads: int) -> bool:
    """Whether a part, whose columns begin at `first_column` of the whole, has its bits on up to `threads` threads."""
    counts = range(1, threads + 1)
    if min(whole.columns, part.columns) == 1 or _may_run_by_row(part, counts) or _may_run_by_row(whole, counts):
        return False
    if whole.depth <= RUN:
        return True
    crews = {(_crew(whole, count), _crew(part, count)) for count in counts}
    wanted = slice(first_column, first_column + part.columns)
    return all(_runs(whole, ours)[wanted] == _runs(part, theirs) for ours, theirs in crews)


def _may_run_by_row(product: Product, counts: range) -> bool:
    """Whether some thread may compute a single row; only plain products of one row go their own way."""
    if product.is_turned or product.is_scaled:
        return False
    return any(_least_rows(product, _crew(product, count)) == 1 for count in counts)


def _least_rows(product: Product, crew: int) -> int:
    return product.rows if product.columns > product.rows else product.rows // crew


def _crew(product: Product, threads: int) -> int:
    """How many threads share one matrix: they divide columns where there are more columns than rows, else rows."""
    work = product.rows * product.columns * product.depth
    asked = min(work // WORK_PER_THREAD + 1, threads)
    blocks = -(-product.columns // COLUMN_BLOCK)
    return min(-(-asked // product.matrices), blocks if product.columns > product.rows else product.rows)


def _runs(product: Product, crew: int) -> list[int]:
    """How long the runs are, by column."""
    if product.columns <= product.rows:
        return [_run(product, product.columns)] * product.columns
    return [run for columns in _shares(product.columns, crew) for run in [_run(product, columns)] * columns]


def _shares(columns: int, crew: int) -> Iterator[int]:
    """Columns of each thread: whole blocks, the first threads one more."""
    each, more = divmod(-(-columns // COLUMN_BLOCK), crew)
    for thread in range(crew):
        share = min(columns, (each + (thread < more)) * COLUMN_BLOCK)
        columns -= share
        yield share


def _run(product: Product, columns: int) -> int:
    """Length of a run where one thread computes so many columns."""
    run, width = RUN, RUN
    while columns < product.depth and not product.is_turned and width > COLUMN_BLOCK and width // 2 >= columns:
        run, width = run * 2, width // 2
    return min(run, product.depth)
