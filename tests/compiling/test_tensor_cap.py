"""A cap on tensors: nothing inside the written model is larger, bits are the same, and what stays whole is named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.cli import main
from remat_cli.core.files.plan_reader import read_plan

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
FIXED = ("--format", "json", "--quiet", "--force", "--verify", "fast", "--time-limit", "2s")


pytestmark = pytest.mark.usefixtures("cache")


def compiled(capsys, folder, model, *words):
    out = folder / "out.onnx"
    code = main(["compile", str(SAMPLES / f"{model}.onnx"), "-o", str(out), *FIXED, *words])
    return code, json.loads(capsys.readouterr().out), out.with_suffix(".plan.json")


def inside(plan: Path) -> list[int]:
    tensors = read_plan(plan).graph.tensors
    return [t.size_bytes for t in tensors if t.producer is not None and t.view_of is None and not t.kept]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "parts"), [("unet", 2), ("transformer", 4)])
def test_no_tensor_inside_is_larger(capsys, tmp_path, model, parts):
    _, _, plan = compiled(capsys, tmp_path, model, "--budget", "100%", "--split", "off")
    most = math.ceil(max(inside(plan)) / parts)
    code, report, plan = compiled(capsys, tmp_path, model, "--max-tensor", f"{most}B")
    assert code == 0
    assert report["verification"]["outputs_identical"]
    assert max(inside(plan)) <= most
    assert read_plan(plan).request.max_tensor_bytes == most


@pytest.mark.slow
def test_inputs_above_it_are_named(capsys, tmp_path):
    code, report, _ = compiled(capsys, tmp_path, "detector", "--max-tensor", "1MiB")
    assert code == 0
    assert any(line.startswith("--max-tensor: input '") for line in report["warnings"])


def test_where_nothing_helps_the_tensor_and_its_op_are_named(capsys, tmp_path):
    code, report, plan = compiled(capsys, tmp_path, "chain", "--max-tensor", "16KiB")
    assert code == 4
    assert "is above --max-tensor 16,384 in every split that was tried" in report["split_obstacle"]
    assert "op '" in report["split_obstacle"]
    assert not plan.exists()


@pytest.mark.parametrize("given", ["12B", "much", "-4MiB"])
def test_caps_that_make_no_sense(capsys, tmp_path, given):
    words = ["compile", str(SAMPLES / "chain.onnx"), "-o", str(tmp_path / "o.onnx"), f"--max-tensor={given}", "-q"]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def attention_under_a_large_output(path):
    """A model whose largest moment is an output that no split makes smaller, and in it scores that can be cut."""
    words = np.random.default_rng(3).normal(size=(64, 4096)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"], "scores_op"),
        helper.make_node("Softmax", ["scores"], ["weights"], "weights_op"),
        helper.make_node("MatMul", ["weights", "v"], ["read"], "read_op"),
        helper.make_node("MatMul", ["read", "words"], ["logits"], "logits_op"),
    ]
    shapes = {"q": [1, 4, 256, 64], "k": [1, 4, 64, 256], "v": [1, 4, 256, 64]}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 4, 256, 4096])
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(words, "words")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_constants_of_tiles_come_on_top_of_all_memory(capsys, tmp_path):
    path = tmp_path / "model.onnx"
    attention_under_a_large_output(path)
    code, report, plan = compiled(capsys, tmp_path, path.with_suffix(""), "--max-tensor", "512KiB")
    assert code == 0
    assert report["verification"]["outputs_identical"]
    assert max(inside(plan)) <= 512 * 1024 == read_plan(plan).request.max_tensor_bytes


@pytest.mark.slow
def test_a_budget_that_is_too_small_for_tiles_is_named(capsys, tmp_path):
    path = tmp_path / "model.onnx"
    attention_under_a_large_output(path)
    budget = 4 * 256 * 4096 * 4 + 64 * 4096 * 4 + 4 * 256 * 64 * 4 * 4 + 8
    words = ("--max-tensor", "512KiB", "--budget", f"{budget}B", "--budget-scope", "live")
    code, report, plan = compiled(capsys, tmp_path, path.with_suffix(""), *words)
    assert code == 4
    assert not plan.exists()
    assert "inside, the model needs at least" in report["split_obstacle"]
    assert report["split_obstacle"].endswith(f"--budget is {budget:,}: raise one of them")
