"""A model is raised to a newer opset only where every op keeps its form and meaning."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.core.schedule.graph import Graph, Tensor
from remat_cli.onnx_io.write.opset import BOUNDS_SINCE, lowered, opset_of, raise_opset, with_computed_bounds

NEW = 24


def model(op_type, opset, weights=(), shape=(1, 4, 6, 6), **attributes):
    inputs = ["x", *(f"w{i}" for i in range(len(weights)))]
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y", "places"] if op_type == "TopK" else ["y"], **attributes)],
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
    x = what.graph.inputs[0]
    return Graph((), (Tensor("x", "float", x.shape.numpy(), 0),), ())


FORMS = {
    "relu": model("Relu", 9),
    "concat": model("Concat", 9, axis=1),
    "pool": model("MaxPool", 9, kernel_shape=[2, 2]),
    "softmax of the last axis": model("Softmax", 9, shape=(3, 5), axis=1),
    "softmax before axes of one": model("Softmax", 9, shape=(3, 5, 1, 1), axis=1),
    "reshape": model("Reshape", 9, [np.array([4, 36])]),
    "enlarged": model("Resize", 10, [np.array([1, 1, 2, 2], np.float32)], mode="nearest"),
    "enlarged by a line": model("Resize", 10, [np.array([1, 1, 2, 3], np.float32)], mode="linear"),
    "clip": model("Clip", 9, min=-0.5, max=0.75),
    "clip from below": model("Clip", 9, min=-0.5),
    "pad": model("Pad", 9, pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5),
    "pad by edges": model("Pad", 9, pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="edge"),
    "slice": model("Slice", 8, starts=[1, 0], ends=[3, 4], axes=[1, 2]),
    "slice of the first axes": model("Slice", 9, starts=[0, 1], ends=[1, 3]),
    "squeeze": model("Squeeze", 11, axes=[0]),
    "squeeze of all": model("Squeeze", 9),
    "unsqueeze": model("Unsqueeze", 9, axes=[0, 2]),
    "mean": model("ReduceMean", 9, axes=[2], keepdims=0),
    "sum": model("ReduceSum", 9, axes=[1, 3]),
    "sum of all": model("ReduceSum", 9),
    "largest": model("ReduceMax", 9, axes=[1]),
    "root of squares": model("ReduceL2", 13, axes=[-1]),
    "split": model("Split", 11, axis=1, split=[4]),
    "best": model("TopK", 9, k=2),
    "dropout": model("Dropout", 7, ratio=0.3),
    "upsample by attribute": model("Upsample", 7, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"),
    "upsample by input": model("Upsample", 9, [np.array([1, 1, 2, 2], np.float32)], mode="linear"),
}
RAISED_INPUTS = ("clip", "pad", "enlarged", "slice", "squeeze", "unsqueeze", "mean", "sum", "largest", "root", "split")
RAISED_INPUTS += ("best", "dropout", "upsample")


@pytest.mark.parametrize("name", FORMS)
def test_ops_that_mean_the_same_are_raised(name):
    raised = raise_opset(FORMS[name], NEW, graph_of(FORMS[name]))
    assert raised is not None
    assert raised.graph.opset_imports[""] == NEW
    assert opset_of(FORMS[name]) < NEW
    assert run(raised).tobytes() == run(FORMS[name]).tobytes()


@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith(RAISED_INPUTS)])
def test_numbers_that_became_inputs_become_attributes_again(name):
    old = FORMS[name]
    raised = raise_opset(old, NEW, graph_of(old))
    assert raised is not None
    back = lowered(raised, opset_of(old))
    assert opset_of(back) == opset_of(old)
    assert [(node.op_type, len(node.inputs)) for node in back.graph] == [
        (node.op_type, len(node.inputs)) for node in old.graph
    ]
    assert run(back).tobytes() == run(old).tobytes()


def test_a_softmax_means_the_same_until_opset_13():
    old = model("Softmax", 9, axis=1)
    raised = raise_opset(old, 11, graph_of(old))
    assert raised is not None
    assert run(raised).tobytes() == run(old).tobytes()


@pytest.mark.parametrize(
    "old",
    [
        model("Softmax", 9, axis=1),  # then of all axes from the second on
        model("Softmax", 9),
        model("Upsample", 9, [np.array([1, 1, 0.5, 0.5], np.float32)], mode="nearest"),
        model("Resize", 10, [np.array([1, 1, 0.5, 0.5], np.float32)], mode="nearest"),
    ],
    ids=lambda value: next(iter(value.graph)).op_type,
)
def test_ops_that_changed_are_not(old):
    assert raise_opset(old, NEW, graph_of(old)) is None


@pytest.mark.parametrize(("inner", "is_raised"), [("Relu", True), ("Softmax", False)])
def test_ops_that_run_graphs_are_raised_where_all_in_these_are(inner, is_raised):
    """A Softmax in a body of opset 11 works on all axes from its own on as if they were one, for all that is known."""
    ports = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("at", 7), ("on", 9), ("goes", 9))]
    body = helper.make_graph(
        [helper.make_node(inner, ["x"], ["made"]), helper.make_node("Identity", ["on"], ["goes"])],
        "body",
        ports[:2],
        [ports[2], helper.make_tensor_value_info("made", 1, [2, 4])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", ""], ["y"], name="loop", body=body)],
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 4]), helper.make_tensor_value_info("count", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("y", 1, ["n", 2, 4])],
    )
    older = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8))
    raised = raise_opset(older, NEW, graph_of(older))
    assert (raised is not None) is is_raised
    if raised is not None:
        onnx.checker.check_model(ir.to_proto(raised))


def test_a_newer_model_stays_as_it_is():
    raised = raise_opset(model("Relu", 25), NEW, Graph((), (), ()))
    assert raised is not None
    assert raised.graph.opset_imports[""] == 25


def test_a_model_without_newer_ops_gets_its_opset_back():
    raised = raise_opset(FORMS["pool"], NEW, graph_of(FORMS["pool"]))
    assert raised is not None
    back = lowered(raised, 9)
    assert opset_of(back) == 9
    assert opset_of(raised) == NEW
    assert run(back).tobytes() == run(FORMS["pool"]).tobytes()


def test_the_pieces_of_a_split_are_said_by_its_outputs_again():
    old = model("Split", 13, axis=1)
    raised = raise_opset(old, NEW, graph_of(old))
    assert raised is not None
    (node,) = lowered(raised, 13).graph
    assert "num_outputs" not in node.attributes
    assert run(lowered(raised, 13)).tobytes() == run(old).tobytes()


def test_an_input_that_was_an_attribute_becomes_one_again():
    """As remat writes the mean of a normalisation that it takes apart."""
    raised = model("ReduceMean", NEW, [np.array([2, 3])])
    back = lowered(raised, 17)
    (node,) = back.graph
    assert opset_of(back) == 17
    assert list(node.attributes["axes"].as_ints()) == [2, 3]
    assert run(back).tobytes() == run(raised).tobytes()


@pytest.mark.parametrize(
    ("newer", "version"),
    [
        (model("TensorScatter", NEW, [np.zeros((1, 4, 2, 6), np.float32), np.array([1])]), 17),
        (model("Gelu", NEW), 17),
        (model("ReduceMean", NEW, [np.array([2])], noop_with_empty_axes=1), 17),
        (model("Resize", NEW, [np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)], mode="nearest"), 10),
    ],
    ids=["filled in place", "unknown before", "attribute unknown before", "other form before"],
)
def test_what_needs_the_newer_opset_keeps_it(newer, version):
    before = ir.to_proto(newer).SerializeToString()
    assert lowered(newer, version) is newer
    assert ir.to_proto(newer).SerializeToString() == before


def test_ops_inside_others_count_too():
    branch = helper.make_graph(
        [helper.make_node("Gelu", ["x"], ["inner"])], "b", [], [helper.make_tensor_value_info("inner", 1, None)]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)],
        "g",
        [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", 1, [4])],
    )
    newer = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEW)], ir_version=10))
    assert lowered(newer, 17) is newer


OLD_FORMS = {
    "slice": model("Slice", 7, starts=[1, 0], ends=[3, 4], axes=[1, 2]),
    "slice of the first axes": model("Slice", 9, starts=[0, 1], ends=[1, 3]),
    "upsample by attribute": model("Upsample", 7, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"),
    "upsample by input": model("Upsample", 9, [np.array([1, 1, 2, 2], np.float32)], mode="linear"),
    "batch norm": model("BatchNormalization", 7, [np.ones(4, np.float32)] * 4, spatial=1),
    "batch norm of training": model("BatchNormalization", 8, [np.full(4, 0.5, np.float32)] * 4, momentum=0.9),
    "dropout": model("Dropout", 7, ratio=0.3),
    "leaky": model("LeakyRelu", 8, alpha=0.3),
    "pool": model("AveragePool", 7, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "norm across channels": model("LRN", 7, size=3),
}


@pytest.mark.parametrize("name", OLD_FORMS)
def test_old_forms_get_one_in_which_bounds_may_be_computed(name):
    newer = with_computed_bounds(OLD_FORMS[name], graph_of(OLD_FORMS[name]))
    assert newer is not None
    assert newer.graph.opset_imports[""] == BOUNDS_SINCE
    assert run(newer).tobytes() == run(OLD_FORMS[name]).tobytes()
    assert OLD_FORMS[name].graph.opset_imports[""] < BOUNDS_SINCE


def test_bounds_that_may_be_computed_already_and_forms_that_are_gone_are_left():
    new = model("Relu", BOUNDS_SINCE)
    assert with_computed_bounds(new, graph_of(new)) is new
    gone = model("BatchNormalization", 7, [np.ones(4, np.float32)] * 4, spatial=0)
    assert with_computed_bounds(gone, graph_of(gone)) is None


def test_numbers_that_became_inputs_have_the_type_of_what_is_clipped_where_the_model_does_not_say_it():
    """The runtime's optimiser leaves types out of what it writes; shapes and types of a run say them."""
    nodes = [helper.make_node("Relu", ["x"], ["r"], "r"), helper.make_node("Clip", ["r"], ["c"], "c", min=0.0, max=6.0)]
    nodes.append(helper.make_node("Relu", ["c"], ["y"], "y"))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", ports[:1], ports[1:]), opset_imports=[helper.make_opsetid("", 9)], ir_version=4
    )
    model = ir.from_proto(proto)
    seen = tuple(Tensor(name, "float", (2, 3), 24) for name in ("x", "r", "c", "y"))
    newer = raise_opset(model, 13, Graph((), seen, ()))
    assert newer is not None
    clip = next(node for node in newer.graph if node.op_type == "Clip")
    assert [value.const_value.numpy().tolist() for value in clip.inputs[1:]] == [0.0, 6.0]
    assert {value.const_value.dtype for value in clip.inputs[1:]} == {ir.DataType.FLOAT}
