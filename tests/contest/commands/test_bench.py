from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from remat_cli.contest import runner
from remat_cli.contest.bench_file import Overrides, load_bench
from remat_cli.contest.report.bench_run import BenchCase
from remat_cli.contest.runner import Job, measure, run_case, tiny_problem
from remat_cli.core.schedule.simulate import baseline
from tests.contest import mishaps

ROOT = Path(__file__).resolve().parents[3]
INSTANCE = ROOT / "bench" / "instances" / "gpt_3_layers_train.json"


def case(**changes):
    values = {
        "suite": "s", "instance": "gpt", "instance_path": "gpt.json", "instance_sha256": "", "budget": "0.9",
        "order": "keep", "solver": "local-search", "label": "local-search", "seed": 0, "threads": 1,
        "time_limit_seconds": 0.3,
    }  # fmt: skip
    return BenchCase(**(values | changes))


def ignore(*point):
    pass


def measured(tell=ignore, **changes):
    return measure(Job(case(**changes), INSTANCE), tell)


def test_measured_in_this_process():
    messages = []
    run = measured(lambda *message: messages.append(message))
    assert messages[0] == ()
    assert all(len(message) == 3 for message in messages[1:])
    assert run.status == "feasible"
    assert run.peak_bytes <= run.budget_bytes
    assert run.budget_fraction == pytest.approx(0.9, abs=1e-6)
    assert [point[1] for point in run.trace] == [message[1] for message in messages[1:]]


def test_probe_ends_at_the_first_plan():
    run = measured(probe=True, time_limit_seconds=60.0)
    assert run.has_plan
    assert run.seconds < 30


def test_work_limit_gives_the_same_plan():
    runs = [measured(work=2000, time_limit_seconds=60.0) for _ in range(2)]
    assert runs[0].time == runs[1].time
    assert [point[1:] for point in runs[0].trace] == [point[1:] for point in runs[1].trace]


def test_refusals_are_runs_without_machine_paths(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    run = run_case(case(instance_path="broken.json"), broken, ignore)
    assert run.status == "error"
    assert "instance broken.json is not a benchmark instance" in run.message
    assert str(tmp_path) not in run.message


def happens(monkeypatch, mishap):
    monkeypatch.setattr(runner, "solve_case", mishap)


def test_a_crash_is_a_run(monkeypatch):
    happens(monkeypatch, mishaps.give_up)
    run = run_case(case(), INSTANCE, ignore)
    assert (run.status, run.message) == ("crashed", "ended with code 1: out of luck")
    assert not run.has_plan


def test_a_killed_process_is_a_run_with_its_trace(monkeypatch):
    happens(monkeypatch, mishaps.be_killed)
    points = []
    run = run_case(case(), INSTANCE, points.append)
    assert (run.status, run.message) == ("crashed", "killed by signal 9")
    assert run.trace == tuple(points) == ((0.5, 3.0, None),)
    assert run.overhead_percent is None


def test_a_process_that_does_not_end_is_killed(monkeypatch):
    happens(monkeypatch, mishaps.wait)
    monkeypatch.setattr(runner, "LOADING_SECONDS", 0.2)
    assert run_case(case(), INSTANCE, ignore).status == "overran"


def test_ctrl_c_ends_the_process(monkeypatch):
    happens(monkeypatch, mishaps.wait)
    pids = []

    def interrupt(point):
        pids.append(int(point[0]))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_case(case(), INSTANCE, interrupt)
    assert len(pids) == 1
    assert not psutil.pid_exists(pids[0])


def test_the_warm_up_problem_needs_a_recompute():
    problem = tiny_problem()
    assert baseline(problem).peak == problem.memories[0].budget_bytes + 1


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "bench").glob("*.yaml")), ids=lambda path: path.stem)
def test_bench_files_of_the_project_are_right(path, shared):
    if path.stem == "scale" and not any((ROOT / "bench" / "generated").glob("layered_*")):
        pytest.skip("the large graphs are not generated")
    bench = load_bench(path, Overrides())
    assert bench.targets
    assert bench.skipped == ()


def test_worker_needs_no_path_of_the_caller(monkeypatch, tmp_path):
    (tmp_path / "remat_cli.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run_case(case(solver="keep-all", label="keep-all"), INSTANCE, ignore).status == "not_found"
