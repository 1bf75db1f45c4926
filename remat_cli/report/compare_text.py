"""A comparison of solvers as text: a table per budget, best first."""

from __future__ import annotations

from textwrap import TextWrapper

from remat_cli.core.budget import describe_bytes
from remat_cli.core.units import format_bytes
from remat_cli.report.compare_report import ComparedBudget, CompareReport, CompareRun
from remat_cli.report.style import Style, columns, percent, plural

HEAD = ["", "solver", "status", "peak", "overhead", "bound", "space", "seconds"]
BEST_MARK = "*"


def compare_lines(report: CompareReport, style: Style) -> list[str]:
    """What was compared, a table per budget, and the solvers that do not apply."""
    lines = _heading(report, style)
    for budget in report.budgets:
        lines += ["", *_budget_lines(report, budget, style)]
    if report.not_applicable:
        lines += ["", "does not apply:", *_reason_lines(report, style)]
    lines += ["", f"{BEST_MARK} least time; a status or a bound holds in its space only (see docs/solvers.md)"]
    if report.picture is not None:
        lines += [f"picture {report.picture}"]
    if report.missing_runs:
        cut = f"interrupted: {plural(report.missing_runs, 'run')} had not ended"
        lines += [style.paint(cut, "warn")]
    return lines


def _heading(report: CompareReport, style: Style) -> list[str]:
    name = report.model or report.instance or ""
    ops = f"({plural(report.ops, 'op')} on {report.device}, order {report.order})"
    each = f"{report.time_limit_seconds:g} s and {plural(report.run_threads, 'thread')} for each run"
    fixed = f", of which {format_bytes(report.fixed_bytes)} fixed" if report.fixed_bytes else ""
    return [
        f"{style.paint(name, 'strong')}  {ops}",
        f"baseline peak {describe_bytes(report.baseline_peak_bytes)}{fixed}",
        f"{plural(len(report.runs), 'run')} in {report.seconds:.1f} s: at most {each}, seed {report.seed}",
    ]


def _reason_lines(report: CompareReport, style: Style) -> list[str]:
    """Each reason once, after those whom it concerns."""
    solvers: dict[str, list[str]] = {}
    for entry in report.not_applicable:
        solvers.setdefault(entry.reason, []).append(entry.solver)
    texts = [f"{', '.join(names)}: {reason}" for reason, names in solvers.items()]
    wrapper = TextWrapper(style.width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def _budget_lines(report: CompareReport, budget: ComparedBudget, style: Style) -> list[str]:
    heading = style.paint(f"budget {budget.text}", "strong") + f" = {describe_bytes(budget.bytes)}"
    runs = report.runs_at(budget.text)
    if budget.bytes < report.floor_bytes:
        floor = f"no schedule of whole ops needs less than {describe_bytes(report.floor_bytes)}"
        return [heading, "  " + style.paint("infeasible", "bad") + f": {floor}"]
    if not runs:
        return [heading, "  no run had ended"]
    best = runs[0].time
    return [heading, *columns([HEAD, *(_row(run, best) for run in runs)], "<<<>>><>", indent=" ")]


def _row(run: CompareRun, best: int | None) -> list[str]:
    is_best = run.has_plan and run.time == best
    return [
        BEST_MARK if is_best else "",
        run.solver,
        run.status.replace("_", " "),
        "-" if run.peak_bytes is None else format_bytes(run.peak_bytes),
        "-" if not run.has_plan else percent(run.overhead_percent),
        "-" if run.lower_bound_percent is None else percent(run.lower_bound_percent),
        run.space if run.status != "not_found" or run.lower_bound_percent is not None else "-",
        f"{run.seconds:.2f}",
    ]
