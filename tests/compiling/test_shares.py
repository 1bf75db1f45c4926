"""Budgets of just what whole ops need: gates have room on top of a share, and a few bytes more are named else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_cli

DENSENET = Path(__file__).resolve().parents[2] / "sample_models" / "densenet.onnx"
FLOOR_BYTES = 11_720_256
"""Of its whole ops, which is half of what planning can change, to the byte."""
PICTURE_BYTES = 4 * 8 * 256 * 256
WORDS = {"split": "off", "verify": "off", "max_overhead": "1000%", "time_limit": "5s"}


@pytest.mark.slow  # a whole network
def test_a_share_of_just_what_whole_ops_need_has_room_for_gates(tmp_path):
    report = remat_cli.compile(DENSENET, budget="50%", output=tmp_path / "out.onnx", **WORDS)
    assert report.solution.floor_bytes == FLOOR_BYTES
    assert 0 < report.solution.budget_bytes - FLOOR_BYTES <= 2048
    assert report.solution.peak_bytes <= report.solution.budget_bytes


@pytest.mark.slow
def test_bytes_hold_gates_too_and_the_budget_that_does_is_named(tmp_path):
    report = remat_cli.compile(DENSENET, budget=str(FLOOR_BYTES), output=tmp_path / "out.onnx", **WORDS)
    assert report.output is None
    assert report.asked.cheaper is not None
    assert report.asked.cheaper.share_percent == 51


def save_halves(path: Path) -> Path:
    """Two pictures must be there whole at once; later there are four, which can go in rows."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["a"]),
        helper.make_node("LpNormalization", ["a"], ["z"], axis=2),
        helper.make_node("Concat", ["z", "z", "z"], ["wide"], axis=1),
        helper.make_node("ReduceMax", ["wide"], ["y"], axes=[1]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, c, "h", 256]) for name, c in (("x", 8), ("y", 1))
    ]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [two])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_share_of_just_what_loops_hold_has_room_for_their_counters(tmp_path, cache):
    path, words = save_halves(tmp_path / "halves.onnx"), WORDS | {"split": "auto", "dims": {"h": "64..256:64"}}
    report = remat_cli.compile(path, budget="50%", output=tmp_path / "out.onnx", **words)
    share_bytes = report.solution.fixed_bytes + 2 * PICTURE_BYTES
    assert share_bytes < report.solution.peak_bytes <= report.solution.budget_bytes <= share_bytes + 2048
