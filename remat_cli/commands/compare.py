"""`remat compare` on one page: one problem, every solver that takes it, every budget, a process for each run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import BrokenSolver, ConfigError, RematError
from remat_cli.base.files import atomic_write
from remat_cli.base.progress import Progress
from remat_cli.contest.compare_request import CompareRequest
from remat_cli.contest.crew import run_side_by_side
from remat_cli.contest.worker import REPORTED, Job
from remat_cli.core.budget import resolve
from remat_cli.core.floor import working_set_floor
from remat_cli.core.instance import instance_problem, load_instance
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem, make_problem
from remat_cli.core.simulate import baseline
from remat_cli.report.bench_run import BenchCase, BenchRun
from remat_cli.report.compare_report import ComparedBudget, CompareReport, CompareRun, NotApplicable
from remat_cli.report.report import solution_report
from remat_cli.settings.config import Config
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers.base import Limits
from remat_cli.stages.prepare import only_device, prepare, profile_prepared, work_folder
from remat_cli.stages.solve import prepare_kernels, refusal, solver_run

TOLERANCE = 1e-9  # of percentages, which are rounded; times are integers


@dataclass(frozen=True)
class Subject:
    """What is compared on: the problem, its ops' names, and its baseline."""

    problem: Problem
    names: tuple[str, ...]
    baseline: Plan

    @property
    def fixed_bytes(self) -> int:
        """What no plan changes."""
        return self.problem.memories[0].fixed_bytes


def compare(request: CompareRequest, config: Config, progress: Progress) -> CompareReport:
    """Run every solver that takes the problem at every budget; each run is judged, and none is given up silently.

    Raises:
        InputError: the file or the settings cannot be used, or none of the solvers takes the problem.
        RematError: a run failed: a solver was wrong about its schedule, or its process died.
        KeyboardInterrupt: Ctrl-C before any run had ended.
    """
    started = time.monotonic()
    subject = _subject(request, config, progress)
    refused = _refused(request, subject)
    solvers = {name: options for name, options in request.solvers.items() if name not in refused}
    if not solvers:
        raise ConfigError(f"no solver applies: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")
    for name, options in solvers.items():
        prepare_kernels(make_solver(name, options), subject.problem, progress)
    report = _Comparison(request, config, subject, solvers, progress).report()
    if report.missing_runs and not report.runs:
        raise KeyboardInterrupt
    check_agreement(report)
    report = msgspec.structs.replace(
        report,
        not_applicable=tuple(NotApplicable(name, why) for name, why in refused.items()),
        seconds=time.monotonic() - started,
    )
    return _with_picture(report, request.svg, progress)


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


def _subject(request: CompareRequest, config: Config, progress: Progress) -> Subject:
    """The one problem of all runs."""
    path = request.path
    if not request.is_instance:
        with work_folder(config) as work:
            device = only_device(config)
            prepared = prepare(path, config, work, progress)
            profile = profile_prepared(prepared, config, device, progress)
        problem = make_problem(prepared.graph, profile, 0)
        return Subject(problem, tuple(op.name for op in prepared.graph.ops), baseline(problem))
    instance = load_instance(path)
    problem = instance_problem(instance)
    return Subject(problem, instance.names, baseline(problem))


def _refused(request: CompareRequest, subject: Subject) -> dict[str, str]:
    """The solvers that do not take the problem, and why."""
    found = {name: refusal(subject.problem, name, opts, subject.names) for name, opts in request.solvers.items()}
    return {name: reason for name, reason in found.items() if reason is not None}


