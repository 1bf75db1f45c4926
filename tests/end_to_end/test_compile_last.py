"""A compiled file asks for no more than it needs, says that it is to be left as it is, and tells whether it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main
from remat_cli.onnx_io.read.checking import all_nodes
from remat_cli.onnx_io.write.packed import ENTRY

pytestmark = pytest.mark.usefixtures("cache")
CHAIN = Path(__file__).parents[2] / "sample_models" / "chain.onnx"


@pytest.fixture(scope="module")
def compiled(samples) -> Path:
    """A sample in tiles, in the steady form."""
    return samples.compiled("chain", "60%").output


def compile_model(path, folder, *options) -> int:
    files = ["-o", str(folder / "out.onnx"), "--plan", str(folder / "out.json"), "--force"]
    return main(["compile", str(path), *options, "--no-verify", "--quiet", "--format", "json", *files])


def inspected(capsys, path):
    """JSON and text of `remat inspect`."""
    capsys.readouterr()
    assert main(["inspect", str(path), "--format", "json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["inspect", str(path), "--quiet"]) == 0
    return found, capsys.readouterr().out


def test_opset_domains_and_format_are_those_of_the_source(compiled):
    """The split search works under a newer opset; no tile is filled in place here."""
    model, source = onnx.load(compiled), onnx.load(CHAIN)
    used = {node.domain for node in all_nodes(model.graph)}
    declared = {entry.domain: entry.version for entry in model.opset_import}
    assert used == set(declared)
    assert declared[""] == source.opset_import[0].version == 17
    assert model.ir_version == 8
    assert any("tile" in node.name for node in all_nodes(model.graph))


def test_inspect_tells_whether_a_file_is_as_written(capsys, compiled, tmp_path):
    found, text = inspected(capsys, compiled)
    assert found["is_as_written"] is True
    assert "as remat wrote it" in text.splitlines()[0]
    model = onnx.load(compiled)
    weight = next(each for each in model.graph.initializer if each.data_type == TensorProto.FLOAT)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(2), weight.name))
    onnx.save(model, tmp_path / "changed.onnx")
    found, text = inspected(capsys, tmp_path / "changed.onnx")
    assert found["is_as_written"] is False
    assert any("is not as remat wrote it" in warning for warning in found["warnings"])
    assert "compile last" in text
    found, _ = inspected(capsys, CHAIN)
    assert found["is_as_written"] is None


@pytest.mark.slow
def test_a_model_made_of_a_compiled_one_is_signed_anew(capsys, compiled, tmp_path):
    assert compile_model(compiled, tmp_path, "--budget", "100%") == 0
    assert inspected(capsys, tmp_path / "out.onnx")[0]["is_as_written"] is True


def test_lost_packed_copies_are_told(capsys, tmp_path):
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 1024])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 1024])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    assert compile_model(tmp_path / "m.onnx", tmp_path, "--budget", "100%", "--external-data", "--packed-weights") == 0
    out = tmp_path / "out.onnx"
    model = onnx.load(out, load_external_data=False)
    assert any(entry.key.startswith(ENTRY) for entry in model.graph.initializer[0].external_data)
    assert inspected(capsys, out)[0]["warnings"] == []
    kept = [entry for entry in model.graph.initializer[0].external_data if not entry.key.startswith(ENTRY)]
    del model.graph.initializer[0].external_data[:]
    model.graph.initializer[0].external_data.extend(kept)
    out.write_bytes(model.SerializeToString())
    found, _ = inspected(capsys, out)
    assert found["is_as_written"] is True
    assert ["lost the packed copies" in warning for warning in found["warnings"]] == [True]
    assert ort.InferenceSession(out).run(None, {"x": np.ones((64, 1024), np.float32)})[0].shape == (64, 1024)
