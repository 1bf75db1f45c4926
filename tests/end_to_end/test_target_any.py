"""A file for any processor: the original's bits in a default session, within the budget that it keeps there."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main
from remat_cli.onnx_io.write.markers import MARK

CHANNELS, SIZE, BLOCKS = 16, 128, 3


def residual_network() -> onnx.ModelProto:
    """A stem and blocks of two convolutions whose sum with what they read is fused into the second one."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"

    def conv(number: int, inputs: int, read: str) -> str:
        kernel, bias = rng.standard_normal((CHANNELS, inputs, 3, 3)) / 16, rng.standard_normal(CHANNELS)
        for name, array in ((f"w{number}", kernel), (f"b{number}", bias)):
            weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        reads = [read, f"w{number}", f"b{number}"]
        nodes.append(helper.make_node("Conv", reads, [f"c{number}"], name=f"conv{number}", pads=[1, 1, 1, 1]))
        return f"c{number}"

    def relu(read: str) -> str:
        nodes.append(helper.make_node("Relu", [read], [f"{read}_relu"], name=f"{read}_relu"))
        return f"{read}_relu"

    last = relu(conv(0, 3, "x"))
    for block in range(BLOCKS):
        first = relu(conv(2 * block + 1, CHANNELS, last))
        nodes.append(
            helper.make_node("Add", [conv(2 * block + 2, CHANNELS, first), last], [f"s{block}"], name=f"add{block}")
        )
        last = relu(f"s{block}")
    conv(2 * BLOCKS + 1, CHANNELS, last)
    nodes[-1].output[0] = "y"
    ports = (("x", [1, 3, SIZE, SIZE]), ("y", [1, CHANNELS, SIZE, SIZE]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports)
    graph = helper.make_graph(nodes, "residual", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, cache):
    """The report of a compile for any processor, and the original."""
    folder = tmp_path_factory.mktemp("any")
    original, written, report = (folder / name for name in ("net.onnx", "any.onnx", "report.json"))
    onnx.save(residual_network(), original)
    command = [
        "compile",
        str(original),
        "--budget",
        "75%",
        "--target",
        "any",
        "-o",
        str(written),
        "--time-limit",
        "20s",
        "--max-overhead",
        "10000%",  # tiles of a model this small take several times as long
    ]
    with report.open("w") as stream, pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        assert main([*command, "--format", "json", "--quiet"]) == 0
    return original, written, json.loads(report.read_text())


def outputs(path) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_it_has_the_bits_of_the_original_in_a_default_session(compiled):
    original, written, report = compiled
    assert np.array_equal(outputs(original), outputs(written))
    assert report["verification"]["outputs_identical"]
    assert report["verification"]["reference"].endswith("default session")


def test_a_default_session_keeps_the_budget(compiled):
    _, _, report = compiled
    seen = report["verification"]
    assert seen["within_budget"]
    assert seen["measured_peak_default_session_bytes"] <= seen["budget_bytes"]


def test_it_is_of_ops_that_every_processor_knows_and_marks_what_it_cuts(compiled):
    _, written, _ = compiled
    nodes = onnx.load(written).graph.node
    assert {node.domain for node in nodes} <= {"", "ai.onnx", "com.microsoft"}
    assert any(entry.key == MARK for node in nodes for entry in node.metadata_props)


def test_a_kind_of_processor_that_no_file_is_made_for_is_refused_by_name(compiled, capsys):
    original, _, _ = compiled
    assert main(["compile", str(original), "--budget", "75%", "--target", "arm64"]) == 2
    assert "--target any runs there too" in capsys.readouterr().err
