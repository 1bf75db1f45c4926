"""Budgets of just what whole ops need: gates have room on top of a share, and a few bytes more are named else."""

from __future__ import annotations

from pathlib import Path

import pytest

import remat_cli

DENSENET = Path(__file__).resolve().parents[2] / "sample_models" / "densenet.onnx"
FLOOR_BYTES = 11_720_256
"""Of its whole ops, which is half of what planning can change, to the byte."""
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
