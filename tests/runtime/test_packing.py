"""Weights as kernels pack them, saved beside the weights: the same bits from mapped pages, and a way back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.onnx_io.read.load import DimBindings, load
from remat_cli.onnx_io.write.packed import ENTRY, PackedWeights, packed_weights, packing_signature
from remat_cli.onnx_io.write.save import save
from remat_cli.runtime.sessions import apart
from remat_cli.runtime.sessions.packing import PackingJob, lean_form, save_packed
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled

SIZE = 512
SQUARE_BYTES = 4 * SIZE * SIZE
FEEDS = {"x": np.linspace(-1, 1, 4 * SIZE, dtype=np.float32).reshape(4, SIZE)}


def model() -> ir.Model:
    """Three products; the last two read one weight, one of them transposed."""
    random = np.random.default_rng(0)
    weights = [numpy_helper.from_array(random.standard_normal((SIZE, SIZE)).astype(np.float32), n) for n in ("v", "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="second"),
        helper.make_node("Gemm", ["b", "w"], ["y"], name="third", transB=1),
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, SIZE])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", *ports, weights)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path, PackedWeights]:
    """A model with its weights in a file, one with packed copies there too, and what the runtime has packed."""
    folder = tmp_path_factory.mktemp("packing")
    plain, saved, packed = (folder / name for name in ("plain.onnx", "saved.onnx", "packed.onnx"))
    save(model(), plain, external=True)
    save_packed(PackingJob(str(plain), str(saved), 1024))
    found = packed_weights(saved)
    save(model(), packed, external=True, packed=found)
    return plain, packed, found


def test_the_runtime_saves_a_copy_for_each_way_in_which_a_weight_is_read(files):
    _, _, found = files
    assert {name: len(copies) for name, copies in found.copies.items()} == {"v": 1, "w": 2}
    assert found.total_bytes == 3 * SQUARE_BYTES
    assert found.largest_bytes == SQUARE_BYTES


def buffers_of(packed: PackedWeights) -> list[bytes]:
    data = packed.file.read_bytes()
    return [data[buffer.offset :][: buffer.bytes] for buffer in packed.buffers]


def test_what_is_written_is_what_the_runtime_saved(files):
    _, packed, found = files
    written = packed_weights(packed)
    assert written.file.name == "packed.onnx.data"
    assert [[copy.key for copy in copies] for copies in written.copies.values()] == [
        [copy.key for copy in copies] for copies in found.copies.values()
    ]
    assert buffers_of(written) == buffers_of(found)


def test_a_session_maps_copies_and_gives_the_same_bits(files):
    plain, packed, found = files
    sights = [run_profiled(path, FEEDS, SessionSettings()) for path in (plain, packed)]
    assert sights[0].baseline_bytes - sights[1].baseline_bytes == found.total_bytes
    assert np.array_equal(sights[0].outputs["y"], sights[1].outputs["y"])
    results = [
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, FEEDS)[0]
        for path in (plain, packed)
    ]
    assert np.array_equal(*results)


def test_a_copy_that_kernels_here_would_not_make_is_not_taken(files, tmp_path):
    plain, packed, _ = files
    proto = onnx.load(packed, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key.startswith(ENTRY):
                entry.value = entry.value.replace("+", "+1", 1)
    other = packed.with_name("other.onnx")
    onnx.save(proto, other)
    data = packed.with_name("packed.onnx.data")
    assert data.is_file()
    sights = [run_profiled(path, FEEDS, SessionSettings()) for path in (plain, other)]
    assert sights[0].baseline_bytes == sights[1].baseline_bytes
    assert np.array_equal(sights[0].outputs["y"], sights[1].outputs["y"])


def test_a_model_with_packed_weights_is_valid_and_read_as_one_without(files, recwarn):
    plain, packed, _ = files
    onnx.checker.check_model(str(packed), full_check=True)
    sources = [load(path, DimBindings()) for path in (plain, packed)]
    assert [source.has_packed for source in sources] == [False, True]
    tensors = [
        {name: value.const_value.numpy() for name, value in source.ir.graph.initializers.items()} for source in sources
    ]
    assert all(np.array_equal(tensors[0][name], tensors[1][name]) for name in ("v", "w"))
    assert not recwarn.list


def test_a_file_without_copies_has_none(files):
    plain, _, _ = files
    assert not packed_weights(plain).copies
    assert packed_weights(plain).total_bytes == packed_weights(plain).largest_bytes == 0


def test_a_signature_tells_which_weights_are_packed_how():
    one, same, other = model(), model(), model()
    same.graph[0].name = "renamed"
    other.graph[2].attributes["transB"] = ir.AttrInt64("transB", 0)
    assert packing_signature(one) == packing_signature(same) != packing_signature(other)


def test_several_sessions_of_a_heavy_model_map_their_copies(files, tmp_path, monkeypatch):
    settings = SessionSettings()
    light = tmp_path / "model.onnx"
    save(model(), light)
    assert lean_form(light, settings) == light
    monkeypatch.setattr(apart, "WORTH_A_PROCESS_BYTES", 2 * SQUARE_BYTES)
    lean = lean_form(light, settings)
    assert packed_weights(lean).total_bytes == files[2].total_bytes
    written = lean.stat().st_mtime_ns
    assert lean_form(light, settings) == lean
    assert lean.stat().st_mtime_ns == written
    save(model(), light)  # another model may be there now
    assert lean_form(light, settings).stat().st_mtime_ns > written
