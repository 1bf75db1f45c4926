"""What is said of all sizes at once follows from what is said of each."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.values.sizes import Dim, SizeFamily, SizeLimit, SizeRange, Term, number
from remat_cli.splitting.loops.loop_bits import SizedOp, Tiling, _all_sizes, _InTiles, paths_of_sizes
from remat_cli.splitting.rules.matrix import Product, Span, has_same_bits, have_matrices_same_bits, have_rows_same_bits

SIZE = st.integers(1, 300)
THREADS = st.sampled_from([1, 2, 4, 8])


@given(
    st.builds(Product, SIZE, SIZE, SIZE, st.integers(1, 16), st.just(False), st.booleans(), st.booleans()),
    SIZE,
    THREADS,
)
def test_rows_that_are_the_same_by_their_ends_are_the_same(product, other, threads):
    few, whole = sorted((product.rows, other))
    columns, depth = product.columns, product.depth
    if not have_rows_same_bits(Span(few, whole), Span(columns, columns), Span(depth, depth), threads):
        return
    products = [product._replace(rows=count) for count in (whole, few)]
    assert has_same_bits(products[0], products[1], 0, threads)


@given(
    st.builds(Product, SIZE, SIZE, SIZE, st.integers(1, 40), st.booleans(), st.booleans(), st.booleans()), SIZE, THREADS
)
def test_stacks_of_enough_matrices_have_the_bits_of_longer_ones(product, more, threads):
    if have_matrices_same_bits(product.matrices, threads):
        assert has_same_bits(product._replace(matrices=product.matrices + more), product, 0, threads)


@given(st.integers(1, 200), st.integers(1, 5000))
def test_tiles_cover_all_and_none_is_shorter_than_half(rows, length):
    tiling = Tiling(rows)
    bounds = tiling.bounds(length)
    assert (bounds[0][0], bounds[-1][1]) == (0, length)
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(bounds))
    extents = {stop - start for start, stop in bounds}
    assert extents <= tiling.extents(length)
    assert max(extents) <= rows
    assert len(bounds) == 1 or min(extents) >= tiling.least


@given(st.integers(1, 40), st.integers(1, 5000), st.sampled_from((2, 4, 16)))
def test_tiles_of_rows_that_are_computed_together_begin_with_them(packets, length, together):
    tiling = Tiling(packets * together, together)
    bounds = tiling.bounds(length)
    assert (bounds[0][0], bounds[-1][1], len(bounds)) == (0, length, tiling.count(length))
    assert all(stop == start and start % together == 0 for (_, stop), (start, _) in itertools.pairwise(bounds))
    extents = {stop - start for start, stop in bounds}
    assert extents <= tiling.extents(length)
    assert max(extents) <= tiling.rows
    assert len(bounds) == 1 or min(extents) >= tiling.least >= 1


def dim(*names, factor=1):
    return Dim(tuple(Term((name,), factor) for name in names))


def reader(*dims, length):
    return SizedOp(None, ((*dims, number(7)),), (tuple(dims),), 0, length)


@pytest.mark.parametrize(
    ("op", "is_by_sum"),
    [
        (reader(dim("past", "seq"), dim("batch"), length=dim("past", "seq")), True),
        (reader(dim("past", "seq"), dim("seq"), length=dim("past", "seq")), False),
        (reader(dim("past", "seq"), length=dim("seq")), False),
        (reader(Dim((Term(("past", "batch")), Term(("seq", "batch")))), length=dim("past", "seq")), False),
        (reader(Dim((Term(("past",), 2), Term(("seq",)))), length=dim("past", "seq")), False),
    ],
)
def test_two_sizes_that_are_only_added_rise_one_after_the_other(op, is_by_sum):
    ranges = {"batch": range(1, 3), "past": range(2, 9), "seq": range(1, 6)}
    family = SizeFamily(tuple(SizeRange(name, each[0], each[-1]) for name, each in ranges.items()))
    paths = paths_of_sizes(op, ranges, family)
    chosen = [{name: size for part in parts for name, size in part.items()} for parts in itertools.product(*paths)]
    every = [dict(zip(ranges, sizes, strict=True)) for sizes in itertools.product(*ranges.values())]
    seen, wanted = ({(s["batch"], s["past"] + s["seq"]) for s in sizes} for sizes in (chosen, every))
    assert seen == wanted
    assert (len(chosen) < len(every)) is is_by_sum
    limited = msgspec.structs.replace(family, limits=(SizeLimit((("batch", "seq"),), 8),))
    assert len(list(itertools.product(*paths_of_sizes(op, ranges, limited)))) == len(every)


SEQ, PAST, FOUR = dim("seq"), dim("past", "seq"), number(4)
HALF = Dim((Term(("seq",)),), 1, 2)
ROWS_OF_ALL, FOUR_OF_ALL = Dim((Term(("batch", "seq")),)), Dim((Term(("batch",), 4),))


@pytest.mark.parametrize(
    ("read", "read_axis", "made", "axis", "is_alike"),
    [
        ((dim("batch"), FOUR, SEQ, PAST), 2, (FOUR_OF_ALL, SEQ, PAST), 1, True),
        ((FOUR_OF_ALL, SEQ, PAST), 1, (dim("batch"), FOUR, SEQ, PAST), 2, True),
        ((SEQ, FOUR, number(16)), 0, (SEQ, number(64)), 0, True),
        ((HALF, number(3), SEQ), 2, (number(3), HALF, SEQ), 2, True),
        ((ROWS_OF_ALL, number(8)), 0, (dim("batch"), SEQ, number(8)), 1, False),
        ((SEQ, PAST), 0, (PAST, SEQ), 1, False),
        ((dim("batch"), FOUR, SEQ), 2, (dim("batch"), number(2), SEQ), 2, False),
    ],
)
def test_regrouping_is_the_same_for_all_sizes_where_the_same_lies_before_the_axis(
    read, read_axis, made, axis, is_alike
):
    assert SizedOp(None, (read, None), (made,), axis, made[axis], read_axis).is_regrouped_alike is is_alike
    if is_alike:
        sizes = {"batch": 3, "seq": 9, "past": 2}
        before, after = ([each.at(sizes) for each in dims] for dims in (read, made))
        whole = np.arange(math.prod(before)).reshape(before)
        part = whole.take(range(2, 5), read_axis)
        after_part = [*after[:axis], 3, *after[axis + 1 :]]
        assert np.array_equal(part.reshape(after_part), whole.reshape(after).take(range(2, 5), axis))


def test_sizes_on_which_no_shape_depends_leave_the_others_all_that_limits_do():
    ranges = (SizeRange("past", 0, 40), SizeRange("seq", 1, 9), SizeRange("items", 1, 3))
    family = SizeFamily(ranges, limits=(SizeLimit((("past",), ("seq",)), 40),))
    op = replace(reader(dim("seq"), length=dim("seq")), op=SimpleNamespace(key=("", "Relu"), threads=1))
    found = list(_all_sizes(op, _InTiles(Tiling(2), family, None)))
    assert [each["seq"] for each in found] == list(range(3, 10))
    assert all(each["past"] == 40 - each["seq"] and each["items"] == 3 for each in found)
