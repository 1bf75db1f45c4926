"""Kinds of models that people run at many sizes: one file each, exact at once, same bits everywhere."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime as ort
import pytest

import remat_cli as remat
from tests.torch_like.families import KINDS

SIZES = 8
LONG = dict.fromkeys(
    ["rotary and local attention", "bias by distance", "detector", "decoder with a cache"], pytest.mark.slow
)
"""In tests/compiling a bias that all layers read is made again tile by tile (test_family.py), and pictures of any size
are cut (test_family_windows.py); test_conversation.py feeds caches back.
"""


pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("kind", [pytest.param(KINDS[name], id=name, marks=LONG.get(name, ())) for name in KINDS])
def test_one_file_for_all_sizes(tmp_path, kind):
    path, ours = kind.save(tmp_path / "model.onnx"), tmp_path / "any.onnx"
    found = remat.compile(
        str(path),
        budget=kind.budget,
        dim=dict(kind.dims),
        limit=list(kind.limits),
        output=str(ours),
        capped_run=False,
        time_limit="5s",
        max_overhead="10000%",  # models this small
    )
    assert found.output is not None, found
    seen = json.loads(ours.with_suffix(".plan.json").read_text())["verification"]
    assert seen["rounds_of_learning"] == 0
    runs = seen["family"]["runs"]
    assert all(run["outputs_identical"] and run["order_honoured"] for run in runs)
    assert seen["family"]["promised_bytes"] < max(run["original_peak_bytes"] for run in runs)
    before, after = (ort.InferenceSession(str(each), providers=["CPUExecutionProvider"]) for each in (path, ours))
    dice = np.random.default_rng(0)
    for seed in range(SIZES):
        ends = {name: [int(end) for end in size.split("..")] for name, size in kind.dims.items()}
        sizes = {name: int(dice.integers(each[0], each[-1] + 1)) for name, each in ends.items()}
        if kind.limits:
            sizes["batch"] = 1  # the only batch that any length goes with
        feeds = kind.feeds(sizes, seed)
        pairs = zip(before.run(None, feeds), after.run(None, feeds), strict=True)
        assert all(one.tobytes() == other.tobytes() for one, other in pairs), sizes
