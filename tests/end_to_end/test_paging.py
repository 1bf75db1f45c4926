"""Training steps that page to a folder: planned, run, verified; and what happens when they are stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

import remat_cli
from remat_cli.base.errors import ConfigError, ModelError, RematError, RuntimeFailure
from remat_cli.core.files.plan_file import write_plan
from remat_cli.core.files.plan_reader import read_plan
from remat_cli.core.schedule.program import Program
from remat_cli.runtime.paging.paged_run import PagedRunner
from remat_cli.runtime.paging.spill_file import SpillFile
from remat_cli.runtime.segments._session_turns import SessionTurns
from remat_cli.runtime.segments.segment_memory import see_memory
from remat_cli.runtime.segments.segment_run import ProgramJob, time_runs_here
from remat_cli.runtime.sessions._ort import pack_all
from tests.compiling.paged_steps import fed, paged

REPEATED = """
import sys, numpy as np, remat_cli
with remat_cli.load(sys.argv[1]) as plan:
    feeds = dict(np.load(sys.argv[2]))
    print("ready", flush=True)
    for _ in range(10000):
        plan.run(feeds)
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(remat_cli.__file__).parents[1])}


@pytest.fixture(scope="module")
def verified(samples):
    """A plan that pages, verified."""
    _, report = samples.paging_step("chain", "mse")
    return report


@pytest.fixture(scope="module")
def step(tmp_path_factory, samples, verified) -> Path:
    """A training step in a folder of its own, in which it pages, and so does the verified plan beside it."""
    made, _ = samples.paging_step("chain", "mse")
    folder = tmp_path_factory.mktemp("step")
    shutil.copytree(made.parent, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    plan = folder / Path(verified.plan).name
    plan.write_text(plan.read_text().replace(str(made.parent), str(folder)))
    return folder / made.name


@pytest.fixture(scope="module")
def plan_path(step, verified) -> Path:
    return step.parent / Path(verified.plan).name


@pytest.fixture(scope="module")
def feeds(plan_path):
    return fed(plan_path)


@pytest.fixture(scope="module")
def opened(plan_path):
    """The plan, ready to run: its sessions are opened once for all tests that run it in this process."""
    with remat_cli.load(plan_path) as plan:
        yield plan


@pytest.fixture(scope="module")
def expected(opened, feeds):
    return opened.run(feeds)


def pages_folder(plan: Path) -> Path:
    return plan.parent / "pages"


def test_a_verified_plan_keeps_bits_and_bytes(verified):
    seen, paging = verified.verification, verified.paging
    assert verified.exit_code == 0
    assert seen.outputs_identical
    # transfers that take longer than planned may spread what is held, never add to it
    assert seen.measured_peak_bytes["cpu"] <= seen.predicted_peak_bytes["cpu"]
    assert seen.predicted_peak_bytes["cpu"] <= verified.solution.budget_bytes < verified.solution.baseline_peak_bytes
    assert paging.written_bytes > 0
    assert seen.paging.planned_stall_ns == paging.stall_ns
    # the whole process, open sessions and the caller's inputs included
    assert seen.paging.resident is not None
    assert seen.paging.process_bytes <= verified.solution.budget_bytes
    assert any("pages" in line and "disk:" in line for line in verified.lines(remat_cli_style()))


def remat_cli_style():
    from remat_cli.report.style import Style

    return Style()


def test_every_session_holds_what_was_planned(opened, plan_path, feeds, expected):
    program = opened.program
    seen = see_memory(program, feeds)
    (fixed,) = program.planned_fixed_bytes
    planned = [action.planned_bytes[0] - fixed for action in program.actions]
    assert [held for (held,) in seen.action_bytes] <= planned
    assert max(held for (held,) in seen.action_bytes) <= max(planned)
    again = opened.run(feeds)
    assert all(expected[name].tobytes() == again[name].tobytes() for name in expected)
    assert not list(pages_folder(plan_path).iterdir())


def test_waiting_for_each_transfer_gives_the_same_bits(opened, feeds, expected):
    with PagedRunner(opened.program, is_overlapped=False) as alone:
        waited = alone.run(feeds)
    assert all(expected[name].tobytes() == waited[name].tobytes() for name in expected)


def test_values_may_wait_in_the_host(opened, feeds, expected):
    """What a device with memory of its own does, here on the CPU: the same bits, and no more held than planned."""
    spill = replace(opened.program.spill, folder="", memory="host")
    with PagedRunner(replace(opened.program, spill=spill)) as runner:
        for _ in range(2):
            found, record = runner.run_recorded(feeds)
            assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)
            held = [action.before_bytes[0] for action in record.actions]
            assert all(bytes_ <= room for bytes_, room in zip(held, spill.room_bytes, strict=False))
            assert len(record.moves) == len(spill.moves)


