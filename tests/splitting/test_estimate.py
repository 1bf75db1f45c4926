"""The quick estimate of a region's memory is what the judge says of the split model, to the byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.values.profile import OpCost
from remat_cli.splitting.tiles.estimate import RUN_NS, estimate
from remat_cli.splitting.tiles.steps import region_steps
from remat_cli.splitting.tiles.tiling import Cutting
from tests.splitting.random_models import Sketch, image_models, transformer_models
from tests.splitting.split_case import cuttings, describe, estimated, judged_peak_bytes, make_case


def check_estimates(data, samples, tries):
    case = make_case(data.draw(samples))
    for _ in range(tries):
        cutting = data.draw(cuttings(case))
        split = None if cutting is None else case.split([cutting])
        if cutting is not None and split is not None:
            judged = judged_peak_bytes(case, split, cutting)
            assert estimated(case, cutting).peak_bytes == judged, describe(case, cutting)


@settings(max_examples=25)
@given(st.data())
def test_memory_is_that_of_the_judge(data):
    check_estimates(data, st.one_of(image_models(), transformer_models()), 3)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_memory_is_that_of_the_judge_on_many_images(data):
    check_estimates(data, image_models(most_ops=12), 6)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data())
def test_memory_is_that_of_the_judge_on_many_transformers(data):
    check_estimates(data, transformer_models(), 6)


def chain(*kinds, shape=(1, 4, 8, 8)):
    """One op after the other, each on the result of the last; 1,024 bytes each."""
    sketch = Sketch(np.random.default_rng(0))
    value = sketch.input("x", shape)
    for kind in kinds:
        value = sketch.add(kind, [value], shape)
    return make_case(sketch.sample([value]))


def test_by_hand():
    case = chain("Abs", "Abs", "Abs")
    # Four tiles of 256 bytes. The last one: t0 whole, three parts of the exit, what the op reads and what it makes;
    # then t0 dies with the last cut, so the most is held by the join: four parts and the whole exit.
    assert estimated(case, Cutting((1, 2), (("t2", 2),), 4)).peak_bytes == 2048


def test_a_dying_entry_is_held_until_the_last_cut():
    case = chain("Abs", "Abs", "Abs")
    # Two tiles: entry 1024, first part of the exit 512, the second cut 512.
    assert estimated(case, Cutting((1,), (("t1", 2),), 2)).peak_bytes == 2048


def test_ops_in_place_need_nothing_of_their_own_in_tiles_of_a_model_input():
    plain, in_place = chain("Abs", "Abs"), chain("Relu", "Sigmoid")
    cutting = Cutting((0, 1), (("t1", 2),), 8)
    assert estimated(in_place, cutting).peak_bytes <= estimated(plain, cutting).peak_bytes
    split = in_place.split([cutting])
    assert split is not None
    assert estimated(in_place, cutting).peak_bytes == judged_peak_bytes(in_place, split, cutting)


def test_workspace_and_time_are_shares_of_those_of_the_whole_ops():
    case = chain("Abs", "Abs")
    cutting = Cutting((0, 1), (("t1", 2),), 2)
    steps = region_steps(case.view, cutting)
    free = [OpCost("a", 0), OpCost("b", 0)]
    costly = [OpCost("a", 1000, 4000), OpCost("b", 3000)]
    without, with_costs = (estimate(case.view, costs, steps, frozenset(), cutting.ops) for costs in (free, costly))
    # First tile of the first op: half of 4000 beside a cut of 512 and a result of 512; second tile: 512 more is held.
    assert with_costs.peak_bytes == 2000 + 512 + 512 + 512
    assert with_costs.time_ns - without.time_ns == 4000
    assert with_costs.whole_time_ns == 4000
    assert with_costs.added_ns == without.time_ns
    assert without.time_ns > 4 * RUN_NS
