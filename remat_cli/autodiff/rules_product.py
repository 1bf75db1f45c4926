"""Gradients of matrix products and of Einsum, each of which is again one."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from remat_cli.autodiff.pieces import reshape, sum_to
from remat_cli.autodiff.tape import Call, Found, Grads, Rule, Rules, Tape, WrittenForm, only, shape_of
from remat_cli.base.errors import ModelError


@dataclass(frozen=True)
class _Matrix:
    """A tensor of matrices in its last two axes, to be read transposed or not."""

    value: ir.Value
    turned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions as they are stored."""
        return shape_of(self.value)

    @property
    def turn(self) -> _Matrix:
        """The transposed matrices: nothing is copied yet."""
        return _Matrix(self.value, not self.turned)


def matmul(tape: Tape, call: Call, grads: Grads) -> Found:
    """With vectors as matrices of one row or column; a weight that all batches share first."""
    grad = only(grads)
    left, right = call.shape(0), call.shape(1)
    row, column = len(left) == 1, len(right) == 1
    a = _Matrix(reshape(tape, call.input(0), (1, *left) if row else left))
    b = _Matrix(reshape(tape, call.input(1), (*right, 1) if column else right))
    batch = shape_of(grad)[: len(shape_of(grad)) - 2 + row + column]
    grad = reshape(tape, grad, (*batch, a.shape[-2], b.shape[-1]))
    return {place: reshape(tape, found, call.shape(place)) for place, found in _factors(tape, call, a, b, grad).items()}


def gemm(tape: Tape, call: Call, grads: Grads) -> Found:
    """Products that read the matrices as they are stored; factors go into them."""
    grad, alpha, beta = only(grads), call.real("alpha", 1.0), call.real("beta", 1.0)
    flow = _Matrix(grad)
    a, b = (_Matrix(call.input(place), bool(call.integer(name))) for place, name in ((0, "transA"), (1, "transB")))
    result = {}
    if 2 in call.wanted:
        bias = sum_to(tape, grad, call.shape(2))
        result[2] = bias if beta == 1 else tape.op("Mul", bias, tape.scalar(beta, bias))
    if 1 in call.wanted:
        result[1] = _flat_product(tape, *_as_stored(a.turn, flow, b), alpha)
    if 0 in call.wanted:
        result[0] = _flat_product(tape, *_as_stored(flow, b.turn, a), alpha)
    return result


def fused_matmul(tape: Tape, call: Call) -> WrittenForm:
    """FusedMatMul in ops of the standard: transposed where told to, and scaled."""
    a, b = _fused_factors(call)
    product = tape.op("MatMul", _read(tape, a), _read(tape, b))
    return WrittenForm((_scaled(tape, call, product),))