def test_a_run_is_told_with_its_transfers(plan_path, tmp_path):
    trace = tmp_path / "trace.json"
    report = remat_cli.run(plan_path, repeat=1, trace=trace)
    assert report.exit_code == 0
    assert report.pages.moves == len(read_plan(plan_path).paging.rules.lanes[0])
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert any(name.startswith("writes disk:") for name in tracks)
    assert any(name.startswith("reads disk:") for name in tracks)
    moved = [event for event in events if event["ph"] == "X" and event["name"].startswith(("write ", "read "))]
    assert len(moved) == 2 * report.pages.moves


def test_a_budget_is_not_enforced_where_there_is_no_arena(plan_path):
    with pytest.raises(ConfigError, match="no arena to cap"):
        remat_cli.run(plan_path, enforce_budget=True)


def test_inspect_says_what_pages_and_when(plan_path):
    report = remat_cli.inspect(plan_path)
    assert report.paging.written_bytes == read_plan(plan_path).paging.written_bytes
    assert all(each.read_ns[0] >= each.written_ns[1] for each in report.paging.tensors)
    # the first op of a chain reads an input only; the others read what is away too by then
    names = [each.tensor for each in report.paging.tensors]
    assert any(each.missing_input in names for each in report.paging.tensors)
    assert any(each.missing_input is None for each in report.paging.tensors)
    assert report.fits


@pytest.mark.slow
def test_verify_runs_it_again(plan_path):
    report = remat_cli.verify(plan_path, verify="fast")
    assert report.exit_code == 0
    assert report.verification.paging.read_bytes == read_plan(plan_path).paging.read_bytes


@pytest.mark.slow
def test_auto_is_no_slower_than_what_it_chooses_from(step, verified, tmp_path):
    best = paged(step, "auto", solver="auto", time_limit="6s")
    without = remat_cli.compile(
        step, budget="50%", verify=False, split="off", time_limit="3s", output=tmp_path / "w.onnx"
    )
    others = [each for report in (verified, without) if (each := report.solution.overhead_percent) is not None]
    # each beside its own profile, which a busy machine makes anew; what is left is that each search ends somewhere
    assert 100 + best.solution.overhead_percent <= 1.02 * (100 + min(others))


def test_a_plan_that_was_changed_is_refused(plan_path, tmp_path):
    plan = read_plan(plan_path)
    changed = replace(plan, paging=replace(plan.paging, stall_ns=plan.paging.stall_ns + 1))
    write_plan(tmp_path / "changed.json", changed)
    with pytest.raises(ModelError, match=r"paging.stall_ns"):
        read_plan(tmp_path / "changed.json")
    other = replace(plan, solved=replace(plan.solved, time_ns=plan.solved.time_ns + 1))
    write_plan(tmp_path / "other.json", other)
    with pytest.raises(ModelError, match="judge of paging"):
        read_plan(tmp_path / "other.json")


@pytest.mark.parametrize(("call", "what"), [("pwrite", "writing"), ("preadv", "reading")])
def test_a_disk_that_fails_ends_the_run_in_one_line(opened, feeds, expected, monkeypatch, call, what):
    with monkeypatch.context() as patch:
        patch.setattr(os, call, lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(RematError, match=rf"spill disk:.*{what} failed: Input/output error"):
            opened.run(feeds)
    check_run(opened, feeds, expected)


def check_run(plan, feeds, expected) -> None:
    """The same bits, and no more held than planned: what happened to earlier runs has left nothing."""
    found, record = plan._runner.run_recorded(feeds)
    assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)
    most = plan.program.spill.room_bytes
    assert all(a.before_bytes[0] <= room for a, room in zip(record.actions, most[:-1], strict=True))


