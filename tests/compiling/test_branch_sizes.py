"""A model with a branch that is wrong for the bound size: the size is kept from the runtime, which refuses it else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.base.progress import silent
from remat_cli.cli import main
from remat_cli.compiling.prepare import prepare
from remat_cli.settings.settings import load_settings


def branch(name: str, frame: int) -> onnx.GraphProto:
    """Frames of so many samples; where there is one of them, its axis is dropped, and only then an LSTM takes it."""
    rng = np.random.default_rng(0)
    weights = {
        "shape": np.array([-1, frame, 1]),
        "axes": np.array([1, 2]),
        "w": (rng.standard_normal((1, 32, 1)) / 10).astype(np.float32),
        "r": (rng.standard_normal((1, 32, 8)) / 10).astype(np.float32),
    }
    nodes = [
        helper.make_node("Reshape", ["x", f"{name}shape"], [f"{name}frames"]),
        helper.make_node("Squeeze", [f"{name}frames"], [f"{name}one"]),
        helper.make_node("Unsqueeze", [f"{name}one", f"{name}axes"], [f"{name}steps"]),
        helper.make_node("LSTM", [f"{name}steps", f"{name}w", f"{name}r"], ["", f"{name}h"], hidden_size=8),
    ]
    made = helper.make_tensor_value_info(f"{name}h", TensorProto.FLOAT, None)
    return helper.make_graph(
        nodes, name, [], [made], [numpy_helper.from_array(value, f"{name}{key}") for key, value in weights.items()]
    )


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [
        helper.make_node("Equal", ["rate", "high"], ["is_high"]),
        helper.make_node("If", ["is_high"], ["y"], "if", then_branch=branch("a", 576), else_branch=branch("b", 288)),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
    ]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None, None])
    graph = helper.make_graph(nodes, "g", inputs, [made], [numpy_helper.from_array(np.array(16000), "high")])
    path = tmp_path_factory.mktemp("detector") / "detector.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8).SerializeToString()
    )
    return path


def test_sizes_are_kept_from_the_runtime(detector: Path, tmp_path: Path) -> None:
    conditions = load_settings({"input_shapes": {"x": "1,576"}, "cache_dir": str(tmp_path / "cache")}).conditions
    prepared = prepare(detector, conditions, tmp_path, silent())
    assert prepared.optimised_as.hides_sizes
    assert prepared.feeds["rate"] == 16000  # what the branch asks for
    assert "Node (if)" in prepared.notes[0]
    assert "kept from it" in prepared.notes[0]


def test_a_size_that_suits_no_branch_is_refused_with_the_next_step(detector: Path, tmp_path: Path) -> None:
    conditions = load_settings({"input_shapes": {"x": "2,576"}, "cache_dir": str(tmp_path / "cache")}).conditions
    with pytest.raises(ModelError, match=r"--inputs FILE\.npz"):
        prepare(detector, conditions, tmp_path, silent())


@pytest.mark.slow
def test_the_written_file_takes_the_bound_size_only(detector: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    options = ["--input-shape", "x:1,576", "--budget", "100%", "--no-verify", "-o", str(output), "-q"]
    assert main(["compile", str(detector), *options]) == 0
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 576)).astype(np.float32), "rate": np.array(16000)}
    runs = [ort.InferenceSession(str(path)).run(None, feeds) for path in (detector, output)]
    assert all(map(np.array_equal, *runs))
    with pytest.raises(Exception, match="invalid dimensions"):
        ort.InferenceSession(str(output)).run(None, feeds | {"x": np.zeros((1, 288), np.float32)})
