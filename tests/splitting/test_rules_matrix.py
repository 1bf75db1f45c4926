from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.rules.matrix import Product, has_same_bits, is_one_packed
from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import Array, OneOp, Outcome, check_slices, run, view_of

FEW = settings(deadline=None, max_examples=12, derandomize=True)
SIZES = st.sampled_from((2, 3, 7, 16, 33, 64, 100, 129))
DEPTHS = st.sampled_from((1, 5, 64, 128, 129, 300, 1024))
THREADS = st.sampled_from((1, 2, 3, 4))


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def product(left: Array, right: Array, op_type: str = "MatMul", **more: Any) -> OneOp:
    return OneOp(op_type, (left, right, *more.pop("others", ())), **more)


@FEW
@given(SIZES, SIZES, DEPTHS, THREADS, st.booleans())
def test_matmul_by_rows_and_columns(rows: int, columns: int, depth: int, threads: int, is_constant: bool) -> None:
    weights = (1,) if is_constant else ()
    op = product(noise(rows, depth), noise(depth, columns), weights=weights)
    by_rows, by_columns = (check_slices(op, axis, threads=threads) for axis in (0, 1))
    assert by_rows.all_exact if is_constant else by_rows
    assert by_columns.all_refused if is_constant else by_columns


@FEW
@given(SIZES, SIZES, DEPTHS, st.sampled_from(((4,), (2, 3), (1, 5))), THREADS)
def test_matmul_of_a_batch(rows: int, columns: int, depth: int, batch: tuple[int, ...], threads: int) -> None:
    op = product(noise(*batch, rows, depth), noise(*batch, depth, columns))
    for axis in range(len(batch) + 2):
        check_slices(op, axis, threads=threads)