def test_a_session_that_fails_leaves_nothing_behind(opened, feeds, expected, monkeypatch):
    get = SessionTurns.get

    def failing(self, place):
        found = get(self, place)
        if place < len(opened.program.sessions) // 2:
            return found
        return dataclasses.replace(found, session=SimpleNamespace(run_with_iobinding=lambda _: 1 / 0))

    with monkeypatch.context() as patch:
        patch.setattr(SessionTurns, "get", failing)
        with pytest.raises(RuntimeFailure, match="division by zero"):
            opened.run(feeds)
    check_run(opened, feeds, expected)


def test_a_slow_disk_is_waited_for(opened, feeds, expected, monkeypatch):
    write = SpillFile.write

    def slow(self, offset, buffer, is_over=lambda: False):
        time.sleep(0.01)
        write(self, offset, buffer, is_over)

    monkeypatch.setattr(SpillFile, "write", slow)
    check_run(opened, feeds, expected)


def test_a_folder_that_has_gone_is_one_line(plan_path, tmp_path):
    plan = read_plan(plan_path)
    memory = replace(plan.paging.memory, folder=str(tmp_path / "gone"))
    moved = tmp_path / "moved.json"
    model = plan_path.parent / plan.output.path
    output = replace(plan.output, path=str(model))
    write_plan(moved, replace(plan, output=output, paging=replace(plan.paging, memory=memory)))
    with pytest.raises(ConfigError, match=r"spill disk:.*gone: a file of .* cannot be made: No such file"):
        remat_cli.load(moved)


