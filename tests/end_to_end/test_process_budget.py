"""Budgets on the process, the steady form in files, and weights beside them, as users meet them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import remat_cli
from remat_cli.cli import main
from remat_cli.onnx_io.write.packed import packed_weights
from remat_cli.onnx_io.write.steady import form_of
from remat_cli.ort_rules.steady import BODY
from remat_cli.runtime.observe.resident import can_measure_resident

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
MIB = 2**20


pytestmark = pytest.mark.usefixtures("cache")


measured = pytest.mark.skipif(not can_measure_resident(), reason="the system does not tell resident memory")


def compiled(capsys, folder: Path, model: str, budget: str, *flags: str) -> tuple[int, dict, Path]:
    """Exit code, report and output of `remat compile`."""
    output = folder / "out.onnx"
    command = ["compile", str(SAMPLES / f"{model}.onnx"), "--budget", budget, "-o", str(output), "--force"]
    capsys.readouterr()
    code = main([*command, "--format", "json", "-q", "--time-limit", "20s", "--intra-op-threads", "1", *flags])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}, output


def is_steady(path: Path) -> bool:
    return any(node.name == BODY for node in onnx.load(path, load_external_data=False).graph.node)


def feeds(path: Path) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    return {each.name: random.standard_normal(each.shape).astype(np.float32) for each in session.get_inputs()}


def outputs(path: Path, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    session.run(None, given)
    return session.run(None, given)


@measured
def test_bytes_bound_the_process(capsys, tmp_path):
    code, report, output = compiled(capsys, tmp_path, "unet", "26MiB", "--no-capped-run")
    assert code == 0
    process, plan = report["verification"]["process"], json.loads((tmp_path / "out.plan.json").read_text())
    assert plan["request"]["budget_scope"] == "process"
    assert process["budget_bytes"] == report["solution"]["budget_bytes"] == 26 * MIB
    before, after, predicted = (process[key] for key in ("original", "rewritten", "predicted"))
    assert after["anonymous_bytes"] + process["input_bytes"] <= 26 * MIB < before["anonymous_bytes"]
    assert before["later_runs_bytes"] > 1.5 * before["first_run_bytes"]
    assert after["later_runs_bytes"] < 1.3 * after["first_run_bytes"]
    for key in ("first_run_bytes", "later_runs_bytes"):
        assert abs(predicted[key] - after[key]) <= 0.03 * after[key] + 2.5 * MIB
    assert is_steady(output)
    given = feeds(SAMPLES / "unet.onnx")
    for one, other in zip(outputs(SAMPLES / "unet.onnx", given), outputs(output, given), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.slow
@measured
def test_parameters_that_a_step_hands_back_leave_later_runs_no_gaps(tmp_path):
    step, output = tmp_path / "unet.train.onnx", tmp_path / "out.onnx"
    remat_cli.train(SAMPLES / "unet.onnx", loss="mse", output=step)
    words = {"budget": "75MiB", "budget_scope": "process", "split": "off", "time_limit": "40s"}
    report = remat_cli.compile(step, output=output, **words)
    found = form_of(ir.load(output))
    assert len(found.early) > 20
    process = report.verification.process
    assert process.needed_bytes <= 75 * MIB
    assert process.rewritten.later_runs_bytes <= process.rewritten.first_run_bytes + 2 * MIB
    assert abs(process.predicted.later_runs_bytes - process.rewritten.later_runs_bytes) <= 4 * MIB
    assert report.solution.peak_bytes <= 75 * MIB


@pytest.mark.slow
@measured
def test_a_hard_limit_lets_only_the_new_model_live(capsys, tmp_path):
    code, report, _ = compiled(capsys, tmp_path, "unet", "22MiB", "--time-limit", "20s")
    limited = report["verification"]["process"]["limited"]
    assert code == 0
    assert (limited["ours"], limited["original"]) == (True, False)
    assert limited["ended"]


def test_less_than_weights_and_inputs_is_impossible(capsys, tmp_path):
    code, report, output = compiled(capsys, tmp_path, "unet", "1MiB")
    assert code == 3
    assert report["solution"]["budget_bytes"] == MIB
    assert not output.exists()


def test_live_is_what_bytes_meant_before(capsys, tmp_path):
    words = ("--budget-scope", "live", "--verify", "fast", "--split", "off")
    code, report, _ = compiled(capsys, tmp_path, "unet", "20MiB", *words)
    assert code == 0
    assert 0 < report["solution"]["peak_bytes"] <= 20 * MIB
    assert "process" not in report["verification"]


@pytest.mark.parametrize("budget", ["80%", "min"])
def test_a_process_takes_bytes(budget, capsys, tmp_path):
    code, _, output = compiled(capsys, tmp_path, "unet", budget, "--budget-scope", "process")
    assert code == 2
    assert not output.exists()


def test_plain_leaves_the_form_out(capsys, tmp_path, samples):
    code, _, output = compiled(capsys, tmp_path, "unet", "100%", "--plain", "--no-verify")
    assert code == 0
    assert not is_steady(output)
    assert is_steady(samples.compiled("unet", "85%", verify=False, time_limit="5s").output)


@pytest.mark.slow
def test_weights_lie_beside_the_model_where_that_is_wanted(capsys, tmp_path):
    code, report, output = compiled(capsys, tmp_path, "unet", "70%", "--external-data", "--verify", "fast")
    data = output.with_name("out.onnx.data")
    assert code == 0
    assert report["verification"]["outputs_identical"]
    assert data.stat().st_size > output.stat().st_size / 2
    given = feeds(SAMPLES / "unet.onnx")
    expected = outputs(SAMPLES / "unet.onnx", given)
    assert all(np.array_equal(*pair) for pair in zip(expected, outputs(output, given), strict=True))
    again = tmp_path / "again"
    again.mkdir()
    code = main(["compile", str(output), "--budget", "90%", "-o", str(again / "a.onnx"), "-q", "--no-verify"])
    assert code == 0
    assert all(np.array_equal(*pair) for pair in zip(expected, outputs(again / "a.onnx", given), strict=True))


def test_a_source_keeps_its_weights(capsys, tmp_path):
    model = onnx.load(SAMPLES / "unet.onnx")
    onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="out.onnx.data", size_threshold=0)
    before = (tmp_path / "out.onnx.data").read_bytes()
    code = main(["compile", str(tmp_path / "in.onnx"), "--budget", "70%", "-o", str(tmp_path / "out.onnx"), "-q"])
    assert code == 2
    assert "weights" in capsys.readouterr().err
    assert (tmp_path / "out.onnx.data").read_bytes() == before


def test_inspect_predicts_a_process(capsys):
    assert main(["inspect", str(SAMPLES / "unet.onnx"), "--format", "json", "-q"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["process"]["later_runs_bytes"] > 1.8 * report["process"]["first_run_bytes"] - 6 * MIB
    assert report["runs"]["block_bytes"] > 20 * MIB


@measured
def test_both_processes_are_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, _ = compiled(capsys, tmp_path, "resnet", "100%", "--no-verify")
    assert code == 0
    picture = tmp_path / "process.svg"
    assert main(["verify", str(tmp_path / "out.plan.json"), "--svg", str(picture), "-q"]) == 0
    assert picture.read_bytes().startswith(b"<?xml")
    assert main(["verify", str(tmp_path / "out.plan.json"), "--svg", str(picture), "-q"]) == 2  # without --force


@measured
def test_packed_weights_are_mapped_and_a_budget_does_not_count_them(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("remat_cli.compiling.process.forecast.LEAST_COPIES_BYTES", 2**16)
    figures = []
    for flag in ("--packed-weights", "--no-packed-weights"):
        code, report, output = compiled(
            capsys, tmp_path, "transformer", "100%", "--external-data", "--no-capped-run", flag
        )
        assert code == 0
        assert report["verification"]["measured_peak_bytes"] == report["verification"]["predicted_peak_bytes"]
        figures.append((packed_weights(output).total_bytes, report["verification"]["process"]["rewritten"]))
    (copies_bytes, saved), (none, made) = figures
    assert copies_bytes > 2**18
    assert none == 0
    assert saved["mapped_bytes"] > made["mapped_bytes"] + copies_bytes // 2
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out.plan.json"), "-q"]) == 0


def test_a_file_that_was_compiled_before_says_from_what(capsys, tmp_path, samples):
    """It is compiled again all the same; who reads the line compiles the model that it was made of."""
    before = tmp_path / "small.onnx"
    before.write_bytes(samples.compiled("unet", "85%", verify=False, time_limit="5s").output.read_bytes())
    words = ["compile", str(before), "--budget", "100%", "--split", "off", "--no-verify"]
    assert main([*words, "-o", str(tmp_path / "again.onnx")]) == 0
    line = f"{before} was compiled before from unet.onnx: compile that, which gives the better plan"
    assert f"warning: {line}" in " ".join(capsys.readouterr().out.split())
    told = {entry.key: entry.value for entry in onnx.load(tmp_path / "again.onnx").metadata_props}
    assert told["remat.source"] == "small.onnx"


@pytest.mark.slow
def test_a_compiled_model_with_packed_weights_can_be_compiled_again(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("remat_cli.compiling.process.forecast.LEAST_COPIES_BYTES", 2**16)
    _, _, output = compiled(capsys, tmp_path, "transformer", "100%", "--external-data")
    again = tmp_path / "again.onnx"
    given = feeds(output)
    capsys.readouterr()
    assert main(["compile", str(output), "--budget", "70%", "-o", str(again), "-q", "--time-limit", "5s"]) == 0
    assert all(map(np.array_equal, outputs(output, given), outputs(again, given)))


@pytest.mark.slow
@measured
def test_mapped_weights_do_not_count_against_a_budget_on_the_process(capsys, tmp_path):
    """The transformer has 0.6 MiB of weights, so that a budget that leaves out so much is met only without them."""
    code, report, _ = compiled(capsys, tmp_path, "transformer", "12MiB", "--external-data", "--time-limit", "20s")
    assert code == 0
    assert 2**18 < report["uncounted_bytes"] < 2**20
    assert report["solution"]["budget_bytes"] == 12 * MIB + report["uncounted_bytes"]
    counting = compiled(capsys, tmp_path, "transformer", "12MiB", "--external-data", "--count-mapped")[1]
    assert counting["uncounted_bytes"] == 0
    assert main(["inspect", str(tmp_path / "out.plan.json")]) == 0
