from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import Array, OneOp, check_slices

SHAPES = st.tuples(*[st.sampled_from((1, 2, 3, 16, 33))] * 4)
AXES = st.sets(st.integers(-4, 3), min_size=1, max_size=3).filter(lambda axes: len({a % 4 for a in axes}) < 4)
THREADS = st.sampled_from((1, 2, 4))
SELDOM = ("Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Max")


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).random(shape, np.float32) + np.float32(0.5)


def reduction(name: str, shape: tuple[int, ...], axes: set[int], keepdims: int, opset: int = 18) -> OneOp:
    if opset < 13:
        return OneOp(f"Reduce{name}", (noise(*shape),), {"keepdims": keepdims, "axes": sorted(axes)}, opset=opset)
    inputs = (noise(*shape), np.array(sorted(axes)))
    return OneOp(f"Reduce{name}", inputs, {"keepdims": keepdims}, (1,), opset=opset)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SHAPES, AXES, st.integers(0, 1), st.sampled_from(("Sum", "Mean")), THREADS)
def test_sums_and_means(shape: tuple[int, ...], axes: set[int], keepdims: int, name: str, threads: int) -> None:
    op = reduction(name, shape, axes, keepdims)
    for axis in range(4 if keepdims else 4 - len({a % 4 for a in axes})):
        check_slices(op, axis, threads=threads)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(SHAPES, AXES, st.sampled_from(SELDOM), st.sampled_from((11, 18)), THREADS)
def test_other_reductions_are_cut_anywhere(
    shape: tuple[int, ...], axes: set[int], name: str, opset: int, threads: int
) -> None:
    op = reduction(name, shape, axes, 1, opset)
    reduced = {axis % 4 for axis in axes}
    for axis in range(4):
        outcome = check_slices(op, axis, threads=threads)
        assert outcome.all_refused if axis in reduced else outcome.all_exact


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_means_over_lines_of_a_multiple_of_sixteen(threads: int) -> None:
    op = reduction("Mean", (3, 30, 768), {-1}, 1)
    assert check_slices(op, 0, threads=threads).all_exact
    assert check_slices(op, 1, threads=threads).all_exact


def test_means_over_odd_lines_begin_where_a_line_is_aligned() -> None:
    op = reduction("Mean", (64, 129), {-1}, 1)
    assert check_slices(op, 0, [Slab(0, 16, 40), Slab(0, 9, 25)]).all_exact
    short = reduction("Mean", (12, 129), {-1}, 1)
    assert check_slices(short, 0, [Slab(0, 3, 12)]).all_refused  # it would be the whole


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("shape", [(3, 197, 197), (2, 5, 40, 30, 7), (7, 65, 1, 33), (4, 50, 2, 24)])
def test_sums_over_odd_lines_behind_other_axes_take_some_lines_more(shape: tuple[int, ...], threads: int) -> None:
    op, most = reduction("Sum", shape, {-1}, 1), max(shape[:-1])
    axis = shape.index(most)
    slabs = [Slab(axis, at * most // 3, (at + 1) * most // 3) for at in range(3)] + [Slab(axis, 7, 9)]
    assert check_slices(op, axis, slabs, threads=threads).all_exact


def test_sums_over_a_middle_axis_need_more_items_than_threads() -> None:
    op = reduction("Sum", (130, 20, 40), {1}, 0)
    assert check_slices(op, 0, [Slab(0, 0, 64), Slab(0, 64, 130)], threads=4).all_exact
    assert check_slices(op, 0, [Slab(0, 0, 1), Slab(0, 5, 7)]).all_refused


@pytest.mark.parametrize("threads", [1, 8])
def test_sums_of_one_item_need_no_more_of_its_channels_than_threads_may_count(threads: int) -> None:
    op = reduction("Mean", (6, 32, 24, 45), {2}, 1)
    assert check_slices(op, 0, [Slab(0, 0, 1), Slab(0, 3, 4), Slab(0, 4, 6)], threads=threads).all_exact
    few = reduction("Mean", (6, 31, 24, 45), {2}, 1)
    assert check_slices(few, 0, [Slab(0, 3, 4)], threads=8).all_refused


@pytest.mark.parametrize("name", ["Sum", "Mean"])
def test_sums_in_double_precision_are_refused(name: str) -> None:
    inputs = (noise(16, 500, 64).astype(np.float64), np.array([1]))
    assert check_slices(OneOp(f"Reduce{name}", inputs, {}, (1,), opset=18), 2).all_refused


def test_axes_not_known_before_the_run_are_refused() -> None:
    op = OneOp("ReduceMax", (noise(4, 5), np.array([1])), opset=18)
    assert check_slices(op, 0).all_refused


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_place_of_the_best(name: str) -> None:
    op = OneOp(name, (noise(20, 7, 33),), {"axis": 1, "keepdims": 0})
    assert check_slices(op, 0, threads=2).all_exact
    assert check_slices(op, 1, threads=2).all_exact
