"""Exit codes, stdout and stderr apart, bad input, and Ctrl-C of `remat compare`."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from remat_cli.base.errors import RematError
from remat_cli.base.processes import family
from remat_cli.contest.commands import compare as pipeline_compare
from remat_cli.contest.runner import run_side_by_side
from tests.contest.compare_processes import HereProcess

ROOT = Path(__file__).resolve().parents[3]
CHAIN = {
    "name": "chain",
    "nodes": [{"id": op, "cost": 1, "memory": 1} for op in range(9)],
    "edges": [[0, 1], [1, 2], [2, 3], [3, 4], [3, 5], [4, 5], [2, 6], [5, 6], [1, 7], [6, 7], [0, 8], [7, 8]],
}
FAST = ("compare", "chain.json", "--solvers", "keep-all,checkpoint-last", "--time-limit", "200ms", "--threads", "1")


@pytest.fixture(autouse=True)
def chain(folder):
    Path("chain.json").write_text(json.dumps(CHAIN))


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Runs take place in this process."""
    monkeypatch.setattr(pipeline_compare, "run_side_by_side", partial(run_side_by_side, runner=HereProcess))


def test_tables_go_to_stdout_and_progress_to_stderr(remat):
    outcome = remat(*FAST, "--budgets", "0.8,70%")
    assert outcome.code == 0
    assert "budget 70% = 5 bytes" in outcome.out
    rows = [line.split() for line in outcome.out.splitlines() if "checkpoint-last" in line]
    assert [row[:3] for row in rows] == [["*", "checkpoint-last", "feasible"]] * 2
    lines = outcome.err.splitlines()
    assert lines[0] == "comparing"
    assert [line.split()[0] for line in lines[1:]] == ["1/4", "2/4", "3/4", "4/4"]


