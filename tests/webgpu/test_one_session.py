"""Random plans on the CPU and WebGPU as one session: the runtime's own order, copies, placement and device memory."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import pytest

from remat_cli.base.progress import silent
from remat_cli.core.plan_file import graph_instances, write_plan
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime._segment_sessions import Opening, misplaced_op, open_all
from remat_cli.runtime.likeness import likeness
from remat_cli.runtime.providers import absence, parse_device
from remat_cli.runtime.segment_memory import see_memory
from remat_cli.runtime.segment_run import time_runs
from remat_cli.runtime.session import SessionSettings, run_profiled
from remat_cli.settings.settings import load_settings
from remat_cli.stages.cut import cut_of, in_one_session
from remat_cli.stages.platform import Platform
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
FEW, MANY = (13,), 40


def shared(seed, folder):
    """A random plan on both as one session: its file, program, feeds and reference; None where it cannot be one."""
    rng = random.Random(seed)
    for name in ("work", "program"):
        (folder / name).mkdir()
    onnx.save(random_model(rng, rng.randrange(5, 25), 17), folder / "model.onnx")
    names = [spec.name for spec in DEVICES]
    config = load_settings({"cache_dir": str(folder / "cache"), "devices": names, "quiet": True})
    prepared = prepare(folder / "model.onnx", config.conditions, folder / "work", silent())
    placed = place(prepared, folder, DEVICES, block=rng.randrange(1, 6), recompute_every=rng.randrange(0, 4))
    spot, problem = placed.plan.placement, placed.problem
    platform = Platform(prepared.graph, spot.devices, spot.profiles, spot.links)
    plan = in_one_session(platform, prepared.reference, problem, placed.judged)
    if plan is None:
        return None
    cut = cut_of(platform, problem, plan, "one_session")
    peaks = dict(zip((memory.name for memory in problem.memories), cut.peak_bytes, strict=True))
    spot = msgspec.structs.replace(spot, way="one_session", segments=1, peak_bytes=peaks)
    lives = graph_instances(prepared.graph, problem, plan)
    file = msgspec.structs.replace(placed.plan, schedule=plan.schedule, instances=lives, placement=spot)
    write_plan(placed.path, file)
    return placed.path, make_program(file, placed.path, folder / "program"), prepared


def check(seed, folder):
    """Ops run where and when planned, outputs are the CPU's within tolerance, the device holds no more than planned."""
    found = shared(seed, folder)
    if found is None:
        return False
    path, program, prepared = found
    seen = see_memory(program, prepared.feeds)  # fails where the session does not run its ops in order
    assert seen.misplaced_op is None
    expected = run_profiled(prepared.reference_path, prepared.feeds, SessionSettings()).outputs
    runs = time_runs(program, prepared.feeds, 2, {})
    assert likeness(expected, runs.arrays).are_close
    assert runs.is_repeatable
    if has_compiler():
        np.savez(folder / "feeds.npz", **prepared.feeds)
        command = [sys.executable, "-m", "tests.webgpu.memory_worker", "plan", path, folder / "feeds.npz"]
        environment = counted_environment(build_layer(folder))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
        memory = program.memories.index("webgpu:0")
        sessions = seen.fixed_bytes[memory] - program.planned_fixed_bytes[memory]
        assert json.loads(done.stdout)["steady_bytes"] <= program.planned_peak_bytes[memory] + sessions
    return True


@pytest.mark.parametrize("seed", FEW)
def test_a_plan_is_run_as_one_session(seed, tmp_path):
    assert check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(14, MANY))
def test_many_plans_are_run_as_one_session(seed, tmp_path):
    if not check(seed, tmp_path):
        pytest.skip("this plan cannot be one session")


def test_an_op_that_is_elsewhere_is_named(tmp_path):
    """By the runtime's report, whatever it was told."""
    _, program, _ = shared(1, tmp_path)
    (opened,) = open_all(program, Opening({}))
    assert misplaced_op(opened, program) is None
    op = next(name for name in opened.action.segment.ops if name not in opened.action.host_ops)
    action = msgspec.structs.replace(opened.action, host_ops=(*opened.action.host_ops, op))
    line = misplaced_op(replace(opened, action=action), program)
    assert line == f"op '{op}' is run by WebGpuExecutionProvider, not by CPUExecutionProvider"
