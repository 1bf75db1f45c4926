"""Ops of a loop's body run in their order where the runtime's own would hold more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.runtime.sessions._ort import pack_all
from remat_cli.runtime.sessions.feeds import GivenFeeds
from remat_cli.runtime.sessions.session import SessionSettings
from remat_cli.runtime.verify.family import see_at_sizes
from remat_cli.splitting.loops import loops as writing
from remat_cli.splitting.loops.body_order import in_order, runtime_order
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_values import SizeValues
from tests.helpers import to_bytes
from tests.splitting.looped_model import LoopedModel
from tests.splitting.test_looped_models import Build

LONG = SizeFamily((SizeRange("n", 1, 1024),))


def waiting_long(build: Build) -> str:
    """Two results of what is wide, of which the runtime would make one only once something else as wide is there."""
    wide = build.op("Concat", *["x"] * 8, axis=1)
    one, other = build.op("ReduceMax", wide, axes=[1]), build.op("ReduceMin", wide, axes=[1])
    again = build.op("ReduceMax", build.op("Concat", *[one] * 128, axis=1), axes=[1])
    return build.op("Add", again, other)


def peak_of(looped: LoopedModel, path: Path, rows: int) -> int:
    """What a default session holds at most, at the largest size."""
    tilings = [Tiling(rows) for _ in looped.regions]
    path.write_bytes(to_bytes(writing.looped(looped.sized, looped.regions, tilings).model))
    feeds = [GivenFeeds(pack_all(looped.feeds(looped.family.corners[0])))]
    return see_at_sizes(path, feeds, SessionSettings(exact=False)).peak_bytes[0]


def test_a_body_holds_as_much_as_its_order_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build()
    looped = LoopedModel(build.model(("n", 16), waiting_long(build)), LONG)
    wide_bytes = 256 * 128 * 4
    gated = peak_of(looped, tmp_path / "gated.onnx", 256)
    monkeypatch.setattr(writing, "WORTH", float("inf"))
    assert peak_of(looped, tmp_path / "free.onnx", 256) - gated > wide_bytes / 2
    monkeypatch.undo()
    looped.check([{"n": 1024}, {"n": 700}, {"n": 1}], rows=256)


@pytest.mark.parametrize("seed", range(8))
def test_any_order_can_be_kept(seed: int) -> None:
    """Drawn wirings in drawn orders: the runtime runs each as it is written."""
    dice = np.random.default_rng(seed)
    graph = ir.Graph([], [], nodes=[], name="g")
    numbers = SizeValues(graph, {}, set())
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["a", "b"])
    made, nodes = [ir.Value(name="x", type=kind, shape=shape)], []
    for at in range(24):
        reads = [made[each] for each in dice.integers(0, len(made), 2)]
        made.append(ir.Value(name=f"v{at}", type=kind, shape=shape))
        nodes.append(ir.Node("", "Add", reads, outputs=[made[-1]], name=f"n{at}"))
    assert runtime_order(nodes) != list(range(len(nodes)))
    ordered = in_order(numbers, "body/", nodes, nodes)
    names = [ordered[at].name for at in runtime_order(ordered)]
    assert [name for name in names if not name.startswith("body/")] == [node.name for node in nodes]


def scores_read_in_vain(build: Build) -> str:
    """Attention, and an op that nothing reads of its scores."""
    scores = build.op("MatMul", "x", build.op("Transpose", "x", perm=[0, 2, 1]))
    build.op("Mul", scores, build.weight(2.0, np.float32))
    return build.op("MatMul", build.op("Softmax", build.op("Div", scores, build.weight(3.0, np.float32))), "x")


@pytest.mark.parametrize("is_late", [True, False])
def test_what_nothing_reads_runs_late_however_a_body_is_numbered(is_late, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime numbers nodes anew: one that is numbered last and read by none would run as soon as it can."""
    if not is_late:
        monkeypatch.setattr(writing, "with_idle_late", lambda numbers, prefix, nodes, idle: nodes)
    build = Build()
    looped = LoopedModel(build.model((1, "n", 16), scores_read_in_vain(build)), LONG, least_bytes=4 * 1024 * 1024)
    written = writing.looped(looped.sized, looped.regions, [Tiling(64)]).model
    (loop,) = (node for node in written.graph.all_nodes() if node.op_type == "Loop")
    nodes = list(loop.attributes["body"].as_graph())
    ends = [node for node in nodes if node.op_type in ("Identity", "SequenceInsert")]
    nodes = [*(node for node in nodes if node not in ends), *ends]
    idle = next(node for node in nodes if node.name.startswith("Mul_t"))
    nodes = [*(node for node in nodes if node is not idle), idle]
    order = [nodes[at].name for at in runtime_order(nodes)]
    assert (order.index(idle.name) > order.index("MatMul_t5")) is is_late
    looped.check([{"n": 1024}, {"n": 700}, {"n": 1}], rows=64)
