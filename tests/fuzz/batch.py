"""Many cases, one after the other, in a process beside this one: it is ended where it hangs and begun anew after.

The product runs within that process, as its command line does, in folders of its own, so that what it leaves is seen.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from remat_cli.base.processes import ProcessDied, Tell, started
from tests.fuzz.outcomes import CRASH, HANG, NOT_LOADED, Case, Row, outcome_of, row_of
from tests.quick_processes import QuickProcesses

AT_ONCE = 100  # cases that a process does before a new one takes over
TIME_LIMIT = 180.0  # seconds of a case
MEMORY_LIMIT = 12 * 2**30  # bytes of address space
OUTPUT, PLAN, FAILED_OUTPUT = "out.onnx", "out.plan.json", "out.failed.onnx"
NO_WORDS = ("no plan within", "VERIFICATION FAILED", "impossible", "needs at least")

Prepare = Callable[[Case, Path, Path], "list[str] | None"]
"""Puts what a case needs into a folder, with materials at hand; words for remat, or None: the runtime refuses it."""
Judge = Callable[[Case, str], str]
"""Corrects the class of an outcome."""


@dataclass(frozen=True)
class Job:
    """What the other process does: cases of one kind."""

    prepare: Prepare
    judge: Judge
    cases: tuple[Case, ...]
    place: Path
    materials: Path


@dataclass
class Watch:
    """What is known of the process: the case it is at, since when, and the rows so far."""

    rows: list[Row] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        """Take a row."""
        self.rows.append(msgspec.json.decode(text, type=Row))
        self.since = time.monotonic()


def rows_of(
    cases: Sequence[Case], prepare: Prepare, judge: Judge, materials: Path, limit: float = TIME_LIMIT
) -> Iterator[Row]:
    """A row for each case, in order."""
    rest = list(cases)
    while rest:
        done = _some(Job(prepare, judge, tuple(rest[:AT_ONCE]), Path(), materials), limit)
        yield from done
        del rest[: len(done)]


def _some(job: Job, limit: float) -> list[Row]:
    """Rows of the first cases: all of them, or up to one at which the process hangs or dies."""
    watch = Watch()
    with (
        tempfile.TemporaryDirectory(prefix="fuzz_", ignore_cleanup_errors=True) as name,
        started(do_cases, replace(job, place=Path(name))) as worker,
    ):
        while not worker.has_ended(watch.tell, 1.0):
            if time.monotonic() - watch.since > limit:
                return [*watch.rows, row_of(job.cases[len(watch.rows)], HANG, seconds=limit)]
        try:
            worker.result()
        except ProcessDied as error:
            return [*watch.rows, row_of(job.cases[len(watch.rows)], CRASH, line=str(error), code=error.code)]
    return watch.rows


def do_cases(job: Job, tell: Tell) -> None:
    """The other process: each case in clean folders, its row told when it is done; it forks those that run models."""
    with QuickProcesses().on():
        _do_cases(job, tell)


def _do_cases(job: Job, tell: Tell) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    folders = {name: job.place / name for name in ("home", "temporary", "work")}
    os.environ |= {
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["temporary"]),
        "REMAT_CACHE_DIR": str(job.place / "cache"),
    }
    tempfile.tempdir = str(folders["temporary"])
    for case in job.cases:
        clean(folders.values())
        started_at = time.monotonic()
        words = job.prepare(case, folders["work"], job.materials)
        if words is None:
            row = row_of(case, NOT_LOADED)
        else:
            clean((folders["home"], folders["temporary"]))
            given = {path.name for path in folders["work"].iterdir()}
            code, line = run_remat(words)
            outcome = job.judge(case, outcome_of(case, code, line))
            left = left_in(folders, given, code=code)
            row = row_of(
                case, outcome, code=code, line=line, left=left, seconds=round(time.monotonic() - started_at, 2)
            )
        tell(msgspec.json.encode(row).decode())


def clean(folders: Iterable[Path]) -> None:
    """Make folders, empty."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def run_remat(words: Sequence[str]) -> tuple[int | None, str]:
    """Exit code (None: an exception came through) and last line on stderr of a command."""
    from remat_cli.cli import main

    told, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
        try:
            code: int | None = main([*words, "--quiet"])
        except BaseException as error:
            code, lines = None, traceback.format_exception_only(error)
            said.write("".join(lines))
    complaints = [line for line in said.getvalue().splitlines() if line.strip()]
    return code, complaints[-1] if complaints else answer_in(told.getvalue().splitlines()) if code else ""


def answer_in(lines: Sequence[str]) -> str:
    """Why a report says no: the line that says so, and what is below it; empty where no line does."""
    for index, line in enumerate(lines):
        if any(words in line for words in NO_WORDS):
            return " ".join(part.strip() for part in lines[index : index + 2])
    return ""


def left_in(folders: dict[str, Path], given: set[str], code: int | None) -> tuple[str, ...]:
    """What lies about that should not: anything temporary, and results of a run that has none."""
    found = [
        f"{name}/{path.relative_to(folders[name])}" for name in ("home", "temporary") for path in leaves(folders[name])
    ]
    results = {0: {OUTPUT, f"{OUTPUT}.data", PLAN}, 4: {FAILED_OUTPUT}, 5: {FAILED_OUTPUT}}
    wanted = given | results.get(-1 if code is None else code, set())
    found += [f"work/{path.name}" for path in folders["work"].iterdir() if path.name not in wanted]
    return tuple(sorted({unnumbered(name) for name in found}))


def leaves(folder: Path) -> Iterator[Path]:
    """Files, and folders with nothing in them."""
    for path in folder.rglob("*"):
        if not path.is_dir() or not any(path.iterdir()):
            yield path


def unnumbered(name: str) -> str:
    """A name without what is drawn by chance in it."""
    name = re.sub(r"\b([a-z]+_|tmp)[a-z0-9_]{8}(?=/|$)", r"\1*", name)
    return re.sub(r"\.[0-9a-f]{8}\.", ".*.", name)
