"""A model is raised to a newer opset only where every op keeps its form and meaning."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.graph import Graph, Tensor
from remat_cli.onnx_io.opset import raise_opset

NEW = 24


def model(op_type, opset, weights=(), shape=(1, 4, 6, 6), **attributes):
    inputs = ["x", *(f"w{i}" for i in range(len(weights)))]
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(w), f"w{i}") for i, w in enumerate(weights)],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def run(what):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(ir.to_proto(what).SerializeToString(), options)
    x = np.random.default_rng(0).standard_normal([d or 1 for d in session.get_inputs()[0].shape]).astype(np.float32)
    return session.run(None, {"x": x})[0]


def graph_of(what):
    """Only what matters: the shape of the input."""
    (x,) = what.graph.inputs
    return Graph((), (Tensor("x", "float", x.shape.numpy(), 0),), ())


FORMS = {
    "relu": model("Relu", 9),
    "concat": model("Concat", 9, axis=1),
    "pool": model("MaxPool", 9, kernel_shape=[2, 2]),
    "softmax of the last axis": model("Softmax", 9, shape=(3, 5), axis=1),
    "softmax before axes of one": model("Softmax", 9, shape=(3, 5, 1, 1), axis=1),
    "reshape": model("Reshape", 9, [np.array([4, 36])]),
}


@pytest.mark.parametrize("name", FORMS)
def test_ops_that_mean_the_same_are_raised(name):
    raised = raise_opset(FORMS[name], NEW, graph_of(FORMS[name]))
    assert raised is not None
    assert raised.graph.opset_imports[""] == NEW
    assert FORMS[name].graph.opset_imports[""] == 9
    assert run(raised).tobytes() == run(FORMS[name]).tobytes()


@pytest.mark.parametrize(
    "old",
    [
        model("Softmax", 9, axis=1),  # then of all axes from the second on
        model("Softmax", 9),
        model("Slice", 9, starts=[0], ends=[2]),
        model("Squeeze", 9, axes=[0]),
        model("ReduceMean", 9, axes=[2]),
        model("Upsample", 9, [np.array([1, 1, 2, 2], np.float32)], mode="nearest"),
        model("Resize", 10, [np.array([1, 1, 2, 2], np.float32)], mode="nearest"),
    ],
    ids=lambda value: next(iter(value.graph)).op_type,
)
def test_ops_that_changed_are_not(old):
    assert raise_opset(old, NEW, graph_of(old)) is None


def test_a_newer_model_stays_as_it_is():
    raised = raise_opset(model("Relu", 25), NEW, Graph((), (), ()))
    assert raised is not None
    assert raised.graph.opset_imports[""] == 25
