"""The classic systems of the literature on the graphs of their papers, beside `auto` and the proved optimum.

`make bench-classics` runs what `configs/bench/classics.yaml` asks for and the results do not hold yet, two runs at a
time, each in a process of its own and with one thread, and writes the tables and pictures again. `--only SUITE` runs a
part; `--time-limit` replaces all limits of what is run; `--report` runs nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import click
import msgspec

from bench.classics_plot import ratio_svg
from bench.classics_report import markdown
from bench.classics_stats import RATIO, Rows, networks_of
from remat_cli.base.files import atomic_write
from remat_cli.contest.bench_file import Overrides, Target, load_bench
from remat_cli.contest.report.bench_run import BenchCase, BenchRun, case_key, encode_run, read_runs
from remat_cli.contest.runner import run_case
from remat_cli.settings.parsers import parse_seconds

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "bench" / "classics.yaml"
RESULTS = ROOT / "bench" / "results" / "classics.jsonl"
UNFINISHED = frozenset({"crashed", "overran"})


def slot(case: BenchCase) -> bytes:
    """The place of a run in the tables: what was asked, whatever the time limit."""
    return case_key(msgspec.structs.replace(case, time_limit_seconds=0.0))


def rows_of(results: Path) -> tuple[BenchRun, ...]:
    """The rows of a results file; none where there is no file."""
    return read_runs(results) if results.exists() else ()


def missing(targets: Iterable[Target], rows: Iterable[BenchRun]) -> list[Target]:
    """Targets without a row, or whose process died."""
    known = {slot(row) for row in rows if row.status not in UNFINISHED}
    return [target for target in targets if slot(target.case) not in known]


def in_order(targets: Iterable[Target], rows: Iterable[BenchRun]) -> list[BenchRun]:
    """The latest row of each target, in the order of the bench file; what it no longer asks for is left out."""
    latest = {slot(row): row for row in rows}
    return [latest[key] for key in (slot(target.case) for target in targets) if key in latest]


@dataclass
class Board:
    """Takes rows from runs that end at the same time: each is on the disk before it is told."""

    results: Path
    count: int
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, target: Target) -> BenchRun:
        """Run one target in a process of its own and keep its row."""
        row = run_case(target.case, target.path, lambda point: None)
        with self.lock:
            self.done += 1
            with self.results.open("ab") as file:
                file.write(encode_run(row))
            click.echo(f"{self.done}/{self.count}  {told(row)}", err=True)
        return row


def told(row: BenchRun) -> str:
    """One line about a row."""
    what = f"{row.suite}: {row.instance} {row.budget} {row.order} {row.label}: {row.status}"
    figures = [] if row.overhead_percent is None else [f"{row.overhead_percent:.3f} %"]
    figures += [] if row.seconds is None else [f"{row.seconds:.1f} s"]
    return ", ".join([what, *figures, *([row.message] if row.message else [])])


def run_all(targets: Sequence[Target], results: Path, jobs: int) -> None:
    """Run so many at a time; after Ctrl-C the rows of what had ended are there, and the processes end with us."""
    board = Board(results, len(targets))
    pool = ThreadPoolExecutor(jobs)
    try:
        for one in as_completed([pool.submit(board.run, target) for target in targets]):
            one.result()
    except KeyboardInterrupt:
        click.echo(f"{board.done} new rows are in {results}; the same command goes on", err=True)
        os._exit(130)  # an exit by exception would wait for the runs, minutes
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def write_report(rows: Rows, results: Path) -> str:
    """Write the tables and pictures beside the rows; the text of the tables."""
    text = markdown(rows, rotor_rows(results.with_name("rotor.jsonl")))
    atomic_write(results.with_suffix(".md"), text.encode())
    folder = results.with_suffix("")
    folder.mkdir(exist_ok=True)
    for network in networks_of(rows, RATIO):
        atomic_write(folder / f"{network}.svg", ratio_svg(rows, network))
    return text


def rotor_rows(path: Path) -> list[Mapping[str, object]]:
    """What `bench/rotor.py` measured: a row a line; none where it has not run."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line) for line in lines]


@click.command()
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="Rows; tables and pictures beside.")
@click.option("--only", multiple=True, help="A suite, an instance and a solver, or some of them: ratio,vgg16,rotor.")
@click.option("--time-limit", help="Replaces every limit, such as 10s.")
@click.option("--jobs", default=1, show_default=True, help="Runs at a time.")
@click.option("--report", is_flag=True, help="Run nothing; write the tables again.")
def main(results: Path, only: tuple[str, ...], time_limit: str | None, jobs: int, report: bool) -> None:
    """Run what is missing, and write rows, tables and pictures."""
    if not report:
        limit = None if time_limit is None else parse_seconds(time_limit)
        asked = load_bench(CONFIG, Overrides(time_limit=limit))
        for reason in asked.skipped:
            click.echo(f"skipped {reason}", err=True)
        if not asked.targets:
            return
        results.parent.mkdir(parents=True, exist_ok=True)
        wanted = [target for target in asked.targets if is_wanted(target.case, only)]
        run_all(missing(wanted, rows_of(results)), results, jobs)
        atomic_write(results, b"".join(map(encode_run, in_order(asked.targets, rows_of(results)))))
    write_report(rows_of(results), results)


def is_wanted(case: BenchCase, only: Sequence[str]) -> bool:
    """Whether one of these names it: a suite, the beginning of an instance, a label; with commas between."""
    return not only or any(all(_names(word, case) for word in words.split(",")) for words in only)


def _names(word: str, case: BenchCase) -> bool:
    return word in (case.suite, case.label) or case.instance.startswith(word)


if __name__ == "__main__":
    main()
