"""From a problem and a budget to a judged plan, with the solver's claims beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.clock import SearchClock
from remat_cli.base.errors import ConfigError
from remat_cli.base.present import present
from remat_cli.base.progress import Progress
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status
from remat_cli.core.schedule.tidy import tidy
from remat_cli.core.schedule.timeline import time_of
from remat_cli.core.values.budget import Origin
from remat_cli.report.solution import overhead_percent
from remat_cli.solvers import must_search, run_solver
from remat_cli.solvers._warmup import load_kernels, must_compile
from remat_cli.solvers.base import Compiled, Early, Limits, Solver
from remat_cli.solvers.paging.question import Pager

LEAST_SECONDS = 1.0  # a repeated search always gets this much
OWN_BYTES = 1024  # of gates and counters, on top of a share: of 11 MiB 72 bytes once cost 140 % more time
OWN_PART = 10_000  # of a budget one such part, where that is more: loops have counters each
LOOK_SECONDS = 5.0  # for a first plan before kernels are compiled, which takes several times as long


@dataclass(frozen=True)
class Search:
    """How plans are searched for: the solver, its limits, and the share of time that `--budget min` may cost.

    Plans that page are the `pager`'s. `overhead_limit` is the share of time that a plan for any budget may cost, where
    one was asked for, else `default_limit` (None: any). `clock` has the time of the whole search, of which each solver
    gets no more than is left. It `may_be_brief` where a plan is found soon, since nobody said how long it may take; a
    brief one has `dear_seconds` more where the plan costs a lot.
    """

    solver: Solver
    limits: Limits
    max_overhead_share: Fraction = Fraction(0)
    pager: Pager | None = None
    overhead_limit: Fraction | None = None
    default_limit: Fraction | None = None
    clock: SearchClock = field(default_factory=SearchClock)
    may_be_brief: bool = False
    dear_seconds: float = 0.0

    @property
    def known_pager(self) -> Pager:
        """The pager of a search for plans that page."""
        return present(self.pager, f"the pager of the search by solver {self.solver.name}")

    @property
    def granted_seconds(self) -> float:
        """The time of the search, with what it was granted beyond its limit."""
        return max(self.limits.seconds, round(self.clock.seconds, 1) if math.isfinite(self.clock.seconds) else 0.0)

    def begun(self) -> Search:
        """The same search, whose time begins now."""
        return replace(self, clock=SearchClock(self.limits.seconds))

    def part(self, share: float) -> Search:
        """A search for one of several plans, within a share of the time that is left."""
        clock = self.clock.share(share)
        return replace(self.within(max(LEAST_SECONDS, min(self.limits.seconds, clock.left))), clock=clock)

    def within(self, seconds: float) -> Search:
        """The same search with so much time."""
        return replace(self, limits=replace(self.limits, seconds=seconds))

    def share(self, share: float) -> Search:
        """The same search with a share of its time."""
        return self.within(self.limits.seconds * share)

    def asked_overhead(self, question: BudgetQuestion) -> Fraction | None:
        """The share of the baseline's time that was to be the most a plan costs on top; None: nothing was said."""
        return self.max_overhead_share if question.least else self.overhead_limit

    def allowed_overhead(self, question: BudgetQuestion) -> Fraction | None:
        """The share of the baseline's time that a plan may cost on top; None: any."""
        asked = self.asked_overhead(question)
        return self.default_limit if asked is None else asked

    def allows(self, time_ns: int, question: BudgetQuestion) -> bool:
        """Whether a plan may take so long."""
        share = self.allowed_overhead(question)
        return share is None or time_ns <= question.baseline.time_ns * (1 + share)