@pytest.mark.parametrize("shapes", [((3, 40, 64), (64, 20)), ((40, 64), (3, 64, 20)), ((1, 2, 40, 64), (3, 1, 64, 20))])
def test_matmul_broadcasts_batches(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    op = product(noise(*shapes[0]), noise(*shapes[1]))
    assert check_slices(op, 0, threads=2).all_exact
    for axis in (1, 2):
        assert check_slices(op, axis, threads=2).exact


@FEW
@given(SIZES, SIZES, DEPTHS, st.tuples(st.booleans(), st.booleans()), st.sampled_from((1.0, 0.125)), THREADS)
def test_fused_matmul(
    rows: int, columns: int, depth: int, turned: tuple[bool, bool], alpha: float, threads: int
) -> None:
    left = noise(3, depth, rows) if turned[0] else noise(3, rows, depth)
    right = noise(3, columns, depth) if turned[1] else noise(3, depth, columns)
    attributes = {"transA": int(turned[0]), "transB": int(turned[1]), "alpha": alpha}
    op = product(left, right, "FusedMatMul", attributes=attributes, domain="com.microsoft", opset=1)
    for axis in range(3):
        check_slices(op, axis, threads=threads)


def stored(matrices: Array, is_turned: bool, leads: bool) -> Array:
    """A stack of matrices as FusedMatMul takes it: turned, its rows then before the batch."""
    turned = np.swapaxes(matrices, -1, -2) if is_turned else matrices
    return np.ascontiguousarray(np.moveaxis(turned, -2, 0) if leads else turned)


@FEW
@given(
    SIZES,
    SIZES,
    DEPTHS,
    st.sampled_from(((4,), (2, 3), (1, 5), (1,))),
    st.tuples(*(st.booleans(),) * 4, st.sampled_from((1.0, 0.125))),
    THREADS,
)
def test_fused_matmul_of_factors_whose_batches_are_transposed(
    rows: int,
    columns: int,
    depth: int,
    batch: tuple[int, ...],
    form: tuple[bool, bool, bool, bool, float],
    threads: int,
) -> None:
    turned, leads, alpha = form[:2], form[2:4], form[4]
    left, right = noise(*batch, rows, depth), noise(*batch, depth, columns)
    names = ("transA", "transB", "transBatchA", "transBatchB")
    attributes = {**dict(zip(names, map(int, form), strict=False)), "alpha": alpha}
    factors = (stored(left, turned[0], leads[0]), stored(right, turned[1], leads[1]))
    op = product(*factors, "FusedMatMul", attributes=attributes, domain="com.microsoft", opset=1)
    np.testing.assert_allclose(run(op)[0], alpha * (left @ right), rtol=1e-3, atol=1e-3)
    for axis in range(len(batch) + 2):
        check_slices(op, axis, threads=threads)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_products_of_transposed_batches_are_cut_where_plain_ones_are(threads: int) -> None:
    left, right = noise(2, 4, 96, 32), noise(2, 4, 32, 128)
    plain = product(left, right, "FusedMatMul", attributes={"alpha": 0.25}, domain="com.microsoft", opset=1)
    attributes = {"alpha": 0.25, "transBatchA": 1, "transBatchB": 1, "transB": 1}
    factors = (stored(left, False, True), stored(right, True, True))
    led = product(*factors, "FusedMatMul", attributes=attributes, domain="com.microsoft", opset=1)
    for axis in range(4):
        assert check_slices(led, axis, threads=threads) == check_slices(plain, axis, threads=threads)
        assert check_slices(led, axis, threads=threads).exact


@FEW
@given(SIZES, SIZES, DEPTHS, st.tuples(st.booleans(), st.booleans()), st.integers(0, 4), THREADS)
def test_gemm_with_every_bias(
    rows: int, columns: int, depth: int, turned: tuple[bool, bool], bias: int, threads: int
) -> None:
    left = noise(depth, rows) if turned[0] else noise(rows, depth)
    right = noise(columns, depth) if turned[1] else noise(depth, columns)
    added = noise(*((columns,), (1, columns), (rows, columns), (rows, 1), (1,))[bias])
    for weights in ((), (1, 2)):
        attributes = {"transA": int(turned[0]), "transB": int(turned[1]), "alpha": 0.5 + bias / 4, "beta": 0.75}
        op = product(left, right, "Gemm", others=(added,), attributes=attributes, weights=weights)
        by_rows = check_slices(op, 0, threads=threads)
        assert by_rows.all_exact if weights else by_rows
        check_slices(op, 1, threads=threads)


@pytest.mark.parametrize(
    ("activation", "is_sliced"),
    [("Relu", True), ("LeakyRelu", True), ("Sigmoid", True), ("Tanh", True), ("Elu", False)],
)
def test_fused_gemm_with_activations_of_one_element(activation: str, is_sliced: bool) -> None:
    attributes = {"activation": activation, "activation_alpha": 0.1}
    op = product(
        noise(51, 70), noise(70, 33), "FusedGemm", attributes=attributes, weights=(1,), domain="com.microsoft", opset=1
    )
    outcome = check_slices(op, 0)
    assert outcome.all_exact if is_sliced else outcome.all_refused


@pytest.mark.parametrize("depth", [3, 64, 300])
def test_products_of_integers_are_cut_anywhere_but_along_columns(depth: int) -> None:
    rng = np.random.default_rng(depth)
    left = rng.integers(0, 255, (3, 20, depth), dtype=np.uint8)
    right = rng.integers(-127, 127, (depth, 33), dtype=np.int8)
    zero, other = np.array([7], np.uint8), np.array([3], np.int8)
    op = product(left, right, "MatMulInteger", others=(zero, other))
    scale = np.array([0.01], np.float32)
    inputs = (left, scale, zero, right, scale, other, np.array([depth / 50], np.float32), zero)
    for each in (op, OneOp("QLinearMatMul", inputs)):
        assert check_slices(each, 0, threads=2).all_exact
        assert check_slices(each, 1, threads=2).all_exact
        assert check_slices(each, 2).all_refused


def test_integers_by_single_rows() -> None:
    op = product(np.arange(60).reshape(6, 10), np.arange(40).reshape(10, 4))
    assert check_slices(op, 0).all_exact
    assert check_slices(op, 1).all_exact


@pytest.mark.parametrize(
    "op",
    [
        product(noise(30), noise(30, 20)),
        product(noise(20, 30), noise(30)),
        product(noise(20, 30), noise(30, 1)),
    ],
)
def test_vectors_are_refused(op: OneOp) -> None:
    assert check_slices(op, 0).all_refused


def test_scores_times_values_need_as_many_rows_as_columns() -> None:
    def outcome(extent: int) -> Outcome:
        return check_slices(product(noise(2, 300, 300), noise(2, 300, 64)), 1, [Slab(1, 8, 8 + extent)], threads=2)

    assert outcome(192).all_exact
    assert outcome(32).all_refused


def test_a_single_row_goes_its_own_way() -> None:
    whole = Product(256, 256, 64, 8, False, False)
    assert not has_same_bits(whole, whole._replace(rows=1), 0, 64)
    assert has_same_bits(whole, whole._replace(rows=2), 0, 64)
    scaled = whole._replace(is_scaled=True)
    assert has_same_bits(scaled, scaled._replace(rows=1), 0, 64)


def test_columns_of_deep_products_must_be_shared_out_alike() -> None:
    whole = Product(128, 1024, 64, 1, False, False)
    assert has_same_bits(whole, whole._replace(columns=100), 17, 64)
    deep = whole._replace(depth=512)
    assert not has_same_bits(deep, deep._replace(columns=100), 17, 64)


@FEW
@given(SIZES, DEPTHS, st.booleans(), THREADS)
def test_whole_matrices_of_one_column_or_row_are_cut_where_threads_share_them_alike(
    length: int, depth: int, is_row: bool, threads: int
) -> None:
    left = noise(6, 1 if is_row else length, depth)
    outcome = check_slices(product(left, noise(6, depth, length if is_row else 1)), 0, threads=threads)
    if length * depth < 65_536:  # one thread is enough for each
        assert outcome.all_exact


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(("rows", "depth"), [(1024, 192), (37, 768), (130, 2000)])
def test_scaled_products_with_a_vector_are_cut_by_rows(rows: int, depth: int, threads: int) -> None:
    left, right = noise(rows, depth), noise(depth, 1)
    op = OneOp("FusedMatMul", (left, right), {"alpha": 1 / depth}, (), "com.microsoft", 1)
    slabs = [Slab(0, 0, rows // 2), Slab(0, 3, 9), Slab(0, rows // 2, rows)]
    assert check_slices(op, 0, slabs, threads=threads).all_exact
    plain = replace(op, attributes={})
    assert check_slices(plain, 0, slabs, threads=threads).all_refused


@FEW
@given(SIZES, SIZES, DEPTHS, st.sampled_from(((), (3,), (2, 2))), THREADS, st.booleans())
def test_products_of_float64(
    rows: int, columns: int, depth: int, batch: tuple[int, ...], threads: int, is_constant: bool
) -> None:
    right = noise(depth, columns) if is_constant else noise(*batch, depth, columns)
    op = product(noise(*batch, rows, depth) / 3.0, right.astype(np.float64), weights=(1,) if is_constant else ())
    op = replace(op, inputs=tuple(np.asarray(each, np.float64) for each in op.inputs))
    outcomes = [check_slices(op, axis, threads=threads) for axis in range(len(batch) + 2)]
    if depth <= 128:
        assert outcomes[-2].all_exact, "one run of terms, however rows are cut"
    if batch and not is_constant:
        assert outcomes[0].all_exact, "matrices are computed one after the other"


@FEW
@given(SIZES, SIZES, DEPTHS, st.booleans(), st.booleans(), THREADS)
def test_gemm_of_float64(
    rows: int, columns: int, depth: int, first_turned: bool, second_turned: bool, threads: int
) -> None:
    left, right = noise(rows, depth).astype(np.float64), noise(depth, columns).astype(np.float64)
    inputs = (left.T.copy() if first_turned else left, right.T.copy() if second_turned else right)
    op = product(*inputs, "Gemm", attributes={"transA": int(first_turned), "transB": int(second_turned)})
    for axis in (0, 1):
        check_slices(op, axis, threads=threads)


def test_long_sums_of_float64_in_few_columns_are_refused_where_they_differ() -> None:
    """Two threads share the columns of the part, which has more of them than rows, and not those of the whole."""
    whole = Product(64, 32, 513, 1, is_turned=False, is_scaled=False, is_double=True)
    assert not has_same_bits(whole, whole._replace(rows=4), 0, threads=2)
    short = whole._replace(depth=100)
    assert has_same_bits(short, short._replace(rows=4), 0, threads=2)
    stack = whole._replace(matrices=3)
    assert has_same_bits(stack, stack._replace(matrices=1), 0, threads=4)


def test_a_constant_matrix_of_float64_is_not_packed() -> None:
    for kind, is_packed in ((np.float32, True), (np.float64, False)):
        op = product(noise(4, 30).astype(kind), noise(30, 20).astype(kind), weights=(1,))
        assert is_one_packed(view_of(op, run(op)), (30, 20)) is is_packed


def test_products_of_float64_stay_whole_in_files_for_other_processors() -> None:
    rng = np.random.default_rng(0)
    op = OneOp("MatMul", (rng.standard_normal((3, 64, 32)), rng.standard_normal((3, 32, 48))))
    view, slab = view_of(op, run(op)), Slab(0, 0, 2)
    assert slice_op(view, slab) is not None
    assert slice_op(replace(view, is_portable=True), slab) is None
