"""The worker process of HiGHS: it keeps the time, does not outlive remat, and says what it lacks."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from remat_cli.base.errors import RuntimeFailure
from remat_cli.solvers.base import Limits
from remat_cli.solvers.milp import process
from remat_cli.solvers.milp.process import _Solutions, ask_highs

ROOT = Path(__file__).resolve().parents[2]

# A program that HiGHS does not finish; the line says that it has begun.
ENDLESS = """
import subprocess
from remat_cli.solvers.milp import process
from remat_cli.solvers.milp.program import _program
from remat_cli.solvers.base import Limits
from tests.solvers.test_checkmate import build, tight, training

program = _program(build(tight(training(60), 0.2)), "highs", {}, 0.0)
listen = process._listen


def announce(*arguments):
    print("begun", flush=True)
    return listen(*arguments)


process._listen = announce
list(process.ask_highs(program, Limits(seconds=60.0)))
"""


def small(**changes: Any) -> dict[str, Any]:
    """Minimise x + y, where x + y is at least 1."""
    rows = [([(1, 0), (1, 1)], 1, None)]
    return {"lower": [0, 0], "upper": [1, 1], "integral": [True, True], "cost": [1, 1], "rows": rows, **changes}


def test_nothing_is_started_when_time_is_over(monkeypatch: pytest.MonkeyPatch):
    assert [item.bound for item in ask_highs(small(), Limits(seconds=60.0)) if not isinstance(item, float)] == [1.0]
    monkeypatch.delattr(subprocess, "Popen")
    assert list(ask_highs(small(live=True), Limits(seconds=0.0))) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows gives no process a new parent")
def test_a_worker_whose_parent_is_killed_ends_and_leaves_no_file(tmp_path: Path):
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ENDLESS]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begun\n"
        assert len(list(tmp_path.iterdir())) == 1
        parent.kill()
    deadline = time.monotonic() + 20.0
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(process.tempfile, "TemporaryFile", lambda *mode: Full())
    with pytest.raises(RuntimeFailure, match=r"request of \d+ bytes into .*: No space left on device; .* TMPDIR"):
        list(ask_highs(small(), Limits(seconds=60.0)))


def test_solutions_are_read_as_far_as_they_are_written():
    file = io.StringIO("Objective 3\n# Columns 2\n 0\n 1\nObjective 2\n# Columns 2\n 1\n")
    solutions = _Solutions(file, 2)
    assert [reply.values for reply in solutions.read()] == [[0.0, 1.0]]
    place = file.tell()
    file.write(" 0.5\n")
    file.seek(place)
    assert [reply.values for reply in solutions.read()] == [[1.0, 0.5]]


def test_a_solution_with_a_gap_is_left_out():
    """Of one number, or of what stands between two solutions."""
    file = io.StringIO("Objective 3\n# Columns 2\n 0\nObjective 2\nObjective 1\n# Columns 2\n 1\n 0\n")
    assert [reply.values for reply in _Solutions(file, 2).read()] == [[1.0, 0.0]]
