"""Random plans for a device, and what is counted of its memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare
from remat_cli.core.schedule.program import Program, SeenMemory
from remat_cli.core.values.profile import DeviceSpec
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.segments._segment_sessions import has_counters
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.segments.segment_run import time_runs
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from remat_cli.runtime.verify.likeness import likeness
from remat_cli.settings.settings import load_settings
from tests.compiling.placed_plans import Placed, place
from tests.onnx_io.graphs import random_model
from tests.webgpu.vulkan_layer import build_layer, counted_environment, has_compiler

CPU = named_spec("cpu")
COUNTED = "webgpu"
"""The provider below which a layer of our own counts bytes; of others nothing tells what they hold."""


@dataclass(frozen=True)
class Case:
    """A random model, placed at random, with ops computed again; all in one folder."""

    folder: Path
    placed: Placed


def random_case(seed: int, folder: Path, devices: tuple[DeviceSpec, ...], least_again: int = 0) -> Case:
    """The plan of a seed; `least_again` 1: some ops are computed again."""
    rng = random.Random(seed)
    for name in ("work", "program"):
        (folder / name).mkdir()
    onnx.save(random_model(rng, rng.randrange(5, 25), 17), folder / "model.onnx")
    names = [spec.name for spec in devices]
    config = load_settings({"cache_dir": str(folder / "cache"), "devices": names, "quiet": True})
    prepared = prepare(folder / "model.onnx", config.conditions, folder / "work", silent())
    block, again = rng.randrange(1, 6), rng.randrange(least_again, 4)
    return Case(folder, place(prepared, folder, devices, block=block, recompute_every=again))


def check_runs(case: Case, path: Path, program: Program) -> None:
    """Outputs are the CPU's within tolerance, in the plan's order; the device holds no more than planned."""
    prepared = case.placed.prepared
    seen = see_memory(program, prepared.feeds)  # fails where a session does not run its ops in order
    assert seen.misplaced_op is None
    expected = run_profiled(prepared.reference_path, prepared.feeds, SessionSettings()).outputs
    runs = time_runs(program, prepared.feeds, 2, {})
    assert likeness(expected, runs.arrays).are_close
    assert runs.is_repeatable
    _check_memory(case, path, program, seen)


def _check_memory(case: Case, path: Path, program: Program, seen: SeenMemory) -> None:
    (memory,) = {program.memory_of[n] for n, spec in enumerate(program.devices) if spec.provider != "cpu"}
    if has_counters(program.devices[-1]) and not program.sessions[-1].host_ops:  # by the runtime's own counters
        assert not seen.is_hidden[memory]
        assert seen.peak_bytes[memory] <= program.planned_peak_bytes[memory]
    held_bytes = steady_bytes(case, program.devices[-1], "plan", path)
    sessions_bytes = seen.fixed_bytes[memory] - program.planned_fixed_bytes[memory]
    assert held_bytes is None or held_bytes <= program.planned_peak_bytes[memory] + sessions_bytes


def steady_bytes(case: Case, spec: DeviceSpec, mode: str, path: Path) -> int | None:
    """Bytes that later runs of a plan, or of a model with gates, hold on the device; None where nothing counts them."""
    if spec.provider != COUNTED or not has_compiler():
        return None
    np.savez(case.folder / "feeds.npz", **case.placed.prepared.feeds)
    command = [sys.executable, "-m", "tests.webgpu.memory_worker", mode, path, case.folder / "feeds.npz"]
    environment = counted_environment(build_layer(case.folder))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return int(json.loads(done.stdout)["steady_bytes"])