@dataclass(frozen=True)
class BudgetQuestion:
    """A problem under the budget in force, and the baseline's plan, which `min` and percentages refer to.

    Of a split model the baseline is that of the whole one. `names` are those of the ops, where they have any.
    `origin` says where the bytes came from: those of `process` are left by a budget on it, which is counted by itself.
    """

    problem: Problem
    baseline: Plan
    text: str
    origin: Origin = "typed"
    names: tuple[str, ...] = ()

    @property
    def least(self) -> bool:
        """Whether the least budget is looked for."""
        return self.origin == "min"

    @property
    def is_share(self) -> bool:
        """Whether it is a share of what planning can change, on top of whatever is fixed; `min` begins as 100 %."""
        return self.origin in ("share", "min")

    @property
    def budget_bytes(self) -> int:
        """The budget of the first memory, fixed part included."""
        return self.problem.memories[0].budget_bytes

    @property
    def own_bytes(self) -> int:
        """What small tensors of ours may take on top of a share: gates, numbers of tiles, counters of loops."""
        return max(OWN_BYTES, self.budget_bytes // OWN_PART) if self.is_share else 0

    @property
    def room_bytes(self) -> int:
        """The same where plans are looked for; `min` is what a plan is found to need."""
        return 0 if self.least else self.own_bytes

    @property
    def most_bytes(self) -> int:
        """The budget with that room."""
        return self.budget_bytes + self.room_bytes

    @property
    def calm_bytes(self) -> int:
        """What a plan may hold so that its steps need fewer gates: no more than the baseline does."""
        return min(self.budget_bytes, self.baseline.peak)

    @property
    def asks_for_all(self) -> bool:
        """Whether the budget is 100 % of what the model needs as it is: then small things of ours come on top."""
        return self.is_share and self.budget_bytes >= self.baseline.peak

    @property
    def budgets(self) -> dict[str, int]:
        """The budget of each memory, fixed part included."""
        return {memory.name: memory.budget_bytes for memory in self.problem.memories}

    def with_slack(self, slack_bytes: Sequence[int]) -> BudgetQuestion:
        """The same question for so much less of each memory."""
        problem = self.problem
        for number, bytes_ in enumerate(slack_bytes):
            problem = problem.with_budget(problem.memories[number].budget_bytes - bytes_, number)
        return replace(self, problem=problem)


@dataclass(frozen=True)
class BudgetAnswer:
    """What the solver said, judged, and the question it answers."""

    question: BudgetQuestion
    run: SolverRun

    @property
    def plan(self) -> Plan | None:
        """The judged plan; None: not found."""
        return self.run.plan

    @property
    def known_plan(self) -> Plan:
        """The judged plan of an answer that has one."""
        return present(self.run.plan, f"a plan by solver {self.run.solver} to go on with")

    def with_plan(self, plan: Plan) -> BudgetAnswer:
        """The same answer with another plan."""
        return replace(self, run=replace(self.run, plan=plan))

    def without_plan(self) -> BudgetAnswer:
        """The same answer after its plan turned out not to fit."""
        return replace(self, run=replace(self.run, plan=None, status=Status.NOT_FOUND))


def prepare_kernels(solver: Solver | Pager, problem: Problem, progress: Progress) -> None:
    """Load the kernels that a solver's search on a problem runs, or compile them, before anything is timed."""
    if isinstance(solver, Compiled):
        load_kernels(solver.kernels(problem), lambda: progress.stage(stages.COMPILING_KERNELS))


def tidied(found: BudgetAnswer) -> BudgetAnswer:
    """The answer without computations for nobody; a bound that was proved for a smaller space may then not hold."""
    if found.plan is None:
        return found
    plan, run = tidy(found.question.problem, found.plan), found.run
    if run.bound_ns is not None and plan.time_ns < run.bound_ns:
        run = replace(run, bound_ns=None, status=Status.FEASIBLE, space="free")
    return replace(found, run=replace(run, plan=plan))


def answer(question: BudgetQuestion, search: Search, progress: Progress, start: Schedule | None = None) -> BudgetAnswer:
    """Solve within the budget and the time limit, from `start` if given, telling `progress` of every improvement.

    Raises:
        ConfigError: the solver does not take this problem.
    """
    if reason := refusal(question.problem, search.solver, question.names):
        raise ConfigError(f"solver {search.solver.name} cannot take this problem: {reason}")
    if question.least:
        return _least(question, search, progress)
    return BudgetAnswer(question, _solve(question.problem, question, search, progress, start))


def _solve(
    problem: Problem, question: BudgetQuestion, search: Search, progress: Progress, start: Schedule | None = None
) -> SolverRun:
    """Run the solver, first without compiled kernels, which often is all it takes; the better of both plans is kept."""
    solver, early = search.solver, None
    if isinstance(solver, Early) and search.limits.work is None and must_search(problem):
        briefly = search.within(min(LOOK_SECONDS, search.limits.seconds))
        if solver.begins_interpreted(problem) and must_compile(solver.kernels(problem)):
            progress.stage(stages.SOLVING)
            early = run_solver(problem, solver, replace(_limits(question, briefly, progress), interpreted=True), start)
    if early is not None and (_is_settled(early, problem, search) or progress.should_stop()):
        return early
    if must_search(problem):  # no sooner: many a budget is met, or proved too small, without a search
        try:
            with search.clock.running():
                prepare_kernels(search.solver, problem, progress)
        except KeyboardInterrupt:  # with a plan that is known this is an end of the search like any other
            if early is None or early.plan is None or not progress.should_stop():
                raise
            return early
    progress.stage(stages.SOLVING)
    limits = _limits(question, search, progress)
    run = run_solver(problem, search.solver, limits, start)
    if run.plan is None and run.status is Status.NOT_FOUND and limits.is_over:
        search.clock.cut()
    return run if early is None else better_of(run, early)


def _is_settled(run: SolverRun, problem: Problem, search: Search) -> bool:
    """Whether a search need not go on: its end is proved, or near enough."""
    if run.plan is None or run.bound_ns is None:
        return run.status in (Status.OPTIMAL, Status.INFEASIBLE)
    return run.plan.time_ns - run.bound_ns <= search.limits.gap * problem.baseline_time_ns


def better_of(run: SolverRun, early: SolverRun) -> SolverRun:
    """A run with the plan of the look before it, should it have found none as good."""
    if early.plan is None or (run.plan is not None and run.plan.time_ns <= early.plan.time_ns):
        return run
    return replace(run, plan=early.plan, status=proved_status(run, early.plan))


def refusal(problem: Problem, solver: Solver | Pager, names: Sequence[str]) -> str | None:
    """Why a solver does not take a problem, with ops by their names; None where it does."""
    reason = solver.supports(problem)
    return None if reason is None else reason.named(names)


def unsolved(question: BudgetQuestion, search: Search) -> BudgetAnswer:
    """The answer before any solver has looked at a question: the floor of single ops, and no plan."""
    floor = working_set_floor(question.problem)
    run = SolverRun(
        solver=search.solver.name,
        options=msgspec.to_builtins(search.solver),
        status=Status.NOT_FOUND,
        space="free",
        floor=ProvedFloor(floor.bytes[0], () if floor.ops[0] is None else (floor.ops[0],)),
        seed=search.limits.seed,
        seconds=0.0,
    )
    return BudgetAnswer(question, run)


def answer_again(first: BudgetAnswer, slack_bytes: Sequence[int], search: Search, progress: Progress) -> BudgetAnswer:
    """Solve for budgets smaller by what the plan needs beyond its schedule; bound and floor stay the first's.

    A bound under a smaller budget says nothing about the user's, so the first search's bound is kept.
    """
    question, said = first.question, first.run
    tight = question.with_slack(slack_bytes).problem
    rest = search.within(max(LEAST_SECONDS, search.limits.seconds - said.seconds))
    again = _solve(tight, question, rest, progress)
    seconds, found_after = said.seconds + again.seconds, again.seconds_to_best
    if again.plan is None:
        return replace(first, run=replace(said, seconds=seconds)).without_plan()
    run = replace(
        again,
        plan=simulate(question.problem, again.plan.schedule),
        status=proved_status(said, again.plan),
        bound_ns=said.bound_ns,
        space=said.space,
        floor=said.floor,
        seconds=seconds,
        seconds_to_best=None if found_after is None else said.seconds + found_after,
    )
    return replace(first, run=run)


def proved_status(run: SolverRun, plan: Plan) -> Status:
    """The status of a plan under the bound of a run that did not find it: optimal where it takes no longer."""
    is_proved = run.bound_ns is not None and plan.time_ns <= run.bound_ns
    return Status.OPTIMAL if is_proved else Status.FEASIBLE


def _least(question: BudgetQuestion, search: Search, progress: Progress) -> BudgetAnswer:
    """The least budget within the allowed overhead, then the least time under that budget."""
    from remat_cli.solvers.least_budget import KERNELS, find_least_budget  # with numba, which no other command needs

    with search.clock.running():
        load_kernels(KERNELS, lambda: progress.stage(stages.COMPILING_KERNELS))
    progress.stage(stages.SOLVING)
    limits = _limits(question, search, progress)
    halved = replace(limits, seconds=limits.seconds / 2)
    schedule = find_least_budget(question.problem, halved, allowed_share(question, search))
    seconds, before = max(LEAST_SECONDS, limits.seconds_left), time.monotonic() - limits.started
    start = simulate(question.problem, schedule) if schedule is not None else baseline(question.problem)
    found = replace(question, problem=question.problem.with_budget(start.peak))
    run = _solve(found.problem, question, search.within(seconds), progress, start.schedule)
    if run.plan is None or run.plan.time_ns > start.time_ns:
        run = replace(run, status=Status.FEASIBLE, plan=start, seconds_to_best=0.0)
    found_after = None if run.seconds_to_best is None else before + run.seconds_to_best
    return BudgetAnswer(found, replace(run, seconds=before + run.seconds, seconds_to_best=found_after))


def allowed_share(question: BudgetQuestion, search: Search) -> float:
    """How much longer than its ops once each a plan of this problem may take, by the overhead allowed of the whole."""
    most_ns = question.baseline.time_ns * (1 + search.max_overhead_share)
    own_ns = question.problem.baseline_time_ns
    return float(most_ns / own_ns - 1) if own_ns else 0.0


def _limits(question: BudgetQuestion, search: Search, progress: Progress) -> Limits:
    """The search's limits from now on, heard by `progress` in percent of the baseline.

    No solver gets more time than the whole search has left, but each a little.
    """
    problem, base = question.problem, question.baseline.time_ns

    def report(schedule: Schedule | None, bound_ns: int | None) -> None:
        spent = None if schedule is None else overhead_percent(time_of(problem, schedule), base)
        least = problem.baseline_time_ns
        progress.incumbent(spent, None if bound_ns is None else overhead_percent(max(bound_ns, least), base))

    seconds = min(search.limits.seconds, max(LEAST_SECONDS, search.clock.left))
    return replace(
        search.limits, seconds=seconds, report=report, should_stop=progress.should_stop, started=time.monotonic()
    )
