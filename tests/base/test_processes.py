from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import psutil
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.base.processes import ProcessDied, family, forked, fresh, kill_family, started
from remat_cli.contest.runner import resident_mib
from tests.runtime import models

GRANDCHILD = "import time; held = bytearray(80 * 2**20); print('ready', flush=True); time.sleep(60)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {GRANDCHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
print(child.pid, child.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""


def test_memory_and_end_of_a_family():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        parent, grandchild = psutil.Process(process.pid), psutil.Process(int(process.stdout.readline().split()[0]))
        assert family(parent) == [parent, grandchild]
        assert resident_mib(family(parent)) > 80
        kill_family(parent)
        process.wait()
    deadline = time.monotonic() + 20
    while resident_mib([grandchild]) and time.monotonic() < deadline:  # its memory goes a moment after it
        pass
    assert resident_mib([grandchild]) == 0.0
    assert family(parent) == []


def echo_parent(job: int, tell) -> tuple[int, int]:
    tell(job, None, "words")
    return job, os.getppid()


@pytest.mark.parametrize("start", [fresh, forked])
def test_answers_messages_and_errors_come_back_either_way(start):
    heard = []
    with started(echo_parent, 3, start) as worker:
        assert worker.answer(lambda *message: heard.append(message)) == (3, os.getpid())
    assert heard == [(3, None, "words")]
    with started(models.complain, "the words", start) as worker, pytest.raises(ModelError, match=r"^the words$"):
        worker.answer()


@pytest.mark.parametrize("start", [fresh, forked])
def test_a_breakdown_is_its_code_and_its_last_line(start):
    with started(models.fail, "lost", start) as worker, pytest.raises(ProcessDied) as died:
        worker.answer()
    assert (died.value.code, died.value.line) == (1, "KeyError: 'lost'")


class Session:
    """Something in a circle, whose end must not come in a fork: threads that it would wait for are not there."""

    ended = 0

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        Session.ended += 1


def collect(job: object, tell) -> int:
    gc.collect()
    return Session.ended


def test_a_fork_ends_nothing_that_its_parent_left(request):
    gc.disable()
    request.addfinalizer(gc.enable)
    Session()
    with started(collect, None, forked) as worker:
        assert worker.answer() == 0
    gc.collect()
    assert Session.ended == 1
