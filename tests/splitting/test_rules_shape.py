"""Ops that only move elements, in slabs: along every axis they are exact, or refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.op_view import Slab
from tests.splitting.sliced_op import NCHWC, OneOp, block_size, check_slices, view_of


def counted(*shape: int) -> np.ndarray:
    """Every element different, so that a moved one is noticed."""
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def refused_axes(op: OneOp, rank: int) -> list[int]:
    """Axes along which every slab is refused; along all others every slab is exact."""
    outcomes = [check_slices(op, axis) for axis in range(rank)]
    assert all(outcome.all_exact or outcome.all_refused for outcome in outcomes)
    return [axis for axis, outcome in enumerate(outcomes) if outcome.all_refused]


def test_concat_and_split_along_other_axes():
    concat = OneOp("Concat", (counted(5, 3, 7), counted(5, 4, 7)), {"axis": -2})
    assert refused_axes(concat, 3) == [1]
    split = OneOp("Split", (counted(5, 6, 7), integers(2, 4)), {"axis": 1}, weights=(1,), outputs=(True, True))
    assert refused_axes(split, 3) == [1]
    assert refused_axes(
        OneOp("Split", (counted(5, 6, 7),), {"axis": 0, "num_outputs": 2}, outputs=(True, True)), 3
    ) == [0]


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), None])
def test_transpose(order):
    attributes = {"perm": order} if order else {}
    assert refused_axes(OneOp("Transpose", (counted(5, 6, 7),), attributes), 3) == []


def test_reorders_of_blocked_tensors():
    b = block_size()
    first = OneOp("ReorderInput", (counted(3, 2 * b, 5, 7),), {"channels_last": 0}, domain=NCHWC, opset=1)
    last = OneOp("ReorderInput", (counted(3, 5, 7, 2 * b),), {"channels_last": 1}, domain=NCHWC, opset=1)
    assert refused_axes(first, 4) == [1]
    assert refused_axes(last, 4) == [1]
    for is_last, channels in ((0, 1), (1, 3)):
        attributes = {"channels": 2 * b - 3, "channels_last": is_last}
        back = OneOp("ReorderOutput", (counted(3, 2 * b, 5, 7),), attributes, domain=NCHWC, opset=1)
        assert refused_axes(back, 4) == [channels]


def reshape(source: tuple[int, ...], target: tuple[int, ...], **attributes: int) -> OneOp:
    return OneOp("Reshape", (counted(*source), integers(*target)), attributes, weights=(1,))


def test_reshape_where_axes_survive_split_or_merge():
    assert refused_axes(reshape((4, 6, 5), (4, 30)), 2) == []
    assert refused_axes(reshape((4, 30), (0, 6, -1)), 3) == [2]
    assert refused_axes(reshape((12, 5), (3, 4, 5)), 3) == [1]
    assert refused_axes(reshape((1, 12, 5), (12, 1, 5)), 3) == []
    assert refused_axes(reshape((6, 4), (8, 3)), 2) == [1]  # rows of 4 make rows of 3: parts of 12
    assert refused_axes(reshape((2, 3, 4), (2, 3, 4), allowzero=1), 3) == []


@settings(max_examples=25)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_reshape_of_any_shape(source, data):
    elements, target = int(np.prod(source)), []
    while elements > 1 or not target:
        extent = data.draw(st.sampled_from([d for d in range(1, elements + 1) if elements % d == 0]))
        target.append(extent)
        elements //= extent
    refused_axes(reshape(tuple(source), tuple(target)), len(target))


def test_a_shape_known_only_at_run_time_is_refused():
    op = OneOp("Reshape", (counted(4, 6), integers(4, 2, 3)))
    assert refused_axes(op, 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("op_type", "shape", "target"), [("Reshape", (4, 6), (4, 2, 3)), ("Expand", (4, 1, 3), (4, 5, 3))]
)
def test_of_a_model_for_one_size_a_computed_shape_is_as_well_said(op_type, shape, target):
    said = OneOp(op_type, (counted(*shape), integers(*target)), weights=(1,))
    made = [counted(*target)]
    computed = replace(view_of(replace(said, weights=()), made), at_one_size=True)
    for axis in range(len(target)):
        found = slice_op(computed, Slab(axis, 1, 2))
        wanted = slice_op(view_of(said, made), Slab(axis, 1, 2))
        assert (found is None) == (wanted is None) == check_slices(said, axis).all_refused
        if found is not None and wanted is not None:
            assert (found.needs, found.makes) == (wanted.needs, wanted.makes)
            assert found.constants[1].tolist() == wanted.constants[1].tolist()


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis):
    refused = refused_axes(OneOp("Flatten", (counted(4, 5, 6),), {"axis": axis}), 2)
    assert refused == []


def test_squeeze_and_unsqueeze():
    named = OneOp("Squeeze", (counted(1, 4, 1, 5), integers(0, 2)), weights=(1,))
    assert refused_axes(named, 2) == []
    old = OneOp("Squeeze", (counted(1, 4, 1, 5),), {"axes": [0]}, opset=11)
    assert refused_axes(old, 3) == []
    unnamed = check_slices(OneOp("Squeeze", (counted(1, 4, 1, 5),)), 0)
    assert unnamed.exact
    assert all(slab.extent == 1 for slab in unnamed.refused)
    assert refused_axes(OneOp("Unsqueeze", (counted(4, 5), integers(1)), weights=(1,)), 3) == []


def test_expand():
    op = OneOp("Expand", (counted(4, 1, 5), integers(3, 1, 6, 5)), weights=(1,))
    assert refused_axes(op, 4) == []
    assert refused_axes(OneOp("Expand", (counted(4, 1), integers(4, 3))), 2) == [0, 1]


def test_gather():
    data, indices = counted(5, 6, 7), np.array([[0, 3, -1], [2, 2, 5]], np.int64)
    assert refused_axes(OneOp("Gather", (data, indices), {"axis": 1}, weights=(1,)), 4) == []
    assert refused_axes(OneOp("Gather", (data, indices), {"axis": -2}), 4) == []
    assert refused_axes(OneOp("Gather", (data, np.array(2, np.int64)), {"axis": 0}, weights=(1,)), 2) == []


def test_gather_elements():
    indices = np.random.default_rng(0).integers(-5, 5, (4, 6, 7))
    assert refused_axes(OneOp("GatherElements", (counted(5, 6, 7), indices), {"axis": 0}), 3) == []


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode):
    deep = OneOp("DepthToSpace", (counted(3, 18, 4, 5),), {"blocksize": 3, "mode": mode})
    assert refused_axes(deep, 4) == [1]
    assert refused_axes(OneOp("SpaceToDepth", (counted(3, 2, 6, 9),), {"blocksize": 3}), 4) == [1]


def test_tile():
    assert refused_axes(OneOp("Tile", (counted(3, 4, 5), integers(1, 3, 1)), weights=(1,)), 3) == [1]


@settings(max_examples=40)
@given(st.data())
def test_slices_with_any_bounds(data):
    sizes = (7, 6, 5)
    axes = data.draw(st.lists(st.sampled_from([0, 1, 2, -1]), min_size=1, max_size=3, unique_by=lambda axis: axis % 3))
    bound = st.integers(-9, 9)
    starts, ends, steps = [], [], []
    for axis in axes:
        start, stop, step = data.draw(bound), data.draw(bound), data.draw(st.sampled_from([1, 1, 2, 3, -1]))
        if not range(*slice(start, stop, step).indices(sizes[axis])):
            start, stop, step = 1, 1 << 40, 1
        starts, ends, steps = [*starts, start], [*ends, stop], [*steps, step]
    inputs = (counted(*sizes), integers(*starts), integers(*ends), integers(*axes), integers(*steps))
    op = OneOp("Slice", inputs, weights=(1, 2, 3, 4))
    backward = sorted(axis % 3 for axis, step in zip(axes, steps, strict=True) if step < 0)
    assert refused_axes(op, 3) == backward


def test_slices_of_other_forms():
    old = OneOp("Slice", (counted(7, 6),), {"starts": [1, -4], "ends": [6, 9]}, opset=9)
    assert refused_axes(old, 2) == []
    short = OneOp("Slice", (counted(7, 6), np.array([2], np.int32), np.array([6], np.int32)), weights=(1, 2))
    assert refused_axes(short, 2) == []
    unknown = OneOp("Slice", (counted(7, 6), integers(2), integers(6)))
    assert refused_axes(unknown, 2) == [0]  # what is cut is the first axis alone
    whole = OneOp("Slice", (counted(7, 6), integers(-9), integers(9), integers(1)), weights=(3,))
    assert refused_axes(whole, 2) == []


@settings(max_examples=50)
@given(st.data())
def test_padding_of_any_amount(data):
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect"]))
    least = 0 if mode == "reflect" else -2
    pads = data.draw(st.lists(st.integers(least, 4), min_size=6, max_size=6))
    inputs: tuple[Any, ...] = (counted(6, 7, 5), integers(*pads), np.float32(2.5) if mode == "constant" else None)
    op = OneOp("Pad", tuple(inputs), {"mode": mode}, weights=(1, 2))
    assert refused_axes(op, 3) == []


def test_padding_in_other_forms():
    old = OneOp("Pad", (counted(6, 7),), {"pads": [1, 0, 2, 0], "mode": "edge"}, opset=10)
    assert refused_axes(old, 2) == []
    some = OneOp("Pad", (counted(6, 7, 3), integers(2, 1), None, integers(-2)), {"mode": "reflect"}, weights=(1, 3))
    assert refused_axes(some, 3) == []
    wrapped = OneOp("Pad", (counted(6, 7), integers(2, 0, 1, 0)), {"mode": "wrap"}, weights=(1,))
    assert refused_axes(wrapped, 2) == [0]
    assert refused_axes(OneOp("Pad", (counted(6, 7), integers(2, 0, 1, 0))), 2) == [0, 1]


def test_ops_without_a_rule():
    assert refused_axes(OneOp("Shape", (counted(3, 4, 5),)), 1) == [0]
