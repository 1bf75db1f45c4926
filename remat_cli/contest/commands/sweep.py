"""`remat sweep` on one page: a case for each budget and batch, rows kept as they come, the curve of all."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.files import atomic_write, check_target
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import settings_of
from remat_cli.contest.bench_request import append
from remat_cli.contest.report.sweep_plot import sweep_svg
from remat_cli.contest.report.sweep_report import SweepReport, SweepRow, as_curve, rows_in
from remat_cli.contest.sweep_cases import SweepRequest, parse_batches, parse_sweep_budgets, sweep_cases
from remat_cli.contest.sweep_run import SweepRun, beginner
from remat_cli.report.pictures.svg_chart import require_matplotlib
from remat_cli.settings.settings import Settings

DEFAULTS = {"verify": "fast"}
"""Of settings: bits and memory of each plan are checked, as quickly as that can be done."""


def sweep_words(model: Path, words: Mapping[str, Any], executor: str, resume: bool, progress: Progress) -> SweepReport:
    """Sweep as the keywords of a Python function ask for.

    Raises:
        RematError: a word makes no sense, and what `sweep` raises.
    """
    others = {word: value for word, value in words.items() if word not in ("budgets", "batch")}
    settings = settings_of(others, DEFAULTS)
    request = sweep_request(model, words["budgets"], words["batch"], executor, settings, is_resumed=resume)
    return sweep(request, settings, progress)


def sweep_request(
    model: Path, budgets: str, batch: str | None, executor: str, settings: Settings, *, is_resumed: bool
) -> SweepRequest:
    """Read the words of the command.

    Raises:
        ConfigError: a word makes no sense, or a file cannot be written.
        MissingDependency: a picture is asked for, but matplotlib is not installed.
    """
    results = settings.output or model.with_name(f"{model.stem}.sweep.jsonl")
    check_target(results, sources=(model,), overwrite=settings.force or is_resumed)
    if settings.svg is not None:
        check_target(settings.svg, sources=(model,), overwrite=settings.force or is_resumed)
        require_matplotlib()
    return SweepRequest(
        model=model,
        budgets=parse_sweep_budgets(budgets),
        batches=parse_batches(batch),
        executor=executor,
        results=results,
        is_resumed=is_resumed,
        svg=settings.svg,
    )


def sweep(request: SweepRequest, settings: Settings, progress: Progress) -> SweepReport:
    """Compile at every budget and batch, and tell what each costs; rows are in the file as soon as they are known.

    The first Ctrl-C ends with the rows that there are.

    Raises:
        InputError: the model, the settings or the results file cannot be used.
    """
    began = time.monotonic()
    cases = sweep_cases(request, settings)
    known = {row.key: row for row in rows_in(request.results)} if request.is_resumed else {}
    rows = [known[case.key] for case in cases if case.key in known and known[case.key].found != "lost"]
    done = {row.key for row in rows}
    atomic_write(request.results, b"".join(map(_line, rows)))
    progress.stage(stages.COMPARING)

    def keep(row: SweepRow) -> None:
        rows.append(row)
        progress.note(row.line)
        append(request.results, _line(row))

    with beginner(request.executor) as (begin, slots):
        missing = SweepRun(begin, slots, keep, progress).work([case for case in cases if case.key not in done])
    report = SweepReport(
        model=str(request.model),
        results=str(request.results),
        curve=as_curve(rows),
        new_rows=len(rows) - len(done),
        missing=missing,
        picture=None if request.svg is None else str(request.svg),
        seconds=time.monotonic() - began,
    )
    if request.svg is not None:
        atomic_write(request.svg, sweep_svg(report))
    return report


def _line(row: SweepRow) -> bytes:
    return msgspec.json.encode(row) + b"\n"
