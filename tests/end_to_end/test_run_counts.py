"""How often a compile runs the model: no more often than its answer needs, on a busy machine too."""

from __future__ import annotations

import math

import remat_cli
from remat_cli.compiling.search import tiles
from tests.compiled_samples import SAMPLES

FIRST_RUNS, AGAIN_RUNS = 115, 70
"""At most, where no two runs take equally long and costs that are known seem wrong; else it is half as many."""


def runs_of(budget, folder):
    found = remat_cli.compile(
        SAMPLES / "chain.onnx", budget=budget, output=folder / "out.onnx", time_limit="5s", force=True
    )
    assert found.exit_code == 0
    return {stage.name: stage.runs for stage in found.stages}


def test_a_short_model_is_run_a_bounded_number_of_times(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "DEAR_PERCENT", math.inf)  # one split is measured
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    first = runs_of("50%", tmp_path)
    assert first["optimising"] == 4
    assert 20 < sum(first.values()) <= FIRST_RUNS
    again = runs_of("50%", tmp_path)
    assert again["optimising"] == 0
    assert sum(again.values()) <= AGAIN_RUNS
