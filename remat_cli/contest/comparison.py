"""One problem, its solvers and budgets: the cases that a comparison runs, and the report on what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from remat_cli.contest.compare_request import CompareRequest
from remat_cli.contest.measure import Job
from remat_cli.core.budget import resolve
from remat_cli.core.floor import working_set_floor
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.simulate import baseline
from remat_cli.report.bench_run import BenchCase, BenchRun, joined
from remat_cli.report.compare_report import ComparedBudget, CompareReport, CompareRun
from remat_cli.report.solution import solution_report
from remat_cli.settings.settings import Settings
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers.base import Limits

Pair: TypeAlias = tuple[ComparedBudget, str]
"""A budget, and the solver to be run under it."""


@dataclass(frozen=True)
class Subject:
    """What is compared on: the problem, without a budget, and its ops' names."""

    problem: Problem
    names: tuple[str, ...]

    @property
    def fixed_bytes(self) -> int:
        """What no plan changes."""
        return self.problem.memories[0].fixed_bytes

    @cached_property
    def baseline(self) -> Plan:
        """What percentages refer to."""
        return baseline(self.problem)


@dataclass(frozen=True)
class Comparison:
    """What runs, and how its outcome is put together."""

    request: CompareRequest
    settings: Settings
    subject: Subject
    solvers: Mapping[str, Mapping[str, Any]]

    @cached_property
    def budgets(self) -> tuple[ComparedBudget, ...]:
        """The budgets in total bytes."""
        device, scope = self.subject.problem.devices[0].name, self.settings.budget_scope
        fixed, peak = self.subject.fixed_bytes, self.subject.baseline.peak
        given = self.request.budgets
        return tuple(
            ComparedBudget(budget.text, resolve(budget.for_device(device), fixed, peak, scope)) for budget in given
        )

    @cached_property
    def floor_bytes(self) -> int:
        """What some op needs while it runs, whatever the schedule."""
        return working_set_floor(self.subject.problem).bytes[0]

    @cached_property
    def asked(self) -> list[Pair]:
        """All pairs, in the order of the report."""
        return [(budget, solver) for budget in self.budgets for solver in self.solvers]

    @cached_property
    def open(self) -> list[Pair]:
        """The pairs that may have a plan: only these take a process."""
        return [pair for pair in self.asked if pair[0].bytes >= self.floor_bytes]

    @property
    def slots(self) -> int:
        """How many run at once."""
        return min(self.settings.workers, len(self.open)) or 1

    @property
    def run_threads(self) -> int:
        """The threads of each."""
        return self.settings.workers // self.slots

    def job(self, budget: ComparedBudget, solver: str) -> Job:
        """The run as the bench knows it, on the problem under its budget."""
        case = BenchCase(
            suite="compare",
            instance=self.request.path.name,
            instance_path=str(self.request.path),
            instance_sha256="",
            budget=budget.text,
            order=self.settings.order,
            solver=solver,
            label=solver,
            options=dict(self.solvers[solver]),
            seed=self.settings.seed,
            threads=self.run_threads,
            time_limit_seconds=self.settings.time_limit_seconds,
            gap_percent_asked=100 * float(self.settings.gap_share),
        )
        return Job(case, self.subject.problem.with_budget(budget.bytes))

    def report(self, ended: Mapping[int, BenchRun]) -> CompareReport:
        """What came of the open pairs that had ended, by their numbers, and of the rest that they are impossible."""
        known = {self.open[number]: self._judged(run) for number, run in ended.items()}
        known |= {pair: self._impossible(*pair) for pair in set(self.asked) - set(self.open)}
        runs = tuple(known[pair] for pair in self.asked if pair in known)
        path = str(self.request.path)
        return CompareReport(
            model=None if self.request.is_instance else path,
            instance=path if self.request.is_instance else None,
            device=self.subject.problem.devices[0].name,
            ops=len(self.subject.problem.ops),
            order=self.settings.order,
            budgets=self.budgets,
            time_limit_seconds=self.settings.time_limit_seconds,
            threads=self.settings.workers,
            run_threads=self.run_threads,
            seed=self.settings.seed,
            baseline_peak_bytes=self.subject.baseline.peak,
            baseline_time=self.subject.baseline.time_ns,
            fixed_bytes=self.subject.fixed_bytes,
            floor_bytes=max([self.floor_bytes, *(run.floor_bytes for run in runs)]),
            runs=runs,
            missing_runs=len(self.asked) - len(runs),
        )

    def _judged(self, run: BenchRun) -> CompareRun:
        """What a process found, with all options that it ran under."""
        options = msgspec.to_builtins(make_solver(run.solver, run.options))
        return joined(CompareRun, run, fixed_bytes=self.subject.fixed_bytes, options=options)

    def _impossible(self, budget: ComparedBudget, solver: str) -> CompareRun:
        """A budget below what single ops need: that takes no solver, and no process, to say."""
        problem = self.subject.problem.with_budget(budget.bytes)
        limits = Limits(order=self.settings.order, seed=self.settings.seed)
        run = solve(problem, solver, limits, self.solvers[solver])
        return joined(CompareRun, solution_report(run, problem, self.subject.baseline), budget=budget.text)
