"""Pools whose last window would begin in the padding: the training step runs, and gives what the model gives."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.autodiff.pools import POOLS, pool_attributes


def pool(op, size, kernel, stride, low, high, **attributes):
    how = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [low, low, high, high], "ceil_mode": 1}
    return helper.make_node(op, ["c"], ["y"], "pool", **how, **attributes)


def model(node, size):
    weight = np.ones((2, 2, 1, 1), np.float32)
    conv = helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, size, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([conv, node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def run(proto, x):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})[0]


FORMS = [
    (size, kernel, stride, low, high)
    for size, kernel, stride, low, high in product((5, 6, 7), (1, 2, 3), (1, 2, 3, 4), (0, 1, 2), (0, 1, 2))
    if low < kernel and high < kernel
]


@pytest.mark.parametrize(
    ("op", "counts"), [("AveragePool", 0), ("AveragePool", 1), ("MaxPool", None), ("LpPool", None)]
)
def test_the_same_bits_without_ceil_mode(op, counts):
    assert op in POOLS
    changed = 0
    for form in FORMS:
        size = form[0]
        node = pool(op, *form, **({} if counts is None else {"count_include_pad": counts}))
        image = ir.Value(name="c", shape=ir.Shape([1, 2, size, size]))
        attributes = pool_attributes(ir.from_proto(node), image)
        if attributes["ceil_mode"].as_int():
            continue
        changed += 1
        plain = helper.make_node(op, ["c"], ["y"], "pool")
        plain.attribute.extend(ir.to_proto(attribute) for attribute in attributes.values())
        x = np.random.default_rng(0).standard_normal((1, 2, size, size)).astype(np.float32)
        expected, found = run(model(node, size), x), run(model(plain, size), x)
        assert expected.tobytes() == found.tobytes(), form
        inferred = onnx.shape_inference.infer_shapes(model(plain, size)).graph.output[0].type.tensor_type.shape.dim
        assert tuple(dim.dim_value for dim in inferred) == found.shape
    assert changed > 5


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_the_step_runs(tmp_path, op):
    onnx.save(model(pool(op, 6, 2, 3, 0, 1), 6), tmp_path / "model.onnx")
    remat_cli.train(tmp_path / "model.onnx", loss="mse", output=tmp_path / "step.onnx")
    session = ort.InferenceSession(str(tmp_path / "step.onnx"))
    state = dict(np.load(tmp_path / "step.state.npz"))
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32)
    data = {"x": x, "target": np.zeros((1, 2, 2, 2), np.float32), "learning_rate": np.array(0.1, np.float32)}
    fed = {each.name: state.get(each.name, data.get(each.name)) for each in session.get_inputs()}
    found = dict(zip([each.name for each in session.get_outputs()], session.run(None, fed), strict=True))
    assert np.isclose(found["loss"], np.mean(run(onnx.load(tmp_path / "model.onnx"), x) ** 2))
    assert not np.array_equal(found["w.next"], state["w"])
