"""What is said of the user's file when the runtime does not run it: once, with the runtime's own reason to its end."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main


def save_for_one_length(path):
    """A model whose length is open, with the length that it was exported with written into it."""
    shape = numpy_helper.from_array(np.array([12, 16, 64], np.int64), "shape")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["y"], "heads/reshape"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in PORTS.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


PORTS = {"x": ["t", 4, 256], "y": [12, 16, 64]}


@pytest.mark.parametrize("length", ["100", "100..200:2"])
def test_a_length_that_the_model_does_not_run_at_is_refused_with_the_whole_reason_once(length, tmp_path, capsys, cache):
    path = save_for_one_length(tmp_path / "one.onnx")
    assert main(["compile", str(path), "--dim", f"t={length}", "--budget", "50%"]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("error: ")]
    assert "requested shape:{12,16,64}" in line
    assert "onnxruntime::" not in line  # a signature in C++ took the place of the reason
    assert line.count("fails to run") == line.count("--inputs FILE.npz") == 1
    assert line.count("exported for one size runs at no other") == 1
    assert line.count("give a step") == (":" in length)
