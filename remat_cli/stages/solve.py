"""From a problem and a budget to a judged plan, with the solver's claims beside it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.errors import ConfigError
from remat_cli.base.progress import Progress
from remat_cli.core.budget import resolve
from remat_cli.core.floor import working_set_floor
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import baseline, simulate
from remat_cli.core.tidy import tidy
from remat_cli.core.timeline import time_of
from remat_cli.report.report import SolverRun, overhead_percent
from remat_cli.settings.config import Config
from remat_cli.solvers import make_solver, must_search, solve
from remat_cli.solvers._warmup import load_kernels
from remat_cli.solvers.base import Compiled, Limits, Result, Solver
from remat_cli.solvers.least_budget import KERNELS, find_least_budget

LEAST_SECONDS = 1.0  # a repeated search always gets this much


@dataclass(frozen=True)
class Question:
    """A problem under the budget in force, and the baseline's plan, which `min` and percentages refer to.

    Of a split model the baseline is that of the whole one. `names` are those of the ops, where they have any.
    """

    problem: Problem
    baseline: Plan
    text: str
    least: bool = False
    names: tuple[str, ...] = ()

    @property
    def budget_bytes(self) -> int:
        """The budget of the first memory, fixed part included."""
        return self.problem.memories[0].budget_bytes


@dataclass(frozen=True)
class Answer:
    """What the solver said, the judged plan (None: not found), and the question it answers."""

    question: Question
    run: SolverRun
    plan: Plan | None


def ask(problem: Problem, config: Config, names: tuple[str, ...] = ()) -> Question:
    """Put the user's budget on a problem; `min` starts at the baseline's peak.

    Raises:
        ConfigError: there is no budget, or it does not name the device.
    """
    if config.budget is None:
        raise ConfigError("no budget: write --budget 512MiB, --budget 80% or --budget min")
    budget = config.budget.for_device(problem.devices[0].name)
    plan = baseline(problem)
    fixed = problem.memories[0].fixed_bytes
    least = budget.kind == "min"
    bytes_ = plan.peak if least else resolve(budget, fixed, plan.peak, config.budget_scope)
    return Question(problem.with_budget(bytes_), plan, budget.text, least, names)


def check_solver(config: Config) -> None:
    """Refuse an unknown solver or option before a model is read and measured, which may take minutes.

    Raises:
        ConfigError: no such solver, no such option, or a value that it cannot have.
    """
    make_solver(config.solver, config.solver_options)


def prepare_kernels(solver: Solver, problem: Problem, progress: Progress) -> None:
    """Load the kernels that a solver's search on a problem runs, or compile them, before anything is timed."""
    if isinstance(solver, Compiled):
        load_kernels(solver.kernels(problem), lambda: progress.stage(stages.COMPILING_KERNELS))


def _prepare_search(problem: Problem, config: Config, progress: Progress) -> None:
    """Load or compile what is about to run, no sooner: many a budget is met, or proved too small, without a search."""
    if must_search(problem):
        prepare_kernels(make_solver(config.solver, config.solver_options), problem, progress)


def tidied(found: Answer) -> Answer:
    """The answer without computations for nobody; a bound that was proved for a smaller space may then not hold."""
    if found.plan is None:
        return found
    plan = tidy(found.question.problem, found.plan)
    run = found.run
    if run.bound is not None and plan.time_ns < run.bound:
        run = msgspec.structs.replace(run, bound=None, status="feasible", space="free")
    return Answer(found.question, run, plan)


def answer(question: Question, config: Config, progress: Progress, start: Schedule | None = None) -> Answer:
    """Solve within the budget and the time limit, from `start` if given, telling `progress` of every improvement.

    Raises:
        ConfigError: unknown solver or option, or the solver does not take this problem.
    """
    if reason := refusal(question.problem, config.solver, config.solver_options, question.names):
        raise ConfigError(f"solver {config.solver} cannot take this problem: {reason}")
    if question.least:
        return _least(question, config, progress)
    _prepare_search(question.problem, config, progress)
    progress.stage(stages.SOLVING)
    limits = _limits(question, config, progress, config.time_limit_seconds)
    result = solve(question.problem, config.solver, limits, config.solver_options, start)
    return _answer(question, result, config)


