"""Which regions a ladder of loops has: around fewer ops beside the same loops, and without those that hold more."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.clock import SearchClock
from remat_cli.base.progress import silent
from remat_cli.compiling.search import loops as stage
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.search.loops import Loops
from remat_cli.compiling.search.rungs import Refusal
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.values.profile import without_costs
from remat_cli.core.values.sizes import SizeFamily, SizeRange, number
from remat_cli.splitting.loops.batch_regions import find_batches
from remat_cli.splitting.loops.loop_bits import Tiling, ops_alike
from remat_cli.splitting.loops.loop_estimate import LoopEstimate
from remat_cli.splitting.loops.loop_regions import LoopRegion, find_loops
from tests.compiling.test_verdicts import REQUEST, planned
from tests.splitting.looped_model import LoopedModel

OPS = 12


@pytest.fixture
def chain():
    """Ops of which each makes a larger tensor than the one before, so that there are many ladders."""
    nodes = [helper.make_node("Concat", [f"t{at}", f"t{at}"], [f"t{at + 1}"], axis=1) for at in range(OPS)]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in (("t0", 1), (f"t{OPS}", 2**OPS))
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=10
    )
    return LoopedModel(model, SizeFamily((SizeRange("n", 1, 8),))).sized


def test_regions_of_a_ladder_share_no_op_whenever_they_are_asked_for(monkeypatch, chain):
    """Smaller tensors give larger loops; windows around fewer ops are looked for long after all ladders are known."""
    made = []

    def loops_of(sized, least_bytes, *, fixed=False):
        made.append(least_bytes)
        return [LoopRegion(number(1), set(range(len(made))))]

    def windows_of(sized, least_bytes, taken, *, again=False):
        return [LoopRegion(number(1), set(range(OPS)) - set(taken))]

    whole = planned(Status.NOT_FOUND)
    loops = Loops(SplitTask(whole, whole.answer.question, REQUEST, None, silent()))
    loops.__dict__["sized"] = chain
    monkeypatch.setattr(stage, "LEAST_SHARE", 0)
    monkeypatch.setattr(stage, "find_batches", lambda sized, least_bytes: [])
    monkeypatch.setattr(stage, "find_loops", loops_of)
    monkeypatch.setattr(stage, "find_windows", windows_of)
    monkeypatch.setattr(stage, "ops_alike", lambda sized, region, op: {op})
    monkeypatch.setattr(Loops, "_finest", lambda self, region, tiles: None)
    ladders = list(loops._all_ladders())
    assert len(made) > 2
    for ladder in ladders:
        loops.__dict__["_refused"] = [
            Refusal(each, Tiling(1), max(each.ops), {}) for each in ladder.regions if each.ops
        ]
        for regions in ladder.others:
            assert all(not one.ops & other.ops for one, other in combinations(regions, 2))
            assert regions[0] is ladder.regions[0]


@pytest.fixture
def attention():
    """Of one product three parts are made, all of which its loop would join; scores are what is large."""
    width = 32
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Split", ["product"], ["q", "k", "v"], axis=1),
        helper.make_node("Transpose", ["k"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=1),
        helper.make_node("MatMul", ["shares", "v"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.ones((width, 3 * width), np.float32), "w")
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return LoopedModel(model, SizeFamily((SizeRange("n", 1, 128),))).sized


def test_loops_that_hold_more_than_their_ops_are_left_out(attention):
    profile = without_costs(op.name for op in attention.view.graph.ops)
    whole = LoopEstimate(attention, (), (), profile)
    regions = find_loops(attention, attention.sizes["product"])
    joining, scoring = regions
    assert [len(each.ops) for each in regions] == [2, 3]
    task = SimpleNamespace(
        question=SimpleNamespace(baseline=SimpleNamespace(peak=whole.peak_bytes)), request=REQUEST, whole=None
    )
    loops = Loops(task)
    loops.__dict__.update(sized=attention, _profile=profile, _clock=SearchClock())
    tiles = Tiling(8)
    found = loops._rung(regions, [tiles, tiles])
    assert found is not None
    assert found.regions == (scoring,)
    both = LoopEstimate(attention, (joining, scoring), (tiles, tiles), profile)
    assert both.loop_at_peak == 0
    assert found.peak_bytes < both.peak_bytes
    assert LoopEstimate(attention, (scoring,), (Tiling(64),), profile).loop_at_peak == 0
    assert whole.loop_at_peak is None


def test_where_so_many_tiles_are_refused_three_quarters_are_tried_then_half(monkeypatch):
    """Between rows that hold too much and rows that windows reach over there may be others."""
    loops, asked = Loops(SimpleNamespace()), list[int]()

    def tiling(self, region, tiles):
        asked.append(tiles)
        return Tiling(-(-48 // tiles)) if tiles <= 6 else None

    monkeypatch.setattr(Loops, "_tiling", tiling)
    assert loops._finest(LoopRegion(number(48)), 16) == Tiling(8)
    assert asked == [16, 12, 8, 6]
    asked.clear()
    assert loops._finest(LoopRegion(number(48)), 2) == Tiling(24)
    assert asked == [2]


def test_along_a_batch_ops_that_are_barred_stay_whole_and_those_like_them():
    """What is refused of one op is refused of all that rules look at alike."""
    nodes = [
        helper.make_node("Elu", ["x"], ["a"]),
        helper.make_node("Concat", ["a", "a"], ["b"], axis=1),
        helper.make_node("Elu", ["a"], ["c"]),
        helper.make_node("Elu", ["b"], ["d"]),
        helper.make_node("Concat", ["c", "d"], ["y"], axis=1),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name, width in (("x", 8), ("y", 24))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    sized = LoopedModel(model, SizeFamily((SizeRange("n", 1, 8),))).sized
    alike = {sized.makers["a"], sized.makers["c"]}
    (region,) = find_batches(sized, 0)
    assert region.ops == set(range(len(nodes)))
    assert ops_alike(sized, region, sized.makers["a"]) == alike
    assert all(not each.ops & alike for each in find_batches(sized, 0, alike))
