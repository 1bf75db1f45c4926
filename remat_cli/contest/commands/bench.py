"""`remat bench` on one page: list the runs, skip those already in the file, run the others, write each as it ends."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import atomic_write
from remat_cli.base.progress import Progress
from remat_cli.contest.bench_file import Overrides, Target, load_bench
from remat_cli.contest.bench_request import BenchRequest, append, forget, make_ready, runs_so_far
from remat_cli.contest.report.bench_run import (
    BenchCase,
    BenchReport,
    BenchRun,
    TracePoint,
    case_key,
    encode_run,
    of_suites,
    read_runs,
)
from remat_cli.contest.runner import run_case

LIVE_SECONDS = 5.0  # between two reports of one run's progress: a log should not get hundreds of lines

Attempt: TypeAlias = Callable[[BenchCase], BenchRun]


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
            forget(request.results, request.overrides.only)
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
    session = _Session(results, {case_key(run): run for run in runs_so_far(results)}, progress)
    make_ready(results)
    try:
        for number, target in enumerate(bench.targets, 1):
            session.run(target, f"{number}/{len(bench.targets)}")
    except KeyboardInterrupt:
        progress.note(f"{session.new_runs} new runs are in {results}; the same command with --resume goes on")
        raise
    runs = of_suites(runs_so_far(results), overrides.only)
    return BenchReport(results=str(results), runs=runs, new_runs=session.new_runs, skipped=bench.skipped)


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
        from remat_cli.contest.report.bench_table import bench_markdown

        atomic_write(markdown, bench_markdown(report).encode())
        written.append(str(markdown))
    if svg is not None:
        from remat_cli.contest.report.bench_plot import bench_pictures

        try:
            svg.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"folder {svg} cannot be made: {error.strerror or error}") from None
        for name, picture in bench_pictures(report.runs):
            atomic_write(svg / name, picture)
            written.append(str(svg / name))
    return msgspec.structs.replace(report, written=tuple(written))


@dataclass
class _Session:
    """The runs of a bench, one after the other, with those that the file held before."""

    results: Path
    known: dict[bytes, BenchRun]
    progress: Progress
    new_runs: int = 0
    shown: float = -math.inf

    def run(self, target: Target, place: str) -> None:
        """Run a target; a tight one until its smallest budget is known."""
        attempt = partial(self._run_once, path=target.path, place=place)
        if target.step is None:
            attempt(target.case)
        else:
            find_smallest_budget(target.case, target.step, attempt)

    def _run_once(self, case: BenchCase, path: Path, place: str) -> BenchRun:
        """Take a run from the results file, or make it and append it there."""
        key = case_key(case)
        if key not in self.known:
            what = f"{case.instance} {case.budget} {case.order}, {case.label}, seed {case.seed}"
            self.progress.stage(f"{place}  {case.suite}: {what}")
            self.shown = -math.inf
            run = self.known[key] = run_case(case, path, self._show)
            append(self.results, encode_run(run))
            self.new_runs += 1
            if run.message:
                self.progress.note(f"{what}: {run.status}: {run.message}")
            else:
                self.progress.incumbent(run.overhead_percent, run.lower_bound_percent)
        return self.known[key]

    def _show(self, point: TracePoint) -> None:
        """Report a better plan or bound unless one was reported a moment ago."""
        if time.monotonic() - self.shown > LIVE_SECONDS:
            self.shown = time.monotonic()
            self.progress.incumbent(point[1], point[2])


def find_smallest_budget(case: BenchCase, step: float, attempt: Attempt) -> None:
    """Bisect the fractions of the baseline's peak, multiples of `step`, between 0 (impossible) and 1 (fits).

    Every attempt is a run of its own, so that the results file alone says what was found. A solver that finds a plan
    under one budget is taken to find one under any larger one.
    """
    unit = Fraction(str(step))
    too_small, enough = 0, math.ceil(1 / unit)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        # `0.85`, never in exponent form, and with a point, which makes it a fraction
        budget = f"{float(middle * unit):.6f}".rstrip("0")
        if attempt(msgspec.structs.replace(case, budget=budget)).has_plan:
            enough = middle
        else:
            too_small = middle
