"""The whole product on real models: compile, verify, and be honest where a budget is impossible."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnx_ir as ir
import pytest

from remat_cli.cli import main
from remat_cli.onnx_io.write.processor_guard import guard_in

SAMPLES = Path(__file__).resolve().parents[1] / "sample_models"


pytestmark = pytest.mark.usefixtures("cache")


def compile_model(capsys, model, budget, folder, *more):
    """Exit code, JSON report, stderr of `remat compile`."""
    output = ["-o", str(folder / "out.onnx"), "--plan", str(folder / "out.json")]
    code = main(["compile", str(model), "--budget", budget, "--format", "json", "--time-limit", "5s", *output, *more])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None, captured.err


def check_promises(report, folder):
    solution, seen = report["solution"], report["verification"]
    assert seen["outputs_identical"]
    assert seen["order_honoured"]
    assert seen["measured_peak_bytes"] == seen["predicted_peak_bytes"]
    assert seen["measured_peak_default_session_bytes"] <= solution["budget_bytes"]
    assert solution["peak_bytes"] <= solution["budget_bytes"]
    if report["regions"]:
        # Tiles lie better in caches, so a split model may well be faster than the whole one; and needs less memory.
        assert solution["floor_with_splitting_bytes"] <= solution["peak_bytes"]
    else:
        assert solution["time"] >= solution["baseline_time"]
        assert solution["floor_bytes"] <= solution["peak_bytes"]
    model = onnx.load(folder / "out.onnx")
    onnx.checker.check_model(model)
    told = {entry.key: entry.value for entry in model.metadata_props}
    assert int(told["remat.predicted_peak_bytes"]) == solution["peak_bytes"]
    assert int(told["remat.budget_bytes"]) == solution["budget_bytes"]


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("unet", "80%"),
        pytest.param("densenet", "90%", marks=pytest.mark.slow),
        pytest.param("inception", "85%", marks=pytest.mark.slow),
    ],
)
def test_a_sample_fits_the_budget_and_every_promise_is_measured(capsys, tmp_path, name, budget):
    """Of plans in tiles, which a busy machine may find faster, gaps in the arena may leave capped runs untold."""
    code, report, _ = compile_model(capsys, SAMPLES / f"{name}.onnx", budget, tmp_path, "--split", "off")
    assert code == 0
    check_promises(report, tmp_path)
    assert report["verification"]["capped_run_ok"]


def test_an_impossible_budget_is_an_answer_with_the_tensors_that_cause_it(capsys, tmp_path):
    code, report, _ = compile_model(capsys, SAMPLES / "chain.onnx", "50%", tmp_path, "--split", "off")
    assert code == 3
    assert report["solution"]["status"] == "infeasible"
    assert report["solution"]["floor_bytes"] > report["solution"]["budget_bytes"]
    assert report["blockers"]
    assert not list(tmp_path.iterdir())


def test_the_least_budget_of_a_chain_of_whole_ops_is_its_baseline(capsys, tmp_path):
    code, report, _ = compile_model(capsys, SAMPLES / "chain.onnx", "min", tmp_path, "--split", "off", "--plain")
    assert code == 0
    check_promises(report, tmp_path)
    assert report["solution"]["recomputed_ops"] == 0
    guard = guard_in(ir.load(tmp_path / "out.onnx"))
    guard_bytes = 0 if guard is None else sum(tensor.nbytes for tensor in guard.weights.values())
    assert report["solution"]["peak_bytes"] == report["solution"]["baseline_peak_bytes"] + guard_bytes


def test_a_chain_in_tiles_needs_half_the_memory(capsys, tmp_path):
    code, report, _ = compile_model(capsys, SAMPLES / "chain.onnx", "50%", tmp_path)
    assert code == 0
    check_promises(report, tmp_path)
    assert report["regions"]
    assert report["verification"]["capped_run_ok"]


@pytest.fixture
def unverified(samples):
    return samples.compiled("unet", "85%", verify=False, time_limit="5s")


def test_a_plan_is_verified_again_and_inspected(capsys, tmp_path, unverified):
    assert unverified.report.verification is None
    assert main(["verify", str(unverified.plan), "--format", "json"]) == 0
    seen = json.loads(capsys.readouterr().out)["verification"]
    assert seen["measured_peak_bytes"] == seen["predicted_peak_bytes"]
    assert main(["inspect", str(unverified.plan), "--svg", str(tmp_path / "memory.svg"), "--format", "json"]) == 0
    picture = json.loads(capsys.readouterr().out)
    assert picture["peak_bytes"] == max(picture["memory_bytes"]) == unverified.report.solution.peak_bytes
    assert (tmp_path / "memory.svg").read_text().startswith("<?xml")


def test_verification_catches_a_model_that_was_changed(capsys, tmp_path, unverified):
    model = onnx.load(unverified.output)
    model.doc_string = "changed"
    onnx.save(model, tmp_path / "out.onnx")
    plan = json.loads(unverified.plan.read_text())
    plan["output"]["path"] = str(tmp_path / "out.onnx")
    (tmp_path / "out.json").write_text(json.dumps(plan))
    assert main(["verify", str(tmp_path / "out.json")]) == 2
    assert "compile again" in capsys.readouterr().err


@pytest.mark.slow
def test_keep_order_and_named_solvers(capsys, tmp_path):
    for solver in ("local-search", "moccasin"):
        code, report, _ = compile_model(
            capsys,
            SAMPLES / "unet.onnx",
            "90%",
            tmp_path,
            "--order",
            "keep",
            "--solver",
            solver,
            "--force",
            "--no-capped-run",
        )
        assert code == 0
        check_promises(report, tmp_path)


@pytest.mark.slow  # end_to_end/test_verify_file.py verifies a portable file quickly
def test_portable_models_hold_under_exact_options(capsys, tmp_path):
    code, report, _ = compile_model(capsys, SAMPLES / "unet.onnx", "90%", tmp_path, "--portable")
    assert code == 0
    seen = report["verification"]
    assert seen["outputs_identical"]
    assert seen["measured_peak_bytes"] == seen["predicted_peak_bytes"]


def test_same_seed_one_thread_and_cached_profile_give_byte_identical_models(capsys, tmp_path):
    files = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        code, _, _ = compile_model(
            capsys, SAMPLES / "resnet.onnx", "100%", folder, "--threads", "1", "--seed", "3", "--no-verify"
        )
        assert code == 0
        files.append((folder / "out.onnx").read_bytes())
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.onnx")))
@pytest.mark.parametrize("budget", ["90%", "80%", "70%", "min"])
def test_every_sample_at_every_budget(capsys, tmp_path, name, budget):
    code, report, _ = compile_model(capsys, SAMPLES / f"{name}.onnx", budget, tmp_path)
    assert code in (0, 3, 4)
    if code == 0:
        check_promises(report, tmp_path)
    else:
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("free_bytes", "seen"),
    [
        pytest.param(10_000, {"optimising"}, id="weights are known after optimising"),
        pytest.param(300_000, {"rewriting", "searching for splits"}, id="the file is known once it is written"),
    ],
)
def test_a_disk_too_small_is_told_as_soon_as_that_is_known(capsys, tmp_path, monkeypatch, free_bytes, seen):
    target = tmp_path / "target"
    target.mkdir()
    usage = shutil.disk_usage

    def nearly_full(folder):
        return SimpleNamespace(free=free_bytes) if Path(folder) == target else usage(folder)

    monkeypatch.setattr(shutil, "disk_usage", nearly_full)
    code, report, err = compile_model(capsys, SAMPLES / "chain.onnx", "80%", target)
    *stages, error = [line for line in err.splitlines() if line.split()[0] not in ("incumbent", "at")]
    assert (code, report) == (1, None)
    assert stages[-1] in seen  # a plan may be the last that a search for splits has written
    assert re.fullmatch(
        r"error: \S+out.onnx needs [\d.]+ \w+ on its disk, and [\d.]+ KiB are free there: make room.*", error
    )
    assert list(target.iterdir()) == []
