from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.schedule.splits import AXIS_NAMES, Region, SplitAxis, Splitting, parse_split_axis, regions_of_ops
from remat_cli.core.values.profile import OpCost
from tests.report import samples


@pytest.mark.parametrize(
    ("text", "rank", "axes"),
    [
        ("auto", 4, (0, 1, 2, 3)),
        ("2", 4, (2,)),
        ("-1", 4, (3,)),
        ("2", 2, ()),
        ("-3", 2, ()),
        ("batch", 4, (0,)),
        ("N", 4, (0,)),
        ("C", 4, (1,)),
        ("height", 4, (2,)),
        (" H ", 4, (2,)),
        ("h", 5, (3,)),  # NCDHW
        ("width", 4, (3,)),
        ("W", 3, (2,)),
        ("depth", 5, (2,)),
        ("depth", 4, ()),
        ("height", 2, ()),
        ("sequence", 2, (0,)),
        ("Sequence", 3, (1,)),
        ("sequence", 4, (2,)),
        ("heads", 4, (1,)),
        ("heads", 3, (0,)),
        ("heads", 2, ()),
    ],
)
def test_axes_that_a_name_means(text, rank, axes):
    assert parse_split_axis(text).axes(rank) == axes


@pytest.mark.parametrize("text", ["", "up", "2.0", "8", "-9", "NCHW", "2,3", "axis"])
def test_bad_axes_get_one_clear_line(text):
    with pytest.raises(ConfigError, match=f"split axis '{text}' is not an axis: write auto, a number") as caught:
        parse_split_axis(text)
    assert "\n" not in str(caught.value)


@given(st.one_of(st.sampled_from(sorted(AXIS_NAMES)), st.integers(-8, 7).map(str)), st.integers(0, 8))
def test_axes_are_always_axes_of_the_tensor(text, rank):
    assert all(0 <= axis < rank for axis in parse_split_axis(text).axes(rank))


def test_auto_is_the_default():
    assert parse_split_axis("auto") == SplitAxis()


def test_every_region_needs_its_facts():
    with pytest.raises(ModelError, match="1 regions have the facts of 0"):
        msgspec.structs.replace(samples.splitting(), facts=())


def test_tiles_slices_and_joins_belong_to_their_region():
    found = regions_of_ops(samples.splitting(), samples.split_graph())
    assert found == (None, 0, 0, 0, 0, 0, 0, 0, None)


def chain(names: list[str]) -> Graph:
    """Each op reads what the one before it makes."""
    ops = tuple(Op(name, "Op", (index,), (index + 1,)) for index, name in enumerate(names))
    tensors = tuple(
        Tensor(f"t{index}", "float", (1,), 4, index - 1 if index else None) for index in range(len(ops) + 1)
    )
    return Graph(ops, tensors, ())


def split_of(regions: list[Region], whole: list[str]) -> Splitting:
    profile = msgspec.structs.replace(samples.profile(), ops=tuple(OpCost(name, 1) for name in whole))
    return Splitting(tuple(regions), (samples.region_facts(),) * len(regions), "b" * 64, profile, 1)


def test_neighbouring_regions_share_what_lies_between_by_distance():
    names = ["a", "a_join", "view", "b_slice", "b/tile_0", "c"]
    names[0] = "a/tile_0"
    regions = [Region(("a",), ("x",), (2,), 2), Region(("b",), ("y",), (2,), 2)]
    found = regions_of_ops(split_of(regions, ["a", "b", "c"]), chain(names))
    assert found[:2] == (0, 0)
    assert found[3:] == (1, 1, None)
    assert found[2] in (0, 1)


def test_a_whole_op_is_never_taken_for_a_tile():
    regions = [Region(("a",), ("x",), (2,), 2)]
    found = regions_of_ops(split_of(regions, ["a", "a/tile_9", "c"]), chain(["a/tile_0", "a/tile_9", "c"]))
    assert found == (0, None, None)
