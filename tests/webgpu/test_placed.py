"""Plans whose ops run on the CPU and on WebGPU in turn, really run: values go from session to session on the device."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.base.progress import silent
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.likeness import likeness
from remat_cli.runtime.providers import absence, parse_device
from remat_cli.runtime.segment_run import time_runs
from remat_cli.runtime.session import SessionSettings, run_profiled
from remat_cli.settings.settings import load_settings
from remat_cli.stages.prepare import prepare
from remat_cli.stages.program import make_program
from tests.runtime.models import save_model, value, weight
from tests.stages.placed_plans import place

if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
    pytest.skip("the package onnxruntime-ep-webgpu is not installed", allow_module_level=True)
if reason := absence(parse_device("webgpu")):
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.webgpu

CPU, GPU = named_spec("cpu"), named_spec("webgpu:0")
SHAPE = [1, 4, 16, 16]


@pytest.fixture
def prepared(tmp_path):
    """Convolutions and pointwise ops with a skip over all of them, of 4 KiB each."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number in range(4):
        weights.append(weight(f"w{number}", rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], f"c{number}", pads=[1, 1, 1, 1]))
        last = f"s{number}"
        nodes.append(helper.make_node("Sigmoid", [f"c{number}"], [last], last))
    nodes.append(helper.make_node("Add", [last, "s0"], ["y"], name="add"))
    ends = [value("x", TensorProto.FLOAT, SHAPE)], [value("y", TensorProto.FLOAT, SHAPE)]
    path = save_model(tmp_path / "m.onnx", nodes, *ends, weights)
    (tmp_path / "work").mkdir()
    names = ["cpu", "webgpu:0"]
    config = load_settings({"cache_dir": str(tmp_path / "cache"), "devices": names, "quiet": True})
    return prepare(path, config.conditions, tmp_path / "work", silent())


@pytest.mark.parametrize(("block", "recompute_every"), [(1, 0), (2, 0), (3, 1)])
def test_a_plan_on_both_agrees_with_the_cpu_and_repeats_bit_by_bit(prepared, tmp_path, block, recompute_every):
    (tmp_path / "placed").mkdir()
    placed = place(prepared, tmp_path / "placed", (CPU, GPU), block=block, recompute_every=recompute_every)
    program = make_program(placed.plan, placed.path, tmp_path / "placed")
    assert {program.devices[action.device].name for action in program.sessions} == {"cpu", "webgpu:0"}
    expected = run_profiled(prepared.reference_path, prepared.feeds, SessionSettings()).outputs
    first, second = (time_runs(program, prepared.feeds, 3, {}) for _ in range(2))
    assert likeness(expected, first.arrays).are_close
    assert first.is_repeatable
    assert all(first.arrays[name].tobytes() == second.arrays[name].tobytes() for name in expected)
