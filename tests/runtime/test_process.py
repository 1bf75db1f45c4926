from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from remat_cli.base.errors import ModelError, RuntimeFailure
from remat_cli.runtime.sessions._ort import run_fresh, started
from tests.runtime import models


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A temporary directory of its own, to see what is left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answer_and_progress_come_back(scratch):
    seen = []
    assert run_fresh(models.echo, 4, lambda done, total: seen.append((done, total))) == 5
    assert seen == [(4, 10)]
    assert list(scratch.iterdir()) == []


def test_error_raised_on_purpose_comes_back_as_it_was(scratch):
    with pytest.raises(ModelError, match=r"^the words$"):
        run_fresh(models.complain, "the words")
    assert list(scratch.iterdir()) == []


def test_crash_is_one_line_that_names_the_signal():
    with pytest.raises(RuntimeFailure, match="killed by signal 9"):
        run_fresh(models.crash, int(signal.SIGKILL))


def test_unexpected_error_is_one_line():
    with pytest.raises(RuntimeFailure, match="ended with code 1: KeyError: 'lost'"):
        run_fresh(models.fail, "lost")


def test_interrupt_ends_the_worker_and_leaves_nothing(scratch):
    pid_file = scratch / "pid"

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fresh(models.report_and_wait, str(pid_file), interrupt)
    assert not is_running(int(pid_file.read_text()))
    assert [path.name for path in scratch.iterdir()] == ["pid"]


def test_leaving_the_block_ends_a_worker_that_still_runs(scratch):
    with started(models.report_and_wait, str(scratch / "pid")) as pending:
        assert pending.process.poll() is None
    assert pending.process.returncode is not None


def test_worker_ends_when_its_parent_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from remat_cli.runtime.sessions._ort import run_fresh\n"
        "from tests.runtime import models\n"
        "run_fresh(models.report_and_wait, sys.argv[2], lambda done, total: print('up', flush=True))\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", code, root, str(pid_file)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        parent.kill()
    worker = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while is_running(worker) and not is_zombie(worker) and time.monotonic() < deadline:
        os.sched_yield()
    assert not is_running(worker) or is_zombie(worker)


def is_zombie(pid: int) -> bool:
    """Ended, but not reaped: in a container nobody may adopt orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
