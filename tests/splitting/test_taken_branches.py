"""An If that asks what is the same for all sizes is the op of the branch that it takes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.sizes import Dim, Term
from remat_cli.splitting.loops.known_numbers import with_known_numbers
from remat_cli.splitting.recast.taken_branches import with_taken_branches

SHAPE = (Dim((Term(("batch",)),)), Dim((), 4))


def choosing(axis: int, compared: int, op_type: str = "Equal", then: tuple[str, ...] = ("Relu",)) -> ir.Model:
    """y is x after the ops of one branch, or of the other one: that depends on a length of x."""
    branches = {}
    for name, ops in (("then_branch", then), ("else_branch", ("Neg",))):
        values = ["x", *(f"{name}{at}" for at in range(len(ops)))]
        nodes = [helper.make_node(op, [values[at]], [values[at + 1]]) for at, op in enumerate(ops)]
        branches[name] = helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, None)]
        )
    numbers = {"axis": axis, "compared": compared}
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["length"]),
        helper.make_node(op_type, ["length", "compared"], ["same"]),
        helper.make_node("If", ["same"], ["y"], name="choice", **branches),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def taken(model: ir.Model) -> list[str]:
    """The ops that are left, after it was seen that results stay."""
    plain = with_taken_branches(with_known_numbers(model, {"x": SHAPE, "y": SHAPE}))
    sessions = [ort.InferenceSession(ir.to_proto(each).SerializeToString()) for each in (model, plain)]
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    one, other = (session.run(None, {"x": x})[0] for session in sessions)
    assert one.tobytes() == other.tobytes()
    return [node.op_type for node in plain.graph]


@pytest.mark.parametrize(
    ("axis", "compared", "op_type", "left"),
    [(1, 4, "Equal", "Relu"), (1, 5, "Equal", "Neg"), (1, 3, "Greater", "Relu"), (1, 3, "Less", "Neg")],
)
def test_the_branch_that_is_taken_for_all_sizes(axis, compared, op_type, left):
    assert taken(choosing(axis, compared, op_type)) == [left]


def test_branches_that_depend_on_a_size_or_have_more_ops_stay():
    assert taken(choosing(0, 3))[-1] == "If"
    assert taken(choosing(1, 4, then=("Relu", "Neg")))[-1] == "If"
