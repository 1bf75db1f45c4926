"""How a command ends: told to at any moment, with streams closed or full, with a plan that cannot be written."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from remat_cli import cli
from remat_cli.base.errors import RematError
from remat_cli.base.garbage import rare_collection
from remat_cli.base.signals import signals_later
from remat_cli.cli import ending
from remat_cli.cli.whole_imports import whole_imports
from remat_cli.core.files.plan_file import write_with_plan
from remat_cli.core.files.plan_reader import read_plan
from tests.cli.test_telemetry import save_net
from tests.report import samples

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path):
    (tmp_path / "temporary").mkdir()
    save_net(tmp_path / "net.onnx")
    return tmp_path


def environment(place):
    own = {"TMPDIR": str(place / "temporary"), "REMAT_CACHE_DIR": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own}


def left(place):
    return sorted(path.name for path in (place / "temporary").iterdir())


def started(place, *arguments, **streams):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    command = [sys.executable, "-m", "remat_cli", *arguments]
    return subprocess.Popen(command, cwd=place, env=environment(place), text=True, **streams)


STAGES = ["reading", "optimising", "profiling", "solving", "verifying"]
IN_PROCESSES = ("profiling", signal.SIGTERM)
"""Told to end while processes of its own run, each with a folder: what leaves most behind."""


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        pytest.param(stage, number, marks=() if (stage, number) == IN_PROCESSES else pytest.mark.slow)
        for stage in STAGES
        for number in (signal.SIGTERM, signal.SIGINT)
    ],
)
def test_no_folder_is_left_when_it_is_told_to_end(place, stage, number):
    with started(place, "compile", "net.onnx", "--budget", "100%") as process:
        for line in process.stderr:
            if line.startswith(stage):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    if (number, stage) == (signal.SIGINT, "solving"):
        assert process.returncode == 130  # ends the search and goes on with what there is
    else:
        expected = {signal.SIGTERM: (143, "error: terminated"), signal.SIGINT: (130, "error: interrupted")}[number]
        assert (process.returncode, err.splitlines()[-1]) == expected
    assert left(place) == []


STUCK = """
import ctypes, sys, tempfile
from remat_cli.cli import ending
ending.PATIENCE_SECONDS = 0.3
with ending.orderly_end():
    tempfile.mkdtemp(prefix="remat_")
    print("stuck", flush=True)
    ctypes.CDLL(None).sleep(60)
"""


def test_a_native_call_that_does_not_return_is_ended_all_the_same(place):
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], cwd=place, env=environment(place), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "stuck\n"
        assert left(place) != []
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    assert time.monotonic() - begin < 20
    assert process.returncode in (143, 1)  # 1: sleep() itself came back, and Terminated went up
    assert left(place) == []


def test_a_second_signal_does_not_disturb_the_clean_up(place):
    with started(place, "compile", "net.onnx", "--budget", "100%") as process:
        assert process.stderr.readline()
        for _ in range(5):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (143, 130)
    assert left(place) == []


IN_THE_CLEAN_UP = """
import os, signal, tempfile
from remat_cli.cli import ending

take, sent = signal.signal, []
def late(number, handler):
    if not sent:
        sent.append(number)
        os.kill(os.getpid(), signal.SIGINT)
    return take(number, handler)

with ending.orderly_end(is_last=True):
    tempfile.mkdtemp(prefix="remat_")
    signal.signal = late
    raise ending.Terminated
"""


def test_a_signal_that_arrives_as_the_clean_up_begins_does_not_end_it(place):
    ended = subprocess.run(
        [sys.executable, "-c", IN_THE_CLEAN_UP], cwd=place, env=environment(place), capture_output=True, check=False
    )
    assert b"Terminated" in ended.stderr
    assert left(place) == []


DEAF = """
import sys, time
print("importing", file=sys.stderr, flush=True)
try:
    time.sleep(1)
except BaseException:
    pass
"""


@pytest.mark.parametrize(
    ("number", "code", "often"),
    [
        (signal.SIGTERM, 143, 1),
        (signal.SIGINT, 130, 2),
        pytest.param(signal.SIGTERM, 143, 2, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, 1, marks=pytest.mark.slow),
    ],
)
def test_a_signal_while_the_runtime_is_imported_is_not_lost(place, number, code, often):
    (place / "onnxruntime").mkdir()
    (place / "onnxruntime" / "__init__.py").write_text(DEAF)
    with started(place, "inspect", "net.onnx") as process:  # -m looks into the folder that it is run in
        assert "importing\n" in iter(process.stderr.readline, "")
        for _ in range(often):
            process.send_signal(number)
            time.sleep(0.1)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert left(place) == []


DROPPED = """
import signal, sys
from remat_cli import cli

class Group:
    def main(self, words, **options):
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            pass  # as a callback of compiled code does
        raise RuntimeError("no compiled object yet")

