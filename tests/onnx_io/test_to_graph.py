"""Graph extraction: views, kept tensors, weights, phases, signatures."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.graph import Graph, TensorType, size_bytes
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.onnx_io.read.load import inputs_of
from remat_cli.onnx_io.read.to_graph import op_signatures, to_graph
from tests.helpers import free_problem, observe, random_feeds, run_profiled, to_bytes
from tests.onnx_io.graphs import model_of


def graph_of(model: onnx.ModelProto) -> tuple[ir.Model, Graph]:
    parsed = ir.from_proto(model)
    return parsed, to_graph(parsed, observe(parsed, random_feeds(inputs_of(parsed))))


def by_name(graph: Graph) -> dict[str, int]:
    return {tensor.name: index for index, tensor in enumerate(graph.tensors)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (TensorType("float", (3, 5)), 60),
        (TensorType("int4", (3, 5)), 8),
        (TensorType("bool", (7,)), 7),
        (TensorType("bfloat16", ()), 2),
        (TensorType("double", (4, 0)), 0),
    ],
)
def test_sizes_are_exact(kind: TensorType, expected: int) -> None:
    assert size_bytes(kind) == expected


def test_unknown_element_type() -> None:
    with pytest.raises(ModelError, match="'opaque'"):
        size_bytes(TensorType("opaque", (1,)))


def test_views_of_inputs_weights_and_tensors() -> None:
    weights = {"w": np.ones((16, 32), np.float32), "flat": np.array([-1])}
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["view_of_input"], "A"),
        helper.make_node("Reshape", ["w", "flat"], ["view_of_weight"], "B"),
        helper.make_node("Relu", ["view_of_input"], ["a"], "C"),
        helper.make_node("Reshape", ["a", "flat"], ["view"], "D"),
        helper.make_node("Add", ["view", "view_of_weight"], ["b"], "E"),
        helper.make_node("Relu", ["b"], ["c"], "F"),
        helper.make_node("Reshape", ["x", "flat"], ["y"], "G"),
        helper.make_node("Add", ["c", "c"], ["z"], "H"),
    ]
    model, graph = graph_of(model_of(nodes, {"x": (16, 32)}, ["y", "z"], weights))
    ids = by_name(graph)
    tensors = graph.tensors
    assert tensors[ids["view_of_input"]].view_of == ids["x"]
    assert tensors[ids["view_of_weight"]].size_bytes == 0
    assert tensors[ids["view"]].view_of == ids["a"]
    assert (tensors[ids["y"]].view_of, tensors[ids["y"]].size_bytes) == (None, 2048)
    ops = {op.name: op for op in graph.ops}
    assert ops["C"].in_place == ()
    assert ops["F"].in_place == ((ids["b"], ids["c"]),)
    assert [graph.weights[w].name for w in ops["A"].weights] == ["flat"]
    _, _, measured = run_profiled(to_bytes(model), random_feeds(inputs_of(model)), exact=True)
    names = [op.name for op in graph.ops]
    in_file_order = Schedule.of_ops([names.index(name) for name in "ABCDEFGH"])
    assert simulate(free_problem(graph), in_file_order).live_peak == measured


def test_phase_marks() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"], "A")]
    model, _ = graph_of(model_of(nodes, {"x": (2, 2)}, ["y"]))
    kinds = {"A": (TensorType("float", (2, 2)),)}
    next(iter(model.graph)).metadata_props["remat.phase"] = "backward"
    assert to_graph(model, kinds).ops[0].phase == "backward"
    next(iter(model.graph)).metadata_props["remat.phase"] = "sideways"
    with pytest.raises(ModelError, match="sideways"):
        to_graph(model, kinds)


def test_unobserved_op() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"], "A")]
    model, _ = graph_of(model_of(nodes, {"x": (2, 2)}, ["y"]))
    with pytest.raises(ModelError, match=r"op 'A' .Neg. did not run, or makes a sequence"):
        to_graph(model, {})


def convolutions(pads: tuple[int, int], dilation: int) -> list[onnx.NodeProto]:
    pad = {"pads": [1, 1, 1, 1]}
    return [
        helper.make_node("Conv", ["x", "k"], ["a"], "A", **pad),
        helper.make_node("Conv", ["a", "k2"], ["b"], "B", **pad),
        helper.make_node("Conv", ["b", "k"], ["c"], "C", pads=[dilation] * 4, dilations=[dilation] * 2),
        helper.make_node("Pad", ["c", f"p{pads[0]}"], ["d"], "D"),
        helper.make_node("Pad", ["c", f"p{pads[1]}"], ["y"], "E"),
    ]


def test_signatures_tell_apart_what_costs_differently() -> None:
    weights = {
        "k": np.ones((4, 4, 3, 3), np.float32),
        "k2": np.zeros((4, 4, 3, 3), np.float32),
        "p0": np.zeros(8, np.int64),
        "p1": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    }
    ports = {"x": (1, 4, 8, 8)}

    def signatures(pads: tuple[int, int], dilation: int, run: str = "") -> dict[str, str]:
        model, graph = graph_of(model_of(convolutions(pads, dilation), dict(ports), ["d", "y"], weights))
        return dict(zip((op.name for op in graph.ops), op_signatures(model, graph, run), strict=True))

    equal = signatures((0, 0), 1)
    assert equal["A"] == equal["B"]
    assert equal["D"] == equal["E"]
    assert signatures((0, 0), 1, "other inputs") == equal
    other = signatures((0, 1), 2)
    assert other["A"] == equal["A"] != other["C"]
    assert other["D"] != other["E"]
