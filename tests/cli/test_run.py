"""`remat run`: a plan of one device or several, its outputs, its trace, and one line where it cannot be run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from remat_cli.cli import main
from remat_cli.core.files.plan_file import write_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.devices.provider_table import named_spec
from remat_cli.runtime.sessions.session import SessionSettings, run_profiled
from tests.chrome_rules import checked
from tests.compiling.placed_plans import APART, Placed, place, prepared_model

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def placed(tmp_path_factory) -> Placed:
    prepared = prepared_model(SAMPLES / "chain.onnx", tmp_path_factory.mktemp("chain"))
    return place(prepared, tmp_path_factory.mktemp("placed"), APART)


def remat(capsys, *words):
    code = main(["run", *map(str, words), "-q"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_plan_on_two_memories_is_run_and_compared(capsys, placed):
    code, out, err = remat(capsys, placed.path, "--repeat", 2, "--format", "json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["repeat"] == 2
    assert [d["device"] for d in report["devices"]] == ["cpu:1threads", "cpu:2threads"]
    assert {(link["source"], link["target"]) for link in report["links"]} == {("cpu", "node1"), ("node1", "cpu")}
    for memory in report["memories"]:
        planned = memory["planned_peak_bytes"] - memory["planned_fixed_bytes"]
        assert memory["measured_peak_bytes"] - memory["measured_fixed_bytes"] == planned
    assert report["measured_median_ns"] >= report["measured_min_ns"] > 0


def test_inputs_and_outputs_are_files(capsys, tmp_path, placed):
    np.savez(tmp_path / "x.npz", **placed.prepared.feeds)
    files = ("--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--trace", tmp_path / "t.json")
    code, out, _ = remat(capsys, placed.path, "--repeat", 1, *files)
    assert code == 0
    assert "every run gave the same bits" in out
    feeds = placed.prepared.feeds
    expected = run_profiled(placed.prepared.reference_path, feeds, SessionSettings(intra_op_threads=1)).outputs
    with np.load(tmp_path / "y.npz") as outputs:
        assert set(outputs) == set(expected)
        assert all(outputs[name].tobytes() == expected[name].tobytes() for name in expected)
    events = checked((tmp_path / "t.json").read_bytes())
    assert {event["ph"] for event in events} >= {"M", "X", "C"}
    assert remat(capsys, placed.path, *files)[0] == 2  # nothing is overwritten without --force


def test_without_inputs_they_are_seeded(capsys, tmp_path, placed):
    assert remat(capsys, placed.path, "--repeat", 1, "--output", tmp_path / "y.npz")[0] == 0
    feeds = placed.prepared.feeds  # made with the same seed
    expected = run_profiled(placed.prepared.reference_path, feeds, SessionSettings(intra_op_threads=1)).outputs
    with np.load(tmp_path / "y.npz") as outputs:
        assert all(outputs[name].tobytes() == expected[name].tobytes() for name in expected)


def test_a_plan_of_one_device_is_run_too(capsys, tmp_path):
    model = tmp_path / "chain.onnx"
    model.write_bytes((SAMPLES / "chain.onnx").read_bytes())
    assert main(["compile", str(model), "--budget", "90%", "--no-verify", "--time-limit", "2s", "-q"]) == 0
    capsys.readouterr()
    code, out, _ = remat(capsys, tmp_path / "chain.plan.json", "--repeat", 1, "--format", "json")
    report = json.loads(out)
    assert code == 0
    assert len(report["devices"]) == len(report["memories"]) == 1
    plan = read_plan(tmp_path / "chain.plan.json")
    (memory,) = report["memories"]
    assert memory["measured_peak_bytes"] == memory["planned_peak_bytes"] == plan.promise.peak_bytes
    assert report["devices"][0]["ops"] == len(plan.promise.order)


def test_a_budget_that_is_too_small_fails_with_one_line(capsys, tmp_path, placed):
    tight = replace(placed.plan.placement, budgets={"cpu": 6 * 2**20, "node1": 2**18})
    output = replace(placed.plan.output, path=str(placed.path.with_name("m.onnx")))
    write_plan(tmp_path / "p.json", replace(placed.plan, placement=tight, output=output))
    code, out, err = remat(capsys, tmp_path / "p.json", "--repeat", 1, "--enforce-budget")
    assert (code, out) == (1, "")
    assert err.startswith("error: out of memory on device")
    assert len(err.splitlines()) == 1
    assert remat(capsys, tmp_path / "p.json", "--repeat", 1)[0] == 5  # it runs, but not within its budgets


def test_a_missing_device_is_one_line_and_nothing_is_run_elsewhere(capsys, tmp_path, placed):
    devices = (placed.plan.placement.devices[0], replace(named_spec("cuda:0"), memory="node1"))
    output = replace(placed.plan.output, path=str(placed.path.with_name("m.onnx")))
    other = replace(placed.plan, placement=replace(placed.plan.placement, devices=devices), output=output)
    write_plan(tmp_path / "p.json", other)
    code, out, err = remat(capsys, tmp_path / "p.json")
    assert (code, out) == (1, "")
    assert err.startswith("error: the plan needs device 'cuda:0', which is not here")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--repeat", 0), "repeat 0 must be at least 1"),
        (("--input", "nowhere.npz"), "nowhere.npz does not exist"),
        (("--trace", "nowhere/t.json"), "directory nowhere does not exist"),
    ],
)
def test_wrong_words_are_one_line(capsys, placed, words, line):
    code, out, err = remat(capsys, placed.path, *words)
    assert (code, out) == (2, "")
    assert line in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_no_plan_is_one_line(capsys):
    code, _, err = remat(capsys, SAMPLES / "chain.onnx")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_a_plan_made_on_another_processor_is_run_with_a_warning(capsys, tmp_path, placed):
    place = placed.plan.placement
    profiles = tuple(replace(p, provenance=replace(p.provenance, cpu="Z80")) for p in place.profiles)
    output = replace(placed.plan.output, path=str(placed.path.with_name("m.onnx")))
    write_plan(tmp_path / "p.json", replace(placed.plan, placement=replace(place, profiles=profiles), output=output))
    code, out, _ = remat(capsys, tmp_path / "p.json", "--repeat", 1)
    assert code == 0
    assert "warning: the plan was made elsewhere (CPU" in out
