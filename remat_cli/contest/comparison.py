"""A comparison as `remat compare` asks for it, checked before any work, and what was found for each case."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.base.files import check_target
from remat_cli.compiling.ask import ask_abstract
from remat_cli.contest.report.bench_run import BenchCase, BenchRun, joined
from remat_cli.contest.report.compare_report import ComparedBudget, CompareReport, CompareRun
from remat_cli.contest.runner import Job
from remat_cli.contest.solving import is_pager, made, names_of, solved
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.budget import AskedBudget, parse_budget
from remat_cli.settings.settings import Settings
from remat_cli.solvers import ADD_SPILL, PAGERS
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.question import PagingTerms

BUDGETS = "0.9,0.8,0.7"
SECONDS = 4.0  # per run: all solvers at three budgets then end within two minutes on two cores
FOR_MODELS = ("dims", "input_shapes", "inputs", "target", "portable", "intra_op_threads", "devices", "work_dir")


@dataclass(frozen=True)
class CompareRequest:
    """A model or an instance, budgets, and solvers with their options, in the order of the registry."""

    path: Path
    budgets: tuple[AskedBudget, ...]
    solvers: Mapping[str, Mapping[str, Any]]
    svg: Path | None = None

    @property
    def is_instance(self) -> bool:
        """Whether the file is an abstract instance, not a model."""
        return is_instance(self.path)


def is_instance(path: Path) -> bool:
    """Instances are JSON, by their name or by how they begin."""
    if path.suffix.lower() == ".json":
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def compare_request(path: Path, budgets: str | None, solvers: str | None, config: Settings) -> CompareRequest:
    """Read the flags of the command.

    Raises:
        ConfigError: a flag makes no sense, or the picture cannot be written.
        MissingDependency: a picture is asked for, but matplotlib is not installed.
    """
    if config.svg is not None:
        from remat_cli.report.pictures.svg_chart import require_matplotlib

        check_target(config.svg, sources=(path,), overwrite=config.force)
        require_matplotlib()
    may_page = config.spill is not None
    compared = known = names_of(may_page=may_page)
    if solvers is not None:
        names = [part.replace("_", "-") for part in _parts(solvers, "solvers", "--solvers auto,rotor")]
        for name in names:
            if name not in known and name in PAGERS:
                raise ConfigError(f"solver '{name}' plans with a memory to page to: {ADD_SPILL}")
            if name not in known:
                raise ConfigError(f"no solver named '{name}'; there are: {', '.join(known)}")
            if names.count(name) > 1:
                raise ConfigError(f"solvers '{solvers}': '{name}' is there twice")
        compared = [name for name in known if name in names]  # in the order of the registry
    # The options of each solver: the file's under those of the command line, `rotor.close_gaps=false`.
    chosen = {name: dict(config.solvers.get(name, {})) for name in compared}
    for key, value in config.options.items():
        solver, dot, option = key.partition(".")
        name = solver.replace("_", "-")
        if not dot or name not in chosen:
            raise ConfigError(f"option '{key}' names none of the solvers compared: write --option rotor.NAME=VALUE")
        chosen[name][option] = value
    for name, options in chosen.items():
        made(name, options, may_page=may_page)
    return CompareRequest(path, parse_budgets(BUDGETS if budgets is None else budgets), chosen, config.svg)


def refuse_model_flags(path: Path, flags: Mapping[str, Any]) -> None:
    """Refuse flags for models where the file is an instance, which has neither inputs nor devices.

    Raises:
        ConfigError: a flag was given that only means something for a model.
    """
    given = [name for name in FOR_MODELS if flags.get(name) not in (None, ())]
    if given and is_instance(path):
        flag = {"dims": "dim", "input_shapes": "input-shape", "devices": "device"}.get(given[0], given[0])
        raise ConfigError(f"--{flag.replace('_', '-')} is for models; {path} is an abstract instance: leave it out")


def parse_budgets(text: str) -> tuple[AskedBudget, ...]:
    """Budgets from `0.9,80%,512MiB`, as they come.

    Raises:
        ConfigError: one is no budget, is `min`, or is there twice; or there is none.
    """
    budgets = tuple(parse_budget(part) for part in _parts(text, "budgets", "--budgets 0.9,0.8,0.7"))
    seen: dict[tuple[Any, ...], str] = {}
    for budget in budgets:
        if any(part.kind == "min" for part in (budget, *(inner for _, inner in budget.devices))):
            raise ConfigError("budget 'min' is another one for each solver: name budgets to compare at")
        key = (budget.kind, budget.bytes, budget.fraction, budget.devices)
        if key in seen:
            raise ConfigError(f"budgets '{text}': '{seen[key]}' and '{budget.text}' are the same")
        seen[key] = budget.text
    return budgets


def _parts(text: str, what: str, example: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{what} '{text}' has an empty entry: write {example}")
    return parts


Pair: TypeAlias = tuple[ComparedBudget, str]
"""A budget, and the solver to be run under it."""


@dataclass(frozen=True)
class Subject:
    """What is compared on: the problem, without a budget, its ops' names, and on which terms its values may page."""

    problem: Problem
    names: tuple[str, ...]
    terms: PagingTerms | None = None

    @property
    def may_page(self) -> bool:
        """Whether there is a memory to page to."""
        return self.terms is not None

    @property
    def fixed_bytes(self) -> int:
        """Bytes that no plan changes."""
        return self.problem.memories[0].fixed_bytes

    @cached_property
    def baseline(self) -> Plan:
        """The plan that percentages refer to."""
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
        asked = (each.bounding(self.settings.scope) for each in self.request.budgets)
        questions = [(each.text, ask_abstract(self.subject.problem, each)) for each in asked]
        return tuple(ComparedBudget(text, question.budget_bytes) for text, question in questions)

    @cached_property
    def floor_bytes(self) -> int:
        """What some op needs while it runs, whatever the schedule."""
        return working_set_floor(self.subject.problem).bytes[0]

    @cached_property
    def asked(self) -> list[Pair]:
        """All pairs of budget and solver, in the order of the report."""
        return [(budget, solver) for budget in self.budgets for solver in self.solvers]

    @cached_property
    def open(self) -> list[Pair]:
        """The pairs that may have a plan: only these take a process."""
        return [pair for pair in self.asked if pair[0].bytes >= self.floor_bytes]

    @property
    def slots(self) -> int:
        """How many runs go on at once."""
        return min(self.settings.workers, len(self.open)) or 1

    @property
    def run_threads(self) -> int:
        """How many threads each run has."""
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
            time_limit_seconds=self.settings.search_seconds,
            gap_percent_asked=100 * float(self.settings.gap_share),
        )
        return Job(case, self.subject.problem.with_budget(budget.bytes), self.subject.terms)

    def report(self, ended: Mapping[int, BenchRun]) -> CompareReport:
        """What came of the open pairs that had ended, by their numbers, and of the rest that they are impossible."""
        may_page, fixed_bytes = self.subject.may_page, self.subject.fixed_bytes
        known = {}
        for number, run in ended.items():
            options = msgspec.to_builtins(made(run.solver, run.options, may_page=may_page))  # all that it ran under
            pages = is_pager(run.solver, may_page=may_page)
            found = joined(CompareRun, run, fixed_bytes=fixed_bytes, options=options, may_page=pages)
            known[self.open[number]] = found
        for budget, solver in set(self.asked) - set(self.open):
            # Below what single ops need: that takes no solver, and no process, to say.
            problem = self.subject.problem.with_budget(budget.bytes)
            limits = Limits(order=self.settings.order, seed=self.settings.seed)
            below = solved(problem, solver, self.solvers[solver], limits, self.subject.terms).solution
            pages = is_pager(solver, may_page=may_page)
            known[budget, solver] = joined(CompareRun, below, budget=budget.text, may_page=pages)
        runs = tuple(known[pair] for pair in self.asked if pair in known)
        path = str(self.request.path)
        return CompareReport(
            model=None if self.request.is_instance else path,
            instance=path if self.request.is_instance else None,
            device=self.subject.problem.devices[0].name,
            ops=len(self.subject.problem.ops),
            order=self.settings.order,
            budgets=self.budgets,
            time_limit_seconds=self.settings.search_seconds,
            threads=self.settings.workers,
            run_threads=self.run_threads,
            seed=self.settings.seed,
            baseline_peak_bytes=self.subject.baseline.peak,
            baseline_time=self.subject.baseline.time_ns,
            fixed_bytes=fixed_bytes,
            floor_bytes=max([self.floor_bytes, *(run.floor_bytes for run in runs)]),
            runs=runs,
            missing_runs=len(self.asked) - len(runs),
            spill=None if self.subject.terms is None else self.subject.terms.memory,
        )
