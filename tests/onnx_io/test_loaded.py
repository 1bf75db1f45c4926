"""What the runtime knows and does at load: shapes of its own ops, and rewrites that a gate must stop."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.read.loaded import Touched, held_back, touched
from remat_cli.runtime.sessions.loading import shapes_at_load
from remat_cli.runtime.sessions.session import optimize


def value(name: str, shape: list[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes: list[onnx.NodeProto], output: str) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x", [2, 3, 4])], [value(output, None)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_the_runtime_tells_shapes_of_its_own_ops_that_onnx_does_not_know() -> None:
    product = helper.make_node(
        "FusedMatMul", ["x", "x"], ["y"], "product", domain="com.microsoft", transB=1, transBatchA=1, transBatchB=1
    )
    assert shapes_at_load(model([product], "y").SerializeToString()) == {"y": (3, 2, 2)}


def saved(nodes: list[onnx.NodeProto], output: str, path: Path) -> Path:
    onnx.save(model(nodes, output), path)
    return path


def test_a_file_that_is_left_alone_is_not_touched(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], "relu"), helper.make_node("Abs", ["a"], ["y"], "abs")]
    path = saved(nodes, "y", tmp_path / "m.onnx")
    found = touched(ir.load(path), path)
    assert not found
    assert held_back(ir.load(path), found, frozenset()) == frozenset()


def test_values_inside_what_was_moved_are_held_back(tmp_path: Path) -> None:
    turn = helper.make_node("Transpose", ["x"], ["t"], "turn", perm=[0, 2, 1])
    before = [turn, helper.make_node("Relu", ["t"], ["r"], "relu"), helper.make_node("Abs", ["r"], ["y"], "abs")]
    moved = [
        helper.make_node("Relu", ["x"], ["t"], "relu"),
        helper.make_node("Transpose", ["t"], ["r"], "turned", perm=[0, 2, 1]),
        helper.make_node("Abs", ["r"], ["y"], "abs"),
    ]
    written = ir.load(saved(before, "y", tmp_path / "before.onnx"))
    found = touched(written, saved(moved, "y", tmp_path / "after.onnx"))
    assert found == Touched(gone=("turn",), changed=("relu",), new=("turned",))
    assert held_back(written, found, frozenset()) == {"t"}


def test_an_op_that_does_nothing_is_kept_by_hiding_its_constant(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node("Expand", ["a", "shape"], ["b"], "expand"),
        helper.make_node("Abs", ["b"], ["y"], "abs"),
    ]
    proto = model(nodes, "y")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1]), "shape"))
    onnx.save(proto, tmp_path / "written.onnx")
    optimize(tmp_path / "written.onnx", tmp_path / "loaded.onnx", "all")
    written = ir.load(tmp_path / "written.onnx")
    found = touched(written, tmp_path / "loaded.onnx")
    assert found.gone == ("expand",)
    first = held_back(written, found, frozenset())
    assert first == {"b"}
    assert held_back(written, found, first) == {"shape"}


def test_a_model_with_ops_of_the_runtime_in_the_domain_of_onnx_is_read(tmp_path: Path) -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["y"], "norm", axis=-1)
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    proto = model([node], "y")
    proto.graph.initializer.append(weight)
    onnx.save(proto, tmp_path / "norm.onnx")
    assert load(tmp_path / "norm.onnx", DimBindings()).ir.graph[0].op_type == "SimplifiedLayerNormalization"


def test_an_op_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    onnx.save(model([helper.make_node("Nonsense", ["x"], ["y"], "odd")], "y"), tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="Nonsense"):
        load(tmp_path / "odd.onnx", DimBindings())
