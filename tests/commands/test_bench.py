from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from remat_cli.contest import case_process as pipeline_bench_process
from remat_cli.contest.bench_file import Overrides, load_bench
from remat_cli.contest.case_process import run_case
from remat_cli.contest.family import Sampler, family, kill_family, resident_mib
from remat_cli.contest.worker import measure, tiny_problem
from remat_cli.core.simulate import baseline
from remat_cli.report.bench_run import BenchCase

ROOT = Path(__file__).resolve().parents[2]
INSTANCE = ROOT / "bench" / "instances" / "gpt_3_layers_train.json"


def case(**changes):
    values = {
        "suite": "s", "instance": "gpt", "instance_path": "gpt.json", "instance_sha256": "", "budget": "0.9",
        "order": "keep", "solver": "local-search", "label": "local-search", "seed": 0, "threads": 1,
        "time_limit_seconds": 0.3,
    }  # fmt: skip
    return BenchCase(**(values | changes))


def ignore(point):
    pass


def test_measured_in_this_process():
    messages = []
    run = measure(case(), INSTANCE, messages.append)
    assert messages[0].started
    assert all(message.point is not None for message in messages[1:])
    assert run.status == "feasible"
    assert run.peak_bytes <= run.budget_bytes
    assert run.budget_fraction == pytest.approx(0.9, abs=1e-6)
    assert [point[1] for point in run.trace] == [message.point[1] for message in messages[1:]]


def test_probe_ends_at_the_first_plan():
    run = measure(case(probe=True, time_limit_seconds=60.0), INSTANCE, ignore)
    assert run.has_plan
    assert run.seconds < 30


def test_work_limit_gives_the_same_plan():
    runs = [measure(case(work=2000, time_limit_seconds=60.0), INSTANCE, ignore) for _ in range(2)]
    assert runs[0].time == runs[1].time
    assert [point[1:] for point in runs[0].trace] == [point[1:] for point in runs[1].trace]


def test_refusals_are_runs_without_machine_paths(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    run = run_case(case(instance_path="broken.json"), broken, ignore)
    assert run.status == "error"
    assert "instance broken.json is not a benchmark instance" in run.message
    assert str(tmp_path) not in run.message


def boot(monkeypatch, code):
    monkeypatch.setattr(pipeline_bench_process, "BOOT", code)


def test_a_crash_is_a_run(monkeypatch):
    boot(monkeypatch, "import sys; sys.stdin.readline(); sys.exit('out of luck')")
    run = run_case(case(), INSTANCE, ignore)
    assert (run.status, run.message) == ("crashed", "ended with code 1: out of luck")
    assert not run.has_plan


def test_a_killed_process_is_a_run_with_its_trace(monkeypatch):
    code = """
import os, signal, sys
sys.stdin.readline()
print('{"started":true}', flush=True)
print('{"point":[0.5,3.0,null]}', flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    boot(monkeypatch, code)
    points = []
    run = run_case(case(), INSTANCE, points.append)
    assert (run.status, run.message) == ("crashed", "killed by signal 9")
    assert run.trace == tuple(points) == ((0.5, 3.0, None),)
    assert run.overhead_percent is None


def test_a_process_that_does_not_end_is_killed(monkeypatch):
    boot(monkeypatch, "import sys; sys.stdin.readline(); sys.stdin.readline()")
    monkeypatch.setattr(pipeline_bench_process, "LOADING_SECONDS", 0.2)
    assert run_case(case(), INSTANCE, ignore).status == "overran"


def test_ctrl_c_ends_the_process(monkeypatch):
    ended = []
    end = pipeline_bench_process._end
    monkeypatch.setattr(pipeline_bench_process, "_end", lambda process: (end(process), ended.append(process.poll())))
    boot(monkeypatch, "import sys; print('{\"point\":[0.5,3.0,null]}', flush=True); sys.stdin.read()")

    def interrupt(point):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_case(case(), INSTANCE, interrupt)
    assert ended == [-9]


GRANDCHILD = "import time; held = bytearray(80 * 2**20); print('ready', flush=True); time.sleep(60)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {GRANDCHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
print(child.pid, child.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""


def test_memory_and_end_of_a_family():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        grandchild = int(process.stdout.readline().split()[0])
        assert family(process.pid) == [process.pid, grandchild]
        sampler = Sampler(process.pid)
        sampler.look()
        assert sampler.peak_mib > 80
        kill_family(process.pid)
        process.wait()
    deadline = time.monotonic() + 20
    while resident_mib([grandchild]) and time.monotonic() < deadline:  # its memory goes a moment after it
        pass
    assert resident_mib([grandchild]) == 0.0


def test_the_warm_up_problem_needs_a_recompute():
    problem = tiny_problem()
    assert baseline(problem).peak == problem.memories[0].budget_bytes + 1


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "bench").glob("*.yaml")), ids=lambda path: path.stem)
def test_bench_files_of_the_project_are_right(path, shared):
    if path.stem == "scale" and not (ROOT / "bench" / "generated").is_dir():
        pytest.skip("the large graphs are not generated")
    bench = load_bench(path, Overrides())
    assert bench.targets
    assert bench.skipped == ()


def test_worker_needs_no_path_of_the_caller(monkeypatch, tmp_path):
    (tmp_path / "remat_cli.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run_case(case(solver="keep-all", label="keep-all"), INSTANCE, ignore).status == "not_found"
