"""Ops that ONNX or remat knows no rule for are named as such; types that the model declares are believed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli import RematError


def model_file(folder, *after, inner=()):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "first"), *after]
    weight = numpy_helper.from_array(np.arange(9, dtype=np.float32).reshape(3, 3), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [weight], value_info=list(inner))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    return folder / "model.onnx"


INVERSE = {"domain": "com.microsoft", "name": "op"}


@pytest.mark.parametrize("loss", ["mse", "l1"])
def test_an_op_of_the_runtimes_own_is_named(tmp_path, loss):
    path = model_file(tmp_path, helper.make_node("Inverse", ["a"], ["y"], **INVERSE))
    with pytest.raises(RematError, match=r"no gradient rule for: com\.microsoft:Inverse \(1\)"):
        remat_cli.train(path, loss=loss, trainable=["w"], output=tmp_path / "step.onnx")


def test_it_is_named_where_the_loss_is_the_models_own(tmp_path):
    sum_ = helper.make_node("ReduceSum", ["b"], ["y"], "sum", keepdims=0)
    path = model_file(tmp_path, helper.make_node("Inverse", ["a"], ["b"], **INVERSE), sum_)
    model = onnx.load(path)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    onnx.save(model, path)
    with pytest.raises(RematError, match=r"no gradient rule for: com\.microsoft:Inverse"):
        remat_cli.train(path, loss_output="y", trainable=["w"], output=tmp_path / "step.onnx")


def test_a_declared_type_is_believed(tmp_path):
    """Nothing is trained before the op, so that it needs no rule; what comes after it needs its type."""
    inverse = helper.make_node("Inverse", ["x"], ["b"], **INVERSE)
    declared = helper.make_tensor_value_info("b", TensorProto.FLOAT, [3, 3])
    path = model_file(tmp_path, inverse, helper.make_node("Mul", ["a", "b"], ["y"], "product"), inner=[declared])
    remat_cli.train(path, loss="mse", trainable=["w"], output=tmp_path / "step.onnx")
    assert (tmp_path / "step.onnx").exists()