def fused_matmul_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradients of a product whose factors may be transposed; the one that flows in is scaled as the result was."""
    return _factors(tape, call, *_fused_factors(call), _scaled(tape, call, only(grads)))


def _fused_factors(call: Call) -> tuple[_Matrix, _Matrix]:
    """Both factors, with what is to be transposed.

    Raises:
        ModelError: a batch axis is to be moved, or a factor is a vector.
    """
    if call.integer("transBatchA") or call.integer("transBatchB") or min(len(call.shape(0)), len(call.shape(1))) < 2:
        raise ModelError(f"op '{call.name}' (FusedMatMul): no gradient for transposed batches or for vectors")
    return _Matrix(call.input(0), bool(call.integer("transA"))), _Matrix(call.input(1), bool(call.integer("transB")))


def _scaled(tape: Tape, call: Call, value: ir.Value) -> ir.Value:
    alpha = call.real("alpha", 1.0)
    return value if alpha == 1 else tape.op("Mul", value, tape.scalar(alpha, value))


def _factors(tape: Tape, call: Call, a: _Matrix, b: _Matrix, grad: ir.Value) -> dict[int, ir.Value]:
    """Gradients of both factors of a product, as they are stored; the one that is shared by the batch first."""
    result: dict[int, ir.Value] = {}
    flow, batch = _Matrix(grad), math.prod(b.shape[:-2])
    # Whether rearranging a batch for one product takes less than one product for each of the batch.
    copies_are_smaller = batch == 1 or math.prod(flow.shape) + math.prod(b.shape) < batch * math.prod(a.shape)
    for place in (0, 1) if len(a.shape) < len(b.shape) else (1, 0):
        if place not in call.wanted:
            continue
        if place == 1:  # a^T * grad, for one matrix b over all rows of the batch at once
            is_flat = len(b.shape) == 2 and (len(a.shape) == 2 or not a.turned)
            left, right = (_flattened(tape, a), _flattened(tape, flow)) if is_flat else (a, flow)
            result[1] = _stored(tape, left.turn, right, b)
        elif len(b.shape) == 2 and not a.turned:  # grad * b^T
            result[0] = reshape(tape, _flat_product(tape, _flattened(tape, flow), b.turn), a.shape)
        else:
            is_beside = len(a.shape) == 2 and copies_are_smaller
            left, right = (_side_by_side(tape, flow), _side_by_side(tape, b)) if is_beside else (flow, b)
            result[0] = _stored(tape, left, right.turn, a)
    return result


def _stored(tape: Tape, a: _Matrix, b: _Matrix, like: _Matrix) -> ir.Value:
    """The product as the matrix is stored that it is the gradient of, summed to its shape.

    Gemm reads transposed matrices where they lie, and the runtime fuses MatMul with Transpose.
    """
    a, b = _as_stored(a, b, like)
    if len(a.shape) == 2 and len(b.shape) == 2:
        return _flat_product(tape, a, b)
    return sum_to(tape, tape.op("MatMul", _read(tape, a), _read(tape, b)), like.shape)


def _as_stored(a: _Matrix, b: _Matrix, like: _Matrix) -> tuple[_Matrix, _Matrix]:
    """Two factors, or those of the transposed product where another matrix is stored transposed."""
    return (b.turn, a.turn) if like.turned else (a, b)


def _flat_product(tape: Tape, a: _Matrix, b: _Matrix, alpha: float | None = None) -> ir.Value:
    return tape.op("Gemm", a.value, b.value, transA=int(a.turned), transB=int(b.turned), alpha=alpha)


def _flattened(tape: Tape, matrix: _Matrix) -> _Matrix:
    """The matrices of a batch, one below the other: a view."""
    columns = matrix.shape[-1]
    rows = math.prod(matrix.shape[:-1])
    return _Matrix(reshape(tape, matrix.value, (rows, columns)), matrix.turned)


def _side_by_side(tape: Tape, matrix: _Matrix) -> _Matrix:
    """The matrices of a batch, one next to the other: a copy, unless there is but one."""
    rank, rows = len(matrix.shape), matrix.shape[-2]
    if matrix.turned:
        return _flattened(tape, matrix)
    value = matrix.value
    if math.prod(matrix.shape[:-2]) > 1:
        value = tape.op("Transpose", value, perm=[rank - 2, *range(rank - 2), rank - 1])
    return _Matrix(reshape(tape, value, (rows, math.prod(matrix.shape) // rows)))


def _read(tape: Tape, matrix: _Matrix) -> ir.Value:
    rank = len(matrix.shape)
    if not matrix.turned:
        return matrix.value
    return tape.op("Transpose", matrix.value, perm=[*range(rank - 2), rank - 1, rank - 2])


DOTS = "..."


@dataclass(frozen=True)
class _Equation:
    """Labels of each operand and of the result, without dots, and the size that belongs to each label."""

    operands: tuple[str, ...]
    result: str
    sizes: Mapping[str, int]


def einsum(tape: Tape, call: Call, grads: Grads) -> Found:
    """The result's gradient takes the place of the operand that a gradient is asked for."""
    equation = _parsed(call)
    operands = []
    for place, labels in enumerate(equation.operands):  # as views without the axes along which they are repeated
        value = call.input(place)
        dims = zip(labels, shape_of(value), strict=True)
        kept = "".join(label for label, dim in dims if dim == equation.sizes[label])
        operands.append((reshape(tape, value, tuple(equation.sizes[label] for label in kept)), kept))
    grad = only(grads)
    result = {}
    for place in sorted(call.wanted, reverse=True):
        others = [(grad, equation.result), *operands[:place], *operands[place + 1 :]]
        # A product of factors summed to the labels, repeated along those that no factor has.
        asked = operands[place][1]
        there = "".join(label for label in asked if any(label in labels for _, labels in others))
        product, labels = others[0]
        if len(others) > 1 or labels != there:
            text = f"{','.join(labels for _, labels in others)}->{there}"
            product = tape.op("Einsum", *(factor for factor, _ in others), equation=text)
        if there == asked:
            found = product
        else:
            narrow = reshape(tape, product, tuple(equation.sizes[label] if label in there else 1 for label in asked))
            found = tape.op("Expand", narrow, tape.ints(*(equation.sizes[label] for label in asked)))
        result[place] = reshape(tape, found, call.shape(place))
    return result


def _parsed(call: Call) -> _Equation:
    """The equation with its dots spelt out.

    Raises:
        ModelError: an operand has a label twice.
    """
    text = call.text("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    ranks = [len(call.shape(place)) - len(term.replace(DOTS, "")) for place, term in enumerate(terms)]
    dots = "".join(letter for letter in string.ascii_letters if letter not in text)[: max(ranks)]
    operands = tuple(term.replace(DOTS, dots[len(dots) - rank :]) for term, rank in zip(terms, ranks, strict=True))
    if any(len(set(labels)) < len(labels) for labels in operands):
        raise ModelError(f"op '{call.name}' (Einsum '{text}'): no gradient for a label that an operand has twice")
    # An equation without an arrow means all labels that occur once, in the order of letters.
    once = sorted(label for label in set(left) - set(",.") if left.count(label) == 1)
    result = right.replace(DOTS, dots) if arrow else (dots if DOTS in left else "") + "".join(once)
    sizes: dict[str, int] = {}
    for place, labels in enumerate(operands):
        for label, dim in zip(labels, call.shape(place), strict=True):
            sizes[label] = dim if sizes.get(label, 1) == 1 else sizes[label]
    return _Equation(operands, result, sizes)


RULES: Rules = {
    "MatMul": Rule(matmul),
    "Gemm": Rule(gemm),
    "com.microsoft:FusedMatMul": Rule(fused_matmul_gradient, fused_matmul),
    "Einsum": Rule(einsum),
}
