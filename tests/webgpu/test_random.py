"""Random graphs, placed at random with ops computed again, run on the CPU and WebGPU: outputs, order, device memory."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys

import numpy as np
import onnx
import pytest

from remat_cli.base.progress import silent
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.likeness import likeness
from remat_cli.runtime.providers import absence, parse_device
from remat_cli.runtime.segment_memory import see_memory
from remat_cli.runtime.segment_run import time_runs
from remat_cli.runtime.session import SessionSettings, run_profiled
from remat_cli.settings.settings import load_settings
from remat_cli.stages.prepare import prepare
from remat_cli.stages.program import make_program
from tests.onnx_io.graphs import random_model
from tests.stages.placed_plans import place
from tests.webgpu.vulkan_layer import build_layer, counted_environment, has_compiler

if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
    pytest.skip("the package onnxruntime-ep-webgpu is not installed", allow_module_level=True)
if reason := absence(parse_device("webgpu")):
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.webgpu

DEVICES = (named_spec("cpu"), named_spec("webgpu:0"))
FEW, MANY = 4, 200


def check(seed, folder):
    """Outputs are the CPU's within tolerance, in the plan's order; the device holds no more than planned."""
    rng = random.Random(seed)
    (folder / "work").mkdir()
    (folder / "program").mkdir()
    onnx.save(random_model(rng, rng.randrange(5, 25), 17), folder / "model.onnx")
    names = [spec.name for spec in DEVICES]
    config = load_settings({"cache_dir": str(folder / "cache"), "devices": names, "quiet": True})
    prepared = prepare(folder / "model.onnx", config.conditions, folder / "work", silent())
    placed = place(prepared, folder, DEVICES, block=rng.randrange(1, 6), recompute_every=rng.randrange(0, 4))
    program = make_program(placed.plan, placed.path, folder / "program")
    seen = see_memory(program, prepared.feeds)  # fails where a session does not run its ops in order
    expected = run_profiled(prepared.reference_path, prepared.feeds, SessionSettings()).outputs
    runs = time_runs(program, prepared.feeds, 2, {})
    assert likeness(expected, runs.arrays).are_close
    assert runs.is_repeatable
    if has_compiler():
        np.savez(folder / "feeds.npz", **prepared.feeds)
        library = build_layer(folder)
        command = [sys.executable, "-m", "tests.webgpu.memory_worker", "plan", placed.path, folder / "feeds.npz"]
        environment = counted_environment(library)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
        memory = program.memories.index("webgpu:0")
        sessions = seen.fixed_bytes[memory] - program.planned_fixed_bytes[memory]
        assert json.loads(done.stdout)["steady_bytes"] <= program.planned_peak_bytes[memory] + sessions


@pytest.mark.parametrize("seed", range(FEW))
def test_a_sample_of_random_plans(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEW, MANY))
def test_many_random_plans(seed, tmp_path):
    check(seed, tmp_path)
