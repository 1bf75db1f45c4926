"""Small weights that kernels pack, in the steady form: what stays of them is what was planned, to the byte."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.ort_rules.steady import BODY

ROWS = 2**20  # on a fast processor fewer take less time than the form may cost


def saved(path):
    """Tensors of 16 MiB, a product with a weight of 32 bytes among them, so that a process gains by the form."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="exp"),
        helper.make_node("Mul", ["a", "x"], ["b"], name="mul"),
        helper.make_node("Tanh", ["b"], ["c"], name="tanh"),
        helper.make_node("Add", ["c", "a"], ["d"], name="add"),
        helper.make_node("MatMul", ["d", "w"], ["p"], name="head"),
        helper.make_node("ReduceSum", ["p", "axes"], ["y"], name="sum"),
    ]
    weights = [numpy_helper.from_array(np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2), "w")]
    weights += [numpy_helper.from_array(np.array([1], np.int64), "axes")]
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, 1]),
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_budget_holds_to_the_byte(tmp_path):
    source, target = saved(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    report = remat_cli.compile(source, budget="100%", output=target, time_limit="8s")
    compiled = onnx.load(target)
    assert BODY in {node.name for node in compiled.graph.node}
    assert report.exit_code == 0
    assert report.verification.measured_peak_bytes == report.verification.first_predicted_peak_bytes
    assert report.verification.rounds_of_learning == 0
