"""`remat compare` on one page: one problem, every solver that takes it, every budget, a process for each run."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import BrokenSolver, ConfigError, RematError
from remat_cli.base.files import atomic_write
from remat_cli.base.progress import Progress
from remat_cli.commands.asked import settings_of
from remat_cli.compiling.page_answer import abstract_terms, terms_of
from remat_cli.compiling.prepare import prepare, work_folder
from remat_cli.compiling.profile import profile_model
from remat_cli.compiling.solve import prepare_kernels, refusal
from remat_cli.contest.comparison import (
    SECONDS,
    CompareRequest,
    Comparison,
    Subject,
    compare_request,
    refuse_model_flags,
)
from remat_cli.contest.report.compare_report import CompareReport, NotApplicable
from remat_cli.contest.runner import run_side_by_side
from remat_cli.contest.solving import made
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.settings.devices import only_device
from remat_cli.settings.settings import Settings

TOLERANCE = 1e-9  # of percentages, which are rounded; times are integers


def compare_words(
    file: Path, budgets: str | None, solvers: str | None, words: Mapping[str, Any], progress: Progress
) -> CompareReport:
    """Compare what the keywords of a Python function ask for.

    Raises:
        RematError: a word makes no sense, and what `compare` raises.
    """
    refuse_model_flags(file, words)
    settings = settings_of(words, {"time_limit": SECONDS})
    return compare(compare_request(file, budgets, solvers, settings), settings, progress)


def compare(request: CompareRequest, settings: Settings, progress: Progress) -> CompareReport:
    """Run every solver that takes the problem at every budget; each run is judged, and none is given up silently.

    Raises:
        InputError: the file or the settings cannot be used, or none of the solvers takes the problem.
        RematError: a run failed: a solver was wrong about its schedule, or its process died.
        KeyboardInterrupt: Ctrl-C before any run had ended.
    """
    started = time.monotonic()
    subject = _subject(request, settings, progress)
    # The solvers that do not take the problem, and why.
    chosen = {name: made(name, options, may_page=subject.may_page) for name, options in request.solvers.items()}
    reasons = {name: refusal(subject.problem, solver, subject.names) for name, solver in chosen.items()}
    refused = {name: NotApplicable(name, reason) for name, reason in reasons.items() if reason is not None}
    solvers = {name: options for name, options in request.solvers.items() if name not in refused}
    if not solvers:
        raise ConfigError(f"no solver applies: {'; '.join(f'{one.solver}: {one.reason}' for one in refused.values())}")
    for name, options in solvers.items():
        prepare_kernels(made(name, options, may_page=subject.may_page), subject.problem, progress)
    comparison = Comparison(request, settings, subject, solvers)
    jobs = [comparison.job(*one) for one in comparison.open]
    report = comparison.report(run_side_by_side(jobs, comparison.slots, progress))
    if report.missing_runs and not report.runs:
        raise KeyboardInterrupt
    check_agreement(report)
    seconds = time.monotonic() - started
    report = msgspec.structs.replace(report, not_applicable=tuple(refused.values()), seconds=seconds)
    if request.svg is None or report.missing_runs:
        return report
    if not any(run.has_plan for run in report.runs):
        progress.note(f"{request.svg} is not written: there is no plan to draw")
        return report
    from remat_cli.contest.report.compare_plot import compare_svg

    try:
        atomic_write(request.svg, compare_svg(report))
    except RematError as error:
        return msgspec.structs.replace(report, picture_error=str(error))
    return msgspec.structs.replace(report, picture=str(request.svg))


def _subject(request: CompareRequest, settings: Settings, progress: Progress) -> Subject:
    """Make the problem that all runs share: from an instance, or from a model that is measured."""
    if request.is_instance:
        instance = load_instance(request.path)
        problem = instance_problem(instance)
        terms = None if settings.spill is None else abstract_terms(problem, settings.spill)
        return Subject(problem, instance.names, terms)
    only_device(settings.devices)
    with work_folder(request.path, settings.work_dir, settings.memory_limit_bytes) as work:
        prepared = prepare(request.path, settings.conditions, work, progress)
        platform = profile_model(prepared, settings.conditions, progress)
    problem = platform.problem()
    return Subject(problem, tuple(op.name for op in prepared.graph.ops), terms_of(platform, problem))


def check_agreement(report: CompareReport) -> None:
    """Hold what one solver proved against what the others found.

    Raises:
        BrokenSolver: a plan is better than the best that another solver says there is.
    """
    for budget in report.budgets:
        plans = [run for run in report.runs_at(budget.text) if run.has_plan]
        if not plans:
            continue
        best, bound = plans[0], report.bound_percent(budget.text)
        found = f"the plan of {best.solver} at budget {budget.text}"
        if bound is not None and best.overhead_percent is not None and best.overhead_percent < bound - TOLERANCE:
            raise BrokenSolver(f"{found} has {best.overhead_percent:+.4f} %, less than the proved least {bound:+.4f} %")
        if budget.bytes < report.floor_bytes or report.is_impossible(budget.text):
            raise BrokenSolver(f"{found} is one that was proved impossible")
