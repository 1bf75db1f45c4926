"""What a plan says of the device's memory, against what is counted below the provider."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from remat_cli.base.progress import silent
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.program import make_program
from remat_cli.devices.provider_table import WEBGPU_CACHE, named_spec
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.settings.settings import load_settings
from tests.compiling.placed_plans import place
from tests.presence import skip_without
from tests.webgpu.nets import write_across, write_skips
from tests.webgpu.vulkan_layer import build_layer, counted_environment, has_compiler

skip_without("webgpu:0")
if not has_compiler():
    pytest.skip("no C compiler", allow_module_level=True)
pytestmark = pytest.mark.webgpu

CPU, GPU = named_spec("cpu"), named_spec("webgpu:0")


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    return build_layer(tmp_path_factory.mktemp("layer"))


def counted(layer, *words):
    """What `memory_worker` counts in a process with the layer."""
    command = [sys.executable, "-m", "tests.webgpu.memory_worker", *map(str, words)]
    environment = counted_environment(layer)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def prepared_from(write, folder):
    (folder / "work").mkdir()
    names = ["cpu", "webgpu:0"]
    config = load_settings({"cache_dir": str(folder / "cache"), "devices": names, "quiet": True})
    return prepare(write(folder / "m.onnx"), config.conditions, folder / "work", silent())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepared_from(write_skips, tmp_path_factory.mktemp("memory"))


@pytest.fixture(scope="module")
def across(tmp_path_factory):
    return prepared_from(write_across, tmp_path_factory.mktemp("across"))


def planned_and_seen(prepared, layer, folder, devices, block, again):
    """Bytes that a plan holds by the plan, and what is counted."""
    (folder / "program").mkdir()
    placed = place(prepared, folder, devices, block=block, recompute_every=again)
    program = make_program(placed.plan, placed.path, folder / "program")
    memory = program.memories.index("webgpu:0")
    np.savez(folder / "feeds.npz", **prepared.feeds)
    seen = counted(layer, "plan", placed.path, folder / "feeds.npz")
    sessions = see_memory(program, prepared.feeds).fixed_bytes[memory] - program.planned_fixed_bytes[memory]
    return program.planned_peak_bytes[memory] + sessions, seen


@pytest.mark.parametrize(("devices", "block", "again"), [((CPU, GPU), 1, 0), ((CPU, GPU), 4, 2), ((GPU,), 4, 3)])
def test_what_is_held_in_later_runs_is_planned_to_the_byte(prepared, layer, tmp_path, devices, block, again):
    planned_bytes, seen = planned_and_seen(prepared, layer, tmp_path, devices, block, again)
    assert seen["is_steady"]
    assert seen["steady_bytes"] == planned_bytes
    assert seen["same_bits_in_every_run"]


@pytest.mark.parametrize(("devices", "block"), [((GPU,), 4), ((CPU, GPU), 1), ((CPU, GPU), 3)])
def test_buffers_that_ops_take_beside_their_tensors_are_planned(across, layer, tmp_path, devices, block):
    """Small weights that lie on the host are counted, so that it is not to the byte."""
    planned_bytes, seen = planned_and_seen(across, layer, tmp_path, devices, block, 0)
    assert seen["is_steady"]
    assert planned_bytes - 128 <= seen["steady_bytes"] <= planned_bytes


def test_buffers_have_the_sizes_of_the_record(layer):
    sizes = [size for bucket in WEBGPU_CACHE.bucket_bytes if bucket <= 2**22 for size in (bucket, bucket + 4)]
    assert counted(layer, "values", 4, *sizes)["sizes"] == sorted(map(WEBGPU_CACHE.rounded, [4, *sizes]))
