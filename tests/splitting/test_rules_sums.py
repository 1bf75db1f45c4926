"""Ops cut along what they add up: tile by tile, each adding to the sum of those before, they have the whole's bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from remat_cli.splitting.rules.sums import TERMS_AT_ONCE
from remat_cli.splitting.rules.table import RULES, added_up, slice_op
from remat_cli.splitting.tiles.op_view import SUMMED, OpView, Slab, Sliced, SumSoFar, tile_bounds
from tests.splitting.op_cases import ints
from tests.splitting.sliced_op import Array, OneOp, assert_close, assert_equal, cut, run, view_of

THREADS = (1, 2, 4)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def products(rows: int, columns: int, depth: int, **turned: int) -> OneOp:
    left = (depth, rows) if turned.get("transA") else (rows, depth)
    right = (columns, depth) if turned.get("transB") else (depth, columns)
    return OneOp("Gemm", (drawn(*left), drawn(*right)), turned)


def with_bias(op: OneOp, *shape: int) -> OneOp:
    return replace(op, inputs=(*op.inputs, drawn(*shape)))


PICTURES, GRADIENTS = drawn(1, 8, 3, 9, 7), drawn(5, 8, 1, 9, 7)
EXACT = (
    (OneOp("ReduceSum", (drawn(12, 5, 7), ints(0)), {"keepdims": 0}, (1,)), (2, 3, 5, 12)),
    (OneOp("ReduceSum", (drawn(12, 300), ints(0)), {"keepdims": 1}, (1,)), (4, 12)),
    (products(40, 24, 1024, transA=1), (2, 4, 8)),
    (with_bias(products(40, 24, 512, transA=1), 24), (2, 4)),
    (products(192, 576, 512, transA=1), (2, 4)),
    (products(1, 40, 96), (2, 3, 8, 24)),
    (
        OneOp(
            "ScatterElements",
            (drawn(5, 4), np.array([[0, 1, 2, 4]] * 6 + [[3, 1, 0, 0]] * 6, np.int64), drawn(12, 4)),
            {"axis": 0, "reduction": "add"},
        ),
        (2, 5, 12),
    ),
)
CLOSE = (
    OneOp("ReduceSum", (drawn(12, 5, 7), ints(0, 2)), {"keepdims": 0}, (1,)),
    OneOp("MatMul", (drawn(9, 64), drawn(64, 11))),
    products(40, 24, 96),
    OneOp("Conv", (PICTURES, GRADIENTS), {"pads": [0, 1, 1, 0, 1, 1]}),
)


def tile_by_tile(op: OneOp, view: OpView, bounds: tuple[int, ...], threads: int) -> Array | None:
    """What tiles add up, each after those before; None where the rule refuses one of them."""
    found: Array | None = None
    for start, stop in pairwise(bounds):
        sliced = slice_op(view, Slab(SUMMED, start, stop))
        if sliced is None:
            return None
        found = added(op, sliced, found, threads)
    return found


def added(op: OneOp, sliced: Sliced, before: Array | None, threads: int) -> Array:
    needs = zip(op.inputs, sliced.needs, strict=True)
    inputs = [value if value is None or need is None else cut(value, need) for value, need in needs]
    if before is not None and sliced.so_far is SumSoFar.FIRST_ROW:
        inputs[0] = np.concatenate([before, inputs[0]])
    elif before is not None and isinstance(sliced.so_far, int):
        inputs = [*inputs, None][: max(len(inputs), sliced.so_far + 1)]
        inputs[sliced.so_far] = before
    part = run(replace(op, inputs=tuple(inputs), attributes={**op.attributes, **sliced.attributes}), threads)[0]
    assert part is not None
    return part if before is None or sliced.so_far is not SumSoFar.ADDED else before + part


@pytest.mark.parametrize(("op", "counts"), EXACT, ids=lambda each: getattr(each, "op_type", ""))
@pytest.mark.parametrize("threads", THREADS)
def test_sums_of_tiles_have_the_bits_of_the_whole(op: OneOp, counts: tuple[int, ...], threads: int) -> None:
    whole = run(op, threads)
    adding = added_up(view_of(op, whole))
    assert adding is not None
    for count in counts:
        found = tile_by_tile(op, view_of(op, whole), tile_bounds(adding.length, count), threads)
        assert found is not None, count
        assert whole[0] is not None
        assert_equal(found, whole[0], f"{op.op_type} in {count}")


@pytest.mark.parametrize("op", CLOSE, ids=lambda op: op.op_type)
def test_other_sums_are_cut_where_bits_may_differ_and_are_close(op: OneOp) -> None:
    whole = run(op)
    view = view_of(op, whole)
    adding = added_up(view)
    assert adding is not None
    bounds = tile_bounds(adding.length, 4)
    assert tile_by_tile(op, view, bounds, 1) is None
    found = tile_by_tile(op, replace(view, may_reassociate=True), bounds, 1)
    assert found is not None
    assert whole[0] is not None
    assert_close(found, whole[0], op.op_type)


def test_products_are_cut_between_runs_only() -> None:
    """Elsewhere the sums would be others."""
    op = products(40, 24, 1024, transA=1)
    view = view_of(op, run(op))
    assert slice_op(view, Slab(SUMMED, 0, 256)) is not None
    assert slice_op(view, Slab(SUMMED, 0, 200)) is None
    row = products(1, 40, 96)
    view = view_of(row, run(row))
    assert slice_op(view, Slab(SUMMED, TERMS_AT_ONCE, 96)) is not None
    assert slice_op(view, Slab(SUMMED, 1, 96)) is None


def test_what_adds_up_is_told_by_the_record() -> None:
    adds = {op_type for (_, op_type), rule in RULES.items() if rule.adds is not None}
    assert adds >= {"ReduceSum", "Gemm", "MatMul", "Conv", "ScatterElements"}
    weights = OneOp("Conv", (drawn(1, 8, 9, 7), drawn(5, 8, 3, 3)), {}, (1,))
    assert added_up(view_of(weights, run(weights))) is None


def test_a_row_of_which_all_is_summed_is_not_cut_by_rows() -> None:
    op = OneOp("ReduceSum", (drawn(64, 1), ints(0)), {"keepdims": 0}, (1,))
    view = view_of(op, run(op))
    assert slice_op(view, Slab(SUMMED, 0, 32)) is None
