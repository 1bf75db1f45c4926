"""The pass for Olive: its keys are the words of `compile`; where Olive is installed, a workflow with it runs."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import remat_cli
import remat_cli.olive as olive_pass
from remat_cli.base.errors import MissingDependency
from remat_cli.commands.asked import settings_of

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "olive"
needs_olive = pytest.mark.skipif(find_spec("olive") is None, reason="Olive is not installed")


def test_its_keys_are_those_of_compile():
    words = set(inspect.signature(remat_cli.compile).parameters)
    assert set(olive_pass.keys()) == words - set(olive_pass.OLIVES)
    assert {"budget", "max_overhead", "split", "target", "verify", "dim", "time_limit"} <= set(olive_pass.keys())
    settings_of(dict.fromkeys(olive_pass.keys()))  # each sets something


def test_the_example_names_the_pass_and_only_keys_that_it_has():
    package = json.loads((EXAMPLE / "package.json").read_text())["passes"]
    name, path = next((name, one["module_path"]) for name, one in package.items() if "remat" in one["module_path"])
    assert path == f"{olive_pass.__name__}.{name}"  # Olive goes by the name of the class
    run = json.loads((EXAMPLE / "run.json").read_text())
    assert (ROOT / run["input_model"]["model_path"]).is_file()
    assert {one["type"] for one in run["passes"].values()} == set(package)
    (ours,) = [one for one in run["passes"].values() if one["type"] == name]
    assert ours.keys() - {"type"} <= set(olive_pass.keys())


def test_without_olive_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "olive.model", None)
    olive_pass._pass_class.cache_clear()
    with pytest.raises(MissingDependency, match="pip install olive-ai"):
        _ = olive_pass.Remat
    olive_pass._pass_class.cache_clear()
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = olive_pass.Other


@pytest.mark.slow
@needs_olive
def test_a_workflow_with_it_gives_a_model_that_fits(tmp_path, monkeypatch):
    from olive.workflows import run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "sample_models").mkdir()
    shutil.copy(ROOT / "sample_models" / "chain.onnx", tmp_path / "sample_models")
    run(json.loads((EXAMPLE / "run.json").read_text()), package_config=str(EXAMPLE / "package.json"))
    (written,) = [path for path in tmp_path.glob("olive/**/*.onnx") if path.stat().st_size]
    plans = [remat_cli.read_plan(path) for path in tmp_path.glob("**/model.plan.json")]
    assert {plan.request.budget for plan in plans} == {"60%"}
    feeds = {"x": np.random.default_rng(0).standard_normal(plans[0].graph.tensors[0].shape, np.float32)}
    before, after = (
        ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
        for path in (tmp_path / "sample_models" / "chain.onnx", written)
    )
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
