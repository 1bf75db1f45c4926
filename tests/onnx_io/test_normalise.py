"""Names of ops and tensors, and weights that leave bodies."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from remat_cli.onnx_io.read.normalise import (
    drop_unread_states,
    fresh_name,
    idle_casts_pass_on,
    lift_body_weights,
    names_of_bodies,
)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_numbers_follow_each_other(count):
    taken = {"Relu"}
    assert [fresh_name("Relu", taken) for _ in range(count)] == [f"Relu_{number}" for number in range(1, count + 1)]
    assert len(taken) == count + 1


def test_a_free_name_stays_and_is_taken_then():
    taken = {"Relu_1"}
    assert fresh_name("Relu", taken) == "Relu"
    assert fresh_name("Relu", taken) == "Relu_2"
    assert taken == {"Relu", "Relu_1", "Relu_2"}


def test_gaps_do_not_make_a_name_twice():
    taken = {"a"} | {f"a_{number}" for number in (1, 2, 4, 5, 9)}
    given = [fresh_name("a", taken) for _ in range(20)]
    assert len(set(given)) == 20
    assert not set(given) & {"a", "a_1", "a_2", "a_4", "a_5", "a_9"}


def test_nothing_is_no_name():
    assert fresh_name("", set()) == "_1"


def body_model() -> ir.Model:
    """An If whose branches have weights of the same name, one of them with an If in it."""
    large, small = np.ones((64, 64), np.float32), np.ones(4, np.float32)

    def branch(name: str, nodes: list[onnx.NodeProto], made: str, **weights: np.ndarray) -> onnx.GraphProto:
        port = helper.make_tensor_value_info(made, onnx.TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [port], [numpy_helper.from_array(w, n) for n, w in weights.items()])

    def chosen(made: str, yes: onnx.GraphProto, no: onnx.GraphProto) -> onnx.NodeProto:
        return helper.make_node("If", ["flag"], [made], made, then_branch=yes, else_branch=no)

    def product(read: str, weight: str, made: str, op: str = "MatMul") -> onnx.NodeProto:
        return helper.make_node(op, [read, weight], [made], made)

    deep = chosen(
        "d",
        branch("deep", [product("x", "v", "p"), product("p", "e", "q", "Add")], "q", v=large, e=large),
        branch("flat", [product("x", "w", "r")], "r"),
    )
    yes = branch("yes", [product("x", "w", "a"), product("a", "s", "b", "Reshape"), deep], "d", w=large, s=small)
    no = branch("no", [product("x", "w", "c", "Sub")], "c", w=large, free=large)
    ports = [("x", onnx.TensorProto.FLOAT, [64, 64]), ("flag", onnx.TensorProto.BOOL, [])]
    graph = helper.make_graph(
        [chosen("y", yes, no)],
        "g",
        [helper.make_tensor_value_info(*port) for port in ports],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_large_weights_leave_bodies_as_far_as_kernels_pack_them_alike():
    model = body_model()
    lift_body_weights(model)
    once = {graph.name: {name.partition("_")[0] for name in graph.initializers} for graph in model.graphs()}
    # `w` of `yes` is packed two graphs further in too, `v` is packed right inside `yes`; Add and Sub pack nothing.
    assert once == {"g": {"w", "e", "free"}, "yes": {"w", "s", "v"}, "no": set(), "deep": set(), "flat": set()}
    lift_body_weights(model)
    again = {graph.name: {name.partition("_")[0] for name in graph.initializers} for graph in model.graphs()}
    assert again == once


def test_names_of_bodies_stay_apart_from_those_around_them_however_deep() -> None:
    model = body_model()
    for graph in model.graphs():
        for number, node in enumerate(graph):
            for value in node.outputs:
                value.name = f"made_{number}"
    names_of_bodies(model.graph)

    def names_apart(graph: ir.Graph, around: frozenset[str | None]) -> bool:
        own = [value.name for node in graph for value in node.outputs]
        inner = around | set(own)
        bodies = [a.as_graph() for node in graph for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        return len(set(own)) == len(own) and around.isdisjoint(own) and all(names_apart(each, inner) for each in bodies)

    assert names_apart(model.graph, frozenset())


@pytest.mark.parametrize("is_quantised", [False, True])
@pytest.mark.parametrize("reads", [("states",), ("last",), ("states", "cell")])
def test_states_that_nothing_reads_are_left_out(reads: tuple[str, ...], is_quantised: bool) -> None:
    made = ("states", "last", "cell")
    lstm = helper.make_node("LSTM", ["x", "w", "r"], made, "lstm", hidden_size=2)
    if is_quantised:
        more = ["", "", "", "", "", "one", "nothing", "one", "nothing"]
        how = {"hidden_size": 2, "domain": "com.microsoft"}
        lstm = helper.make_node("DynamicQuantizeLSTM", ["x", "w", "r", *more], made, "lstm", **how)
    nodes = [lstm, helper.make_node("Split", ["x"], ["a", "b"], "split", axis=0)]
    nodes += [helper.make_node("Abs", [name], [f"{name}_y"], name) for name in reads]
    port = helper.make_tensor_value_info
    shapes = {name: (1, size, 8) if is_quantised else (1, 8, size) for name, size in (("w", 3), ("r", 2))}
    weights = [
        numpy_helper.from_array(np.ones(shape, np.int8 if is_quantised else np.float32), name)
        for name, shape in shapes.items()
    ]
    if is_quantised:
        weights += [numpy_helper.from_array(np.full(1, 0.5, np.float32), "one")]
        weights += [numpy_helper.from_array(np.zeros(1, np.int8), "nothing")]
    outputs = [port(f"{name}_y", onnx.TensorProto.FLOAT, None) for name in reads]
    graph = helper.make_graph(nodes, "g", [port("x", onnx.TensorProto.FLOAT, (4, 1, 3))], outputs, weights)
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    whole = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    drop_unread_states(model.graph)
    found, split, *_ = model.graph
    assert [value.name for value in found.outputs if value.name] == list(reads)
    assert [value.name for value in split.outputs] == ["a", "b"]
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 1, 3)).astype(np.float32)}
    lean = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    for one, other in zip(whole.run(None, feeds), lean.run(None, feeds), strict=True):
        assert one.tobytes() == other.tobytes()


def test_casts_to_the_type_they_read_pass_on():
    nodes = [
        helper.make_node("Relu", ["x"], ["untold"]),
        helper.make_node("Cast", ["untold"], ["same"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Cast", ["x"], ["whole"], to=onnx.TensorProto.INT64),
    ]
    floats = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    outputs = [
        helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("whole", onnx.TensorProto.INT64, [2]),
    ]
    model = ir.from_proto(helper.make_model(helper.make_graph(nodes, "casts", [floats], outputs)))
    idle_casts_pass_on(model)
    assert [node.op_type for node in model.graph] == ["Relu", "Identity", "Cast"]
    onnx.checker.check_model(ir.to_proto(model))
