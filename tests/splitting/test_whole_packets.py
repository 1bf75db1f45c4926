"""Tiles in whole packets: followed by zeros, so that no element of them is computed by itself."""

from __future__ import annotations

import pytest

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.ort_rules.shares import is_all_packets, lengths_in_packets
from remat_cli.splitting.loops.loop_bits import Tiling, may_be_longer, refusal
from remat_cli.splitting.loops.short_sizes import short_sizes, single_sizes
from remat_cli.splitting.rules.pointwise import SHARED_CYCLES
from tests.splitting.looped_model import LoopedModel
from tests.splitting.test_looped_models import Build


def made_longer(model: LoopedModel, rows: int) -> LoopedModel:
    """The model, of which tiles of ops that were refused are in whole packets, as the search finds it."""
    for region in model.regions:
        while (found := model.refusal(region, rows)) is not None:
            assert may_be_longer(model.sized, region, *found)
            model.sized.longer.add(found[0])
    return model


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("cycles", [None, *SHARED_CYCLES.values()])
def test_all_multiples_from_the_least_on_are_in_packets_alone(cycles, threads):
    multiple, least = lengths_in_packets(cycles, threads)
    assert least % multiple == 0
    assert all(is_all_packets(least + times * multiple, cycles, threads) for times in range(1000))


@pytest.mark.parametrize("op_type", ["Softplus", "Elu", "Celu"])
def test_items_of_a_batch_are_made_longer_but_a_single_one_is_the_whole(op_type):
    """A batch of one has an odd number of pairs of elements, which two items together have not.

    Weights keep it in its loop.
    """
    build = Build()
    model = build.model(("batch", "n", 3), build.op(op_type, build.op("MatMul", "x", build.normal(3, 3))), 18)
    family = SizeFamily((SizeRange("batch", 1, 2, 1), SizeRange("n", 2, 80, 2)))
    small = LoopedModel(model, family, along_batch=True)
    assert list(small.refusals(1)) == [f"{op_type}_t1"]
    sizes = [{"batch": batch, "n": n} for n in range(80, 0, -2) for batch in (1, 2)]
    made_longer(small, 1).check(sizes, 1)


@pytest.mark.parametrize("op_type", ["Softplus", "Elu"])
def test_rows_between_windows_are_made_longer(op_type):
    build = Build()
    made = build.op(op_type, build.conv("x", 3, 3))
    model = build.model((1, 3, "h", 5), build.conv(made, 3, 3))
    small = LoopedModel(model, SizeFamily((SizeRange("h", 8, 96, 4),)))
    assert f"{op_type}_t1" in list(small.refusals(3))
    made_longer(small, 3).check([{"h": height} for height in range(96, 7, -4)], 3)


def test_regions_that_stay_in_their_loop_are_one_tile_where_tiles_are_small():
    """With weights that the runtime packs there is no branch for short sizes: the loop runs once.

    Three items of one row each are not all in packets.
    """
    build = Build()
    made = build.op("MatMul", build.op("Elu", build.op("MatMul", "x", build.normal(6, 6))), build.normal(6, 6))
    model = build.model(("batch", "n", 6), made)
    small = LoopedModel(model, SizeFamily((SizeRange("batch", 1, 4, 1), SizeRange("n", 1, 40, 39))), along_batch=True)
    (region,) = small.regions
    assert short_sizes(small.sized, region, Tiling(1)) is None
    single = single_sizes(small.sized, region, Tiling(1))
    assert single is not None
    assert single.holds({"batch": 4, "n": 10})
    assert not single.holds({"batch": 2, "n": 40})
    assert refusal(small.sized, region, Tiling(1), small.family) is not None
    small.check([{"batch": batch, "n": n} for n in (40, 1) for batch in (4, 1, 3, 2)], 1)
