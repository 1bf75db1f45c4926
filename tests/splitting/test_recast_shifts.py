"""Scores by distance, shifted row by row at one size: in bands of rows, with the bits of the whole."""

from __future__ import annotations

import time

import numpy as np
import pytest

from remat_cli.splitting.recast.shifts_flat import rows_apart
from tests.helpers import to_bytes
from tests.splitting.random_models import Sample, Sketch
from tests.splitting.split_case import check_same, make_case, run_in
from tests.splitting.test_bands import search, split_of
from tests.splitting.test_recast import NOTHING, as_it_is, kinds_of


def by_distance(length: int, heads: int = 2, width: int = 16) -> Sample:
    """Attention to all positions by how far away they are, as speech models have it."""
    sketch = Sketch(np.random.default_rng(length))
    apart = [1, heads, length, width]
    value = sketch.input("x", apart)
    far = sketch.weight(1, heads, width, 2 * length - 1)
    scores = sketch.add("MatMul", [value, far], [1, heads, length, 2 * length - 1])
    scores = shifted(sketch, scores)
    scores = sketch.add("Softmax", [scores], [1, heads, length, length], axis=-1)
    return sketch.sample([sketch.add("MatMul", [scores, value], apart)])


def shifted(sketch: Sketch, scores: str) -> str:
    items, heads, rows, columns = sketch.shapes[scores]
    longer, turned = [items, heads, rows, columns + 1], [items, heads, columns + 1, rows]
    pads = sketch.constant(np.array([0, 0, 0, 1, 0, 0, 0, 0]))
    scores = sketch.add("Pad", [scores, pads], longer)
    scores = sketch.add("Reshape", [scores, sketch.constant(np.array(turned))], turned)
    bounds = [sketch.constant(np.array([number])) for number in (1, 2**62, 2)]
    scores = sketch.add("Slice", [scores, *bounds], [items, heads, columns, rows])
    scores = sketch.add("Reshape", [scores, sketch.constant(np.array([items, heads, rows, columns]))], longer)
    sketch.shapes[scores] = (items, heads, rows, columns)
    bounds = [sketch.constant(np.array([number])) for number in (0, rows, 3)]
    return sketch.add("Slice", [scores, *bounds], [items, heads, rows, rows])


@pytest.mark.parametrize("length", [9, 33, 48, 61])
def test_rows_by_way_of_one_long_row_have_the_same_bits(length):
    case = make_case(by_distance(length))
    apart = rows_apart(as_it_is(case), 1, NOTHING)
    assert kinds_of(apart).count("Reshape") == kinds_of(as_it_is(case)).count("Reshape") + 1
    whole, parts = (run_in(to_bytes(each.view.model), case.feeds, 2, True) for each in (case, apart))
    assert [one.tobytes() for one in whole] == [other.tobytes() for other in parts]


@pytest.mark.parametrize(("length", "percent"), [(64, 30), (61, 40), (96, 25)])
def test_bands_of_rows_go_through_the_shift(length, percent):
    case = make_case(by_distance(length, heads=1))
    peak = max(case.timeline.memory_bytes)
    found = search(case, may_fill=case.may_fill).propose(peak * percent // 100, time.monotonic() + 60)
    assert found is not None
    assert found.cost.peak_bytes <= peak * percent // 100
    kinds = {found.cast.view.graph.ops[op].op_type for op in found.banding.group}
    assert {"MatMul", "Pad", "Reshape", "Slice", "Softmax"} <= kinds
    check_same(case, split_of(case, found), found.banding)


def test_rows_that_come_apart_or_are_small_stay_as_they_are():
    case = make_case(by_distance(24))
    plain = as_it_is(case)
    assert rows_apart(plain, 1 << 30, NOTHING) == plain
    names = frozenset(op.name for op in case.view.graph.ops)
    assert rows_apart(plain, 1, names) == plain
