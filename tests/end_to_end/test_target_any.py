"""A file for any processor: the original's bits in a default session, within the budget that it keeps there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli
from remat_cli.cli import main
from remat_cli.onnx_io.read.compiled import runs_on_at
from remat_cli.onnx_io.write.markers import MARK
from remat_cli.ort_rules.layout import NCHWC

CHANNELS, SIZE, BLOCKS = 16, 128, 3
LARGE = 256  # at which later runs would take much more than the first


def residual_network(size: int = SIZE) -> onnx.ModelProto:
    """A stem and blocks of two convolutions whose sum with what they read is fused into the second one."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"

    def conv(number: int, inputs: int, read: str) -> str:
        kernel, bias = rng.standard_normal((CHANNELS, inputs, 3, 3)) / 16, rng.standard_normal(CHANNELS)
        for name, array in ((f"w{number}", kernel), (f"b{number}", bias)):
            weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        reads = [read, f"w{number}", f"b{number}"]
        nodes.append(helper.make_node("Conv", reads, [f"c{number}"], name=f"conv{number}", pads=[1, 1, 1, 1]))
        return f"c{number}"

    def relu(read: str) -> str:
        nodes.append(helper.make_node("Relu", [read], [f"{read}_relu"], name=f"{read}_relu"))
        return f"{read}_relu"

    last = relu(conv(0, 3, "x"))
    for block in range(BLOCKS):
        first = relu(conv(2 * block + 1, CHANNELS, last))
        nodes.append(
            helper.make_node("Add", [conv(2 * block + 2, CHANNELS, first), last], [f"s{block}"], name=f"add{block}")
        )
        last = relu(f"s{block}")
    conv(2 * BLOCKS + 1, CHANNELS, last)
    nodes[-1].output[0] = "y"
    ports = (("x", [1, 3, size, size]), ("y", [1, CHANNELS, size, size]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports)
    graph = helper.make_graph(nodes, "residual", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compile_for(target: str, original: Path, written: Path, budget: str = "75%") -> dict:
    """The report of a compile."""
    words = ["compile", str(original), "--budget", budget, "--target", target, "-o", str(written), "--force"]
    report = written.with_suffix(".json")
    with report.open("w") as stream, pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        plan = str(written.with_suffix(".plan.json"))
        limit = ["--plan", plan, "--time-limit", "40s", "--max-overhead", "10000%"]
        assert main([*words, *limit, "--format", "json", "--quiet"]) == 0
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, cache):
    """The report of a compile for any processor, and the original."""
    folder = tmp_path_factory.mktemp("any")
    original, written = folder / "net.onnx", folder / "any.onnx"
    onnx.save(residual_network(), original)
    return original, written, compile_for("any", original, written)


def outputs(path, size: int = SIZE) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((1, 3, size, size)).astype(np.float32)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_it_has_the_bits_of_the_original_in_a_default_session(compiled):
    original, written, report = compiled
    assert np.array_equal(outputs(original), outputs(written))
    assert report["verification"]["outputs_identical"]
    assert report["verification"]["reference"].endswith("default session")


def test_a_default_session_keeps_the_budget(compiled):
    _, _, report = compiled
    seen = report["verification"]
    assert seen["within_budget"]
    assert seen["measured_peak_default_session_bytes"] <= seen["budget_bytes"]


def test_it_is_of_ops_that_every_processor_knows_and_marks_what_it_cuts(compiled):
    _, written, _ = compiled
    nodes = [node for graph in ir.load(written).graphs() for node in graph]
    assert {node.domain for node in nodes} <= {"", "ai.onnx", "com.microsoft"}
    assert runs_on_at(written).unlike == ("ARM with SME",)
    assert any(MARK in node.metadata_props for node in nodes)


def test_a_branch_has_the_weights_that_sessions_bring_into_blocks(tmp_path):
    """Later runs take what the first took in a branch, and the layout step looks at weights of a graph's own."""
    original, written = tmp_path / "net.onnx", tmp_path / "any.onnx"
    onnx.save(residual_network(LARGE), original)
    compile_for("any", original, written, "100%")
    runs = json.loads(written.with_suffix(".plan.json").read_text())["promise"]["runs"]
    assert runs["ballast_bytes"] is not None
    held_bytes = outputs(original, LARGE).nbytes  # by the caller, of the run before
    assert runs["later_runs_bytes"] <= runs["first_run_bytes"] + 1.25 * held_bytes
    assert not [name for name in ir.load(written).graph.initializers if name.startswith("w")]
    assert np.array_equal(outputs(original, LARGE), outputs(written, LARGE))
    before, after = (in_blocks(path, tmp_path) for path in (original, written))
    assert after >= before


def in_blocks(path: Path, folder: Path) -> int:
    """How many ops of a model sessions on this processor bring into blocks, in whatever graph."""
    loaded, options = folder / "loaded.onnx", ort.SessionOptions()
    options.optimized_model_filepath = str(loaded)
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return sum(node.domain == NCHWC for graph in ir.load(loaded).graphs() for node in graph)


def test_one_for_another_kind_promises_memory_there_and_bits_everywhere(compiled, tmp_path, capsys):
    original, _, _ = compiled
    written = tmp_path / "arm64.onnx"
    report = compile_for("arm64", original, written)
    assert np.array_equal(outputs(original), outputs(written))
    assert "memory is promised for arm64, predicted, not run there" in runs_on_at(written).line
    assert any("predicted, not measured" in note for note in report["verification"]["notes"])
    assert main(["verify", str(written.with_suffix(".plan.json")), "--verify", "fast"]) == 0
    capsys.readouterr()


def test_its_file_is_held_to_ordinary_sessions_without_its_plan(compiled):
    """Which alone make of it what they make of the original: exact ones have other bits, and an order of their own."""
    original, written, _ = compiled
    seen = remat_cli.verify(written, original=original, verify="fast")
    assert seen.exit_code == 0, seen
    assert seen.verification.is_portable
    assert seen.verification.order_honoured is None
    assert "default_session" in {promise.measure for promise in seen.verification.promises}


def test_a_target_that_is_none_is_refused_with_those_that_are(compiled, capsys):
    original, _, _ = compiled
    assert main(["compile", str(original), "--budget", "75%", "--target", "riscv"]) == 2
    assert "write one of here, any, x86-64-avx512" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_all_processors_run_alike_is_made_as_for_this_one(tmp_path, capsys):
    """Its order is kept in default sessions too, and its memory is promised without a word about processors."""
    written = tmp_path / "chain.onnx"
    compile_for("any", Path("sample_models/transformer.onnx"), written, "80%")
    plan = json.loads(written.with_suffix(".plan.json").read_text())
    assert plan["promise"]["holds_by_default"]
    assert not plan["request"]["portable"]
    assert not plan["request"]["packed_weights"]
    assert runs_on_at(written).line.startswith("runs on: any processor")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["detector", "attention_unet"])
def test_sums_of_two_convolutions_keep_their_bits_in_tiles(name, tmp_path):
    """Also where ops run again, and where channels fill no block: the one that takes in the sum stays the same."""
    original, written = Path(f"sample_models/{name}.onnx"), tmp_path / "any.onnx"
    seen = compile_for("any", original, written, "70%")["verification"]
    assert seen["outputs_identical"]
    assert seen["measured_peak_default_session_bytes"] <= seen["budget_bytes"]
    plan = json.loads(written.with_suffix(".plan.json").read_text())
    assert plan["splitting"] is not None