def test_json_is_the_only_thing_on_stdout(remat):
    outcome = remat(*FAST, "--format", "json", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    report = json.loads(outcome.out)
    assert [budget["text"] for budget in report["budgets"]] == ["0.9", "0.8", "0.7"]
    assert [(run["budget"], run["solver"]) for run in report["runs"]][:3] == [
        ("0.9", "keep-all"),
        ("0.9", "checkpoint-last"),
        ("0.8", "keep-all"),
    ]
    assert report["instance"] == "chain.json"
    assert report["baseline_peak_bytes"] == 6
    assert report["baseline_time"] == 9


def test_solvers_that_do_not_apply_are_listed_or_refused(remat):
    unmarked = ROOT / "bench" / "instances" / "sample_unet.json"
    outcome = remat("compare", unmarked, "--solvers", "rotor,keep-all", "--budgets", "0.9")
    assert outcome.code == 0
    assert "does not apply:\n  rotor: no op is marked backward" in outcome.out
    outcome = remat("compare", unmarked, "--solvers", "rotor", "--quiet")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: no solver applies: rotor: no op is marked backward")
    assert len(outcome.err.splitlines()) == 1


def test_budgets_below_the_floor_are_answers(remat):
    outcome = remat(*FAST, "--budgets", "2,0.9")
    assert outcome.code == 0
    assert "infeasible: no schedule of whole ops needs less than 3 bytes" in outcome.out


def test_the_time_limit_of_a_file_wins_over_the_default(remat):
    Path("settings.yaml").write_text("time_limit: 300ms\n")
    words = ("compare", "chain.json", "--solvers", "keep-all", "--format", "json")
    assert json.loads(remat(*words, "--config", "settings.yaml").out)["time_limit_seconds"] == 0.3
    assert json.loads(remat(*words).out)["time_limit_seconds"] == 4.0
    flags = ("--config", "settings.yaml", "--time-limit", "1s")
    assert json.loads(remat(*words, *flags).out)["time_limit_seconds"] == 1.0


def test_options_of_a_file_and_of_the_command_line(remat):
    Path("settings.yaml").write_text("solvers: {moccasin: {max_copies: 3}, rotor: {close_gaps: false}}\n")
    words = ("compare", "chain.json", "--solvers", "moccasin", "--budgets", "0.9", "--format", "json")
    runs = json.loads(remat(*words, "--config", "settings.yaml").out)["runs"]
    assert runs[0]["options"]["max_copies"] == 3
    runs = json.loads(remat(*words, "--option", "moccasin.max-copies=4").out)["runs"]
    assert runs[0]["options"]["max_copies"] == 4


def test_svg_is_written_and_named(remat):
    pytest.importorskip("matplotlib")
    outcome = remat(*FAST, "--svg", "chain.svg")
    assert outcome.code == 0
    assert "picture chain.svg" in outcome.out
    assert Path("chain.svg").read_bytes().startswith(b"<?xml")
    again = remat(*FAST, "--svg", "chain.svg")
    assert (again.code, again.out) == (2, "")
    assert again.err == "error: output chain.svg exists: add --force to overwrite it, or choose another path\n"
    assert remat(*FAST, "--svg", "chain.svg", "--force").code == 0


def test_a_full_disk_costs_the_picture_but_not_the_figures(remat, monkeypatch):
    pytest.importorskip("matplotlib")

    def full(path, data):
        raise RematError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(pipeline_compare, "atomic_write", full)
    outcome = remat(*FAST, "--budgets", "0.8", "--svg", "chain.svg", "--format", "json", "--quiet")
    assert (outcome.code, outcome.err) == (1, "")
    report = json.loads(outcome.out)
    assert len(report["runs"]) == 2
    assert report["picture"] is None
    assert report["picture_error"] == "chain.svg cannot be written: No space left on device"


def test_a_second_device_is_refused_not_forgotten(remat):
    model = ROOT / "sample_models" / "chain.onnx"
    outcome = remat("compare", model, "--device", "cpu", "--device", "cpu:2threads", "--quiet")
    assert (outcome.code, outcome.out) == (2, "")
    assert "only `remat compile` and `remat profile` take several" in outcome.err


def test_no_plan_no_picture(remat):
    pytest.importorskip("matplotlib")
    outcome = remat(*FAST, "--budgets", "2", "--svg", "chain.svg", "--format", "json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["picture"] is None
    assert "chain.svg is not written: there is no plan to draw" in outcome.err
    assert not Path("chain.svg").exists()


def test_svg_without_matplotlib_is_refused_before_any_work(remat, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    outcome = remat(*FAST, "--svg", "chain.svg")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: --svg needs matplotlib: pip install 'remat_cli[svg]'\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budgets", "0"), "budget '0' is no memory at all"),
        (("--budgets", "-5"), "budget '-5' is not a budget"),
        (("--budgets", "120%"), "budget '120%' is not above 0 and at most 100 %"),
        (("--budgets", "0.9,little"), "budget 'little' is not a budget"),
        (("--budgets", ""), "budgets '' has an empty entry: write --budgets 0.9,0.8,0.7"),
        (("--budgets", "0.9,,0.8"), "has an empty entry"),
        (("--budgets", "0.9,90%"), "'0.9' and '90%' are the same"),
        (("--budgets", "0.9,min"), "budget 'min' is another one for each solver"),
        (("--budgets", "gpu=0.9"), "names no device 'cpu'"),
        (("--solvers", "auto,rotr"), "no solver named 'rotr'; there are: auto, keep-all, "),
        (("--solvers", "auto,auto"), "'auto' is there twice"),
        (("--solvers", ""), "solvers '' has an empty entry"),
        (("--option", "max_copies=3"), "option 'max_copies' names none of the solvers compared"),
        (("--option", "moccasin.max_copies=3"), "option 'moccasin.max_copies' names none of the solvers compared"),
        (("--option", "keep-all.speed=3"), "solver keep-all: "),
        (("--time-limit", "0s"), "time limit '0s' is not a duration"),
        (("--threads", "-1"), "threads = -1 must not be negative"),
        (("--dim", "batch=3"), "--dim is for models; chain.json is an abstract instance"),
        (("--intra-op-threads", "2"), "--intra-op-threads is for models"),
        (("--device", "cpu"), "--device is for models"),
        (("--svg", "chain.json"), "'chain.json' must end in .svg"),
        (("--svg", "no/chain.svg"), "directory no does not exist"),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_bad_input_is_one_line(remat, arguments, words, form):
    outcome = remat(*FAST, *arguments, "--format", form)
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ")
    assert words in line


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.json", "{", "instance bad.json is not a benchmark instance"),
        ("empty.json", "", "instance empty.json is not a benchmark instance"),
        ("plan.json", '{"remat_version": "0.1.0"}', "instance plan.json is not a benchmark instance"),
        ("nodes.json", '{"nodes": [], "edges": []}', "at least one"),
        ("net.bin", "nothing", "net.bin"),
        ("none.json", None, "does not exist"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(remat, name, content, words):
    if content is not None:
        Path(name).write_text(content)
    outcome = remat("compare", name, "--solvers", "keep-all", "--quiet")
    assert (outcome.code, outcome.out) == (2, "")
    (line,) = outcome.err.splitlines()
    assert words in line


def test_ctrl_c_prints_what_had_ended_and_leaves_no_process(tmp_path):
    instance = ROOT / "bench" / "instances" / "gpt_3_layers_train.json"
    words = ["--solvers", "keep-all,local-search", "--budgets", "0.8,0.7", "--time-limit", "60s", "--threads", "2"]
    command = [
        sys.executable,
        "-m",
        "remat_cli",
        "compare",
        str(instance),
        *words,
        "--option",
        "local-search.patience=0",
    ]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if line.startswith("1/4"):
                break
        members = family(psutil.Process(process.pid))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted: " in out
    assert "keep-all" in out
    deadline = time.monotonic() + 10
    while any(member.is_running() for member in members) and time.monotonic() < deadline:
        pass
    assert not any(member.is_running() for member in members)
