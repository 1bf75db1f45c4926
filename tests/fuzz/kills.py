"""Compiles that are ended from outside at a random moment: each file is wholly the old or the new one, none is left."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import psutil

from remat_cli import read_plan
from remat_cli.base.errors import RematError
from remat_cli.base.processes import family, kill_family
from tests.fuzz.batch import OUTPUT, PLAN, left_in
from tests.fuzz.materials import compile_seconds, environment_of, words_of
from tests.fuzz.outcomes import FAILED, HANG, KILLED, MIXED, OK, SURVIVORS, Case, Row, row_of
from tests.fuzz.plan_mutants import SOURCE

COUNT = 200
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
CODES = frozenset({-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT})
GRACE = 30.0  # seconds to end after a signal; Ctrl-C lets a search end and the result be written
TOO_EARLY = ("Could not import runpy module", "Fatal Python error: init_")
"""What Python says, with an exit code of its own, where a signal comes before any line of the command was read."""
ORPHAN_SECONDS = 5.0  # within which processes end whose parent was killed
OLD = b"old"


def kill_cases() -> list[Case]:
    """Signals in turn."""
    names = list(SIGNALS)
    return [Case("kill", f"{seed}", names[seed % len(names)]) for seed in range(COUNT)]


def kill_rows(cases: list[Case], materials: Path) -> Iterator[Row]:
    """A row for each case."""
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="fuzz_", ignore_cleanup_errors=True) as name:
            yield kill_row(case, materials, Path(name))


def kill_row(case: Case, materials: Path, place: Path) -> Row:
    """Begin a compile over old files, end it, and look at what is there."""
    work = place / "work"
    work.mkdir()
    shutil.copy(materials / SOURCE, work)
    environment = environment_of(place)
    shutil.copytree(materials / "cache", place / "cache", dirs_exist_ok=True)
    for name in (OUTPUT, PLAN):
        (work / name).write_bytes(OLD)
    moment = random.Random(case.key).random() * compile_seconds(materials)
    process = psutil.Popen(
        words_of(work), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        code, members = _struck(process, SIGNALS[case.action], moment)
        said = _said(process) if code is not None else []
    finally:
        kill_family(process)
        process.wait()
        process.stderr.close()
    left = _left(case, place) if code is not None else ()
    is_early = any(line.startswith(TOO_EARLY) for line in said)
    outcome = HANG if code is None else SURVIVORS if _outlived(members) else _outcome(work, code, is_early=is_early)
    line = said[-1] if said else ""
    return row_of(case, outcome, code=code, line=line, left=left, seconds=round(moment, 2))


def _struck(process: psutil.Popen, number: int, moment: float) -> tuple[int | None, list[psutil.Process]]:
    """Exit code (None: it does not end), and the processes that were its own when the signal came."""
    try:
        return process.wait(moment), []  # it was faster than usual
    except psutil.TimeoutExpired:
        members = family(process)[1:]
    process.send_signal(number)
    try:
        return process.wait(GRACE), members
    except psutil.TimeoutExpired:
        return None, members


def _said(process: psutil.Popen) -> list[str]:
    """The lines that it said; its own children may still hold the pipe, so not to the end of it."""
    lines: list[str] = process.stderr.read1().decode(errors="replace").splitlines()
    return lines


def _outlived(members: list[psutil.Process]) -> bool:
    """Whether some of them still work after a while; those are ended."""
    _, alive = psutil.wait_procs(members, ORPHAN_SECONDS)
    for member in alive:
        kill_family(member)
    return bool(alive)


def _outcome(work: Path, code: int, *, is_early: bool) -> str:
    """Whether each file is whole, and the exit code one of a command that was ended."""
    if not (_is_whole_model(work) and _is_whole_plan(work)):
        return MIXED
    return OK if code == 0 else KILLED if code in CODES or is_early else FAILED


def _is_whole_model(work: Path) -> bool:
    content = (work / OUTPUT).read_bytes()
    if content == OLD:
        return True
    try:
        onnx.checker.check_model(onnx.load_from_string(content))
    except Exception:
        return False
    return True


def _is_whole_plan(work: Path) -> bool:
    """The old one, or one that belongs to the model beside it: the model is there before its plan."""
    if (work / PLAN).read_bytes() == OLD:
        return True
    try:
        plan = read_plan(work / PLAN)
    except RematError:
        return False
    return plan.output.sha256 == hashlib.sha256((work / OUTPUT).read_bytes()).hexdigest()


def _left(case: Case, place: Path) -> tuple[str, ...]:
    """What lies about; a process that is killed outright cannot tidy up."""
    time.sleep(0.2 if case.action != "KILL" else 0.0)
    folders = {name: place / name for name in ("home", "temporary", "work")}
    return () if case.action == "KILL" else left_in(folders, {SOURCE, OUTPUT, PLAN}, code=0)