@contextlib.contextmanager
def started(plan_path: Path, feeds, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs the plan over and over, killed at the end."""
    file = tmp_path / "feeds.npz"
    np.savez(file, **feeds)
    command = [sys.executable, "-c", REPEATED, str(plan_path), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "moment", [0.13, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.0, 0.05, 0.21, 0.34))]
)
def test_a_run_that_is_killed_leaves_no_pages(plan_path, feeds, tmp_path, moment):
    with started(plan_path, feeds, tmp_path) as process:
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not list(pages_folder(plan_path).iterdir())


@pytest.mark.slow
def test_thirty_kills_at_any_moment_leave_nothing(plan_path, feeds, tmp_path):
    """While the plan is opened, before the first run, and in runs; the next start finds an empty folder and runs."""
    moments = random.Random(20)
    with remat_cli.load(plan_path) as plan:
        expected = plan.run(feeds)
    for number in range(30):
        if number % 5:
            with started(plan_path, feeds, tmp_path) as process:
                time.sleep(moments.uniform(0, 1.5))
                process.send_signal(signal.SIGKILL)
                assert process.wait() == -signal.SIGKILL
        else:
            command = [sys.executable, "-c", REPEATED, str(plan_path), str(tmp_path / "feeds.npz")]
            np.savez(tmp_path / "feeds.npz", **feeds)
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT) as process:
                time.sleep(moments.uniform(0, 4))
                process.kill()
        assert not list(pages_folder(plan_path).iterdir())
    with remat_cli.load(plan_path) as plan:
        found = plan.run(feeds)
    assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)


def test_two_runs_at_once_do_not_meet(opened, plan_path, feeds, expected, tmp_path):
    with started(plan_path, feeds, tmp_path):
        for _ in range(2):
            found = opened.run(feeds)
            assert all(expected[name].tobytes() == found[name].tobytes() for name in expected)


def test_a_disk_without_room_is_one_line_and_leaves_nothing(plan_path, feeds):
    script = (
        "import resource, sys, remat_cli\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "from remat_cli.runtime.paging.spill_file import SpillFile\n"
        "from pathlib import Path\n"
        "from remat_cli.core.files.plan_reader import read_plan\n"
        "paging = read_plan(Path(sys.argv[1])).paging\n"
        "SpillFile(Path(paging.memory.folder), paging.file_bytes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(plan_path)], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert "there is no room for" in done.stderr.splitlines()[-1]
    assert not list(pages_folder(plan_path).iterdir())


def test_one_process_may_time_a_plan(opened, feeds):
    program: Program = opened.program
    found = time_runs_here(ProgramJob(program, pack_all(feeds), 2, is_overlapped=False), lambda *_: None)
    assert found.is_repeatable
    assert all(len(run.moves) == len(program.spill.moves) for run in found.runs)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"spill": "floppy:/x"}, "write disk:DIR"),
        ({"spill": "disk:/no/such/folder"}, "does not exist: create it"),
        ({"spill": f"disk:{__file__}"}, "is no folder: name one"),
        ({"spill": "host"}, "cpu uses the host's memory itself"),
        ({"spill": "host", "device": ("cpu", "webgpu")}, "from one device's memory only"),
        ({"spill": "disk:/tmp", "device": "webgpu"}, "from the CPU's memory only, not from webgpu:0; write host"),
        ({"spill": {"memory": "host", "folder": "/tmp"}}, "and not both"),
        ({"spill": {"budget": "1GiB"}}, "give the folder of a disk, or memory: host"),
        ({"spill": "disk:/tmp", "budget": "min"}, "is not found with --spill"),
        ({"spill": "disk:/tmp", "solver": "revolve"}, "no solver named 'revolve' plans with --spill"),
        ({"solver": "pofo"}, "add --spill disk:DIR"),
        ({"spill": "disk:/tmp", "budget": "1GiB", "budget_scope": "process"}, "does not go with --spill"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(step, tmp_path, words, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        remat_cli.compile(step, output=tmp_path / "x.onnx", verify=False, **{"budget": "50%", **words})


@pytest.mark.slow
def test_a_budget_that_holds_everything_pages_nothing(step):
    report = paged(step, "all", solver="auto", budget="100%", time_limit="1s")
    assert report.exit_code == 0
    assert any("nothing pages" in warning for warning in report.warnings)
    assert read_plan(Path(report.plan)).paging is None


@pytest.mark.slow
def test_bytes_bound_the_process_also_of_a_plan_that_pages_nothing(step):
    """All tensors at once would fit, but not with what a process holds beside: some must be made again, or page."""
    live = paged(step, "live", solver="auto", budget="100%", time_limit="1s").solution.peak_bytes
    report = paged(step, "whole", solver="auto", budget=f"{live}B", time_limit="4s")
    assert report.exit_code == 0
    if read_plan(Path(report.plan)).paging is None:
        assert report.solution.peak_bytes < live
        assert report.solution.budget_bytes == live


@pytest.mark.slow
def test_bytes_are_the_process_s(step):
    """What a process holds beside tensors is measured and planned for: a budget in bytes bounds all of it."""
    report = paged(step, "bytes", solver="greedy-paging", budget="26MiB", verify="fast")
    assert report.exit_code == 0
    seen = report.verification.paging
    assert 0 < seen.process_bytes <= 26 * 2**20 == seen.budget_bytes
    assert report.verification.measured_peak_bytes["cpu"] < seen.process_bytes
    assert any("beside tensors" in note for note in report.verification.notes)


@pytest.mark.slow
def test_a_budget_that_open_sessions_take_is_not_found(step):
    """The tensors would fit, the process that runs them does not: no plan, and nothing is called impossible."""
    report = paged(step, "tight", solver="greedy-paging", budget="14MiB", verify="fast")
    assert report.exit_code == 4
    assert report.output is None


def test_a_file_that_may_not_hold_the_pages_is_no_plan(step, tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    spill = {"folder": str(folder), "budget": "64KiB", "write_bytes_per_second": 1e9, "read_bytes_per_second": 1e9}
    report = remat_cli.compile(
        step, budget="50%", solver="greedy-paging", verify=False, spill=spill, output=tmp_path / "x.onnx"
    )
    assert report.exit_code == 4
    assert report.output is None
