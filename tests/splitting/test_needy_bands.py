"""Training steps in bands whose tiles are made again: each step fits by itself, and bits stay."""

from __future__ import annotations

import time

import pytest

from remat_cli.core.schedule.floor import working_set_bytes
from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.bands.band_search import BandSearch
from remat_cli.splitting.bands.items import doubled_bandings, item_axes
from remat_cli.splitting.tiles.op_view import SUMMED
from remat_cli.splitting.tiles.search import SplitLimits
from tests.helpers import free_problem, observe
from tests.splitting.split_case import Case, check_same
from tests.splitting.test_items import IMAGES, split_of, step_case


def searching(case: Case) -> BandSearch:
    """A search for bands of a step, in which each op takes as long."""
    costs = [OpCost(op.name, 1_000_000) for op in case.view.graph.ops]
    return BandSearch(case.view, case.timeline.order, costs, SplitLimits(axis=SplitAxis()))


@pytest.mark.parametrize("name", ["vgg16", "resnet18"])
def test_large_tensors_are_cut_by_items_and_no_step_needs_more_than_was_said(name):
    case = step_case(name, IMAGES)
    front = searching(case).needy(2**40, time.monotonic() + 60)
    assert len(front) > 1
    least = min(front, key=lambda each: each.needed_bytes)
    assert least.needed_bytes < least.cost.peak_bytes
    assert least.needed_bytes < max(each.needed_bytes for each in front)
    split = split_of(case, least)
    graph = to_graph(split, observe(split, case.feeds))
    built = free_problem(graph)
    assert max(working_set_bytes(built, op) for op in built.ops) <= least.needed_bytes
    check_same(case, split, ())


def test_none_of_those_that_are_proposed_is_dearer_and_needs_more_than_another():
    case = step_case("vgg16", IMAGES)
    looking = searching(case)
    front = looking.needy(2**40, time.monotonic() + 60)
    ranked = sorted(front, key=lambda each: each.cost.added_ns)
    assert [each.needed_bytes for each in ranked] == sorted((each.needed_bytes for each in ranked), reverse=True)
    least = min(each.needed_bytes for each in front)
    assert looking.needy(least - 1, time.monotonic() + 60) == []


@pytest.mark.parametrize(("batch", "even"), [(7, []), (8, [2, 4, 8]), (6, [2])])
def test_sums_stay_whole_where_tiles_are_not_all_as_long(batch, even):
    case = step_case("vgg16", {**IMAGES, "batch": batch})
    axes = item_axes(case.view, case.timeline.order, ())
    found = list(doubled_bandings(case.view, axes, 32))
    assert [each.tiles[0] for each in found] == [count for count in (2, 4, 8) if count <= batch]
    assert [each.tiles[0] for each in found if SUMMED in each.axis.values()] == even
