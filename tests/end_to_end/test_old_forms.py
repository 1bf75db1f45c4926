"""Forms that ONNX Runtime reads: sparse tensors, no standard ops, old operator sets, Split without sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli import RematError
from remat_cli.base.progress import Note
from remat_cli.onnx_io.read.load import DimBindings, load

FLOAT = TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


pytestmark = pytest.mark.usefixtures("cache")


def sparse(is_flat: bool) -> onnx.SparseTensorProto:
    places = [1, 5] if is_flat else [0, 1, 1, 2]
    indices = helper.make_tensor("places", TensorProto.INT64, [2] if is_flat else [2, 2], places)
    return helper.make_sparse_tensor(helper.make_tensor("s", FLOAT, [2], [3.0, 4.0]), indices, [2, 3])


def written(
    folder: Path, nodes: list, opset: int = 17, shape: tuple = (2, 3), outputs: tuple = ("y",), **parts
) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        **parts,
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def outputs_of(path: str | Path, x: np.ndarray = X) -> list[bytes]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [found.tobytes() for found in session.run(None, {"x": x})]


DENSE = np.array([[0, 3, 0], [0, 0, 4]], np.float32)
ADD = [helper.make_node("Add", ["x", "s"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]


@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize("is_weight", [True, False])
def test_sparse_tensors_are_not_lost(tmp_path, is_flat, is_weight):
    constant = [] if is_weight else [helper.make_node("Constant", [], ["s"], sparse_value=sparse(is_flat))]
    parts = {"sparse_initializer": [sparse(is_flat)]} if is_weight else {}
    path = written(tmp_path, [*constant, *ADD], **parts)
    found = remat_cli.compile(path, budget="100%", output=tmp_path / "out.onnx", intra_op_threads=1)
    assert found.exit_code == 0
    assert outputs_of(found.output) == outputs_of(path) == [np.maximum(X + DENSE, 0).tobytes()]


def test_a_sparse_tensor_too_large_to_write_out_is_named(tmp_path):
    huge = sparse(is_flat=True)
    huge.dims[:] = [2**20, 2**20]
    path = written(tmp_path, ADD, sparse_initializer=[huge])
    with pytest.raises(RematError, match=r"sparse tensor 's' of shape \[1048576, 1048576\] is too large"):
        remat_cli.inspect(path)


def test_a_model_without_standard_ops_need_not_say_their_version(tmp_path):
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L1")
    path = written(tmp_path, [node])
    model = onnx.load(path)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, path)
    found = remat_cli.compile(path, budget="100%", output=tmp_path / "out.onnx", intra_op_threads=1)
    assert (found.exit_code, outputs_of(found.output)) == (0, outputs_of(path))
    model.graph.node.append(helper.make_node("Exp", ["y"], ["z"]))
    onnx.save(model, path)
    with pytest.raises(RematError, match="does not say which ONNX opset it uses"):
        remat_cli.inspect(path)


def test_an_old_model_is_converted_and_that_is_said(tmp_path):
    weight = numpy_helper.from_array(np.array([1, 2], np.float32), "b")
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], broadcast=1, axis=0), helper.make_node("Relu", ["a"], ["y"])]
    path = written(tmp_path, nodes, opset=6, initializer=[weight])
    assert load(path, DimBindings()).ir.opset_imports[""] == 7
    told = []
    found = remat_cli.compile(path, budget="100%", output=tmp_path / "out.onnx", verify="fast", on_progress=told.append)
    notes = [event.text for event in told if isinstance(event, Note)]
    assert f"{path} uses opset 6: it was converted to opset 7" in notes
    assert any("does not run" in note for note in notes)  # this runtime has no Add of opset 6
    assert found.exit_code == 0
    assert outputs_of(found.output) == [np.maximum(X + np.array([[1], [2]], np.float32), 0).tobytes()]


def test_an_old_model_that_cannot_be_converted_is_refused(tmp_path):
    path = written(tmp_path, [helper.make_node("Upsample", ["x"], ["y"], height_scale=2.0, width_scale=2.0)], opset=1)
    with pytest.raises(RematError, match="uses opset 1: convert it to 7 or later"):
        remat_cli.inspect(path)


WIDE = (512, 512)
SPLIT = [
    helper.make_node("Exp", ["x"], ["a"]),
    helper.make_node("Split", ["a"], ["p", "q"], axis=0),
    helper.make_node("Relu", ["p"], ["y"]),
    helper.make_node("Exp", ["q"], ["z"]),
]
RANDOM = [
    helper.make_node("Exp", ["x"], ["a"]),
    helper.make_node("RandomNormalLike", ["a"], ["r"], seed=1.0),
    helper.make_node("Mul", ["a", "r"], ["y"]),
]


@pytest.mark.parametrize("nodes", [SPLIT, RANDOM], ids=["split", "random"])
def test_splitting_never_breaks_a_model(tmp_path, nodes):
    outputs = tuple(name for node in nodes for name in node.output if name in "yz")
    path = written(tmp_path, nodes, opset=13, shape=WIDE, outputs=outputs)
    found = remat_cli.compile(
        path, budget="min", split="auto", output=tmp_path / "out.onnx", time_limit="2s", verify="fast"
    )
    assert found.exit_code == 0
