"""The results file of a bench while it grows: a line per run, on the disk before the next run begins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from remat_cli.base.errors import RematError
from remat_cli.base.files import atomic_write
from remat_cli.report.bench_run import BenchRun, encode_run, read_runs


def runs_so_far(results: Path) -> tuple[BenchRun, ...]:
    """The runs of a results file; none if it is not there yet, or when all suites are skipped."""
    return read_runs(results) if results.exists() else ()


def forget(results: Path, only: tuple[str, ...]) -> None:
    """Remove the runs of these suites from a results file; all of them when no suites are named."""
    if only:
        kept = [run for run in read_runs(results) if run.suite not in only]
        atomic_write(results, b"".join(map(encode_run, kept)))
    else:
        results.unlink()


def make_ready(results: Path) -> None:
    """Find out before the first run, which may take minutes, whether lines can be added, and make that safe.

    A last line without its end, left by a kill, is removed; no empty file is left behind.

    Raises:
        RematError: the file cannot be written.
    """
    was_there = results.exists()
    with _open_end(results):
        pass
    if not was_there:
        results.unlink()
        return
    data = results.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        atomic_write(results, whole)


def append(results: Path, run: BenchRun) -> None:
    """One more line.

    Raises:
        RematError: the file cannot be written.
    """
    with _open_end(results) as file:
        file.write(encode_run(run))
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _open_end(results: Path) -> Iterator[BinaryIO]:
    try:
        with results.open("ab") as file:
            yield file
    except OSError as error:
        raise RematError(f"{results} cannot be written: {error.strerror or error}") from None
