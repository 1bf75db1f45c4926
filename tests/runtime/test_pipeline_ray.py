"""Pipelines on a local Ray cluster: the bits of a run in one process, overlap, and what happens to a lost actor.

Each run is a process of its own: Ray keeps threads and sockets for as long as its driver lives.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import remat_cli as api

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install '.[cluster]'"
)
PATIENCE_SECONDS = 240


@pytest.fixture(scope="module")
def schedule(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(folder / "cache"))
        step = folder / "digits.onnx"
        api.train(ROOT / "examples" / "digits.onnx", loss="cross-entropy", optimizer="adam", batch=32, output=step)
        how = {"micro_batches": 4, "method": "1f1b-star", "intra_op_threads": 1, "output": folder / "stages"}
        api.partition(step, devices=2, memory="64MiB", **how)
    return folder / "stages" / "schedule.json"


def command(schedule, *words):
    asked = ("run", schedule, "-q", "--format", "json", "--intra-op-threads", 1, *words)
    return [sys.executable, "-m", "remat_cli", *map(str, asked)]


def run(schedule, *words, code=0):
    """The report; or what went wrong, where that is expected."""
    done = subprocess.run(
        command(schedule, *words), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if not code else done.stderr


def arrays(path):
    with np.load(path) as found:
        return {name: found[name].tobytes() for name in found.files}


@pytest.mark.parametrize("mode", ["--flush", "--no-flush"])
def test_actors_give_the_bits_of_one_process(schedule, tmp_path, mode):
    words = ("--steps", 4, mode, "--learning-rate", 0.01)
    here = run(schedule, "--local", *words, "--output", tmp_path / "here.npz")
    there = run(schedule, *words, "--output", tmp_path / "there.npz", "--trace", tmp_path / "t.json")
    assert there["given"] == here["given"]
    assert len(there["given"]) == 16
    assert arrays(tmp_path / "there.npz") == arrays(tmp_path / "here.npz")
    assert there["overlap"] > 0
    assert all(stage["alive"] <= stage["planned_alive"] for stage in there["stages"])
    assert {event["tid"] for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]} == {0, 1}


def test_a_lost_actor_is_one_line_and_its_state_is_saved(schedule, tmp_path):
    """An actor is killed while it works; the run goes on from the last update that was finished."""
    words = ("--steps", 200, "--state", tmp_path / "state")
    log = tmp_path / "err.txt"
    with log.open("w") as errors:
        running = subprocess.Popen(command(schedule, *words), stdout=subprocess.PIPE, stderr=errors, text=True)
        victim = _actor(running)
        _wait_for_work(victim, seconds=0.5)  # some updates, of some 10 ms each
        os.kill(victim, signal.SIGKILL)
        out, _ = running.communicate(timeout=PATIENCE_SECONDS)
    line = log.read_text()
    assert (running.returncode, out) == (1, "")
    assert line.count("\n") == 1
    assert "was lost in update" in line
    assert "of device" in line
    mark = json.loads((tmp_path / "state" / "run.json").read_text())
    assert mark["updates"] > 0
    whole = run(schedule, "--local", "--steps", mark["updates"] + 1)
    rest = run(schedule, "--local", "--steps", 1, "--state", tmp_path / "state", "--resume")
    assert rest["given"] == whole["given"][-4:]


def _actor(driver: subprocess.Popen[str]) -> int:
    """Process of an actor of that driver, once it runs a micro-batch: Ray says in its title what it does."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and driver.poll() is None:
        for process in psutil.Process(driver.pid).children(recursive=True):
            try:
                if re.search(r"DeviceActor\.(forward|backward)", " ".join(process.cmdline())):
                    return process.pid
            except psutil.Error:
                continue
        time.sleep(0.01)
    raise AssertionError("no actor came up")


def _wait_for_work(pid: int, seconds: float) -> None:
    """Until a process has used so many seconds of a processor from now on, however busy the machine is."""
    process = psutil.Process(pid)
    begun = process.cpu_times().user
    deadline = time.monotonic() + 120
    while process.cpu_times().user < begun + seconds and time.monotonic() < deadline:
        time.sleep(0.01)


def test_an_address_where_nobody_listens_is_one_line(schedule):
    line = run(schedule, "--address", "127.0.0.1:9", code=1)
    assert "the cluster at 127.0.0.1:9 does not answer" in line
    assert line.count("\n") == 1


def test_resources_that_a_local_cluster_lacks_are_one_line(schedule):
    line = run(schedule, "--resource", "tpu=1", code=2)
    assert "--resource tpu" in line
    assert line.count("\n") == 1
