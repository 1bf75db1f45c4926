"""Reshapes whose shapes are computed: constants that say the same at every size, or left as they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.sizes import Dim, SizeFamily, SizeRange, Term
from remat_cli.splitting.loops.known_shapes import with_known_shapes

BATCH, SEQ = (Dim((Term((name,)),)) for name in ("batch", "seq"))
ROWS = Dim((Term(("batch", "seq")),))
FAMILY = SizeFamily((SizeRange("batch", 1, 8), SizeRange("seq", 1, 64)))
SOURCE = (BATCH, SEQ, Dim((), 12))


def computed(parts: list[str], rank: int, allowzero: int = 0) -> ir.Model:
    """x [batch, seq, 12], reshaped to what these parts, computed or constant, are together."""
    numbers = {"first": [0], "second": [1], "three": [3], "four": [4], "twelve": [12]}
    nodes = [helper.make_node("Shape", ["x"], ["shape"])]
    nodes += [helper.make_node("Gather", ["shape", at], [to]) for at, to in (("first", "b"), ("second", "s"))]
    nodes += [helper.make_node("Mul", ["b", "s"], ["bs"])] if "bs" in parts else []
    nodes += [helper.make_node("Concat", parts, ["to"], axis=0)]
    nodes += [helper.make_node("Reshape", ["x", "to"], ["y"], allowzero=allowzero)]
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    port = helper.make_tensor_value_info
    ports = [port("x", TensorProto.FLOAT, ["batch", "seq", 12]), port("y", TensorProto.FLOAT, [None] * rank)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("allowzero", [0, 1])
@pytest.mark.parametrize(
    ("parts", "made", "written"),
    [
        (["b", "s", "three", "four"], (BATCH, SEQ, Dim((), 3), Dim((), 4)), [0, 0, 3, 4]),
        (["bs", "twelve"], (ROWS, Dim((), 12)), [-1, 12]),
        (["b", "three", "s", "four"], (BATCH, Dim((), 3), SEQ, Dim((), 4)), [0, 3, -1, 4]),
        (["s", "b", "twelve"], (SEQ, BATCH, Dim((), 12)), None),
    ],
)
def test_a_shape_is_written_down_where_one_says_it_for_all_sizes(parts, made, written, allowzero):
    model = computed(parts, len(made), allowzero)
    plain = with_known_shapes(model, {"x": SOURCE, "y": made}, FAMILY)
    if written is None:
        assert plain is model
        return
    assert [node.op_type for node in plain.graph] == ["Reshape"]
    assert "allowzero" not in plain.graph.node(0).attributes
    assert plain.graph.node(0).inputs[1].const_value.numpy().tolist() == written
    sessions = [ort.InferenceSession(ir.to_proto(each).SerializeToString()) for each in (model, plain)]
    for batch, seq in ((1, 1), (3, 1), (1, 7), (5, 4), (4, 5)):
        feeds = {"x": np.random.default_rng(0).standard_normal((batch, seq, 12)).astype(np.float32)}
        whole, same = (session.run(None, feeds)[0] for session in sessions)
        assert whole.shape == same.shape == tuple(dim.at({"batch": batch, "seq": seq}) for dim in made)
        assert np.array_equal(whole, same)


def test_a_length_that_may_be_zero_is_not_written_as_a_copy():
    made = (BATCH, Dim((Term(("seq",)),), -1), Dim((), 3))  # nought where seq is one
    for allowzero, is_left in ((0, False), (1, True)):
        model = computed(["b", "s", "three"], 3, allowzero)
        assert (with_known_shapes(model, {"x": SOURCE, "y": made}, FAMILY) is model) is is_left


def test_without_dimensions_nothing_is_known():
    model = computed(["b", "s", "three", "four"], 4)
    assert with_known_shapes(model, {}, FAMILY) is model
