"""What the process of an actor holds is what was planned, updates included; no cluster is needed to see that."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import remat_cli as api
from remat_cli.pipelines.plan.orders import flushed_turns, late_turns
from remat_cli.pipelines.plan.schedule_file import read_pipeline
from remat_cli.pipelines.run.feeds import chosen_settings, pipeline_feed
from remat_cli.pipelines.run.stage_actor import DeviceActor
from remat_cli.runtime.observe.resident import can_measure_resident
from remat_cli.runtime.sessions._ort import run_fresh

MIB = 2**20
SESSIONS_BYTES = 4 * MIB
"""The structures of three sessions, which are not planned."""


def layers(width: int = 512, count: int = 6) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    names = [f"x{at}" for at in range(2 * count + 1)]
    nodes = []
    for at in range(count):
        nodes.append(helper.make_node("MatMul", [names[2 * at], f"w{at}"], [names[2 * at + 1]]))
        nodes.append(helper.make_node("Relu", [names[2 * at + 1]], [names[2 * at + 2]]))
    weights = [
        numpy_helper.from_array(rng.standard_normal((width, width), np.float32) / 20, f"w{at}") for at in range(count)
    ]
    ports = [helper.make_tensor_value_info(name, 1, (64, width)) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def held_bytes(job, advance) -> int:
    """The most that a process holds that runs all turns of a schedule of one stage."""
    schedule, is_late = job
    plan, folder = read_pipeline(schedule), schedule.parent
    actor = DeviceActor(plan, [1], (str(folder), is_late, 1))
    feed, chosen = pipeline_feed(plan, folder, None, 0), chosen_settings(plan, None, 0.001)
    held = 0
    for turn in (late_turns if is_late else flushed_turns)(plan, 4, 3):
        if turn.kind == "F":
            _, (_, span) = actor.forward(turn, {}, feed(turn.batch))
        elif turn.kind == "B":
            _, (_, span) = actor.backward(turn, {})
        else:
            _, (_, span) = actor.update(turn, 4, chosen)
        held = max(held, span.held_bytes)
    return held


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_resident(), reason="this system does not tell what is resident")
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_an_actor_holds_what_was_planned(tmp_path, monkeypatch, optimizer):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    onnx.save(layers(), tmp_path / "model.onnx")
    api.train(tmp_path / "model.onnx", loss="mse", optimizer=optimizer, output=tmp_path / "step.onnx")
    how = {"devices": 1, "memory": "1GiB", "intra_op_threads": 1, "output": tmp_path / "stages"}
    api.partition(tmp_path / "step.onnx", **how)
    schedule = tmp_path / "stages" / "schedule.json"
    planned = read_pipeline(schedule).devices[0].peak_bytes
    assert planned > 24 * MIB
    for is_late in (False, True):
        held = run_fresh(held_bytes, (schedule, is_late))
        assert 0.5 * planned < held <= planned + SESSIONS_BYTES
