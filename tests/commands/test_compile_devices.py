"""Compile on several devices, end to end: planned, run, compared, told, and honest where it cannot be done."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import remat_cli
from remat_cli.cli import main
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.plan import Compute, Copy

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, NODE = ROOT / "sample_models", ROOT / "configs" / "devices" / "numa-node1.yaml"
TWO_CPUS = ("--device", "cpu:1threads", "--device", "cpu:2threads")
TWO_MEMORIES = ("--device", "cpu:2threads", "--device", str(NODE))


pytestmark = pytest.mark.usefixtures("cache")


def compiled(capsys, folder, name, *more):
    """Exit code, JSON report and stderr of `remat compile`; files go to out.onnx and out.plan.json."""
    words = ["compile", str(SAMPLES / f"{name}.onnx"), "-o", str(folder / "out.onnx"), "--time-limit", "2s"]
    code = main([*words, "--format", "json", *more])
    seen = capsys.readouterr()
    return code, json.loads(seen.out) if seen.out else None, seen.err


def check_kept(report):
    """Everything that was promised was seen: same bits, and no more memory than predicted."""
    seen = report["verification"]
    assert seen["outputs_identical"]
    assert seen["must_be_identical"]
    assert seen["within_budget"]
    for memory, predicted in seen["predicted_peak_bytes"].items():
        assert seen["measured_peak_bytes"][memory] == predicted


def check_model_and_plan(folder):
    """The model beside the plan is the optimised one and says where its ops run; the plan runs again and again."""
    model = onnx.load(folder / "out.onnx")
    names = {entry.key: entry.value for node in model.graph.node for entry in node.metadata_props}
    assert names["remat.device"] in {"cpu:1threads", "cpu:2threads"}
    session = ort.InferenceSession(folder / "out.onnx", providers=["CPUExecutionProvider"])
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 256, 256)).astype(np.float32)}
    (expected,) = session.run(None, feeds)
    with remat_cli.load(folder / "out.plan.json") as plan:
        outputs = plan.run(feeds)
        assert np.array_equal(outputs["y"], expected)
        assert np.array_equal(plan.run(feeds)["y"], outputs["y"])


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        pytest.param("chain", "100%", marks=pytest.mark.slow),
        pytest.param("unet", "70%", marks=pytest.mark.slow),
        pytest.param("transformer", "100%", marks=pytest.mark.slow),
    ],
)
def test_two_thread_counts_share_a_memory_and_its_budget(capsys, tmp_path, name, budget):
    code, report, _ = compiled(capsys, tmp_path, name, *TWO_CPUS, "--budget", budget)
    assert code == 0
    check_kept(report)
    if name == "chain":
        check_model_and_plan(tmp_path)
    assert [device["memory"] for device in report["devices"]] == ["cpu", "cpu"]
    assert not report["links"]
    # Whatever it mixes, a plan is never planned to take longer than the best single device within the same budget.
    assert report["solution"]["time"] <= min(s["time_ns"] for s in report["single"] if s["time_ns"] is not None)


def test_two_memories_have_budgets_of_their_own_and_copies_between_them(capsys, tmp_path):
    code, report, _ = compiled(capsys, tmp_path, "unet", *TWO_MEMORIES, "--budget", "cpu=45%,node1=60%")
    assert code == 0
    check_kept(report)
    assert sum(link["copies"] for link in report["links"]) > 0
    plan = read_plan(tmp_path / "out.plan.json")
    assert {type(step) for step in plan.schedule.steps} == {Compute, Copy}
    for device in report["devices"]:
        assert device["predicted_peak_bytes"] <= device["budget_bytes"]


def test_what_was_planned_can_be_verified_run_and_inspected_from_the_file(capsys, tmp_path):
    compiled(capsys, tmp_path, "chain", *TWO_MEMORIES, "--budget", "cpu=100%,node1=100%", "--no-verify")
    plan = str(tmp_path / "out.plan.json")
    for words in (["verify", plan], ["run", plan, "--repeat", "2"], ["inspect", plan]):
        assert main([*words, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)


def test_a_budget_too_small_for_every_device_is_an_answer(capsys, tmp_path):
    code, report, _ = compiled(capsys, tmp_path, "chain", *TWO_CPUS, "--budget", "2MiB")
    assert code == 3
    assert report["solution"]["status"] == "infeasible"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*TWO_MEMORIES, "--budget", "8MiB"), "write --budget cpu=8MiB,node1=8MiB"),
        ((*TWO_MEMORIES, "--budget", "min"), "cannot be found for several memories"),
        ((*TWO_MEMORIES, "--budget", "gpu=8MiB"), "'gpu'"),
        ((*TWO_CPUS, "--budget", "cpu:1threads=60%,cpu:2threads=70%"), "share memory 'cpu'"),
        ((*TWO_CPUS, "--budget", "80%", "--split", "max"), "leave --split out"),
        ((*TWO_CPUS, "--budget", "80%", "--solver", "moccasin"), "moccasin"),
        (("--device", "cpu", "--device", "cpu", "--budget", "80%"), "named twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(capsys, tmp_path, words, message):
    code, _, error = compiled(capsys, tmp_path, "chain", *words)
    assert code == 2
    assert message in error.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_described_device_is_planned_for_but_nothing_is_claimed_to_have_run_there(capsys, tmp_path):
    card = str(ROOT / "configs" / "devices" / "rtx-3060-12gb.yaml")
    words = ("--device", "cpu", "--device", card, "--budget", "100%")
    code, _, error = compiled(capsys, tmp_path, "chain", *words)
    assert code == 1
    assert "--estimate" in error.splitlines()[-1]
    code, report, _ = compiled(capsys, tmp_path, "chain", *words, "--estimate")
    assert code == 0
    assert report["verification"] is None
    assert [device["is_measured"] for device in report["devices"]] == [True, False]
    assert "estimated" in report["warnings"][0]
    assert main(["run", str(tmp_path / "out.plan.json")]) == 1
    assert "rtx-3060-12gb" in capsys.readouterr().err


def test_without_room_for_outputs_nothing_is_written(capsys, tmp_path):
    (tmp_path / "out.onnx").write_text("mine")
    code, _, error = compiled(capsys, tmp_path, "chain", *TWO_CPUS, "--budget", "100%")
    assert code == 2
    assert "--force" in error
    assert (tmp_path / "out.onnx").read_text() == "mine"
