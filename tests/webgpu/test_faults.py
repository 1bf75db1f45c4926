"""What goes wrong on a device is one line that names it, and the right exit code; nothing moves to the CPU instead."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import RuntimeFailure
from remat_cli.compiling.program import input_specs, make_program
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.runtime.segments.segment_run import time_runs
from remat_cli.runtime.sessions.feeds import make_feeds
from tests.presence import skip_without
from tests.runtime.models import save_model, value, weight
from tests.webgpu.vulkan_layer import build_layer, has_compiler, layer_environment

skip_without("webgpu:0")
pytestmark = pytest.mark.webgpu

SHAPE = [1, 4, 1024, 1024]  # 16 MiB: small buffers share allocations of 8 MiB
LOST = "the device was lost: its driver was reset or has ended; run it again"


def remat(*words, **environment):
    """What a command says, and its exit code."""
    command = [sys.executable, "-m", "remat_cli", *map(str, words), "--quiet"]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def one_error(done):
    """The one line on stderr of a command that failed."""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("error: ").rstrip("\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def cache(folder):
    return {"REMAT_CACHE_DIR": str(folder / "cache")}


@pytest.fixture(scope="module")
def model(folder):
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["s", "w"], ["m"], "mul"),
        helper.make_node("GlobalAveragePool", ["m"], ["y"], "pool"),
    ]
    ends = [value("x", TensorProto.FLOAT, SHAPE)], [value("y", TensorProto.FLOAT, [1, 4, 1, 1])]
    return save_model(folder / "m.onnx", nodes, *ends, [weight("w", np.ones((1, 4, 1, 1), np.float32))])


@pytest.fixture(scope="module")
def plan(model, cache):
    """A plan that runs all on the device."""
    done = remat("compile", model, "--device", "webgpu", "--budget", "100%", "--time-limit", "3s", **cache)
    assert (done.returncode, done.stderr) == (0, "")
    return model.with_name("m.plan.json")


@pytest.fixture(scope="module")
def layer(folder):
    """Variables that put the layer below the provider."""
    if not has_compiler():
        pytest.skip("no C compiler")
    return layer_environment(build_layer(folder))


def test_a_device_that_is_lost_in_mid_run_is_one_line(plan, cache, layer):
    done = remat("run", plan, **cache, **layer, LAYER_LOSES_DEVICE_AT="5")
    assert done.returncode == 1
    assert one_error(done) == f"fetching 'y' from memory 'webgpu:0' failed: {LOST}"


@pytest.mark.slow
def test_a_device_that_does_not_come_back_in_profiling_is_one_line_and_no_op_is_blamed(model, folder, layer):
    own = {"REMAT_CACHE_DIR": str(folder / "fresh")}
    done = remat("profile", model, "--device", "webgpu", **own, **layer, LAYER_LOSES_DEVICE_AT="4")
    assert done.returncode == 1
    assert one_error(done) == f"device 'webgpu:0' fails at every op: it fails to run: {LOST}"
    assert "cannot run" not in remat("profile", model, "--device", "webgpu", **own).stdout


def test_a_buffer_that_the_device_cannot_make_is_one_line(plan, cache, layer):
    done = remat("run", plan, **cache, **layer, LAYER_MOST_AT_ONCE=str(9 * 2**20))
    assert done.returncode == 1
    words = "out of memory on the device, or a tensor is larger than its largest buffer"
    assert one_error(done).startswith(f"ONNX Runtime fails on device 'webgpu:0' (action 1 of 1): {words}")


def test_the_end_of_the_process_that_holds_the_device_is_one_line(plan, folder):
    read = read_plan(plan)
    (folder / "program").mkdir()
    program = make_program(read, plan, folder / "program")

    def kill_worker(done: int, total: int) -> None:
        for child in psutil.Process().children(recursive=True):
            child.kill()

    with pytest.raises(RuntimeFailure, match=r"^the process that runs ONNX Runtime was killed by signal 9") as raised:
        time_runs(program, make_feeds(input_specs(read), 0), 1000, {}, kill_worker)
    assert "\n" not in str(raised.value)


def test_a_type_that_the_device_lacks_is_one_line_with_the_next_step(folder, cache):
    nodes, output = [helper.make_node("Sigmoid", ["x"], ["y"], "sigmoid")], value("y", TensorProto.FLOAT16, [4, 8])
    half = save_model(folder / "half.onnx", nodes, [value("x", TensorProto.FLOAT16, [4, 8])], [output])
    done = remat("compile", half, "--device", "webgpu", "--budget", "100%", "--time-limit", "3s", **cache)
    if done.returncode == 0:
        pytest.skip("this device computes with 16 bits")
    assert done.returncode == 2
    assert one_error(done).startswith("no device can run op '")
    assert "f16" in one_error(done)
    assert one_error(done).endswith("; add --device cpu")


def test_an_option_that_the_provider_would_ignore_is_one_line_and_code_2(model, folder, cache):
    device = folder / "misspelt.yaml"
    device.write_text("provider: webgpu\noptions: {preferedLayout: NHWC}\n")
    done = remat("profile", model, "--device", device, **cache)
    assert done.returncode == 2
    assert one_error(done).endswith(
        "options: provider webgpu knows no 'preferedLayout'; did you mean 'preferredLayout'?"
    )


def test_a_value_of_an_option_that_the_provider_refuses_is_one_line(model, folder, cache):
    device = folder / "wrong.yaml"
    device.write_text("provider: webgpu\noptions: {preferredLayout: NCWH}\n")
    done = remat("profile", model, "--device", device, **cache)
    assert done.returncode == 1
    assert "Invalid preferred layout: NCWH" in one_error(done)
