"""Slicing rules of matrix products: a part has the bits of the whole where the kernels allow."""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import onnx_ir as ir

from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab, Sliced, broadcast_need

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


def are_runs_same(rows: int, terms: int, columns: tuple[int, int], threads: int) -> bool:
    """Whether each sum of `terms` products is added up in runs of one length with either number of columns.

    However many threads, up to `threads`, share the columns out, as convolutions do it and as products do. False too
    where some thread may get a single one of the `rows`. Source: `MlasConvPrepare`, `MlasConvOperation`.
    """
    if rows < 2 * threads or min(columns) < 2:
        return False
    return len({run for count in columns for run in _all_runs(terms, count, threads)}) == 1


@lru_cache(maxsize=65_536)
def _all_runs(terms: int, columns: int, threads: int) -> frozenset[int]:
    """The lengths of runs that sums may have, whatever number of threads up to `threads` shares so many columns."""
    product, found = Product(columns, columns, terms, 1, is_turned=False, is_scaled=False), {columns}
    for sharers in range(2, threads + 1):
        # convolutions: as much for each thread, in whole blocks, and what is left for the last one
        each = -(-columns // (sharers * COLUMN_BLOCK)) * COLUMN_BLOCK
        found |= {each, columns % each or each} if each < columns else set()
        # products: whole blocks, of which the first threads have one more
        blocks, more = divmod(-(-columns // COLUMN_BLOCK), sharers)
        last = columns - (sharers - 1) * blocks * COLUMN_BLOCK - more * COLUMN_BLOCK
        found |= {blocks * COLUMN_BLOCK, (blocks + (more > 0)) * COLUMN_BLOCK, last} if blocks else set()
    return frozenset(_run(product, count) for count in found)


# How the runtime's CPU library cuts a product up.
#
# Each element is summed over `depth` one by one, in runs whose sums are then added. How long the runs are depends on
# the columns that one thread computes, and on nothing else; which columns those are depends on the sizes and on how
# many threads there are. A thread that computes a single row goes another way altogether. Source: `MlasGemmBatch`,
# `MlasSgemmOperation` of ONNX Runtime. Measured with version 1.31.1 (AVX-512; 1 to 32 threads; depth up to 4,096;
# batches up to 12): none of some 10,000 slabs that this accepts differed from the whole. Against a constant second
# matrix no slab of rows differed at all: that one is packed beforehand, in runs of 256.
# In float64 runs begin at 64 columns, threads get columns in eights, single rows have no way of their own, nothing is
# packed, and matrices of a stack are computed one after the other (x86-64 with AVX-512, ONNX Runtime 1.32.0, 1 to 4
# threads: of 36,003 slabs of 1,500 random MatMul and Gemm that this accepts none differed, of 5,125 refused 4,455 did;
# the same with 1.20.1, 1.24.4 and 1.28.0, 4,500 slabs each).
WORK_PER_THREAD = 65_536  # multiplications below which no further thread is asked
COLUMN_BLOCK = 16  # threads get columns in multiples of this
RUN = 128


class Product(NamedTuple):
    """`matrices` matrices [rows, columns], each sums of `depth` products.

    `is_turned` tells that the first factor is stored transposed, `is_scaled` that the product is multiplied by a
    factor other than 1. `is_double`: of float64, of which the runtime computes one matrix after the other, each by
    all threads.
    """

    rows: int
    columns: int
    depth: int
    matrices: int
    is_turned: bool
    is_scaled: bool
    is_double: bool = False

    @property
    def block(self) -> int:
        """Threads get columns in multiples of this."""
        return COLUMN_BLOCK // 2 if self.is_double else COLUMN_BLOCK


def has_same_bits(whole: Product, part: Product, first_column: int, threads: int) -> bool:
    """Whether a part, whose columns begin at `first_column` of the whole, has its bits on up to `threads` threads."""
    counts = range(1, threads + 1)
    if whole.is_double:
        whole, part = (each._replace(matrices=1) for each in (whole, part))
        if whole == part:
            return True
    is_same_matrix = whole.matrices > 1 and part == whole._replace(matrices=part.matrices)
    if is_same_matrix and all(_sharers(whole, count) == _sharers(part, count) for count in counts):
        return True  # as many threads share each matrix, and cut it in the same way
    # else a product like any other
    is_vector = min(whole.columns, part.columns) == 1 and not whole.is_scaled and not whole.is_double
    if is_vector or _may_run_by_row(part, counts) or _may_run_by_row(whole, counts):
        return False
    if whole.depth <= RUN:
        return True
    teams = {(_sharers(whole, count), _sharers(part, count)) for count in counts}
    wanted = slice(first_column, first_column + part.columns)
    return all(_runs(whole, ours)[wanted] == _runs(part, theirs) for ours, theirs in teams)


@dataclass(frozen=True)
class Span:
    """The least and the most of a size."""

    least: int
    most: int


def have_rows_same_bits(rows: Span, columns: Span, depth: Span, threads: int) -> bool:
    """Whether `has_same_bits` holds for any two products that differ in their rows only, all sizes within these spans.

    No thread computes a single row where each gets two at least. Then short sums are one run; and with no more columns
    than rows the length of runs depends on columns and depth alone, which both products share. So what is asked for
    here follows from the ends of the spans; False says nothing.
    """
    if rows.least < 2 * threads or columns.least < 2:
        return False
    return depth.most <= RUN or columns.most <= rows.least


def have_matrices_same_bits(least: int, threads: int) -> bool:
    """Whether `has_same_bits` holds for any two stacks of the same matrices, of which the shorter has so many.

    Each thread computes whole matrices then. A single matrix is no stack.
    """
    return least >= max(2, threads)


def _may_run_by_row(product: Product, counts: range) -> bool:
    """Whether some thread may compute a single row; only plain products of one row go their own way."""
    if product.is_turned or product.is_scaled or product.is_double:
        return False
    if product.columns > product.rows:
        return product.rows == 1
    return any(product.rows // _sharers(product, count) == 1 for count in counts)


def _sharers(product: Product, threads: int) -> int:
    """How many threads share one matrix: they divide columns where there are more columns than rows, else rows."""
    work = product.rows * product.columns * product.depth
    asked = min(work // WORK_PER_THREAD + 1, threads)
    blocks = -(-product.columns // product.block)
    return min(-(-asked // product.matrices), blocks if product.columns > product.rows else product.rows)


def _runs(product: Product, sharers: int) -> list[int]:
    """How long the runs are, by column."""
    if product.columns <= product.rows:
        return [_run(product, product.columns)] * product.columns
    # Threads share whole blocks of columns; the first ones have one more.
    each, more = divmod(-(-product.columns // product.block), sharers)
    found, left = list[int](), product.columns
    for thread in range(sharers):
        columns = min(left, (each + (thread < more)) * product.block)
        left -= columns
        found += [_run(product, columns)] * columns
    return found


def first_run(rows: int, columns: int, depth: int, is_turned: bool, threads: int) -> int:
    """How many terms each run has of a product that is computed in pieces of whole runs, or 0 where that is not known.

    On any number of threads up to that many, and however many threads share a piece.
    """
    whole = Product(rows, columns, depth, 1, is_turned, is_scaled=False)
    if depth <= RUN or _may_run_by_row(whole, range(1, threads + 1)):
        return 0
    found = {run for sharers in range(1, threads + 1) for run in _runs(whole, sharers)}
    return found.pop() if len(found) == 1 else 0


def _run(product: Product, columns: int) -> int:
    """Length of a run where one thread computes so many columns."""
    run, width = RUN, RUN // 2 if product.is_double else RUN
    while columns < product.depth and not product.is_turned and width > COLUMN_BLOCK and width // 2 >= columns:
        run, width = run * 2, width // 2
    return min(run, product.depth)


ACTIVATIONS = frozenset({"", "Relu", "LeakyRelu", "Sigmoid", "Tanh"})  # the same for an element wherever it lies
REASSOCIATED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})  # fine enough for sums in any order


DOUBLES = frozenset({("", "MatMul"), ("", "Gemm")})  # of which float64 was measured


@dataclass(frozen=True)
class Factors:
    """Where the two matrices of a product stand among the inputs, how each is stored, and whether there is a scale.

    `is_turned`: its last two axes are swapped. `leads`: the axis before the last is stored first, before those of the
    batch ([rows, batch, depth] for [batch, rows, depth]); swapping comes after that. The runtime reads such factors
    where they lie, with longer steps from row to row, and multiplies the same numbers in the same order.
    """

    places: tuple[int, int]
    is_turned: tuple[bool, bool] = (False, False)
    is_scaled: bool = False
    leads: tuple[bool, bool] = (False, False)

    def stored_axes(self, op: OpView) -> tuple[tuple[int, ...], ...]:
        """Of each factor, at which axis each axis of the stack of matrices is stored."""
        ranks = [len(op.input_shape(place)) for place in self.places]
        return tuple(
            (*range(1, rank - 1), 0, rank - 1) if leads else tuple(range(rank))
            for rank, leads in zip(ranks, self.leads, strict=True)
        )

    def shapes(self, op: OpView) -> tuple[Shape, ...]:
        """The factors' shapes as stacks of matrices."""
        if not any(self.leads):
            return tuple(op.input_shape(place) for place in self.places)
        stored = zip(self.places, self.stored_axes(op), strict=True)
        return tuple(tuple(op.input_shape(place)[axis] for axis in axes) for place, axes in stored)


def matmul(op: OpView, slab: Slab) -> Sliced | None:
    """MatMul and its fused forms with transposed factors and batches and a scale; vectors are refused."""
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


def is_one_packed(op: OpView, right: Shape) -> bool:
    """Whether the second factor, of that shape, is one constant matrix that is packed alike for any number of rows."""
    return op.is_fixed(1) and len(right) == 2 and element_type(op) != ir.DataType.DOUBLE


def _factors(op: OpView) -> Factors:
    is_turned = (op.integer("transA", 0) != 0, op.integer("transB", 0) != 0)
    leads = (op.integer("transBatchA", 0) != 0, op.integer("transBatchB", 0) != 0)
    alpha = op.node.attributes.get("alpha")
    return Factors((0, 1), is_turned, alpha is not None and alpha.as_float() != 1.0, leads)


def _float_product(op: OpView, slab: Slab, factors: Factors) -> Sliced | None:
    needs = _needs(op, slab, factors)
    is_exact = needs is not None and _is_exact(op, slab, factors, needs)
    return Sliced(_as_stored(op, factors, needs), slab) if needs is not None and is_exact else None


def _integer_product(op: OpView, slab: Slab, places: tuple[int, int]) -> Sliced | None:
    """By rows and matrices; what is given beside the matrices must be of one element, or one per column."""
    others = (shape for place, shape in enumerate(op.inputs) if shape is not None and place not in places)
    if slab.axis == len(op.output_shape) - 1 or any(len(shape) > 1 for shape in others):
        return None
    factors = Factors(places)
    needs = _needs(op, slab, factors)
    return None if needs is None else Sliced(_as_stored(op, factors, needs), slab)


def _needs(op: OpView, slab: Slab, factors: Factors) -> tuple[Slab | None, ...] | None:
    """What each input gives to a slab of the product, by the axes of stacks of matrices.

    None where a factor is a vector, or a constant's columns.
    """
    rank, extent = len(op.output_shape), op.output_shape[slab.axis]
    left, right = shapes = factors.shapes(op)
    if min(len(left), len(right)) < 2:
        return None
    stacks = {**dict(enumerate(op.inputs)), **dict(zip(factors.places, shapes, strict=True))}
    needs = [broadcast_need(shape, rank, extent, slab) for shape in stacks.values()]
    first, second = factors.places
    if slab.axis == rank - 1:
        if op.weights[second]:
            return None
        needs[first], needs[second] = None, slab._replace(axis=len(right) - (2 if factors.is_turned[1] else 1))
    elif slab.axis == rank - 2:
        needs[first], needs[second] = slab._replace(axis=len(left) - (1 if factors.is_turned[0] else 2)), None
    return tuple(needs)


def _as_stored(op: OpView, factors: Factors, needs: tuple[Slab | None, ...]) -> tuple[Slab | None, ...]:
    """The same by the axes along which the factors are stored."""
    if not any(factors.leads):
        return needs
    found = list(needs)
    for place, axes in zip(factors.places, factors.stored_axes(op), strict=True):
        need = found[place]
        found[place] = None if need is None else need._replace(axis=axes[need.axis])
    return tuple(found)


def _is_exact(op: OpView, slab: Slab, factors: Factors, needs: tuple[Slab | None, ...]) -> bool:
    """Whether the slab has the bits of the whole, or need not; sums of integers, or against constants, always have."""
    kind = element_type(op)
    if op.may_reassociate and kind in REASSOCIATED:
        return True
    # other processors compute products of float64 in ways that were not measured
    is_double = kind == ir.DataType.DOUBLE and op.key in DOUBLES and not op.is_portable
    if kind is None or not (kind == ir.DataType.FLOAT or is_double or kind.is_integer()):
        return False
    left, right = factors.shapes(op)
    if kind.is_integer() or is_one_packed(op, right):
        return True
    whole = _product(left, right, factors)._replace(is_double=is_double)
    part = _product(_cut(left, needs[0]), _cut(right, needs[1]), factors)._replace(is_double=is_double)
    return has_same_bits(whole, part, slab.start if slab.axis == len(op.output_shape) - 1 else 0, op.threads)


def _cut(shape: Shape, need: Slab | None) -> Shape:
    return shape if need is None else (*shape[: need.axis], need.extent, *shape[need.axis + 1 :])


def _product(left: Shape, right: Shape, factors: Factors) -> Product:
    """Sizes as the runtime sees them: matrices that share the second factor are one, of all their rows."""
    is_turned = factors.is_turned
    depth, rows = left[-2:] if is_turned[0] else (left[-1], left[-2])
    columns = right[-2] if is_turned[1] else right[-1]
    pairs = itertools.zip_longest(left[-3::-1], right[-3::-1], fillvalue=1)
    batch = math.prod(max(pair) if min(pair) else 0 for pair in pairs)
    if not is_turned[0] and not any(factors.leads) and math.prod(right[:-2]) == 1:
        rows, batch = rows * math.prod(left[:-2]), 1
    return Product(rows, columns, depth, batch, is_turned[0], factors.is_scaled)
