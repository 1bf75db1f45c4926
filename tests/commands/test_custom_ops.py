"""Models with operators of a library of the user's own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli as remat

extensions = pytest.importorskip("onnxruntime_extensions")
DOMAIN = "ai.onnx.contrib"


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Convolutions around an op of the library, whose first half holds most."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    weights = {"w0": (48, 8, 3, 3), "w1": (8, 48, 3, 3), "w2": (8, 8, 3, 3), "w3": (8, 8, 3, 3)}
    held = [
        numpy_helper.from_array(0.1 * rng.standard_normal(size).astype(np.float32), n) for n, size in weights.items()
    ]
    conv = {"pads": [1] * 4, "kernel_shape": [3, 3]}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "wide", **conv),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1"], ["b"], "narrow", **conv),
        helper.make_node("NegPos", ["b"], ["n", "p"], "parts", domain=DOMAIN),
        helper.make_node("Conv", ["n", "w2"], ["c"], "left", **conv),
        helper.make_node("Conv", ["p", "w3"], ["d"], "right", **conv),
        helper.make_node("Add", ["c", "d"], ["y"], "sum"),
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 48, 48])] for name in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "net", *ports, held)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_without_the_library_the_op_is_named(model):
    with pytest.raises(remat.RematError, match=r"'ai.onnx.contrib.NegPos' .*--custom-ops LIB"):
        remat.inspect(model)


def test_a_library_that_is_not_there_is_named(model):
    with pytest.raises(remat.RematError, match=r"custom operator library no\.so does not exist"):
        remat.compile(model, budget="60%", custom_ops="no.so")


def test_the_model_is_compiled_around_its_own_ops(model):
    library = extensions.get_library_path()
    report = remat.compile(model, budget="80%", custom_ops=library, time_limit="4s", capped_run=False)
    assert report.exit_code == 0
    assert report.verification.outputs_identical
    assert report.verification.order_honoured
    assert library in report.snippet
    written = onnx.load(report.output)
    assert sum(node.op_type == "NegPos" for node in written.graph.node) == 1
    assert remat.verify(report.plan, capped_run=False).exit_code == 0
    with remat.load(report.plan) as plan:
        assert plan.run({"x": np.ones((1, 8, 48, 48), np.float32)})["y"].shape == (1, 8, 48, 48)