cli.make_group = Group
sys.exit(cli.main())
"""


def test_a_signal_that_a_library_drops_is_told_all_the_same(place):
    command = [sys.executable, "-c", DROPPED]
    done = subprocess.run(command, env=environment(place), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 143
    assert done.stderr == "error: terminated\n"
    assert left(place) == []


def struck(done, error=None):
    with signals_later():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("the block")
        if error:
            raise error
    done.append("what follows")


@pytest.fixture
def heard_interrupts():
    """A shell starts what it puts in the background with interrupts ignored; not so in this test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_interrupts")
def test_signals_wait_for_the_end_of_a_block_and_only_the_first_one_counts():
    done = []
    with pytest.raises(KeyboardInterrupt):
        struck(done)
    with pytest.raises(ValueError, match="its own"):
        struck(done, ValueError("its own"))
    assert done == ["the block", "the block"]


def test_handlers_and_the_folder_are_put_back():
    before = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), tempfile.gettempdir())
    with ending.orderly_end():
        inside = Path(tempfile.gettempdir())
        assert inside.is_dir()
        assert str(inside) != before[2]
        with pytest.raises(ending.Terminated):
            signal.raise_signal(signal.SIGTERM)
    assert not inside.exists()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), tempfile.gettempdir()) == before
    with ending.orderly_end(is_last=True):
        pass
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGINT, before[1])
    assert after == (signal.SIG_IGN, signal.SIG_IGN)


@pytest.mark.parametrize(
    "closed",
    [*(pytest.param(each, marks=pytest.mark.slow) for each in ("<&-", ">&-", "2>&-", ">&- 2>&-")), "<&- >&- 2>&-"],
)
def test_closed_streams(place, closed):
    command = f"exec {sys.executable} -m remat_cli inspect net.onnx {closed}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert left(place) == []


needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@needs_full
def test_a_full_stdout_is_one_line(place):
    with open("/dev/full", "w") as full, started(place, "inspect", "net.onnx", "-q", stdout=full) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == "error: the result cannot be written to stdout: No space left on device\n"


@needs_full
@pytest.mark.parametrize(("model", "code"), [("net.onnx", 0), ("none.onnx", 2)])
def test_a_full_stderr_changes_no_exit_code(place, model, code):
    with open("/dev/full", "w") as full, started(place, "inspect", model, stderr=full) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert bool(out) == (code == 0)


def test_the_model_is_not_written_where_the_plan_cannot_be(tmp_path):
    plan, written = samples.plan_file(), []

    def write_model():
        written.append(True)
        return plan

    path = tmp_path / "gone" / "net.plan.json"
    with pytest.raises(RematError, match="cannot be written"):
        write_with_plan(path, plan, write_model)
    assert written == []
    (tmp_path / "gone").mkdir()
    assert write_with_plan(path, plan, write_model) == plan
    assert read_plan(path) == plan
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_plan_is_left_as_it_was_where_the_model_cannot_be_written(tmp_path):
    (tmp_path / "own").mkdir()
    path, plan = tmp_path / "own" / "net.plan.json", samples.plan_file()
    write_with_plan(path, plan, lambda: plan)

    def fail():
        raise RematError("no")

    with contextlib.suppress(RematError):
        write_with_plan(path, msgspec.structs.replace(plan, snippet="new"), fail)
    assert read_plan(path) == plan
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@needs_full
def test_a_plan_on_a_full_disk_costs_nothing(tmp_path, monkeypatch):
    """The temporary file beside the plan stands for a full disk."""
    from remat_cli.base import files

    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "00")
    (tmp_path / ".net.plan.json.00.tmp").symlink_to("/dev/full")
    with pytest.raises(RematError, match="No space left on device"):
        write_with_plan(tmp_path / "net.plan.json", samples.plan_file(), lambda: pytest.fail("the model was written"))


def test_garbage_is_looked_for_seldom_and_as_before_afterwards():
    before = gc.get_threshold()
    with rare_collection():
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    assert gc.get_threshold() == before


def test_a_compiled_module_is_imported_to_its_end(heard_interrupts, monkeypatch):
    """One that is half made may crash; so may what reads it."""
    made = []

    def execute(loader, module):
        signal.raise_signal(signal.SIGINT)
        made.append(module.__name__)

    monkeypatch.setattr(ExtensionFileLoader, "exec_module", execute)
    loader = ExtensionFileLoader("compiled", "compiled.so")
    with pytest.raises(KeyboardInterrupt), whole_imports():
        loader.exec_module(ModuleType("compiled"))
    assert made == ["compiled"]
    assert ExtensionFileLoader.exec_module is execute


def test_commands_import_compiled_modules_to_their_end(monkeypatch):
    before, during = ExtensionFileLoader.exec_module, []

    class Group:
        def main(self, words, **how):
            during.append(ExtensionFileLoader.exec_module)

    monkeypatch.setattr(cli, "make_group", Group)
    assert cli.main(["doctor"]) == 0
    assert during != [before]
    assert ExtensionFileLoader.exec_module is before
