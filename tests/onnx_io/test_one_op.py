"""One op alone computes what it computes inside the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.base.errors import ModelError
from remat_cli.onnx_io.read.load import DimBindings, inputs_of, load, save
from remat_cli.onnx_io.read.one_op import call_model, model_with_outputs, one_op_model
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings, first_sight
from tests.onnx_io.graphs import model_of

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"


def opened(model, path):
    save(model, path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def prepared(path, feeds=None):
    model = load(path, DimBindings({}, {})).ir
    save(model, path.parent / "plain.onnx") if path.parent != SAMPLES else None
    feeds = feeds or make_feeds(inputs_of(model), 0)
    seen = first_sight(path if path.parent == SAMPLES else path.parent / "plain.onnx", feeds, SessionSettings())
    return model, to_graph(model, seen.types), feeds


def values_of(model, graph, feeds, folder):
    made = [tensor.name for tensor in graph.tensors if tensor.producer is not None]
    session = opened(model_with_outputs(model, graph, made), folder / "all.onnx")
    names = [output.name for output in session.get_outputs()]
    assert set(names) == set(made)
    assert len(names) == len(made)
    return {**feeds, **dict(zip(names, session.run(names, feeds), strict=True))}


def check_each(model, graph, feeds, folder):
    """Every op by itself gives the bits that it gives inside."""
    values = values_of(model, graph, feeds, folder)
    for number in range(len(graph.ops)):
        session = opened(one_op_model(model, graph, number), folder / "one.onnx")
        reads = [value.name for value in session.get_inputs()]
        assert set(reads) == {graph.tensors[tensor].name for tensor in graph.ops[number].inputs}
        names = [value.name for value in session.get_outputs()]
        for name, value in zip(names, session.run(names, {read: values[read] for read in reads}), strict=True):
            assert value.tobytes() == values[name].tobytes(), (graph.ops[number], name)


@pytest.mark.parametrize("sample", ["chain", "transformer", "detector"])
def test_each_op_of_a_sample(sample, tmp_path):
    check_each(*prepared(SAMPLES / f"{sample}.onnx"), tmp_path)


def branch(name, op_type, other):
    """A branch that reads values from outside."""
    node = helper.make_node(op_type, ["a", other], [name], name)
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])])


def test_an_op_with_subgraphs_gets_what_they_capture(tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "a"),
        helper.make_node("ReduceSum", ["x"], ["s"], "s", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], "c"),
        helper.make_node(
            "If", ["c"], ["y"], "y", then_branch=branch("t", "Add", "x"), else_branch=branch("e", "Mul", "w")
        ),
    ]
    weights = {"zero": np.zeros((), np.float32), "w": np.full((2, 3), 2, np.float32)}
    onnx.save(model_of(nodes, {"x": (2, 3)}, ["y"], weights), tmp_path / "m.onnx")
    model, graph, feeds = prepared(tmp_path / "m.onnx")
    check_each(model, graph, feeds, tmp_path)
    alone = one_op_model(model, graph, next(i for i, op in enumerate(graph.ops) if op.name == "y"))
    assert {value.name for value in alone.graph.inputs} == {"c", "a", "x"}
    assert set(alone.graph.initializers) == {"w"}


def pooled(reads_indices):
    nodes = [helper.make_node("MaxPool", ["x"], ["p", "i"], "pool", kernel_shape=[2, 2])]
    outputs = ["p", "i"] if reads_indices else ["p"]
    model = model_of(nodes, {"x": (1, 1, 4, 4)}, ["p"])
    if reads_indices:
        model.graph.output.append(helper.make_tensor_value_info("i", TensorProto.INT64, [1, 1, 3, 3]))
    return model, outputs


@pytest.mark.parametrize("reads_indices", [True, False])
def test_optional_outputs_that_nobody_reads_are_left_out(reads_indices, tmp_path):
    proto, outputs = pooled(reads_indices)
    onnx.save(proto, tmp_path / "m.onnx")
    model, graph, feeds = prepared(tmp_path / "m.onnx", {"x": np.ones((1, 1, 4, 4), np.float32)})
    session = opened(one_op_model(model, graph, 0), tmp_path / "one.onnx")
    assert [value.name for value in session.get_outputs()] == outputs
    assert session.run(None, feeds)[0].shape == (1, 1, 3, 3)


def test_the_least_model_runs(tmp_path):
    assert opened(call_model(), tmp_path / "c.onnx").run(None, {"x": np.ones(1, np.float32)})[0] == [-1]
    row = opened(call_model(3, 2), tmp_path / "r.onnx")
    assert row.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [-1, -1]


def test_an_op_of_another_graph_is_refused():
    model, graph, _ = prepared(SAMPLES / "chain.onnx")
    other = load(SAMPLES / "unet.onnx", DimBindings({}, {})).ir
    names = {node.name for node in other.graph}
    stranger = next(i for i, op in enumerate(graph.ops) if op.name not in names)
    with pytest.raises(ModelError, match="has no op"):
        one_op_model(other, graph, stranger)
    assert model is not other