@dataclass(frozen=True)
class _Comparison:
    """What runs, and how its outcome is put together."""

    request: CompareRequest
    config: Config
    subject: Subject
    solvers: Mapping[str, Mapping[str, Any]]
    progress: Progress

    def report(self) -> CompareReport:
        """Run what can have a plan, and say of the rest that it cannot."""
        budgets = self._budgets()
        floor_bytes = working_set_floor(self.subject.problem).bytes[0]
        asked = [(budget, solver) for budget in budgets for solver in self.solvers]
        open_ = [(budget, solver) for budget, solver in asked if budget.bytes >= floor_bytes]
        slots = min(self.config.workers, len(open_)) or 1
        run_threads = self.config.workers // slots
        with _stored(self.subject.problem) as path:
            jobs = [Job(self._case(*one, run_threads), str(path), "problem") for one in open_]
            ended = run_side_by_side(jobs, slots, self.progress)
        known = {open_[number]: self._judged(run) for number, run in ended.items()}
        known |= {(budget, solver): self._impossible(budget, solver) for budget, solver in set(asked) - set(open_)}
        runs = tuple(known[one] for one in asked if one in known)
        return CompareReport(
            model=None if self.request.is_instance else str(self.request.path),
            instance=str(self.request.path) if self.request.is_instance else None,
            device=self.subject.problem.devices[0].name,
            ops=len(self.subject.problem.ops),
            order=self.config.order,
            budgets=budgets,
            time_limit_seconds=self.config.time_limit_seconds,
            threads=self.config.workers,
            run_threads=run_threads,
            seed=self.config.seed,
            baseline_peak_bytes=self.subject.baseline.peak,
            baseline_time=self.subject.baseline.time_ns,
            fixed_bytes=self.subject.fixed_bytes,
            floor_bytes=max([floor_bytes, *(run.floor_bytes for run in runs)]),
            runs=runs,
            missing_runs=len(asked) - len(runs),
        )

    def _budgets(self) -> tuple[ComparedBudget, ...]:
        """The budgets in total bytes."""
        device, scope = self.subject.problem.devices[0].name, self.config.budget_scope
        fixed, peak = self.subject.fixed_bytes, self.subject.baseline.peak
        given = self.request.budgets
        return tuple(
            ComparedBudget(budget.text, resolve(budget.for_device(device), fixed, peak, scope)) for budget in given
        )

    def _case(self, budget: ComparedBudget, solver: str, run_threads: int) -> BenchCase:
        """The run as the bench knows it; its label is the budget as the user wrote it."""
        return BenchCase(
            suite="compare",
            instance=self.request.path.name,
            instance_path=str(self.request.path),
            instance_sha256="",
            budget=str(budget.bytes),
            order=self.config.order,
            solver=solver,
            label=budget.text,
            options=dict(self.solvers[solver]),
            seed=self.config.seed,
            threads=run_threads,
            time_limit_seconds=self.config.time_limit_seconds,
            gap_percent_asked=100 * float(self.config.gap_share),
        )

    def _judged(self, run: BenchRun) -> CompareRun:
        """What a process found, with the options it ran under."""
        found = {name: getattr(run, name) for name in REPORTED}
        return CompareRun(
            **found,
            budget=run.label,
            solver=run.solver,
            seed=run.seed,
            fixed_bytes=self.subject.fixed_bytes,
            options=msgspec.to_builtins(make_solver(run.solver, run.options)),
            facts=run.facts,
        )

    def _impossible(self, budget: ComparedBudget, solver: str) -> CompareRun:
        """A budget below what single ops need: that takes no solver, and no process, to say."""
        problem = self.subject.problem.with_budget(budget.bytes)
        result = solve(problem, solver, Limits(order=self.config.order), self.solvers[solver])
        said = solution_report(solver_run(result, self.config.seed), problem, self.subject.baseline, result.plan)
        return CompareRun(**{name: getattr(said, name) for name in said.__struct_fields__}, budget=budget.text)


@contextmanager
def _stored(problem: Problem) -> Iterator[Path]:
    """The problem as a file that processes read, as long as they need it."""
    with tempfile.TemporaryDirectory(prefix="remat_compare_") as folder:
        path = Path(folder) / "problem.json"
        path.write_bytes(msgspec.json.encode(problem))
        yield path


def _with_picture(report: CompareReport, svg: Path | None, progress: Progress) -> CompareReport:
    """The report with its picture written; not where Ctrl-C cut it short, nor where there is nothing to draw."""
    if svg is None or report.missing_runs:
        return report
    if not any(run.has_plan for run in report.runs):
        progress.note(f"{svg} is not written: there is no plan to draw")
        return report
    from remat_cli.report.compare_plot import compare_svg

    try:
        atomic_write(svg, compare_svg(report))
    except RematError as error:
        return msgspec.structs.replace(report, picture_error=str(error))
    return msgspec.structs.replace(report, picture=str(svg))
