"""Commands as a user gives them, on WebGPU alone and beside the CPU; budgets send ops from one memory to the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat_cli.core.files.plan_reader import read_plan
from tests.presence import skip_without
from tests.runtime.models import save_model, value, weight

skip_without("webgpu:0")
pytestmark = pytest.mark.webgpu

BOTH = ("--device", "cpu", "--device", "webgpu")
LEVELS = 3
SIDE = 32


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return {"REMAT_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A U-Net of three levels: skips of 32, 16 and 8 KiB beside what goes on, joined again on the way up."""
    rng = np.random.default_rng(0)
    nodes, weights, last, skips = [], [], "x", []

    def conv(source, inside, outside, name):
        weights.append(weight(f"{name}.w", rng.standard_normal((outside, inside, 3, 3)).astype(np.float32) / 6))
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [name], name, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.relu"], f"{name}.relu"))
        return f"{name}.relu"

    for level in range(LEVELS):
        last = conv(last, 8, 8, f"down{level}")
        skips.append(last)
        pooled = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes.append(helper.make_node("MaxPool", [last], [f"pool{level}"], f"pool{level}", **pooled))
        last = f"pool{level}"
    last = conv(last, 8, 8, "bottom")
    for level in reversed(range(LEVELS)):
        weights.append(weight(f"up{level}.w", rng.standard_normal((8, 8, 2, 2)).astype(np.float32) / 3))
        nodes.append(
            helper.make_node("ConvTranspose", [last, f"up{level}.w"], [f"up{level}"], f"up{level}", strides=[2, 2])
        )
        nodes.append(helper.make_node("Concat", [skips[level], f"up{level}"], [f"cat{level}"], f"cat{level}", axis=1))
        last = conv(f"cat{level}", 16, 8, f"out{level}")
    nodes[-1].output[0] = "y"
    shape = [1, 8, SIDE, SIDE]
    ends = [value("x", TensorProto.FLOAT, shape)], [value("y", TensorProto.FLOAT, shape)]
    return save_model(tmp_path_factory.mktemp("model") / "m.onnx", nodes, *ends, weights)


def remat(cache, *words):
    """What a command says in JSON; nothing may be on stderr."""
    command = [sys.executable, "-m", "remat_cli", *map(str, words), "--format", "json", "--quiet"]
    environment = {**os.environ, **cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def compiled(cache, model, output, budget, *devices):
    more = ("--time-limit", "4s", "--output", output, "--force", "--budget", budget)
    return remat(cache, "compile", model, *devices, *more)


def ops_on(report, device):
    return next((each["ops"] for each in report["devices"] if each["name"] == device), 0)


def test_a_plan_on_webgpu_alone_is_compiled_verified_and_run(model, cache, tmp_path):
    report = compiled(cache, model, tmp_path / "m.onnx", "100%", "--device", "webgpu")
    assert [each["name"] for each in report["devices"]] == ["webgpu:0"]
    assert report["verification"]["outputs_close"]
    gated = onnx.load(report["gated_output"])  # compile ran it in a session of its own
    assert sum(node.op_type == "Shape" for node in gated.graph.node) > 0
    assert remat(cache, "verify", tmp_path / "m.plan.json")["verification"]["outputs_close"]
    ran = remat(cache, "run", tmp_path / "m.plan.json", "--repeat", "2", "--enforce-budget")
    assert ran["is_repeatable"]


@pytest.mark.slow
def test_ops_are_cut_for_the_largest_tensor_of_the_device(model, cache, tmp_path):
    """Two joined skips of 64 KiB are never there as a whole; what is fed has 32 KiB."""
    report = compiled(cache, model, tmp_path / "m.onnx", "100%", "--device", "webgpu", "--max-tensor", "32KiB")
    assert any("ops run in tiles so that no tensor inside is above 32.00 KiB" in line for line in report["warnings"])
    plan = read_plan(tmp_path / "m.plan.json")
    assert max(tensor.size_bytes for tensor in plan.graph.tensors) == 32 * 2**10
    assert plan.request.max_tensor_bytes == 32 * 2**10
    assert {op.op_type for op in plan.graph.ops} >= {"Conv", "Concat"}
    assert remat(cache, "verify", tmp_path / "m.plan.json")["verification"]["outputs_close"]


def test_what_stays_too_large_for_the_device_runs_elsewhere(model, cache, tmp_path):
    """Inputs cannot be cut: what reads them is left to the CPU, and without it the op and the tensor are named."""
    words = (
        "compile",
        model,
        "--device",
        "webgpu",
        "--max-tensor",
        "16KiB",
        "--output",
        tmp_path / "m.onnx",
        "--quiet",
    )
    command = [sys.executable, "-m", "remat_cli", *map(str, words), "--budget", "100%"]
    done = subprocess.run(
        command, env={**os.environ, **cache}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2
    assert "tensor 'x' of 32.00 KiB is above its largest of 16.00 KiB; add --device cpu" in done.stderr


@pytest.mark.slow
def test_where_the_cpu_has_room_nothing_goes_to_a_device_that_is_slower(model, cache, tmp_path):
    report = compiled(cache, model, tmp_path / "m.onnx", "cpu=64MiB,webgpu:0=64MiB", *BOTH)
    assert ops_on(report, "cpu") > 0
    assert ops_on(report, "webgpu:0") == 0


def test_a_small_budget_of_the_cpu_sends_ops_to_the_device(model, cache, tmp_path):
    report = compiled(cache, model, tmp_path / "m.onnx", "cpu=25%,webgpu:0=100%", *BOTH)
    assert ops_on(report, "webgpu:0") > 0
    assert report["verification"]["outputs_close"]
    ran = remat(cache, "run", tmp_path / "m.plan.json", "--repeat", "2", "--enforce-budget")
    assert ran["is_repeatable"]
    assert {link["copies"] > 0 for link in ran["links"]} == {True}
