"""In a loop the runtime makes of ops what it makes of them outside, though it could know more of their shapes there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.runtime.sessions._ort import pack_all
from remat_cli.runtime.sessions.feeds import GivenFeeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import see_at_sizes
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loops import looped as loops
from remat_cli.splitting.loops.short_sizes import short_sizes
from tests.helpers import to_bytes
from tests.splitting.looped_model import LoopedModel, session_of
from tests.splitting.test_looped_models import Build

FAMILY = SizeFamily((SizeRange("b", 1, 8),))


def of_unknown_rank(build: Build, read: str, rank: int) -> str:
    """The same, of which nothing is known before a run."""
    nothing = build.op("Mul", build.op("Size", read), build.weight(0))
    end = build.op("Add", nothing, build.weight([rank]))
    shape = build.op("Slice", build.op("Shape", read), build.weight([0]), end)
    return build.op("Reshape", read, shape)


def scaled(build: Build) -> str:
    known = build.op("Relu", "x")
    seen = of_unknown_rank(build, known, 3)
    scores = build.op("MatMul", build.op("Div", seen, build.weight(3.0, np.float32)), build.op("Relu", seen))
    return build.op("Softmax", scores)


def pooled(build: Build) -> str:
    seen = of_unknown_rank(build, build.op("Relu", build.conv("x", 16, 3)), 4)
    made = build.conv(seen, 16, 16)
    return build.op("Flatten", build.op("AveragePool", made, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))


def made_by_the_runtime(model: ir.Model, folder) -> set[tuple[str, str]]:
    """Ops, those of bodies too, after the runtime optimised them."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(to_bytes(model), options)
    found = ir.load(folder / "optimised.onnx")
    return {(node.domain, node.op_type) for node in found.graph.all_nodes()}


@pytest.mark.parametrize(
    ("make", "shape", "other"),
    [
        (scaled, ("b", 24, 24), ("com.microsoft", "FusedMatMul")),
        (pooled, ("b", 3, 12, 12), ("com.microsoft.nchwc", "AveragePool")),
    ],
)
def test_ops_of_unknown_rank_are_not_made_others_in_a_loop(make, shape, other, tmp_path):
    build = Build()
    looped = LoopedModel(build.model(shape, make(build)), FAMILY, along_batch=True)
    view = replace(looped.sized.view, channel_block=16)
    inside = {}
    for told in (None, {}):
        sized = replace(looped.sized, view=view, told=told)
        written = loops(sized, looped.regions, [Tiling(2) for _ in looped.regions]).model
        assert any(node.op_type == "Loop" for node in written.graph.all_nodes())
        inside[told is None] = made_by_the_runtime(written, tmp_path)
    assert other not in made_by_the_runtime(looped.named, tmp_path)
    assert other in inside[True]  # where all is told, it is made
    assert other not in inside[False]
    sessions = [session_of(to_bytes(each)) for each in (looped.named, written)]
    for count in (8, 4, 2):
        whole, ours = (session.run(None, looped.feeds({"b": count}))[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


def test_windows_that_tiles_make_again_are_made_again_at_short_sizes_too():
    """Whole they would be there beside what makes them, and beside those of other regions: more than a tile holds."""
    build = Build()
    first = build.op("Relu", build.conv("x", 8, 3))
    model = build.model(("b", 3, 12, 12), build.op("Relu", build.conv(first, 8, 8)))
    looped = LoopedModel(model, FAMILY, along_batch=True)
    (region,) = looped.regions
    ops = looped.sized.view.graph.ops
    again = replace(region, copies={op for op in region.ops if first in looped.sized.view.makes[op]})
    again.copies.update(op for op in region.ops if ops[op].op_type == "Conv" and op < max(again.copies))
    written = loops(looped.sized, [again], [Tiling(2)]).model
    (choice,) = (node for node in written.graph if node.op_type == "If")
    assert sorted(node.op_type for node in choice.attributes["then_branch"].as_graph()).count("Conv") == 2
    assert not any(node.op_type == "Loop" for node in written.graph)  # none that makes it for all regions
    sessions = [session_of(to_bytes(each)) for each in (looped.named, written)]
    for count in (8, 2, 4, 8):
        whole, ours = (session.run(None, looped.feeds({"b": count}))[0] for session in sessions)
        assert whole.tobytes() == ours.tobytes()


def test_windows_run_whole_at_sizes_that_hold_no_more_than_tiles_of_the_largest(tmp_path):
    """Up to a quarter of the largest: more than a tile of these rows has, as inputs and outputs are there anyway."""
    build = Build()
    made = build.conv(build.op("Elu", build.conv(build.conv("x", 8, 3), 8, 8)), 8, 8)
    family = SizeFamily((SizeRange("h", 8, 96, 8),))
    looped = LoopedModel(build.model((1, 3, "h", 40), made), family)
    (region,), tiling = looped.regions, Tiling(4)
    whole = short_sizes(looped.sized, region, tiling)
    assert whole is not None
    assert whole.holds({"h": 24})
    assert not whole.holds({"h": 32})
    written = loops(looped.sized, [region], [tiling]).model
    (choice,) = (node for node in written.graph if node.op_type == "If")
    assert any(node.op_type == "Loop" for node in choice.attributes["else_branch"].as_graph())
    path = tmp_path / "looped.onnx"
    path.write_bytes(to_bytes(written))
    feeds = [GivenFeeds(pack_all(looped.feeds({"h": height}))) for height in (96, 24)]
    most, short = see_at_sizes(path, feeds, SessionSettings(exact=True)).peak_bytes
    assert short <= most
