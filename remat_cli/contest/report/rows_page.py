"""The page of a file of rows, which a sweep or a bench writes."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Final

from remat_cli.base.errors import ConfigError, ModelError
from remat_cli.base.units import format_bytes
from remat_cli.contest.report.bench_run import BenchRun, read_runs
from remat_cli.contest.report.sweep_report import SweepRow, as_curve, rows_in
from remat_cli.report.page.values import Page, PageTable, Point

ENDING: Final = ".sweep.jsonl"


def rows_page(path: Path) -> Page:
    """What the rows say: what each budget costs, or what each solver found.

    Raises:
        ModelError: they are rows of neither.
    """
    try:
        rows = rows_in(path)
    except (OSError, ConfigError):
        return _bench_page(path, read_runs(path))
    if not rows:
        raise ModelError(f"{path} has no rows yet: run `remat sweep` or `remat bench` to its end")
    return _sweep_page(path, as_curve(rows))


def _sweep_page(path: Path, rows: Sequence[SweepRow]) -> Page:
    """A line for each budget, and a point for each plan that no other beats."""
    plans: dict[tuple[int, float], list[str]] = {}  # several budgets may have the same one
    for row in rows:
        if row.on_curve and row.peak_bytes is not None and row.overhead_percent is not None:
            plans.setdefault((row.peak_bytes, row.overhead_percent), []).append(row.case)
    points = tuple(Point(held, percent, ", ".join(cases)) for (held, percent), cases in sorted(plans.items()))
    cells = tuple(
        (
            row.case,
            "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
            "" if row.process_bytes is None else format_bytes(row.process_bytes),
            _percent(row.overhead_percent),
            _percent(row.measured_overhead_percent),
            row.message or ("on the curve" if row.on_curve else ""),
        )
        for row in rows
    )
    heads = ("budget", "live", "process", "time, promised", "time, measured", "")
    return Page(
        title=str(path),
        verdict="",
        summary=f"what {len(rows)} budgets cost; on the curve is what no other row beats in both memory and time",
        curve=points,
        tables=(PageTable(title="Budgets", heads=heads, rows=cells),),
        commands=(_sweep_command(path),),
    )


def _sweep_command(path: Path) -> str:
    """What goes on with a sweep; a file of the usual name says which model it is of."""
    model = path.with_name(f"{path.name.removesuffix(ENDING)}.onnx")
    named = f"remat sweep {quote(str(model))} --resume"
    return named if path.name.endswith(ENDING) else f"remat sweep MODEL --resume -o {quote(str(path))}"


def _bench_page(path: Path, runs: Sequence[BenchRun]) -> Page:
    """A line for each run."""
    cells = tuple(
        (
            run.instance,
            run.solver,
            run.status,
            "" if run.peak_bytes is None else format_bytes(run.peak_bytes),
            _percent(run.overhead_percent),
            _percent(run.lower_bound_percent),
            "" if run.seconds is None else f"{run.seconds:.1f} s",
        )
        for run in runs
    )
    heads = ("instance", "solver", "status", "peak", "time", "proved least", "took")
    return Page(
        title=str(path),
        verdict="",
        summary=f"{len(runs)} runs of solvers on instances",
        tables=(PageTable(title="Runs", heads=heads, rows=cells),),
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f} %"
