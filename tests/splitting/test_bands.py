"""Models in bands: the bits of the whole model, the memory that was estimated, and less of it than whole tensors."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.read.layout_scene import whole_names
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.bands import band_search
from remat_cli.splitting.bands.band_search import BandCandidate, BandSearch
from remat_cli.splitting.bands.bands import LEANS, Banding, BandRules, BandSize
from remat_cli.splitting.bands.demands import BandedOps, band_works
from remat_cli.splitting.recast.recast import Copied, Recast, with_copies
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.search import SplitLimits
from remat_cli.splitting.tiles.steps import TiledRegion
from tests.helpers import free_problem, observe
from tests.splitting.form import check_form
from tests.splitting.random_models import Sketch, image_models, transformer_models
from tests.splitting.split_case import Case, check_same, make_case

OP_NS = 1_000_000


def search(case: Case, most_tiles: int = 32, may_fill: bool = False) -> BandSearch:
    """A search on a case where every op takes a millisecond."""
    limits = SplitLimits(axis=SplitAxis(), most_tiles=most_tiles, may_fill=may_fill)
    costs = [OpCost(op.name, OP_NS) for op in case.view.graph.ops]
    return BandSearch(case.view, case.timeline.order, costs, limits)


def split_of(case: Case, found: BandCandidate):
    """The model in bands."""
    return case.lean(split_model(found.cast.view, found.cast.order, [TiledRegion(found.cast.order, found.steps)]))


def judged_bytes(case: Case, split) -> int:
    """What the judge says is held at most, in the order of the file; inputs left out, as they are in estimates."""
    graph = to_graph(split, observe(split, case.feeds))
    number = {op.name: index for index, op in enumerate(graph.ops)}
    plan = simulate(free_problem(graph), Schedule.of_ops([number[node.name or ""] for node in split.graph]))
    return plan.peak


def check(case: Case, found: BandCandidate) -> None:
    split = split_of(case, found)
    check_same(case, split, found.banding)
    if not found.cast.origin:
        check_form(case, split, found.banding.group)
    assert judged_bytes(case, split) == found.cost.peak_bytes, found.banding


def check_bandings(data, samples, tries: int, most_tiles: int) -> None:
    """One model, cut by several rules."""
    case = make_case(data.draw(samples))
    sizes = sorted({t.size_bytes for t in case.view.graph.tensors if t.producer is not None})
    for _ in range(tries):
        rules = BandRules(data.draw(st.sampled_from(sizes)), data.draw(st.sampled_from(LEANS)), SplitAxis())
        looking = search(case, most_tiles, case.may_fill and data.draw(st.booleans()))
        size = sizes[-1] // data.draw(st.integers(1, most_tiles))
        found = looking.banded(rules, BandSize(size, size * data.draw(st.sampled_from((1, 4)))))
        if found is not None:
            check(case, found)


@settings(max_examples=30)
@given(st.data())
def test_images_in_bands_give_the_same_bits_in_the_memory_estimated(data):
    check_bandings(data, image_models(), tries=3, most_tiles=8)


@settings(max_examples=8)
@given(st.data())
def test_transformers_in_bands_give_the_same_bits_in_the_memory_estimated(data):
    check_bandings(data, transformer_models(most_blocks=1), tries=3, most_tiles=8)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.data())
def test_many_images_in_bands_give_the_same_bits_in_the_memory_estimated(data):
    check_bandings(data, image_models(most_ops=14, most_extent=23), tries=6, most_tiles=24)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_many_transformers_in_bands_give_the_same_bits_in_the_memory_estimated(data):
    check_bandings(data, transformer_models(), tries=6, most_tiles=16)


def unet() -> Case:
    """A nested U: images of full size lie beside a detour through small ones, and are joined with what comes back."""
    sketch = Sketch(np.random.default_rng(0))

    def convolved(value: str, before: int, after: int, size: int) -> str:
        weight = sketch.weight(after, before, 3, 3, scale=0.1)
        shape = [1, after, size, size]
        value = sketch.add("Conv", [value, weight], shape, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        return sketch.add("Relu", [value], shape)

    value = skip = convolved(sketch.input("x", [1, 3, 64, 64]), 3, 16, 64)
    value = sketch.add("MaxPool", [value], [1, 16, 16, 16], kernel_shape=[4, 4], strides=[4, 4])
    value = convolved(convolved(value, 16, 16, 16), 16, 16, 16)
    scales = sketch.constant(np.array([1, 1, 4, 4], np.float32))
    value = sketch.add("Resize", [value, "", scales], [1, 16, 64, 64], mode="nearest")
    value = convolved(sketch.add("Concat", [value, skip], [1, 32, 64, 64], axis=1), 32, 16, 64)
    value = sketch.add("GlobalAveragePool", [sketch.add("Add", [value, skip], [1, 16, 64, 64])], [1, 16, 1, 1])
    return make_case(sketch.sample([value]))


@pytest.mark.parametrize("percent", [80, 65, 50])
def test_a_skip_around_a_detour_goes_in_bands(percent):
    case = unet()
    peak = max(case.timeline.memory_bytes)
    found = search(case).propose(peak * percent // 100, time.monotonic() + 60)
    assert found is not None
    assert found.cost.peak_bytes <= peak * percent // 100
    check(case, found)


def test_a_smaller_budget_is_never_cheaper():
    case = unet()
    peak = max(case.timeline.memory_bytes)
    looking = search(case)
    found = [looking.propose(peak * percent // 100, time.monotonic() + 60) for percent in (50, 65, 80)]
    added = [candidate.cost.added_ns for candidate in found if candidate is not None]
    assert len(added) == 3
    assert added == sorted(added, reverse=True)


def test_what_is_forbidden_stays_whole():
    case = unet()
    looking = search(case)
    found = looking.propose(max(case.timeline.memory_bytes) * 65 // 100, time.monotonic() + 60)
    assert found is not None
    op = min(found.banding.group)
    looking.restrict(SplitLimits(axis=SplitAxis()), frozenset({case.view.graph.ops[op].name}))
    other = looking.propose(max(case.timeline.memory_bytes) * 90 // 100, time.monotonic() + 60)
    assert other is None or op not in other.banding.group


def test_a_number_for_each_row_does_not_hold_up_all_bands():
    sketch = Sketch(np.random.default_rng(0))
    rows, wide = 512, 256
    value = sketch.add("MatMul", [sketch.input("x", [rows, 16]), sketch.weight(16, wide)], [rows, wide])
    length = sketch.add("ReduceL2", [value], [rows, 1], axes=[1])
    length = sketch.add("Clip", [length, sketch.constant(np.array(1e-6, np.float32))], [rows, 1])
    value = sketch.add("Div", [value, length], [rows, wide])
    value = sketch.add("MatMul", [value, sketch.weight(wide, 16)], [rows, 16])
    case = make_case(sketch.sample([value]))
    found = search(case).banded(
        BandRules(rows * wide * 4, "outer", SplitAxis()), BandSize(rows * wide // 2, rows * wide)
    )
    assert found is not None
    assert found.cost.peak_bytes < max(case.timeline.memory_bytes) / 2
    check(case, found)


def test_few_rows_are_made_with_those_of_the_tile_before():
    """Sums of 162 terms in few rows are shared out among threads in another way, and would have other bits."""
    sketch = Sketch(np.random.default_rng(0))
    rows, channels = 80, 18
    value = sketch.input("x", [1, channels, rows, rows])
    for _ in range(3):
        value = sketch.add(
            "Conv", [value, sketch.weight(channels, channels, 3, 3)], [1, channels, rows, rows], pads=[1] * 4
        )
    case = make_case(sketch.sample([value]))
    whole_bytes = 4 * channels * rows * rows
    rules = BandRules(whole_bytes, "rows", SplitAxis())
    found = search(case).banded(rules, BandSize(whole_bytes // 8, whole_bytes // 8))
    assert found is not None
    assert len(found.banding.group) == 3
    assert found.banding.tiles == (8,)
    works = band_works(found.cast, found.banding)
    assert isinstance(works, BandedOps)
    assert [sum(work is not None for work in works.works[op]) for op in found.cast.order] == [4, 4, 4]
    check(case, found)


def test_tiles_are_filled_in_place_only_where_that_saves_memory():
    """Of every banding that is proposed the joined one is taken where it holds no more and takes no longer."""
    case = unet()
    if not case.may_fill:
        pytest.skip("the model cannot be raised to the opset that fills")
    peak, chosen = max(case.timeline.memory_bytes), set()
    for percent in range(40, 96, 11):
        looking = search(case, may_fill=True)
        found = looking.propose(peak * percent // 100, time.monotonic() + 60)
        if found is None:
            continue
        joined = search(case, may_fill=False).judge(found.cast, found.rules, found.size, found.banding, False)
        assert isinstance(joined, BandCandidate)
        is_needed = joined.cost.peak_bytes > found.cost.peak_bytes or joined.cost.added_ns > found.cost.added_ns
        assert found.may_fill <= is_needed
        check(case, found)
        chosen.add(found.may_fill)
    assert chosen


@pytest.mark.parametrize("items", [1, 2, 16])
def test_tensors_of_fewer_bytes_than_tiles_are_no_division_by_nothing(items):
    """Of a few bytes some shares are nothing."""
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.add("Relu", [sketch.input("x", [items])], [items])
    case = make_case(sketch.sample([sketch.add("Sigmoid", [value], [items])]))
    assert search(case).propose(1, time.monotonic() + 60) is None


def test_a_copy_that_runs_before_its_original_keeps_no_bands_of_it():
    """Readers of a copy may come first in an order, where nothing of the original is there yet."""
    sketch = Sketch(np.random.default_rng(0))
    shape = [64, 64]
    value = sketch.add("Relu", [sketch.input("x", shape)], shape)
    one, two = sketch.add("Exp", [value], shape), sketch.add("Neg", [value], shape)
    case = make_case(sketch.sample([sketch.add("Add", [one, two], shape)]))
    number = {op.op_type: index for index, op in enumerate(case.view.graph.ops)}
    looking = search(case)
    plain = Recast(case.view, case.timeline.order, tuple(looking.costs), {}, {})
    copied = with_copies(plain, [Copied((number["Relu"],), frozenset({number["Neg"]}))])
    view = copied.view
    again = next(view.tensors[name].producer for name in copied.twins)
    early = [again, *(op for op in copied.order if op != again)]
    axis, group = dict.fromkeys(early, 0), dict.fromkeys(early, 0)
    for order in (copied.order, tuple(early)):
        cast = replace(copied, order=order)
        for share in (0.0, 0.5):
            rules = BandRules(1, "outer", SplitAxis())
            found = looking.judge(cast, rules, BandSize(1, 1), Banding(axis, group, (8,), share))
            assert isinstance(found, BandCandidate)
            split = split_model(cast.view, order, [TiledRegion(order, found.steps)])
            check_same(case, case.lean(split), (order, share))
            # whoever foretells what sessions make of it knows tiles of the copy as those of the op
            relu = view.graph.ops[number["Relu"]].name
            copies = [node.name or "" for node in split.graph if (node.name or "").startswith(f"{relu}/again")]
            assert copies
            assert {whole_names(split)[name] for name in copies} == {relu}


def test_what_bears_fewer_tiles_than_its_neighbours_is_cut_into_fewer():
    """A convolution of many terms has other bits in few positions: there it is cut less, not left whole."""
    sketch, positions, channels = Sketch(np.random.default_rng(0)), 24_000, 1
    value = sketch.input("x", [1, 1, positions])
    for width in (48, 48, 64, 64, 64):
        positions //= 2 if width == 64 else 1
        weight = sketch.weight(width, channels, 3, scale=0.1)
        strides = [2 if width == 64 else 1]
        shape = [1, width, positions]
        value = sketch.add("Conv", [value, weight], shape, kernel_shape=[3], pads=[1, 1], strides=strides)
        value, channels = sketch.add("Erf", [value], shape), width
    case = make_case(sketch.sample([sketch.add("ReduceMax", [value], [1, channels, 1], axes=[2])]))
    sizes = sorted({tensor.size_bytes for tensor in case.view.graph.tensors if tensor.producer is not None})
    found = search(case).banded(BandRules(sizes[1], "rows", SplitAxis()), BandSize(sizes[-1] // 12, sizes[-1] // 12))
    assert found is not None
    ops = found.cast.view.graph.ops
    tiles = [found.banding.tiles[found.banding.group[op]] for op in found.cast.order if ops[op].op_type == "Conv"]
    assert max(tiles) == 12
    assert 2 <= min(tiles) < 12
    check(case, found)


def test_axes_are_found_once_for_bands_of_all_sizes(monkeypatch):
    """Also those after an op was found not to be cut; what they are does not depend on which size was asked first."""
    case, asked = unet(), []
    rules = BandRules(1, "rows", SplitAxis())
    sizes = [BandSize(count, count) for count in (20_000, 5_000, 40_000)]
    alone = [search(case).banded(rules, size) for size in sizes]
    found = band_search.band_axes
    monkeypatch.setattr(band_search, "band_axes", lambda *given: (asked.append(given), found(*given))[1])
    together = search(case)
    assert [together.banded(rules, size).banding for size in sizes] == [each.banding for each in alone]
    forbidden = [rules.forbidden for _, _, rules in asked]
    assert len(forbidden) == len(set(forbidden)) < len(sizes)
