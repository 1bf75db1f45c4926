"""What the runtime refuses is said of the user's file, with what to do next, and of no file that remat made."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import remat_cli
from remat_cli.base.errors import RuntimeFailure


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))


def model_file(folder, node, *inputs):
    graph = helper.make_graph([node], "g", list(inputs), [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), folder / "mine.onnx")
    return folder / "mine.onnx"


def test_inputs_that_were_made_up(tmp_path):
    image, size = [helper.make_tensor_value_info(n, TensorProto.INT64, [2]) for n in ("image", "block")]
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5, 5])
    path = model_file(tmp_path, helper.make_node("Col2Im", ["x", "image", "block"], ["y"]), data, image, size)
    with pytest.raises(RuntimeFailure, match=r"fails to run .*mine\.onnx: .*made up: .*--inputs") as caught:
        remat_cli.inspect(path)
    assert "reference.onnx" not in str(caught.value)
    np.savez(
        tmp_path / "in.npz",
        x=np.ones((1, 5, 5), np.float32),
        image=np.array([5, 5]),
        block=np.array([1, 5]),
    )
    assert remat_cli.inspect(path, inputs=tmp_path / "in.npz").exit_code == 0


def test_an_op_that_the_runtime_lacks(tmp_path):
    data = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4])
    path = model_file(tmp_path, helper.make_node("Acosh", ["x"], ["z"]), data)
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT))
    onnx.save(model, path)
    with pytest.raises(RuntimeFailure, match=r"cannot optimise .*mine\.onnx: ") as caught:
        remat_cli.inspect(path)
    assert "normalised" not in str(caught.value)
