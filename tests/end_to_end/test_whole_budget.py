"""At 100 % of what a model needs it is a plan itself, however few bytes it has and of whatever type they are."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import remat_cli


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


Port = tuple[str, int, list[int]]
MODELS: dict[str, tuple[str, dict, list[Port], Port]] = {
    "bool": (
        "And",
        {},
        [("a", TensorProto.BOOL, [4, 1, 1, 2]), ("b", TensorProto.BOOL, [3, 2, 1])],
        ("y", TensorProto.BOOL, [4, 3, 2, 2]),
    ),
    "int8": ("Identity", {}, [("a", TensorProto.INT8, [3])], ("y", TensorProto.INT8, [3])),
    "string": (
        "Equal",
        {},
        [("a", TensorProto.STRING, [2]), ("b", TensorProto.STRING, [1])],
        ("y", TensorProto.BOOL, [2]),
    ),
    "no bytes": ("Neg", {}, [("a", TensorProto.FLOAT, [0])], ("y", TensorProto.FLOAT, [0])),
    "scalar": ("ReduceMean", {"keepdims": 0}, [("a", TensorProto.FLOAT, [12])], ("y", TensorProto.FLOAT, [])),
    "float8": ("Cast", {"to": TensorProto.FLOAT}, [("a", TensorProto.FLOAT8E5M2, [5])], ("y", TensorProto.FLOAT, [5])),
}


def model_file(folder: Path, name: str) -> Path:
    op, attributes, inputs, output = MODELS[name]
    graph = helper.make_graph(
        [helper.make_node(op, [port[0] for port in inputs], ["y"], name="op", **attributes)],
        "one_op",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*output)],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_the_model_itself_is_a_plan(tmp_path, name):
    path = model_file(tmp_path, name)
    found = remat_cli.compile(path, budget="100%", output=tmp_path / "out.onnx", intra_op_threads=1)
    assert found.exit_code == 0
    assert found.verification is not None
    assert found.verification.passed
    assert found.solution.recomputed_ops == 0
