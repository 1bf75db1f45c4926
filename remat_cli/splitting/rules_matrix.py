"""Slicing rules of matrix products: by rows, by matrices of a batch, and by columns of what is not a constant."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from remat_cli.splitting.op_view import OpView, Shape, Slab, Sliced, broadcast_need
from remat_cli.splitting.products import Product, has_same_bits

ACTIVATIONS = frozenset({"", "Relu", "LeakyRelu"})  # of one element each, the same wherever it lies
REASSOCIATED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})  # fine enough for sums in any order


@dataclass(frozen=True)
class Factors:
    """Where the two matrices of a product stand among the inputs, whether each is stored transposed, and a scale."""

    places: tuple[int, int]
    is_turned: tuple[bool, bool]
    is_scaled: bool


def matmul(op: OpView, slab: Slab) -> Sliced | None:
    """MatMul and its fused forms with transposed factors and a scale; vectors and transposed batches are refused."""
    if op.integer("transBatchA", 0) or op.integer("transBatchB", 0):
        return None
    return _float_product(op, slab, _factors(op))


def gemm(op: OpView, slab: Slab) -> Sliced | None:
    """Gemm, its bias broadcast to [rows, columns], with the activation that fusing may have added."""
    if op.text("activation", "") not in ACTIVATIONS and not op.may_reassociate:
        return None
    return _float_product(op, slab, _factors(op))


def integer_matmul(op: OpView, slab: Slab) -> Sliced | None:
    """MatMulInteger: integer sums are exact in any order."""
    return _integer_product(op, slab, (0, 1))


def quantised_matmul(op: OpView, slab: Slab) -> Sliced | None:
    """QLinearMatMul: integer sums, then one rounding per element."""
    return _integer_product(op, slab, (0, 3))


def element_type(op: OpView) -> ir.DataType | None:
    """Element type that the first two inputs and the first output share; None where the model tells none of them."""
    around = (*op.node.inputs[:2], *op.node.outputs[:1])
    return next((value.dtype for value in around if value is not None and value.dtype is not None), None)


def _factors(op: OpView) -> Factors:
    is_turned = (op.integer("transA", 0) != 0, op.integer("transB", 0) != 0)
    alpha = op.node.attributes.get("alpha")
    return Factors((0, 1), is_turned, alpha is not None and alpha.as_float() != 1.0)


def _float_product(op: OpView, slab: Slab, factors: Factors) -> Sliced | None:
    needs = _needs(op, slab, factors)
    return Sliced(needs, slab) if needs is not None and _is_exact(op, slab, factors, needs) else None


def _integer_product(op: OpView, slab: Slab, places: tuple[int, int]) -> Sliced | None:
    """By rows and matrices; what is given beside the matrices must be of one element, or one per column."""
    others = (shape for place, shape in enumerate(op.inputs) if shape is not None and place not in places)
    if slab.axis == len(op.output_shape) - 1 or any(len(shape) > 1 for shape in others):
        return None
    needs = _needs(op, slab, Factors(places, (False, False), False))
    return None if needs is None else Sliced(needs, slab)


def _needs(op: OpView, slab: Slab, factors: Factors) -> tuple[Slab | None, ...] | None:
    """What each input gives to a slab of the product; None where a factor is a vector, or a constant's columns."""
    rank, extent = len(op.output_shape), op.output_shape[slab.axis]
    left, right = (op.input_shape(place) for place in factors.places)
    if min(len(left), len(right)) < 2:
        return None
    needs = [broadcast_need(shape, rank, extent, slab) for shape in op.inputs]
    first, second = factors.places
    if slab.axis == rank - 1:
        if op.weights[second]:
            return None
        needs[first], needs[second] = None, _line(slab, len(right) - (2 if factors.is_turned[1] else 1))
    elif slab.axis == rank - 2:
        needs[first], needs[second] = _line(slab, len(left) - (1 if factors.is_turned[0] else 2)), None
    return tuple(needs)


def _line(slab: Slab, axis: int) -> Slab:
    return Slab(axis, slab.start, slab.stop)


def _is_exact(op: OpView, slab: Slab, factors: Factors, needs: tuple[Slab | None, ...]) -> bool:
    """Whether the slab has the bits of the whole, or need not; sums of integers, or against constants, always have."""
    kind = element_type(op)
    if op.may_reassociate and kind in REASSOCIATED:
        return True
    if kind is None or not (kind == ir.DataType.FLOAT or kind.is_integer()):
        return False
    left, right = (op.input_shape(place) for place in factors.places)
    if kind.is_integer() or (op.weights[1] and len(right) == 2):
        return True
    whole = _product(left, right, factors)
    part = _product(_cut(left, needs[0]), _cut(right, needs[1]), factors)
    return has_same_bits(whole, part, slab.start if slab.axis == len(op.output_shape) - 1 else 0, op.threads)


def _cut(shape: Shape, need: Slab | None) -> Shape:
    return shape if need is None else (*shape[: need.axis], need.extent, *shape[need.axis + 1 :])


def _product(left: Shape, right: Shape, factors: Factors) -> Product:
    """Sizes as the runtime sees them: matrices that share the second factor are one, of all their rows."""
    is_turned = factors.is_turned
    depth, rows = left[-2:] if is_turned[0] else (left[-1], left[-2])
    columns = right[-2] if is_turned[1] else right[-1]
    batch = math.prod(np.broadcast_shapes(left[:-2], right[:-2]))
    if not is_turned[0] and math.prod(right[:-2]) == 1:
        rows, batch = rows * math.prod(left[:-2]), 1
    return Product(rows, columns, depth, batch, is_turned[0], factors.is_scaled)
