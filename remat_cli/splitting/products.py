"""When a matrix product by fewer columns gives the same bits: facts of the CPU's single precision kernels."""

from __future__ import annotations

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
