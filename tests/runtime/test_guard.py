"""Models that never end, or want more memory than they may have: ended in time, in one line, and nothing is left."""

from __future__ import annotations

import itertools
import resource
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat_cli.base import processes
from remat_cli.base.errors import ConfigError, RuntimeFailure
from remat_cli.base.processes import Silent, memory_limited
from remat_cli.base.run_count import counting
from remat_cli.cli import main
from remat_cli.runtime.measure.profilers import ProfileRequest, measure, time_whole
from remat_cli.runtime.observe.caps import Trial, runs_under
from remat_cli.runtime.observe.hard_limit import HardLimitJob, limit_kind, runs_under_limit
from remat_cli.runtime.sessions import guard
from remat_cli.runtime.sessions._ort import Doing, pack_all, run_fresh
from remat_cli.runtime.sessions.guard import guarded
from remat_cli.runtime.sessions.session import SessionSettings, first_sight, optimize, outputs_of, run_profiled
from remat_cli.settings.settings import load_settings
from tests.cli.test_ending import environment, left

X = {"x": np.ones(4, np.float32)}
BRIEF = SessionSettings(run_seconds=0.5)


def save(path, nodes, weights, shape=(4,)):
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, shape),
    ]
    held = [numpy_helper.from_array(np.array(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def endless(tmp_path):
    """A loop whose condition stays true."""

    def port(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Add", ["a", "a"], ["b"], "inner")],
        "body",
        [port("i", TensorProto.INT64, []), port("on", TensorProto.BOOL, []), port("a", TensorProto.FLOAT, [4])],
        [port("still", TensorProto.BOOL, []), port("b", TensorProto.FLOAT, [4])],
    )
    return save(
        tmp_path / "endless.onnx", [helper.make_node("Loop", ["", "t", "x"], ["y"], "L", body=body)], {"t": True}
    )


@pytest.fixture
def greedy(tmp_path):
    """4 GiB on the way to one number."""
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["large"], "grow"),
        helper.make_node("ReduceSum", ["large"], ["y"], "sum", keepdims=0),
    ]
    return save(tmp_path / "greedy.onnx", nodes, {"shape": np.array([2**28, 4])}, shape=())


def test_what_the_run_returns_and_raises_comes_through():
    assert guarded(lambda options: 7, 5, Doing("it")) == 7
    with pytest.raises(KeyError):
        guarded(lambda options: {}["absent"], 5, Doing("it"))


@pytest.mark.parametrize("run", [first_sight, run_profiled, lambda *words: time_whole(*words, 0.1)])
def test_an_endless_run_in_this_process_is_ended(endless, run):
    begin = time.monotonic()
    with pytest.raises(RuntimeFailure, match=r"no progress for .* s; if the model needs longer, add --run-limit"):
        run(endless, X, BRIEF)
    assert time.monotonic() - begin < 20


def test_an_endless_run_under_a_hard_limit_is_ended(endless):
    if limit_kind() != "RLIMIT_DATA":
        pytest.skip("this system has another limit")
    job = HardLimitJob(str(endless), pack_all(X), 2**30, SessionSettings(exact=False, run_seconds=3))
    with pytest.raises(RuntimeFailure, match=r"a limited run of .* was ended: no progress for 3 s"):
        runs_under_limit(job)


def test_an_endless_run_under_a_cap_is_ended(endless):
    settings = SessionSettings(exact=False, run_seconds=3)
    with pytest.raises(RuntimeFailure, match="no progress for 3 s"):
        runs_under(Trial(str(endless), pack_all(X), settings, 2**26))


def test_an_endless_optimisation_is_ended(endless, tmp_path, monkeypatch):
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: time.sleep(5))
    monkeypatch.setattr("remat_cli.runtime.sessions.guard.STOP_SECONDS", 0.1)
    with pytest.raises(RuntimeFailure, match=r"cannot optimise endless\.onnx: no progress for 0\.2 s"):
        optimize(endless, tmp_path / "out.onnx", "all", seconds=0.2)


def test_an_endless_run_in_another_process_is_ended(endless):
    begin = time.monotonic()
    with pytest.raises(RuntimeFailure, match="was ended: no progress for 3 s"):
        measure(endless, X, ["L"], ProfileRequest(run_seconds=3))
    assert time.monotonic() - begin < 30


def tell_often(job, advance):
    for number in range(job):
        advance(number, job)
    return "done"


def tell_nothing(job, advance):
    time.sleep(job)


def test_progress_counts_not_the_whole_time(monkeypatch):
    """Each look at the clock is 500 s after the one before: less than may pass in silence, the whole is far more."""
    clock = itertools.count(0, 500)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert run_fresh(tell_often, 10, seconds=600) == "done"
    assert next(clock) > 10 * 600


def test_a_silent_process_is_ended_with_its_folder():
    with pytest.raises(Silent), processes.started(tell_nothing, 60, silence_seconds=0.3) as worker:
        worker.answer()
    assert not worker.process.is_running()
    assert not worker.folder.exists()


def test_the_command_says_how_to_wait_longer(endless, capsys):
    assert main(["inspect", str(endless), "-q", "--run-limit", "1s"]) == 1
    assert "no progress for 1 s; if the model needs longer, add --run-limit 2s" in capsys.readouterr().err
    assert threading.active_count() < 20


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_endless_run_hears_signals(tmp_path, endless, number):
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "remat_cli", "inspect", str(endless)]
    with subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("optimising"):
                break
        time.sleep(2)
        begin = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert time.monotonic() - begin < 10
    assert left(tmp_path) == []


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")


@linux
def test_a_greedy_model_fails_in_one_line(tmp_path, greedy):
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "remat_cli", "inspect", str(greedy), "-q", "--memory-limit", "1GiB"]
    process = subprocess.run(
        command, check=False, env=environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert "unexpected" not in process.stderr
    assert "grow" in process.stderr


@pytest.mark.parametrize("failing", [RuntimeError, None])
def test_a_run_for_which_there_is_no_thread_is_refused(monkeypatch, failing):
    """A thread without memory either cannot be made, or ends before it runs anything of ours."""

    def start(run, arguments):
        if failing:
            raise failing("can't start new thread")

    monkeypatch.setattr(guard._thread, "start_new_thread", start)
    monkeypatch.setattr(guard, "START_SECONDS", 0.01)
    with pytest.raises(RuntimeFailure, match="there is no memory left to begin it; allow more with --memory-limit"):
        guard.guarded(lambda options: 1, 10.0, Doing("running ", "m.onnx"))


def limits(job, advance):
    return resource.getrlimit(resource.RLIMIT_DATA)


@linux
def test_processes_inherit_the_limit_and_it_is_lifted_again():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limited(2**31):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 2**31
        assert run_fresh(limits, None)[0] == 2**31
        with memory_limited(2**32):
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 2**31  # never more than somebody else allows
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    with memory_limited(None):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] >= processes.total_memory_bytes()


def test_settings_have_both_limits():
    settings = load_settings({"run_limit": "2m", "memory_limit": "2GiB"})
    assert (settings.conditions.run_seconds, settings.memory_limit_bytes) == (120, 2**31)
    assert load_settings({}).conditions.run_seconds == 3600
    for flags in ({"memory_limit": "10MiB"}, {"memory_limit": "much"}, {"run_limit": "0s"}):
        with pytest.raises(ConfigError):
            load_settings(flags)


def test_runs_in_the_guarded_thread_count(tmp_path):
    path = save(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"], "relu")], {})
    with counting() as count:
        first_sight(path, X, BRIEF)
        outputs_of(path, (X, X), BRIEF)
    assert count.runs == 3
