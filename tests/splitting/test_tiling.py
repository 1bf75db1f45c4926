"""Which slab of which tensor each tile computes: worked out by hand, then on random models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.splitting.tiles.op_view import Slab
from remat_cli.splitting.tiles.tiling import Cutting, cut_tiles
from tests.splitting.random_models import Sketch, image_models
from tests.splitting.split_case import Case, cuttings, make_case

THREE = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


@pytest.fixture(scope="module")
def two_windows() -> Case:
    """Maxima over three rows, twice, of 12 rows: every tile needs one more row on either side per op."""
    sketch = Sketch(np.random.default_rng(0))
    shape = [1, 3, 12, 4]
    value = sketch.add("Abs", [sketch.input("x", shape)], shape)
    for _ in range(2):
        value = sketch.add("MaxPool", [value], shape, **THREE)
    return make_case(sketch.sample([value]))


def test_halos_grow_from_the_exit_to_the_entry(two_windows):
    tiles = cut_tiles(two_windows.view, Cutting((1, 2), (("t2", 2),), 3))
    assert tiles is not None
    assert [tile.holds["t2"] for tile in tiles] == [Slab(2, 0, 4), Slab(2, 4, 8), Slab(2, 8, 12)]
    assert [tile.holds["t1"] for tile in tiles] == [Slab(2, 0, 5), Slab(2, 3, 9), Slab(2, 7, 12)]
    assert [tile.works[0].sliced.needs[0] for tile in tiles] == [Slab(2, 0, 6), Slab(2, 2, 10), Slab(2, 6, 12)]
    assert not any(tile.kept for tile in tiles)


def test_kept_rows_are_made_once(two_windows):
    tiles = cut_tiles(two_windows.view, Cutting((1, 2), (("t2", 2),), 3, frozenset({"t1"})))
    assert tiles is not None
    assert [tile.works[0].asked for tile in tiles] == [Slab(2, 0, 5), Slab(2, 5, 9), Slab(2, 9, 12)]
    assert [tile.kept.get("t1") for tile in tiles] == [None, Slab(2, 3, 5), Slab(2, 7, 9)]


def test_a_tile_that_needs_nothing_new_does_not_run_the_op():
    sketch = Sketch(np.random.default_rng(0))
    half = sketch.add("Abs", [sketch.input("x", [1, 1, 3, 2])], [1, 1, 3, 2])
    scales = sketch.constant(np.array([1, 1, 2, 1], np.float32))
    form = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    sketch.add("Resize", [half, "", scales], [1, 1, 6, 2], **form)
    case = make_case(sketch.sample(["t1"]))
    tiles = cut_tiles(case.view, Cutting((0, 1), (("t1", 2),), 6, frozenset({"t0"})))
    assert tiles is not None
    assert [len(tile.works) for tile in tiles] == [2, 1, 2, 1, 2, 1]  # every other tile repeats the row before


@pytest.mark.parametrize("kept", [{"t1"}, {"t1_1"}, {"t1", "t1_1"}])
def test_nothing_is_kept_of_an_op_with_several_outputs(kept):
    case = _halves()
    tiles = cut_tiles(case.view, Cutting((0, 1, 2, 3, 4), (("t4", 2),), 3, frozenset(kept)))
    assert tiles is not None
    assert not any(tile.kept for tile in tiles)
    assert all(len(tile.works) == 5 for tile in tiles)


def _halves() -> Case:
    """A Split whose halves go through windows of their own."""
    sketch = Sketch(np.random.default_rng(0))
    shape, half = [1, 6, 12, 4], [1, 3, 12, 4]
    value = sketch.add("Abs", [sketch.input("x", shape)], shape)
    sizes = sketch.constant(np.array([3, 3], np.int64))
    parts = sketch.add_several("Split", [value, sizes], [half, half], axis=1)
    pooled = [sketch.add("MaxPool", [part], half, **THREE) for part in parts]
    return make_case(sketch.sample([sketch.add("Sub", pooled, half)]))


def test_more_tiles_than_rows_and_ops_without_a_rule_cannot_be_cut(two_windows):
    assert cut_tiles(two_windows.view, Cutting((1, 2), (("t2", 2),), 13)) is None
    assert cut_tiles(two_windows.view, Cutting((1, 2), (("t2", 1),), 4)) is None
    sketch = Sketch(np.random.default_rng(0))
    shape = [4, 6]
    value = sketch.add("Abs", [sketch.input("x", shape)], shape)
    other = sketch.add("Det", [sketch.add("MatMul", [value, sketch.weight(6, 4)], [4, 4])], [])
    case = make_case(sketch.sample([sketch.add("Mul", [value, other], shape)]))
    det = next(i for i, op in enumerate(case.view.graph.ops) if op.op_type == "Det")
    assert cut_tiles(case.view, Cutting((det, det + 1), (("t3", 0),), 2)) is None


@settings(max_examples=20)
@given(st.data())
def test_every_tile_holds_what_its_ops_need(data):
    case = make_case(data.draw(image_models()))
    for _ in range(5):
        cutting = data.draw(cuttings(case))
        tiles = None if cutting is None else cut_tiles(case.view, cutting)
        if cutting is None or tiles is None:
            continue
        for number, tile in enumerate(tiles):
            _check_tile(case, cutting, tile, tiles[number - 1] if number else None)
        for name, axis in cutting.exits:
            assert tiles[-1].holds[name].stop == case.view.tensors[name].shape[axis]


def _check_tile(case, cutting, tile, before):
    assert [work.op for work in tile.works] == sorted(work.op for work in tile.works)
    for work in tile.works:
        assert work.sliced.makes.contains(work.asked)
        for name, need in zip(case.view.reads[work.op], work.sliced.needs, strict=True):
            assert name not in tile.holds or tile.holds[name].contains(need)
    for name, slab in tile.kept.items():
        assert name in cutting.kept
        assert before.holds[name].contains(slab)
