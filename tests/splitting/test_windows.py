"""How tiles of windowed ops read: the same rows before and behind a tile's bounds, whatever the size."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.splitting.loops.windows.forms import Demand, Edge, NotAlike, Part, relabels_blocks, window_tiles
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced

AXES = dict.fromkeys(("x", "half", "other", "made", "y", "z"), 2)
PADS = {(True, True): (1, 1), (True, False): (1, 0), (False, True): (0, 1), (False, False): (0, 0)}


def window_of(length: int, stride: int):
    """A window of three with padding of one, as a rule: so many rows of `length` make one of every `stride`."""

    def slicer(op: int, slab: Slab) -> Sliced | None:
        start, stop = slab.start * stride - 1, (slab.stop - 1) * stride + 2
        pads = PADS[start < 0, stop > length]
        return Sliced((Slab(2, max(0, start), min(length, stop)),), slab, {"pads": pads})

    return slicer


def one_op(length: int, stride: int) -> Demand:
    return Demand(AXES, (0,), [("x",)], [("y",)], window_of(length, stride))


@pytest.mark.parametrize(("stride", "units"), [(1, 12), (1, 30), (2, 12), (2, 17)])
def test_tiles_are_told_by_units(stride, units):
    length = units * stride
    tiles = window_tiles(one_op(length, stride), {"y": 1}, units, {"x": length, "y": units})
    assert not isinstance(tiles, NotAlike)
    behind = Edge(stride, 2 - stride)
    assert [form.ops[0].needs[0] for form in tiles.forms] == [
        Part(None, behind),
        Part(Edge(stride, -1), behind),
        Part(Edge(stride, -1), None),
    ]
    first, inner, last = (dict(form.ops[0].attributes)["pads"] for form in tiles.forms)
    assert (first, inner) == ((1, 0), (0, 0))
    assert last == ((0, 1) if stride == 1 else (0, 0))
    assert all(form.holds["y"] == form.ops[0].asked for form in tiles.forms)


@pytest.mark.parametrize("cut", [(0, 4), (4, 9), (9, 12)])
def test_a_part_is_what_the_rule_says(cut):
    tiles = window_tiles(one_op(12, 1), {"y": 1}, 12, {"x": 12, "y": 12})
    assert not isinstance(tiles, NotAlike)
    form = tiles.first if cut[0] == 0 else tiles.last if cut[1] == 12 else tiles.inner
    sliced = window_of(12, 1)(0, Slab(2, *cut))
    assert sliced is not None
    assert form.ops[0].needs[0].slab(2, cut, 12) == sliced.needs[0]


def test_what_two_ops_read_of_one_tensor_is_held_once():
    """The second op reads what the first makes, and with it the rows that the first alone would not need."""
    slicer = window_of(12, 1)
    demand = Demand(AXES, (0, 1), [("x",), ("y",)], [("y",), ("z",)], slicer)
    tiles = window_tiles(demand, {"y": 1, "z": 1}, 12, {"x": 12, "y": 12, "z": 12})
    assert not isinstance(tiles, NotAlike)
    assert tiles.inner.holds == {"y": Part(Edge(1, -1), Edge(1, 1)), "z": Part(Edge(1, 0), Edge(1, 0))}
    assert tiles.inner.ops[0].needs[0] == Part(Edge(1, -2), Edge(1, 2))


def test_results_of_one_op_have_the_same_rows():
    """Of halves of the channels one is looked at through a window: the op makes of the other as many rows."""
    window, alike = window_of(12, 1), Slab(2, 0, 12)

    def slicer(op: int, slab: Slab) -> Sliced | None:
        return window(op, slab) if op == 1 else Sliced((slab, slab)[: 1 + (op == 2)], slab)

    demand = Demand(
        AXES, (0, 1, 2), [("x",), ("half",), ("made", "other")], [("half", "other"), ("made",), ("z",)], slicer
    )
    tiles = window_tiles(demand, {"z": 1}, 12, dict.fromkeys(("x", "half", "other", "made", "z"), alike.extent))
    assert not isinstance(tiles, NotAlike)
    for form in tiles.forms:
        assert form.holds["half"] == form.holds["other"] == form.ops[0].asked
        assert form.holds["other"] != form.ops[2].needs[1]


def test_an_op_that_reads_all_of_what_is_cut_has_no_tiles():
    demand = Demand(AXES, (0, 1), [("x",), ("y",)], [("y",), ("z",)], lambda op, slab: Sliced((None,), slab))
    assert window_tiles(demand, {"z": 1}, 12, {"x": 12, "y": 12, "z": 12}) == NotAlike(1)


def test_tiles_that_change_with_more_than_their_bounds_are_not_alike():
    def odd(op: int, slab: Slab) -> Sliced:
        return Sliced((slab,), slab, {"pads": (slab.start % 2,)})

    demand = Demand(AXES, (0,), [("x",)], [("y",)], odd)
    assert window_tiles(demand, {"y": 1}, 12, {"x": 12, "y": 12}) == NotAlike(0)


def test_constants_that_are_alike_are_those_of_a_tile():
    def padding(op: int, slab: Slab) -> Sliced:
        pads = np.array([slab.start == 0, slab.stop == 12])
        return Sliced((slab, None), slab, constants={1: pads})

    demand = Demand(AXES, (0,), [("x", "pads")], [("y",)], padding)
    tiles = window_tiles(demand, {"y": 1}, 12, {"x": 12, "y": 12})
    assert not isinstance(tiles, NotAlike)
    found = [form.ops[0].constants[0] for form in tiles.forms]
    assert [each.array.tolist() for each in found] == [[True, False], [False, False], [False, True]]
    assert [each.position for each in found] == [1, 1, 1]


@pytest.mark.parametrize(
    ("source", "shape", "relabels"),
    [
        ((1, 96, 20, 15), (0, -1, 0, 0, 16), True),
        ((1, 96, 20, 15), (0, 6, 0, 0, 16), True),
        ((1, 6, 20, 15, 16), (0, 96, 0, 0), True),
        ((1, 96, 20, 15), (0, 6, -1, 15, 16), False),
        ((1, 96, 20, 15), (0, 96, -1), False),
    ],
)
def test_a_reshape_that_copies_all_but_channels_says_how_blocks_lie(source, shape, relabels):
    """In Adds of a blocked tensor and one whose size the runtime does not know to be the same."""
    numbers = ir.Value(name="shape", const_value=ir.tensor(np.array(shape, np.int64)))
    node = ir.Node("", "Reshape", [ir.Value(name="x"), numbers], num_outputs=1)
    op = OpView(node, (source, (len(shape),)), ((1,),), (False, True), 17)
    assert relabels_blocks(op, is_blocked=True) is relabels
    assert not relabels_blocks(op, is_blocked=False)
