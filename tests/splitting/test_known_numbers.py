"""Numbers that are computed from shapes: constants where they are the same for all sizes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.values.sizes import Dim, SizeFamily, SizeRange, Term
from remat_cli.splitting.loops.known_numbers import with_known_numbers
from tests.helpers import to_bytes
from tests.splitting.looped_model import LoopedModel

BATCH = Dim((Term(("batch",)),))
node = helper.make_node


def computed(nodes: list, weights: dict[str, list[int] | int]) -> ir.Model:
    """x [batch, 12] through nodes that make y of it."""
    made = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in weights.items()]
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 12])]
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], made)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def halves(index: int) -> ir.Model:
    """The first half along an axis, as torch writes it before operator set 13."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "at"], ["long"]),
        node("Add", ["long", "one"], ["more"]),
        node("Div", ["more", "two"], ["half"]),
        node("Unsqueeze", ["half", "none"], ["end"]),
        node("Slice", ["x", "start", "end", "axis"], ["y"]),
    ]
    weights = {"at": index, "one": 1, "two": 2, "none": [0], "start": [0], "axis": [index]}
    return computed(nodes, weights)


def test_a_number_that_is_the_same_for_all_sizes_is_written_down():
    model = halves(1)
    plain = with_known_numbers(model, {"x": (BATCH, Dim((), 12))})
    assert [each.op_type for each in plain.graph] == ["Slice"]
    assert plain.graph.node(0).inputs[2].const_value.numpy().tolist() == [6]
    sessions = [ort.InferenceSession(to_bytes(each)) for each in (model, plain)]
    for batch in (1, 5):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 12)).astype(np.float32)}
        whole, same = (session.run(None, feeds)[0] for session in sessions)
        assert np.array_equal(whole, same)


@pytest.mark.parametrize("dims", [{}, {"x": (BATCH, Dim((), 12))}])
def test_a_number_that_varies_is_left(dims):
    model = halves(0)
    assert with_known_numbers(model, dims) is model


def test_numbers_keep_their_type():
    """TensorFlow's converter computes in 32 bits."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["short"], to=TensorProto.INT32),
        node("Gather", ["short", "at"], ["long"]),
        node("Cast", ["long"], ["number"], to=TensorProto.FLOAT),
        node("Mul", ["x", "number"], ["y"]),
    ]
    model = computed(nodes, {"at": 1})
    plain = with_known_numbers(model, {"x": (BATCH, Dim((), 12))})
    assert [each.op_type for each in plain.graph] == ["Cast", "Mul"]
    assert plain.graph.node(0).inputs[0].const_value.dtype == ir.DataType.INT32
    feeds = {"x": np.ones((3, 12), np.float32)}
    assert ort.InferenceSession(to_bytes(plain)).run(None, feeds)[0].tolist() == [[12] * 12] * 3


def test_parts_of_shapes_that_are_known_count_by_themselves():
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Slice", ["shape", "one", "far"], ["tail"]),
        node("Concat", ["minus", "tail"], ["to"], axis=0),
        node("Identity", ["to"], ["same"]),
        node("Reshape", ["x", "same"], ["y"]),
    ]
    model = computed(nodes, {"one": [1], "far": [2**62], "minus": [-1]})
    plain = with_known_numbers(model, {"x": (BATCH, Dim((), 12))})
    assert [each.op_type for each in plain.graph] == ["Reshape"]
    assert plain.graph.node(0).inputs[1].const_value.numpy().tolist() == [-1, 12]


def test_what_is_cut_by_a_known_number_runs_in_a_loop():
    """A gated unit: both halves of the channels, of which the number is taken from the shape."""
    nodes = [
        node("MatMul", ["x", "w"], ["wide"]),
        node("Shape", ["wide"], ["shape"]),
        node("Gather", ["shape", "at"], ["long"]),
        node("Div", ["long", "two"], ["half"]),
        node("Slice", ["wide", "zero", "half", "axis"], ["one"]),
        node("Slice", ["wide", "half", "long", "axis"], ["other"]),
        node("Mul", ["one", "other"], ["both"]),
        node("ReduceSum", ["both", "axis"], ["y"]),
    ]
    numbers = {"at": [1], "two": [2], "zero": [0], "axis": [1]}
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    weights.append(numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32), "w"))
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])]
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    looped = LoopedModel(model, SizeFamily((SizeRange("rows", 16, 64, 16),)))
    assert {"MatMul", "Slice", "Mul"} <= looped.cut
    looped.check([{"rows": rows} for rows in (64, 16, 48, 64)], rows=16)
