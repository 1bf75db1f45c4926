"""`remat bench` on one page: list the runs, skip those already in the file, run the others, write each as it ends."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import atomic_write
from remat_cli.base.progress import Progress
from remat_cli.contest.bench_file import Bench, Overrides, Target, load_bench
from remat_cli.contest.bench_request import BenchRequest
from remat_cli.contest.case_process import run_case
from remat_cli.report.bench_run import (
    BenchCase,
    BenchReport,
    BenchRun,
    TracePoint,
    case_key,
    encode_run,
    of_suites,
    read_runs,
)

LIVE_SECONDS = 5.0  # between two reports of one run's progress: a log should not get hundreds of lines

Runner: TypeAlias = Callable[[BenchCase], BenchRun]


def bench(request: BenchRequest, progress: Progress) -> BenchReport:
    """Do what one command asks for: run, or read what was run; then write tables and pictures.

    Raises:
        RematError: a file cannot be used or written.
        KeyboardInterrupt: Ctrl-C; every run that had ended is in the file.
    """
    if request.bench is None:
        report = read_bench(request.results, request.overrides.only)
    else:
        if not request.is_resumed and request.results.exists():
            load_bench(request.bench, request.overrides)  # a wrong bench file must not cost the old results
            _forget(request.results, request.overrides.only)
        report = run_bench(request.bench, request.results, request.overrides, progress)
    return write_bench(report, request.markdown, request.svg)


def run_bench(file: Path, results: Path, overrides: Overrides, progress: Progress) -> BenchReport:
    """Run what a bench file asks for; runs that the results file holds already are not run again.

    Raises:
        InputError: the bench file, or what is in the results file, cannot be used.
        RematError: the results file cannot be written.
        KeyboardInterrupt: Ctrl-C; every run that had ended is in the file.
    """
    bench = load_bench(file, overrides)
    known = _runs_so_far(results)
    _check_writable(results)
    _cut_broken_line(results)
    session = _Session(bench, results, {case_key(run): run for run in known}, progress)
    try:
        session.run()
    except KeyboardInterrupt:
        progress.note(f"{session.new_runs} new runs are in {results}; the same command with --resume goes on")
        raise
    return BenchReport(
        results=str(results),
        runs=of_suites(_runs_so_far(results), overrides.only),
        new_runs=session.new_runs,
        skipped=bench.skipped,
    )


def read_bench(results: Path, only: tuple[str, ...]) -> BenchReport:
    """What a results file holds.

    Raises:
        InputError: it cannot be read, holds no runs, or none of a suite that `only` names.
    """
    runs = read_runs(results)
    names = list(dict.fromkeys(run.suite for run in runs))
    for name in only:
        if name not in names:
            raise ConfigError(f"{results} has no runs of a suite '{name}'; there are: {', '.join(names) or 'none'}")
    if not runs:
        raise ConfigError(f"{results} holds no runs")
    return BenchReport(results=str(results), runs=of_suites(runs, only))


def write_bench(report: BenchReport, markdown: Path | None, svg: Path | None) -> BenchReport:
    """Write the tables as Markdown and a picture per instance and budget; the report with their paths.

    Raises:
        MissingDependency: pictures need matplotlib.
        ConfigError: a file cannot be written.
    """
    written = []
    if markdown is not None:
        from remat_cli.report.bench_table import bench_markdown

        atomic_write(markdown, bench_markdown(report).encode())
        written.append(str(markdown))
    if svg is not None:
        from remat_cli.report.bench_plot import bench_pictures

        _make_folder(svg)
        for name, picture in bench_pictures(report.runs):
            atomic_write(svg / name, picture)
            written.append(str(svg / name))
    return msgspec.structs.replace(report, written=tuple(written))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder {folder} cannot be made: {error.strerror or error}") from None


def _runs_so_far(results: Path) -> tuple[BenchRun, ...]:
    """The runs of a results file; none if it is not there yet, or when all suites are skipped."""
    return read_runs(results) if results.exists() else ()


def _check_writable(results: Path) -> None:
    """Find out before the first run, which may take minutes, and leave no empty file behind."""
    was_there = results.exists()
    with _append_to(results):
        pass
    if not was_there:
        results.unlink()


@contextlib.contextmanager
def _append_to(results: Path) -> Iterator[BinaryIO]:
    try:
        with results.open("ab") as file:
            yield file
    except OSError as error:
        raise RematError(f"{results} cannot be written: {error.strerror or error}") from None


def _forget(results: Path, only: tuple[str, ...]) -> None:
    """Remove the runs of these suites from a results file; all of them when no suites are named."""
    if only:
        kept = [run for run in read_runs(results) if run.suite not in only]
        atomic_write(results, b"".join(map(encode_run, kept)))
    else:
        results.unlink()


@dataclass
class _Session:
    """The runs of a bench in order, with what the file held before."""

    bench: Bench
    results: Path
    known: dict[bytes, BenchRun]
    progress: Progress
    new_runs: int = 0

    def run(self) -> None:
        """Run every target; a tight one until its smallest budget is known."""
        for number, target in enumerate(self.bench.targets, 1):
            place = f"{number}/{len(self.bench.targets)}"

            def run(case: BenchCase, target: Target = target, place: str = place) -> BenchRun:
                return self._run_once(case, target.path, place)

            if target.step is None:
                run(target.case)
            else:
                find_smallest_budget(target.case, target.step, run)

    def _run_once(self, case: BenchCase, path: Path, place: str) -> BenchRun:
        """A run from the file, or a new one, which then is in the file."""
        key = case_key(case)
        if key not in self.known:
            self.progress.stage(f"{place}  {case.suite}: {case.instance} {_what(case)}")
            live = _Live(self.progress)
            run = run_case(case, path, live.show)
            self._append(run)
            self.known[key] = run
            self._tell(run)
        return self.known[key]

    def _append(self, run: BenchRun) -> None:
        """One more line, on the disk before the next run begins."""
        with _append_to(self.results) as file:
            file.write(encode_run(run))
            file.flush()
            os.fsync(file.fileno())
        self.new_runs += 1

    def _tell(self, run: BenchRun) -> None:
        if run.message:
            self.progress.note(f"{run.instance} {_what(run)}: {run.status}: {run.message}")
        else:
            self.progress.incumbent(run.overhead_percent, run.lower_bound_percent)


def _what(case: BenchCase) -> str:
    """`0.9 keep, auto, seed 3`."""
    return f"{case.budget} {case.order}, {case.label}, seed {case.seed}"


@dataclass
class _Live:
    """Progress of one run, now and then."""

    progress: Progress
    shown: float = -math.inf

    def show(self, point: TracePoint) -> None:
        """Pass a point on unless one was shown a moment ago."""
        if time.monotonic() - self.shown > LIVE_SECONDS:
            self.shown = time.monotonic()
            self.progress.incumbent(point[1], point[2])


def find_smallest_budget(case: BenchCase, step: float, run: Runner) -> None:
    """Bisect the fractions of the baseline's peak, multiples of `step`, between 0 (impossible) and 1 (fits).

    Every attempt is a run of its own, so that the results file alone says what was found. A solver that finds a plan
    under one budget is taken to find one under any larger one.
    """
    unit = Fraction(str(step))
    too_small, enough = 0, math.ceil(1 / unit)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        attempt = msgspec.structs.replace(case, budget=_decimal(middle * unit))
        if run(attempt).has_plan:
            enough = middle
        else:
            too_small = middle


def _decimal(fraction: Fraction) -> str:
    """`0.85`, never in exponent form, and with a point, which makes it a fraction."""
    return f"{float(fraction):.6f}".rstrip("0")


def _cut_broken_line(results: Path) -> None:
    """Remove a last line without its end, left by a kill, so that the next line stands alone."""
    if not results.exists():
        return
    data = results.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        atomic_write(results, whole)
