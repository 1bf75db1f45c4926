"""Several targets of one compile: a file and a plan for each, and one report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import remat_cli
from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.cli import main
from remat_cli.commands import compile as story
from remat_cli.compiling.one_model import forms
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.values.conditions import HEAP_BEFORE_BYTES, HEAP_BYTES
from remat_cli.onnx_io.read.compiled import runs_on_at
from remat_cli.settings.settings import load_settings
from remat_cli.settings.targets import settings_by_target
from tests.end_to_end.test_target_any import residual_network

TARGETS, SIZE = ("here", "arm64", "wasm"), 32

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a model."""
    folder = tmp_path_factory.mktemp("targets")
    onnx.save(residual_network(SIZE), folder / "net.onnx")
    return folder


@pytest.fixture(scope="module")
def report(folder, cache) -> dict:
    """What a compile for several targets says."""
    return compiled(folder, "--target", "here,arm64", "--target", "wasm", "--budget", "100%", "--force")


def compiled(folder: Path, *words: str, code: int = 0) -> dict:
    said = folder / "said.json"
    with said.open("w") as stream, pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        more = ["--time-limit", "2s", "--split", "off", "--verify", "fast", "--format", "json", "--quiet"]
        assert main(["compile", str(folder / "net.onnx"), "-o", str(folder / "out.onnx"), *more, *words]) == code
    return json.loads(said.read_text())


def outputs(path: Path) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_each_has_a_file_and_a_plan_of_its_own(folder, report):
    wanted = outputs(folder / "net.onnx")
    for target in TARGETS:
        plan = read_plan(folder / f"out.{target}.plan.json")
        assert Path(plan.output.path).name == f"out.{target}.onnx"
        assert np.array_equal(outputs(folder / f"out.{target}.onnx"), wanted)
    assert runs_on_at(folder / "out.arm64.onnx").target == "arm64"
    assert not (folder / "out.onnx").exists()


def test_the_report_is_one_object_with_the_fields_of_a_compile_for_each(report):
    assert [each["name"] for each in report["targets"]] == list(TARGETS)
    assert report["fits"]
    for each in report["targets"]:
        assert each["exit_code"] == 0
        assert each["error"] is None
        assert each["solution"]["peak_bytes"] <= each["solution"]["budget_bytes"]
        assert each["verification"]["outputs_identical"]
        assert each["output"].endswith(f"out.{each['name']}.onnx")
    here, arm64, wasm = (each["known"] for each in report["targets"])
    assert set(here.values()) == {"run"}
    assert (arm64, wasm) == ({"arm64": "predicted"}, {"wasm": "predicted"})


def test_what_all_plan_alike_is_prepared_once(folder, monkeypatch):
    prepared = []
    prepare = forms.prepare_at_any
    monkeypatch.setattr(
        forms, "prepare_at_any", lambda *words, **more: prepared.append(words[1].portable) or prepare(*words, **more)
    )
    compiled(folder, "--target", "here,arm64,wasm", "--budget", "100%", "--force")
    assert prepared == [False, True]


def test_the_worst_is_told_by_name_and_others_have_their_files(folder, tmp_path, monkeypatch):
    form = story.compile_form

    def fails_for_wasm(settings, *words):
        if settings.target == "wasm":
            raise ModelError("nothing for it")
        return form(settings, *words)

    monkeypatch.setattr(story, "compile_form", fails_for_wasm)
    written = ["-o", str(tmp_path / "o.onnx")]
    report = compiled(folder, "--target", "wasm,here", "--budget", "100%", *written, code=2)
    assert not report["fits"]
    assert report["verdict"] == "1 of 2 targets have a file; not wasm (exit code 2)"
    assert [each["error"] for each in report["targets"]] == ["nothing for it", None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.here.onnx", "o.here.plan.json"]


def test_where_none_has_a_plan_nothing_is_written(folder, tmp_path):
    written = ["-o", str(tmp_path / "o.onnx")]
    report = compiled(folder, "--target", "here,wasm", "--budget", "30%", *written, code=3)
    assert [each["output"] for each in report["targets"]] == [None, None]
    assert not list(tmp_path.iterdir())


def test_one_that_cannot_be_written_stops_all_before_any_work(folder, tmp_path, capsys):
    (tmp_path / "net.arm64.plan.json").write_text("{}")
    words = ["compile", str(folder / "net.onnx"), "-o", str(tmp_path / "net.onnx"), "--budget", "90%"]
    assert main([*words, "--target", "here,arm64"]) == 2
    assert "net.arm64.plan.json exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.arm64.plan.json"]


def test_an_error_that_all_have_is_told_once(tmp_path, capsys):
    (tmp_path / "net.onnx").write_bytes(b"no model")
    assert main(["compile", str(tmp_path / "net.onnx"), "--budget", "90%", "--target", "here,arm64", "--quiet"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_text_has_a_line_for_each(folder, capsys, tmp_path):
    words = ["--target", "here,wasm", "--time-limit", "2s", "--split", "off", "--no-verify", "--quiet"]
    assert main(["compile", str(folder / "net.onnx"), "-o", str(tmp_path / "o.onnx"), "--budget", "100%", *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 of 2 targets have a file\n")
    assert "target wasm  (predicted: wasm)" in said


def test_names_stand_before_the_endings(tmp_path):
    for words, files in (
        ({}, ("net.remat.any.onnx", "net.any.plan.json")),
        ({"output": "a.onnx"}, ("a.any.onnx", "a.any.plan.json")),
        ({"output": "a.onnx", "plan": "b.json"}, ("a.any.onnx", "b.any.json")),
    ):
        given = {word: tmp_path / name for word, name in words.items()}
        one = settings_by_target(tmp_path / "net.onnx", load_settings({"target": ["any", "wasm"], **given}))["any"]
        assert (one.output.name, one.plan.name) == files
        assert one.portable


def test_python_takes_a_list_and_other_commands_one(folder, tmp_path):
    words = {"budget": "100%", "verify": "off", "time_limit": "2s", "split": "off"}
    found = remat_cli.compile_for(folder / "net.onnx", ["here", "wasm"], output=tmp_path / "o.onnx", **words)
    assert [each.name for each in found.targets] == ["here", "wasm"]
    with pytest.raises(ConfigError, match="only `compile`"):
        remat_cli.profile(folder / "net.onnx", target=["here", "wasm"])


def test_a_file_of_settings_may_name_several(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("target: [here, any]\n")
    assert load_settings({}, file).targets == ("here", "any")
    assert load_settings({"target": ("arm64,arm64",)}, file).targets == ("arm64",)


def test_a_page_has_four_gibibytes_and_no_budget_is_larger(folder, tmp_path, monkeypatch):
    """Weights are in them twice while the model is loaded: in the file as bytes, and as tensors."""
    words = {"budget": "1GiB", "budget_scope": "live", "verify": "off", "time_limit": "2s", "split": "off"}
    assert load_settings({"target": "wasm"}).conditions.heap_bytes == 2**32
    assert load_settings({"target": "arm64"}).conditions.heap_bytes is None
    monkeypatch.setitem(HEAP_BYTES, "wasm", HEAP_BEFORE_BYTES + 2**20)
    for target, most in (("arm64", 2**30), ("wasm", 2**20)):
        found = remat_cli.compile(folder / "net.onnx", target=target, output=tmp_path / f"{target}.onnx", **words)
        assert (found.solution.budget_bytes > 2**19, found.solution.budget_bytes <= most) == (True, True)
