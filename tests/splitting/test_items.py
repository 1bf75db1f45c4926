"""Training steps by items of their batch: the bits of the whole step, in the memory estimated, which is much less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from remat_cli.autodiff.step import build_step
from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.training import TrainOptions
from remat_cli.splitting.bands.band_search import BandCandidate, BandSearch
from remat_cli.splitting.bands.bands import BandRules, BandSize
from remat_cli.splitting.bands.items import item_axes, item_bandings, light_sums
from remat_cli.splitting.recast.recast import Recast
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.op_view import SUMMED
from remat_cli.splitting.tiles.search import SplitLimits
from remat_cli.splitting.tiles.steps import TiledRegion
from remat_cli.splitting.tiles.view import view_model
from sample_models.papers import paper_model
from tests.helpers import to_bytes
from tests.splitting.random_models import Sample
from tests.splitting.split_case import Case, check_same, make_case, run_default
from tests.splitting.test_bands import judged_bytes

IMAGES = {"batch": 8, "resolution": 32, "width": 0.125, "classes": 5}
TEXT = {"batch": 4, "length": 128, "context": 128, "vocabulary": 90, "layers": 1, "heads": 2, "head_width": 16}


def step_case(name: str, sizes: dict[str, object], batch_norm: str = "train") -> Case:
    """The training step of a network, optimised, with data and weights drawn."""
    options = TrainOptions(loss="cross-entropy", batch_norm=batch_norm, batch=int(str(sizes["batch"])))
    return case_of_step(paper_model(name, **sizes), options)


def case_of_step(model: onnx.ModelProto, options: TrainOptions) -> Case:
    """The training step of a model, with data drawn and the weights that the model has."""
    step = build_step(ir.from_proto(model), options)
    dice, feeds = np.random.default_rng(0), dict(step.state)
    for value in step.model.graph.inputs:
        if value.name not in feeds:
            shape = tuple(value.shape.numpy())
            is_index = not value.dtype.is_floating_point()
            drawn = dice.integers(0, 2, shape) if is_index else dice.standard_normal(shape)
            feeds[value.name or ""] = np.asarray(drawn, value.dtype.numpy())
    proto = ir.to_proto(step.model)
    assert isinstance(proto, onnx.ModelProto)
    return make_case(Sample(proto, feeds))


def loose(case: Case) -> Case:
    """The same, where other last bits are allowed."""
    view = case.view
    return replace(case, view=view_model(view.model, view.graph, view.channel_block, may_reassociate=True))


def by_items(case: Case, tiles: int, axes: Mapping[int, int] | None = None) -> BandCandidate:
    """The step in so many tiles; all that can be cut, where it is not said what."""
    view, order = case.view, case.timeline.order
    costs = [OpCost(op.name, 1_000_000) for op in view.graph.ops]
    search = BandSearch(view, order, costs, SplitLimits(axis=SplitAxis()))
    bandings = item_bandings(view, axes or item_axes(view, order, ()), tiles)
    banding = next(each for each in bandings if each.tiles[0] == tiles)
    rules = BandRules(1, "outer", SplitAxis())
    found = search.judge(Recast(view, order, tuple(costs), {}, {}), rules, BandSize(1, 1), banding)
    assert isinstance(found, BandCandidate), found
    return found


def split_of(case: Case, found: BandCandidate) -> ir.Model:
    region = TiledRegion(found.cast.order, found.steps)
    return case.lean(split_model(found.cast.view, found.cast.order, [region]))


@pytest.mark.parametrize(
    ("name", "sizes", "tiles", "share"),
    [
        ("gpt2", TEXT, 4, 0.5),
        ("bert", {**TEXT, "classes": 3}, 2, 0.7),
        ("vgg16", IMAGES, 4, 0.8),  # most of what is left are weights
        ("unet", IMAGES, 4, 0.7),
    ],
)
def test_a_step_by_items_has_the_bits_of_the_whole(name, sizes, tiles, share):
    case = step_case(name, sizes)
    found = by_items(case, tiles)
    assert SUMMED in found.banding.axis.values()
    split = split_of(case, found)
    check_same(case, split, name)
    assert judged_bytes(case, split) == found.cost.peak_bytes
    assert found.cost.peak_bytes < share * max(case.timeline.memory_bytes)


@pytest.mark.parametrize(
    ("name", "tiles", "share"),
    [
        ("vgg16", 8, 0.65),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("resnet18", 8, 0.6), ("mobilenet", 4, 0.75))),
    ],
)
def test_weight_gradients_are_added_up_tile_by_tile_where_bits_may_differ(name, tiles, share):
    """Most of what is left are weights and their gradients."""
    case = loose(step_case(name, {**IMAGES, "resolution": 64}, batch_norm="frozen"))
    found = by_items(case, tiles)
    split = split_of(case, found)
    wanted, got = case.outputs[1], run_default(to_bytes(split), case.feeds)
    for ours, theirs in zip(wanted, got, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4 * np.abs(ours).max())
    again = run_default(to_bytes(split), case.feeds)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(got, again, strict=True))
    assert judged_bytes(case, split) == found.cost.peak_bytes
    assert found.cost.peak_bytes < share * max(case.timeline.memory_bytes)


def test_sums_larger_than_what_they_add_up_are_made_whole():
    """The layers of few positions have most of the weights: their gradients need not all be there at once."""
    case = loose(step_case("vgg16", {**IMAGES, "resolution": 64}))
    axes = item_axes(case.view, case.timeline.order, ())
    light = light_sums(case.view, axes)
    whole = {op for op in axes if op not in light}
    assert whole
    assert all(axes[op] == SUMMED for op in whole)
    assert any(axis == SUMMED for axis in light.values())
    all_cut, some_cut = (by_items(case, 4, chosen) for chosen in (axes, light))
    assert some_cut.cost.peak_bytes < 0.7 * all_cut.cost.peak_bytes
    split = split_of(case, some_cut)
    assert judged_bytes(case, split) == some_cut.cost.peak_bytes
    for ours, theirs in zip(case.outputs[1], run_default(to_bytes(split), case.feeds), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4 * np.abs(ours).max())


def test_statistics_of_the_batch_stand_between_items():
    case = step_case("resnet18", {**IMAGES, "resolution": 64})
    found = by_items(case, 4)
    check_same(case, split_of(case, found), "resnet18")


def test_tiles_are_as_long_as_each_other():
    case = step_case("gpt2", TEXT)
    axes = item_axes(case.view, case.timeline.order, ())
    assert [banding.tiles for banding in islice(item_bandings(case.view, axes, 32), 9)] == [(2,), (4,)]
