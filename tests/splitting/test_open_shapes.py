"""Computed shapes of which a length is left open: the same results, and rules that then cut there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.values.sizes import Dim, SizeFamily, SizeRange, Term
from remat_cli.splitting.loops.open_shapes import with_open_shapes
from remat_cli.splitting.rules.shape import REPEATED, REST, open_axes
from remat_cli.splitting.rules.table import slice_op
from remat_cli.splitting.tiles.op_view import OpView, Slab

BATCH, SEQ, FOUR, ONE = Dim((Term(("batch",)),)), Dim((Term(("seq",)),)), Dim((), 4), Dim((), 1)
MATRICES = Dim((Term(("batch",), 4),))
FAMILY = SizeFamily((SizeRange("batch", 1, 3), SizeRange("seq", 1, 40)))
MOST = FAMILY.corners[0]


def model(op_type: str, read: list[object], parts: list[str], allowzero: int) -> ir.Model:
    """y made of x, to a shape put together of the parts, which are computed of the input `ids`, or constant."""
    nodes = [helper.make_node("Shape", ["ids"], ["shape"])]
    nodes += [helper.make_node("Gather", ["shape", at], [to]) for at, to in (("first", "b"), ("second", "s"))]
    nodes += [helper.make_node("Mul", ["b", "four"], ["b4"]), helper.make_node("Concat", parts, ["to"], axis=0)]
    said = {"allowzero": allowzero} if op_type == "Reshape" else {}
    nodes += [helper.make_node(op_type, ["x", "to"], ["y"], **said)]
    numbers = {"first": [0], "second": [1], "four": [4], "rest": [-1]}
    weights = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    port = helper.make_tensor_value_info
    inputs = [port("x", TensorProto.FLOAT, read), port("ids", TensorProto.INT64, ["batch", "seq"])]
    graph = helper.make_graph(nodes, "g", inputs, [port("y", TensorProto.FLOAT, [None] * len(parts))], weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


CASES = {
    "seen as batch and heads": (
        "Reshape",
        (MATRICES, SEQ, SEQ),
        ["rest", "four", "s", "s"],
        (BATCH, FOUR, SEQ, SEQ),
        [2],
    ),
    "and back": ("Reshape", (BATCH, FOUR, SEQ, SEQ), ["b4", "s", "s"], (MATRICES, SEQ, SEQ), [1]),
    "repeated for each": ("Expand", (ONE, SEQ, SEQ), ["b4", "s", "s"], (MATRICES, SEQ, SEQ), [1, 2]),
    "repeated along one": ("Expand", (ONE, SEQ), ["b4", "s", "s"], (MATRICES, SEQ, SEQ), [2]),
}


def built(case: str, allowzero: int = 0) -> tuple[ir.Model, dict[str, tuple[Dim, ...]], list[int]]:
    op_type, read, parts, made, found = CASES[case]
    declared = [f"x{at}" if dim.terms else dim.offset for at, dim in enumerate(read)]
    return model(op_type, declared, parts, allowzero), {"x": read, "y": made, "ids": (BATCH, SEQ)}, found


@pytest.mark.parametrize("allowzero", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_results_stay_at_any_size(case, allowzero):
    source, dims, _ = built(case, allowzero)
    opened = with_open_shapes(source, dims, FAMILY, {"y"})
    sessions = [ort.InferenceSession(ir.to_proto(each).SerializeToString()) for each in (source, opened.model)]
    rng = np.random.default_rng(0)
    for batch, seq in ((1, 1), (3, 40), (2, 7), (4, 4)):
        sizes = {"batch": batch, "seq": seq}
        feeds = {"x": rng.standard_normal([dim.at(sizes) for dim in dims["x"]]).astype(np.float32)}
        feeds["ids"] = np.zeros((batch, seq), np.int64)
        one, other = (session.run(None, feeds)[0] for session in sessions)
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("allowzero", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_rules_cut_where_a_length_is_open(case, allowzero):
    source, dims, found = built(case, allowzero)
    opened = with_open_shapes(source, dims, FAMILY, {"y"})
    node = next(each for each in opened.model.graph if each.op_type == CASES[case][0])
    read, made = (tuple(dim.at(MOST) for dim in dims[name]) for name in ("x", "y"))
    op = OpView(node, (read, (len(made),)), (made,), (False, False), 17)
    said = REST if node.op_type == "Reshape" else REPEATED
    assert [axis for axis, number in open_axes(op).items() if number == said and axis in found] == found
    for axis in range(len(made)):
        slab = Slab(axis, made[axis] // 2, made[axis])
        sliced = slice_op(op, slab)
        if axis not in found:
            assert sliced is None
            continue
        assert sliced is not None
        assert sliced.needs[0] is not None
        assert (sliced.needs[0][1:], sliced.makes, dict(sliced.constants)) == (slab[1:], slab, {})


def test_new_tensors_have_types_and_dimensions():
    source, dims, _ = built("and back")
    opened = with_open_shapes(source, dims, FAMILY, {"y"})
    old = {node.name for node in source.graph}
    new = [node for node in opened.model.graph if node.name not in old]
    assert {node.name for node in new} == set(opened.types)
    assert {node.outputs[0].name for node in new} == set(opened.dims)
    joined = next(node for node in new if node.op_type == "Concat")
    assert opened.types[joined.name or ""] == (TensorType("int64", (3,)),)
    assert "Gather" not in [node.op_type for node in opened.model.graph if node.name in old]  # the old shape is gone


@pytest.mark.parametrize("large", [set(), {"x"}])
def test_small_tensors_stay_as_they_are(large):
    source, dims, _ = built("and back")
    assert with_open_shapes(source, dims, FAMILY, large).model is source


@pytest.mark.parametrize(
    ("bounds", "told"),
    [({}, [3, 7, 8]), ({"start": 0}, [3, 7, 8]), ({"start": 1}, [7, 8]), ({"end": -1}, [3, 7])],
    ids=["whole", "from the first", "from the second", "but the last"],
)
def test_the_shape_of_a_large_tensor_is_computed_of_those_of_inputs(bounds, told):
    """So the tensor need not be whole for it."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["wide"], "wide", axis=2),
        helper.make_node("Shape", ["wide"], ["shape"], "asked", **bounds),
        helper.make_node("Abs", ["shape"], ["y"], "last"),
    ]
    port = helper.make_tensor_value_info
    ports = [port("x", TensorProto.FLOAT, ["batch", "seq", 4]), port("y", TensorProto.INT64, [len(told)])]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    source = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    dims = {"x": (BATCH, SEQ, FOUR), "wide": (BATCH, SEQ, Dim((), 8)), "y": (Dim((), len(told)),)}
    assert with_open_shapes(source, dims, FAMILY, {"x"}).model is source
    opened = with_open_shapes(source, dims, FAMILY, {"x", "wide"})
    shape = next(each for each in opened.model.graph if each.op_type == "Shape")
    assert shape.inputs[0].name == "x"
    assert "wide" not in [each.name for each in opened.model.graph]
    session = ort.InferenceSession(ir.to_proto(opened.model).SerializeToString())
    assert session.run(None, {"x": np.zeros((3, 7, 4), np.float32)})[0].tolist() == told
