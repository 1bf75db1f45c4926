"""Files whose parts have the original's bits with one number of threads only: they say with which."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base.processes import available_cores
from remat_cli.cli import main
from remat_cli.core.values.runs_on import RunsOn
from remat_cli.runtime.elsewhere import there

ROWS, COLUMNS, LESS = 256, 2048, 16

pytestmark = pytest.mark.usefixtures("cache")


def wide(op_type: str) -> onnx.ModelProto:
    """A product of few columns, many of them, a function of each number, few again: it runs in rows."""
    random = np.random.default_rng(0)
    weights = {"up": (LESS, COLUMNS), "down": (COLUMNS, LESS)}
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["many"]),
        helper.make_node(op_type, ["many"], ["made"]),
        helper.make_node("MatMul", ["made", "down"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (ROWS, LESS)) for name in ("x", "y")]
    tensors = [
        numpy_helper.from_array(random.standard_normal(dims, np.float32), name) for name, dims in weights.items()
    ]
    graph = helper.make_graph(nodes, "wide", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("op_type", "asked", "told"),
    [("Softplus", 0, available_cores()), pytest.param("Softplus", 1, 1, marks=pytest.mark.slow), ("Relu", 0, 0)],
)
def test_a_file_says_with_how_many_threads_it_has_the_bits(
    op_type: str, asked: int, told: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "wide.onnx", tmp_path / "out.onnx"
    onnx.save(wide(op_type), path)
    command = ["compile", str(path), "--budget", "60%", "-o", str(out), "--verify", "fast", "--time-limit", "5s"]
    assert main([*command, "--intra-op-threads", str(asked)]) == 0
    report = capsys.readouterr().out
    made = json.loads(out.with_name("out.plan.json").read_text())
    assert made["splitting"] is not None
    assert made["runs_on"]["threads"] == told
    assert ("any number of threads" in made["runs_on"]["options"]) is (told == 0)
    assert (f"with intra_op_num_threads={told}" in report) is (told > 0)
    entries = {each.key: each.value for each in onnx.load(out, load_external_data=False).metadata_props}
    found = RunsOn.from_metadata(entries)
    assert found is not None
    assert found.threads == told
    # verified here and by any command in sessions with so many
    assert found.asked_session.threads == told
    there_options = there.new_options(there.session_of(str(out)))
    assert there_options.intra_op_num_threads == told
    for words in ([], ["--on", sys.executable]):
        assert main(["verify", str(out), "--original", str(path), "--verify", "fast", *words]) == 0


def test_sessions_elsewhere_are_opened_as_a_file_says() -> None:
    asked = {"threads": 3, "arena": False, "pattern": False, "optimisation": "basic", "mode": "parallel"}
    options, exact = there.new_options(asked), there.new_options(asked, there.EXACT)
    assert (options.intra_op_num_threads, exact.intra_op_num_threads) == (3, 3)
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert exact.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL


def sounds(channels: int, length: int, layers: int = 5, reach: int = 5) -> onnx.ModelProto:
    """Convolutions along time, whose sums threads share out."""
    random, nodes, tensors, last, width = np.random.default_rng(0), [], [], "x", 8
    for layer in range(layers):
        weight = random.standard_normal((channels, width, reach), np.float32) / (width * reach) ** 0.5
        tensors.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], pads=[reach // 2] * 2))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        last, width = f"r{layer}", channels
    tensors.append(numpy_helper.from_array(random.standard_normal((4, width, 1), np.float32), "wl"))
    nodes.append(helper.make_node("Conv", [last, "wl"], ["y"]))
    ends = [helper.make_tensor_value_info(*end) for end in (("x", 1, (1, 8, length)), ("y", 1, (1, 4, length)))]
    graph = helper.make_graph(nodes, "sounds", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def outputs(path: Path, threads: int) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((1, 8, 1000), np.float32)
    return session.run(None, {"x": x})[0]


def test_a_file_says_how_many_threads_its_bits_bear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine with more cores than the one that compiled last bits were others, in silence."""
    path, out = tmp_path / "sounds.onnx", tmp_path / "out.onnx"
    onnx.save(sounds(40, 1000), path)
    command = ["compile", str(path), "--budget", "50%", "-o", str(out), "--verify", "fast", "--time-limit", "6s"]
    assert main([*command, "--max-overhead", "2000%", "--intra-op-threads", "2"]) == 0
    report = capsys.readouterr().out
    entries = {each.key: each.value for each in onnx.load(out, load_external_data=False).metadata_props}
    found = RunsOn.from_metadata(entries)
    assert found is not None
    assert found.threads == 0
    assert 2 <= found.most_threads <= 8
    assert f"at most {found.most_threads} threads" in found.options
    assert f"with up to {found.most_threads} threads" in report
    for threads in range(1, found.most_threads + 1):
        assert outputs(out, threads).tobytes() == outputs(path, threads).tobytes()
    more = range(found.most_threads + 1, 13)
    assert any(outputs(out, threads).tobytes() != outputs(path, threads).tobytes() for threads in more)


def test_sessions_here_open_a_file_with_no_more_threads_than_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RunsOn("x86-64", None, "1.26", "1.26", "1.32", (), most_threads=3)
    for cores, threads in ((2, 0), (3, 0), (8, 3)):
        monkeypatch.setattr("remat_cli.core.values.runs_on.available_cores", lambda cores=cores: cores)
        assert asked.asked_session.threads == threads
