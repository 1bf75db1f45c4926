"""Pipelines on a local Ray cluster: the bits of a run in one process, overlap, and what happens to a lost actor.

Each run is a process of its own: Ray keeps threads and sockets for as long as its driver lives.
"""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import remat_cli as api

ROOT = Path(__file__).resolve().parents[3]
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


def run(schedule, *words, code=0, env=None):
    """The report; or what went wrong, where that is expected."""
    done = subprocess.run(
        command(schedule, *words), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, env=env
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if not code else done.stderr


def arrays(path):
    with np.load(path) as found:
        return {name: found[name].tobytes() for name in found.files}


@pytest.mark.parametrize("mode", [pytest.param("--flush", marks=pytest.mark.slow), "--no-flush"])
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


@pytest.mark.slow
def test_a_lost_actor_is_one_line_and_its_state_is_saved(schedule, tmp_path):
    """An actor is killed while it works; the run goes on from the last update that was finished."""
    words = ("--steps", 200, "--state", tmp_path / "state")
    log = tmp_path / "err.txt"
    with log.open("w") as errors:
        running = subprocess.Popen(command(schedule, *words), stdout=subprocess.PIPE, stderr=errors, text=True)
        victim = _actor(running)
        _check_that_nothing_is_reported(running)
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
    rest = run(schedule, "--steps", 1, "--state", tmp_path / "state", "--resume")
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


def _check_that_nothing_is_reported(driver: subprocess.Popen[str]) -> None:
    """No dashboard, and no usage statistics."""
    environments = []
    for each in psutil.Process(driver.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = each.cmdline()
            is_dashboard = any(word.endswith("dashboard.py") for word in words)
            assert not is_dashboard or "--disable-frontend" in words
            environments.append(each.environ())
    told = [each["RAY_USAGE_STATS_ENABLED"] for each in environments if each]  # Ray's titles overwrite it in some
    assert len(told) > 1
    assert set(told) == {"0"}


def _wait_for_work(pid: int, seconds: float) -> None:
    """Until a process has used so many seconds of a processor from now on, however busy the machine is."""
    process = psutil.Process(pid)
    begun = process.cpu_times().user
    deadline = time.monotonic() + 120
    while process.cpu_times().user < begun + seconds and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def head():
    """A cluster of its own on this machine, as a user starts one, with made-up devices; its address and home folder.

    Ray finds a token in that home, so that the cluster asks for it.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets lie in it, and their paths must be short
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    words = f"start --head --block --port={port} --num-cpus=2 --num-gpus=2 --include-dashboard=false"
    words += f" --disable-usage-stats --temp-dir={folder}"
    log = folder / "head.txt"
    with log.open("w") as out:
        asked = [sys.executable, "-m", "ray.scripts.scripts", *words.split()]
        running = subprocess.Popen(asked, stdout=out, stderr=subprocess.STDOUT, env=at_home(folder))
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "Ray runtime started" not in log.read_text():
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}", folder
    finally:
        members = [running, *psutil.Process(running.pid).children(recursive=True)]
        running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(20)
        for member in members:
            with contextlib.suppress(psutil.Error, OSError):
                member.kill()
        running.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def at_home(folder):
    """The environment of somebody who has said nothing to Ray, at home in a folder."""
    said = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**said, "HOME": str(folder)}


@pytest.mark.slow
def test_a_cluster_that_is_there_is_joined_and_gives_the_same_bits(schedule, head, tmp_path):
    """Actors take the devices that the cluster says it has; who has not its token is told so."""
    address, home = head
    words = ("--steps", 3, "--no-flush", "--learning-rate", 0.01)
    here = run(schedule, "--local", *words, "--output", tmp_path / "here.npz")
    where = ("--address", address, "--resource", "gpu=1")
    there = run(schedule, *where, *words, "--output", tmp_path / "there.npz", env=at_home(home))
    assert there["where"] == f"2 actors on {address}"
    assert there["given"] == here["given"]
    assert arrays(tmp_path / "there.npz") == arrays(tmp_path / "here.npz")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f" * 64)
    line = run(schedule, "--address", address, env=at_home(tmp_path), code=1)
    assert line == f"error: the cluster at {address} refuses our token: set RAY_AUTH_TOKEN to that of the cluster\n"


@pytest.mark.slow
def test_an_address_where_no_cluster_is_ends_in_one_line(schedule):
    """Nobody, a web server, somebody who takes who comes and says nothing, and a host that is not there."""
    handler = http.server.BaseHTTPRequestHandler
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web,
        socket.create_server(("127.0.0.1", 0)) as mute,
    ):
        threading.Thread(target=web.serve_forever, daemon=True).start()
        places = [f"127.0.0.1:{each}" for each in (9, web.server_address[1], mute.getsockname()[1])]
        places.append("nowhere.invalid:6379")
        began = time.monotonic()
        runs = [
            subprocess.Popen(
                command(schedule, "--address", place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for place in places
        ]
        for place, each in zip(places, runs, strict=True):
            out, line = each.communicate(timeout=PATIENCE_SECONDS)
            assert (each.returncode, out) == (1, ""), line
            assert f"the cluster at {place} does not answer" in line
            assert line.count("\n") == 1
        web.shutdown()
    assert time.monotonic() - began < 60  # 12 s, and what processes take to begin on a machine that may be busy


@pytest.mark.slow
def test_a_terminated_run_ends_its_cluster_and_says_no_more(schedule):
    asked = command(schedule, "--steps", 1000)
    running = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _actor(running)
    members = psutil.Process(running.pid).children(recursive=True)
    running.terminate()
    out, errors = running.communicate(timeout=PATIENCE_SECONDS)
    assert (running.returncode, out, errors) == (143, "", "error: terminated\n")
    assert not psutil.wait_procs(members, timeout=30)[1]


def test_resources_that_a_local_cluster_lacks_are_one_line(schedule):
    line = run(schedule, "--resource", "tpu=1", code=2)
    assert "--resource tpu" in line
    assert line.count("\n") == 1


@pytest.mark.slow
def test_more_gpus_than_this_machine_has_are_one_line(schedule):
    line = run(schedule, "--resource", "gpu=500", code=2)
    assert "--resource gpu=500 for 2 actors: this machine has " in line
    assert line.count("\n") == 1
