"""Axes spread from the first exit of a region to its others."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.tiling import exit_axes
from tests.splitting.random_models import Sketch, image_models, transformer_models
from tests.splitting.split_case import make_case


def names(case, op_type):
    return [case.view.makes[i][0] for i, op in enumerate(case.view.graph.ops) if op.op_type == op_type]


def turned():
    """A tensor and its transpose, both given out."""
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", [3, 4, 5])], [3, 4, 5])
    sketch.add("Transpose", [value], [5, 3, 4], perm=[2, 0, 1])
    sketch.add("Tanh", [value], [3, 4, 5])
    return make_case(sketch.sample(["t1", "t2"]))


def test_an_axis_follows_a_transposition():
    case = turned()
    ops = tuple(range(3))
    for axis, moved in ((0, 1), (1, 2), (2, 0)):
        assert exit_axes(case.view, ops, ("t2", "t1"), axis) == {"t2": axis, "t1": moved}
        assert exit_axes(case.view, ops, ("t1", "t2"), moved) == {"t1": moved, "t2": axis}


def test_exits_that_share_nothing_have_no_common_axis():
    sketch = Sketch(np.random.default_rng(0))
    one, two = sketch.input("x", [4, 6]), sketch.input("y", [6, 4])
    outputs = [sketch.add("Abs", [one], [4, 6]), sketch.add("Abs", [two], [6, 4])]
    case = make_case(sketch.sample(outputs))
    assert exit_axes(case.view, (0, 1), tuple(outputs), 0) is None


def test_an_exit_that_cannot_be_cut_with_the_others():
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", [4, 6])], [4, 6])
    sketch.add("ReduceMax", [value], [4, 1], axes=[1])
    case = make_case(sketch.sample(["t0", "t1"]))
    assert exit_axes(case.view, (0, 1), ("t0", "t1"), 0) == {"t0": 0, "t1": 0}
    assert exit_axes(case.view, (0, 1), ("t0", "t1"), 1) is None


def test_heads_and_rows_of_attention_go_through_its_views():
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Abs", [sketch.input("x", [2, 6, 8])], [2, 6, 8])
    split = sketch.constant(np.array([2, 6, 4, 2], np.int64))
    opened = sketch.add("Reshape", [value, split], [2, 6, 4, 2])
    sketch.add("Transpose", [opened], [2, 4, 6, 2], perm=[0, 2, 1, 3])
    case = make_case(sketch.sample(["t0", "t2"]))
    ops = tuple(range(3))
    assert exit_axes(case.view, ops, ("t2", "t0"), 0) == {"t2": 0, "t0": 0}
    assert exit_axes(case.view, ops, ("t2", "t0"), 2) == {"t2": 2, "t0": 1}


@settings(max_examples=20)
@given(st.data())
def test_every_exit_gets_an_axis_that_it_has_and_the_first_the_one_asked_for(data):
    case = make_case(data.draw(st.one_of(image_models(), transformer_models(most_blocks=1))))
    count = len(case.timeline.order)
    for _ in range(6):
        start = data.draw(st.integers(0, count - 1))
        stop = data.draw(st.integers(start + 1, count))
        exits = case.timeline.surroundings(start, stop).exits
        for axis in range(len(case.view.tensors[exits[0]].shape) if exits else 0):
            found = exit_axes(case.view, case.timeline.order[start:stop], exits, axis)
            if found is not None:
                assert tuple(found) == exits
                assert found[exits[0]] == axis
                assert all(0 <= a < len(case.view.tensors[name].shape) for name, a in found.items())
