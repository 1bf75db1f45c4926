"""Ctrl-C during a compile in a real process: the plan by then or none, exit code 130, and never a proof."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.splitting.random_models import two_convolutions

ROOT = Path(__file__).resolve().parents[2]

AT_A_STAGE = """
import os, signal, sys
from remat_cli.base.progress import Stage
from remat_cli.cli import main
from remat_cli.cli.progress import Watcher

stage, left, tell = sys.argv[1], [int(sys.argv[2])], Watcher.tell

def interrupting(self, event):
    tell(self, event)
    if isinstance(event, Stage) and event.text == stage:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGINT)

Watcher.tell = interrupting
sys.exit(main(sys.argv[3:]))
"""
COMPILE = ("compile", "images.onnx", "--budget", "50%", "--format", "json", "--no-capped-run", "--time-limit", "6s")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with two convolutions and a pooling: whole ops need all of the memory, tiles less than half."""
    folder = tmp_path_factory.mktemp("interrupted")
    onnx.save(two_convolutions(3, 64, 64), folder / "images.onnx")
    return folder


@pytest.fixture(autouse=True)
def _empty(place):
    for written in place.glob("images.remat.onnx*"):
        written.unlink()
    (place / "images.plan.json").unlink(missing_ok=True)


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "REMAT_CACHE_DIR": str(place / "cache")}


def interrupted_at(place: Path, stage: str, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """A compile that gets SIGINT when a stage begins for the so-manieth time."""
    command = [sys.executable, "-c", AT_A_STAGE, stage, str(number), *COMPILE, *words]
    return subprocess.run(
        command, cwd=place, env=environment(place), text=True, capture_output=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("solving", 1),
        pytest.param("searching for splits", 1, marks=pytest.mark.slow),  # below in words, for people
        pytest.param("profiling", 2, marks=pytest.mark.slow),
    ],
)
def test_before_there_is_a_plan_nothing_is_written_and_nothing_proved(place, stage, number):
    ended = interrupted_at(place, stage, number)
    assert ended.returncode == 130, ended.stderr
    solution = json.loads(ended.stdout)["solution"]
    assert (solution["status"], solution["interrupted"], solution["peak_bytes"]) == ("not_found", True, None)
    assert not (place / "images.remat.onnx").exists()


def test_for_people_it_says_neither_impossible_nor_proved(place):
    ended = interrupted_at(place, "searching for splits", 1, "--format", "text")
    assert ended.returncode == 130
    assert ended.stdout.startswith("not known: interrupted before a plan was found")
    assert "interrupted after" in ended.stdout
    assert "that proves nothing" in ended.stdout
    assert not any(
        word in ended.stdout for word in ("impossible", "proved least", "cannot help", "needs these at once")
    )


def test_the_plan_by_then_is_verified_and_written(place):
    ended = interrupted_at(place, "solving", 2)  # of the split model, which fits as it is
    assert ended.returncode == 130, ended.stderr
    report = json.loads(ended.stdout)
    solution = report["solution"]
    assert (solution["status"], solution["interrupted"], solution["lower_bound_percent"]) == ("feasible", True, None)
    assert solution["peak_bytes"] <= solution["budget_bytes"]
    assert report["verification"]["outputs_identical"]
    assert (place / "images.remat.onnx").exists()
    assert json.loads((place / "images.plan.json").read_text())["solved"]["status"] == "feasible"


@pytest.mark.parametrize("stage", ["verifying", "profiling"])
def test_while_nothing_is_searched_it_ends_at_once(place, stage):
    ended = interrupted_at(place, stage, 1)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr.endswith("error: interrupted\n")
    assert not (place / "images.remat.onnx").exists()


@pytest.mark.slow
def test_at_any_moment_it_is_130_or_was_done_before(place):
    begin = time.monotonic()
    command = [sys.executable, "-m", "remat_cli", *COMPILE, "--quiet"]
    subprocess.run([*command, "--force"], cwd=place, env=environment(place), check=True, capture_output=True)
    whole = time.monotonic() - begin
    for share in np.random.default_rng(0).uniform(0.1, 1.0, 16):
        with subprocess.Popen(
            [*command, "--force"], cwd=place, env=environment(place), text=True, stdout=subprocess.PIPE
        ) as process:
            time.sleep(share * whole)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=300)
        assert process.returncode in {0, 130, -signal.SIGINT}, (share, process.returncode, out)
        if out and process.returncode == 130:
            assert json.loads(out)["solution"]["status"] in {"feasible", "not_found"}