def refusal(problem: Problem, solver: str, options: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Why a solver does not take a problem, with ops by their names; None where it does.

    Raises:
        ConfigError: unknown solver or option.
    """
    reason = make_solver(solver, options).supports(problem)
    return None if reason is None else name_ops(reason, names)


def name_ops(text: str, names: Sequence[str]) -> str:
    """`op 7` as `op conv_3`; solvers know numbers only. An op without a name keeps its number."""

    def named(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"op {names[number]}" if number < len(names) and names[number] else match[0]

    return re.sub(r"\bop ([0-9]+)\b", named, text)


def unsolved(question: Question, config: Config) -> Answer:
    """What is known of a question before any solver has looked at it: the floor of single ops."""
    floor = working_set_floor(question.problem)
    run = SolverRun(
        solver=config.solver,
        status="not_found",
        space="free",
        floor_bytes=floor.bytes[0],
        floor_op=floor.ops[0],
        seed=config.seed,
        seconds=0.0,
    )
    return Answer(question, run, None)


def answer_again(first: Answer, slack_bytes: int, config: Config, progress: Progress) -> Answer:
    """Solve for a budget smaller by what the written model needs beyond its plan; bound and floor stay the first's.

    A bound under a smaller budget says nothing about the user's, so the first search's bound is kept.
    """
    question = first.question
    tight = question.problem.with_budget(question.budget_bytes - slack_bytes)
    _prepare_search(tight, config, progress)
    seconds = max(LEAST_SECONDS, config.time_limit_seconds - first.run.seconds)
    limits = _limits(question, config, progress, seconds)
    result = solve(tight, config.solver, limits, config.solver_options)
    spent = first.run.seconds + result.seconds
    if result.plan is None:
        return Answer(question, msgspec.structs.replace(first.run, status="not_found", seconds=spent), None)
    proved = first.run.bound is not None and result.plan.time_ns <= first.run.bound
    run = msgspec.structs.replace(
        solver_run(result, config.seed),
        status="optimal" if proved else "feasible",
        bound=first.run.bound,
        space=first.run.space,
        floor_bytes=first.run.floor_bytes,
        floor_op=first.run.floor_op,
        floor_held=first.run.floor_held,
        seconds=spent,
    )
    return Answer(question, run, simulate(question.problem, result.plan.schedule))


def _least(question: Question, config: Config, progress: Progress) -> Answer:
    """The least budget within the allowed overhead, then the least time under that budget."""
    load_kernels(KERNELS, lambda: progress.stage(stages.COMPILING_KERNELS))
    progress.stage(stages.SOLVING)
    limits = _limits(question, config, progress, config.time_limit_seconds)
    halved = dataclasses.replace(limits, seconds=limits.seconds / 2)
    schedule = find_least_budget(question.problem, halved, allowed_share(question, config))
    seconds = max(LEAST_SECONDS, limits.seconds_left)
    start = simulate(question.problem, schedule) if schedule is not None else baseline(question.problem)
    found = dataclasses.replace(question, problem=question.problem.with_budget(start.peak))
    _prepare_search(found.problem, config, progress)
    progress.stage(stages.SOLVING)
    rest = _limits(question, config, progress, seconds)
    result = solve(found.problem, config.solver, rest, config.solver_options, start.schedule)
    if result.plan is None or result.plan.time_ns > start.time_ns:
        run = msgspec.structs.replace(solver_run(result, config.seed), status="feasible")
        return Answer(found, run, start)
    return _answer(found, result, config)


def allowed_share(question: Question, config: Config) -> float:
    """How much longer than its ops once each a plan of this problem may take, by the overhead allowed of the whole."""
    most_ns = question.baseline.time_ns * (1 + config.max_overhead_share)
    own_ns = question.problem.baseline_time_ns
    return float(most_ns / own_ns - 1) if own_ns else 0.0


def _limits(question: Question, config: Config, progress: Progress, seconds: float) -> Limits:
    problem, base = question.problem, question.baseline.time_ns

    def report(schedule: Schedule | None, bound_ns: int | None) -> None:
        spent = None if schedule is None else overhead_percent(time_of(problem, schedule), base)
        least = problem.baseline_time_ns
        progress.incumbent(spent, None if bound_ns is None else overhead_percent(max(bound_ns, least), base))

    return Limits(
        seconds=seconds,
        workers=config.workers,
        seed=config.seed,
        gap=float(config.gap_share),
        order=config.order,
        report=report,
        should_stop=progress.should_stop,
        started=time.monotonic(),
    )


def _answer(question: Question, result: Result, config: Config) -> Answer:
    return Answer(question, solver_run(result, config.seed), result.plan)


def solver_run(result: Result, seed: int) -> SolverRun:
    """What a solver said, in plain values."""
    options: Mapping[str, Any] = result.options
    return SolverRun(
        solver=result.solver,
        status=result.status.value,
        space=result.space,
        floor_bytes=result.floor.bytes,
        floor_op=result.floor.ops[-1] if result.floor.ops else None,
        floor_held=result.floor.held,
        seed=seed,
        seconds=result.seconds,
        seconds_to_best=result.seconds_to_best,
        bound=result.bound_ns,
        options=dict(options),
        facts=result.facts,
    )
