"""WebGPU, really run, on a GPU or on a driver in software: `make test-webgpu`; skipped where it cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import MissingDependency, RuntimeFailure
from remat_cli.onnx_io.read.load import save
from remat_cli.onnx_io.read.one_op import call_model
from remat_cli.runtime.measure.op_profiler import InputSpec, OpJob, OpRequest, measure_op
from remat_cli.runtime.segments._segment_sessions import as_array, copied
from remat_cli.runtime.sessions.providers import parse_device, place_of, placed_value, require_device
from remat_cli.runtime.sessions.session import SessionSettings, open_session
from tests.presence import skip_without
from tests.runtime.models import save_model, untyped, value

skip_without("webgpu:0")
pytestmark = pytest.mark.webgpu

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
ALONE = SessionSettings(device="webgpu:0", is_alone=True)


def one_op(tmp_path, op, dtype=TensorProto.FLOAT):
    node = helper.make_node(op, ["x"], ["y"], name="op")
    return save_model(tmp_path / "m.onnx", [node], [value("x", dtype, [4, 8])], untyped("y"))


def measured(path, dtype="float"):
    return measure_op(OpJob("op", str(path), (InputSpec("x", dtype, (4, 8)),), {}), OpRequest(ALONE))


def test_a_least_model_runs_there(tmp_path):
    save(call_model(), tmp_path / "call.onnx")
    for _ in range(2):  # once its plug-in is registered the runtime lists the provider like its own
        session = open_session(tmp_path / "call.onnx", ALONE)
        assert session.get_providers()[0] == "WebGpuExecutionProvider"
        assert session.run(None, {"x": np.array([2.5], np.float32)})[0].tolist() == [-2.5]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
def test_copies_there_and_back_are_exact(dtype):
    array = (np.arange(1000) % 2 if dtype == "bool" else np.arange(1000)).astype(dtype).reshape(10, 100)
    there = copied(placed_value(array, ("cpu", 0)), place_of(parse_device("webgpu:0")))
    assert there.device_name() == "webgpu"
    back = copied(there, ("cpu", 0))
    assert back.device_name() == "cpu"
    assert as_array(back).dtype == array.dtype
    assert as_array(back).tobytes() == array.tobytes()


def test_a_device_of_another_number_is_not_taken_instead():
    with pytest.raises(MissingDependency, match="'webgpu:99' is not there: 1 device found, from 0 on"):
        require_device(parse_device("webgpu:99"))


def test_an_op_that_the_provider_takes_is_timed(tmp_path):
    found = measured(one_op(tmp_path, "Relu"))
    assert found.reason == ""
    assert found.time_ns > 0


def test_an_op_that_the_provider_lacks_has_no_time(tmp_path):
    found = measured(one_op(tmp_path, "Hardmax"))
    assert (found.time_ns, found.reason) == (None, "the provider does not take it by itself")
    with pytest.raises(RuntimeFailure, match="fallback to CPU EP has been explicitly disabled"):
        open_session(tmp_path / "m.onnx", ALONE)


def test_an_op_with_a_branch_that_the_provider_lacks_has_no_time(tmp_path):
    """The runtime reports where ops inside of subgraphs are, too."""
    branches = {}
    for branch, op in (("then_branch", "Relu"), ("else_branch", "Hardmax")):
        out = value(branch, TensorProto.FLOAT, [4, 8])
        branches[branch] = helper.make_graph([helper.make_node(op, ["x"], [branch], name=op)], branch, [], [out])
    node = helper.make_node("If", ["c"], ["y"], name="op", **branches)
    ends = [value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [4, 8])], untyped("y")
    path = save_model(tmp_path / "m.onnx", [node], *ends)
    inputs = (InputSpec("c", "bool", ()), InputSpec("x", "float", (4, 8)))
    found = measure_op(OpJob("op", str(path), inputs, {}), OpRequest(ALONE))
    assert (found.time_ns, found.reason) == (None, "the provider does not take it by itself")


def test_a_type_that_the_device_lacks_is_named_in_one_line(tmp_path):
    found = measured(one_op(tmp_path, "Relu", TensorProto.FLOAT16), "float16")
    if found.time_ns is not None:
        pytest.skip("this device computes with 16 bits")
    assert "requires f16 but the device does not support it" in found.reason
    assert "\n" not in found.reason


def test_a_wrong_value_of_an_option_is_named_in_one_line(tmp_path):
    settings = SessionSettings(device="webgpu:0", provider_options=(("preferredLayout", "XX"),))
    with pytest.raises(RuntimeFailure, match=r"^ONNX Runtime refuses m\.onnx: Invalid preferred layout: XX$"):
        open_session(one_op(tmp_path, "Relu"), settings)


def test_no_driver_is_one_line_and_code_1(tmp_path):
    """The runtime would end the process, where it is told to take a driver in software and there is none."""
    environment = {**os.environ, "VK_DRIVER_FILES": str(tmp_path / "none.json"), "REMAT_CACHE_DIR": str(tmp_path)}
    environment["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
    command = [sys.executable, "-m", "remat_cli", "profile", str(SAMPLES / "chain.onnx"), "--device", "webgpu", "-q"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "needs a GPU with a Vulkan, Direct3D 12 or Metal driver" in done.stderr
