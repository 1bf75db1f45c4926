"""Primers: in front of the graph that packs, nothing that a run computes, and gone when the file is read."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.write.primers import can_be_primed, primed, without_primers
from remat_cli.onnx_io.write.save import save
from remat_cli.onnx_io.write.steady import steady
from remat_cli.ort_rules.primers import COPY_BYTES, PREFIX, PRODUCTS, SMALL_COPIES_BYTES, SMALL_PRODUCTS
from remat_cli.ort_rules.steady import BODY, SteadyForm
from remat_cli.runtime.sessions.packing import PackingJob, save_packed
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from tests.onnx_io.graphs import model_of

SIZE = 64
FEEDS = {"x": np.linspace(-1, 1, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)}


def sample() -> ir.Model:
    weights = {name: np.full((SIZE, SIZE), value, np.float32) for name, value in (("v", 0.1), ("w", 0.2))}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], "first"),
        helper.make_node("MatMul", ["a", "w"], ["y"], "second"),
    ]
    return ir.from_proto(model_of(nodes, {"x": (SIZE, SIZE)}, ["y"], weights))


def names(graph: ir.Graph) -> list[str]:
    return [node.name or "" for node in graph]


@pytest.mark.parametrize("opset", [11, 13, 17, 22])
def test_outputs_and_what_a_run_holds_are_the_same(tmp_path, opset):
    model = sample()
    model.graph.opset_imports[""] = opset
    save(model, tmp_path / "plain.onnx")
    save(primed(model), tmp_path / "primed.onnx")
    runs = [run_profiled(tmp_path / name, FEEDS, SessionSettings()) for name in ("plain.onnx", "primed.onnx")]
    assert runs[1].executed == runs[0].executed == ("first", "second")
    assert runs[1].live_bytes == runs[0].live_bytes
    more_bytes = runs[1].baseline_bytes - runs[0].baseline_bytes
    # The weight of the large ones, whose copy a file with packed copies maps, and one small copy.
    assert more_bytes == COPY_BYTES + SMALL_COPIES_BYTES
    sessions = [ort.InferenceSession(tmp_path / name) for name in ("plain.onnx", "primed.onnx")]
    one, other = (session.run(None, FEEDS)[0] for session in sessions)
    assert one.tobytes() == other.tobytes()


def test_a_branch_keeps_nothing_more(tmp_path):
    """Of the small weights only one copy: what a file takes live is known before it is written."""
    plain = steady(sample(), SteadyForm())
    for name, model in (("plain.onnx", plain), ("primed.onnx", primed(plain))):
        save(model, tmp_path / name)
    runs = [run_profiled(tmp_path / name, FEEDS, SessionSettings()) for name in ("plain.onnx", "primed.onnx")]
    assert runs[1].baseline_bytes - runs[0].baseline_bytes == COPY_BYTES + SMALL_COPIES_BYTES


def test_each_product_packs(tmp_path):
    """The runtime keeps all of them: none is computed beforehand, joined with another, or left out."""
    save(primed(sample()), tmp_path / "primed.onnx")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(tmp_path / "primed.onnx", options)
    loaded = onnx.load(tmp_path / "loaded.onnx")
    found = Counter(
        node.input[1] for node in loaded.graph.node if node.name.startswith(PREFIX) and node.op_type == "Gemm"
    )
    small = [count for name, count in found.items() if name != f"{PREFIX}weight"]
    assert found[f"{PREFIX}weight"] == PRODUCTS + 1
    assert small == [1] * SMALL_PRODUCTS  # each is dropped alone


def test_they_come_first_in_the_graph_that_packs():
    assert names(primed(sample()).graph)[-2:] == ["first", "second"]
    formed = primed(steady(sample(), SteadyForm()))
    body = next(node for node in formed.graph if node.name == BODY).attributes["then_branch"].as_graph()
    assert all(name.startswith(PREFIX) for name in names(body)[: PRODUCTS + 3])
    assert not any(name.startswith(PREFIX) for name in names(formed.graph))


@pytest.mark.parametrize("form", [None, SteadyForm()])
def test_a_file_with_primers_is_read_as_the_model_that_it_is(tmp_path, form):
    model = sample() if form is None else steady(sample(), form)
    save(primed(model), tmp_path / "primed.onnx", external=True)
    found = load(tmp_path / "primed.onnx", DimBindings())
    assert found.is_primed
    assert names(found.ir.graph) == ["first", "second"]
    assert set(found.ir.graph.initializers) == {"v", "w"}
    plain = sample()
    assert not without_primers(plain)


def test_their_packed_copy_is_saved_with_the_others(tmp_path):
    save(primed(sample()), tmp_path / "primed.onnx", external=True)
    save_packed(PackingJob(str(tmp_path / "primed.onnx"), str(tmp_path / "saved.onnx"), 1024))
    saved = onnx.load(tmp_path / "saved.onnx", load_external_data=False)
    entries = {tensor.name: [entry.key for entry in tensor.external_data] for tensor in saved.graph.initializer}
    assert "prepacked_0" in entries[f"{PREFIX}weight"]


def test_old_opsets_and_inputs_without_dimensions_have_none():
    model = sample()
    model.graph.opset_imports[""] = 10
    assert not can_be_primed(model)
    scalar = model_of([helper.make_node("Relu", ["x"], ["y"], "r")], {"x": ()}, ["y"])
    assert not can_be_primed(ir.from_proto(scalar))
