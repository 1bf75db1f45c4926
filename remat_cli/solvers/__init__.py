"""The registry of solvers and the one way to run them: `solve` runs, times and judges."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from remat_cli.base.errors import BrokenSolver, ConfigError, InvalidSchedule
from remat_cli.base.named import named
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers.base import Improvement, Limits, ProvedFloor, Solution, Solver, SolverRun, Status
from remat_cli.solvers.paging.question import Pager

ADD_SPILL = "add --spill disk:DIR, or for an instance --spill host:12GB/s"
PROOF_SECONDS = 1.0  # to prove that there is no plan, after a solver has found none

SOLVERS: Mapping[str, str] = {
    "auto": "remat_cli.solvers.portfolio:Auto",
    "keep-all": "remat_cli.solvers.keep_all:KeepAll",
    "local-search": "remat_cli.solvers.local_search:LocalSearch",
    "moccasin": "remat_cli.solvers.published.moccasin:Moccasin",
    "checkmate": "remat_cli.solvers.published.checkmate:Checkmate",
    "checkmate-lp": "remat_cli.solvers.published.checkmate_lp:CheckmateLp",
    "chen-sqrt": "remat_cli.solvers.published.chen_sqrt:ChenSqrt",
    "chen-greedy": "remat_cli.solvers.published.chen_greedy:ChenGreedy",
    "checkpoint-last": "remat_cli.solvers.published.checkpoint_last:CheckpointLast",
    "revolve": "remat_cli.solvers.published.revolve:Revolve",
    "rotor": "remat_cli.solvers.published.rotor:Rotor",
    "multi-chain": "remat_cli.solvers.published.multi_chain:MultiChain",
    "placement": "remat_cli.solvers.placement:PlacementSearch",
    "xengine": "remat_cli.solvers.published.xengine:XEngine",
}

PAGERS: Mapping[str, str] = {
    "auto": "remat_cli.solvers.paging.page_auto:BestPager",
    "paging": "remat_cli.solvers.paging.page_fixed:FixedOrderPager",
    "greedy-paging": "remat_cli.solvers.paging.page_fixed:GreedyPager",
    "pofo": "remat_cli.solvers.published.page_chain:PofoPager",
    "autocapper": "remat_cli.solvers.published.page_chain:AutocapperPager",
    "opportunist": "remat_cli.solvers.published.page_chain:OpportunistPager",
}
"""Solvers of plans that page, for `--spill`: such plans are more than schedules, so these have their own interface."""


def make_pager(name: str, options: Mapping[str, Any] | None = None) -> Pager:
    """The pager of that name with these options.

    Raises:
        ConfigError: no such pager, no such option, or a value of the wrong type.
    """
    pager: Pager = _made(name, pager_class(name), options)
    return pager


def pager_class(name: str) -> Any:
    """The class of a pager, imported on demand.

    Raises:
        ConfigError: no such pager.
    """
    if name not in PAGERS:
        raise ConfigError(f"no solver named '{name}' plans with --spill; there are: {', '.join(PAGERS)}")
    return named(PAGERS[name])


def make_solver(name: str, options: Mapping[str, Any] | None = None) -> Solver:
    """The solver of that name with these options; text values are converted to the option's type.

    Raises:
        ConfigError: no such solver, no such option, or a value of the wrong type.
    """
    solver: Solver = _made(name, solver_class(name), options)
    return solver


def _made(name: str, kind: Any, options: Mapping[str, Any] | None) -> Any:
    """A solver of a class, whose fields are its options."""
    try:
        return msgspec.convert(dict(options or {}), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"solver {name}: {error}; `remat solvers` lists its options") from None


def solver_class(name: str) -> Any:
    """The class of a solver, imported on demand.

    Raises:
        ConfigError: no such solver.
    """
    if name not in SOLVERS and name in PAGERS:
        raise ConfigError(f"solver '{name}' plans with a memory to page to: {ADD_SPILL}")
    if name not in SOLVERS:
        raise ConfigError(f"no solver named '{name}'; there are: {', '.join(SOLVERS)}")
    return named(SOLVERS[name])


def must_search(problem: Problem) -> bool:
    """Whether the answer is open: every op alone is within budget, and on one device the baseline is not."""
    floor = working_set_floor(problem)
    if any(memory.budget_bytes < floor.bytes[i] for i, memory in enumerate(problem.memories)):
        return False
    return len(problem.devices) > 1 or baseline(problem).peak > problem.memories[0].budget_bytes


@dataclass
class _Recorder:
    """Judges what a solver reports, keeps the trace, and passes improvements on."""

    problem: Problem
    name: str
    limits: Limits
    best: Plan | None = None
    bound_ns: int | None = None
    trace: list[Improvement] = field(default_factory=list)
    last: tuple[Problem, Plan] | None = None

    def judge(self, problem: Problem, schedule: Schedule) -> Plan:
        """The judge, who remembers the last answer: solvers ask before they report the same schedule."""
        last = self.last
        if last is not None and last[0] is problem and last[1].schedule is schedule:
            return last[1]
        plan = simulate(problem, schedule)
        self.last = (problem, plan)
        return plan

    def report(self, schedule: Schedule | None, bound_ns: int | None) -> None:
        """Take a reported incumbent or bound; only improvements are recorded."""
        improved = False
        if schedule is not None and (self.best is None or schedule is not self.best.schedule):
            try:
                plan = self.judge(self.problem, schedule)
            except InvalidSchedule as error:
                raise BrokenSolver(f"{self.name}: illegal schedule: {error}") from error
            for memory, peak in zip(self.problem.memories, plan.peak_bytes, strict=True):
                if peak > memory.budget_bytes:
                    above = f"above the budget of {memory.budget_bytes} on {memory.name}"
                    raise BrokenSolver(f"{self.name}: peak {peak} bytes {above}")
            if self.best is None or plan.time_ns < self.best.time_ns:
                self.best, improved = plan, True
        if bound_ns is not None and (self.bound_ns is None or bound_ns > self.bound_ns):
            self.bound_ns, improved = bound_ns, True
        if improved:
            seconds = time.monotonic() - self.limits.started
            self.trace.append(Improvement(seconds, self.best.time_ns if self.best else None, self.bound_ns))
            self.limits.report(self.best.schedule if self.best else None, self.bound_ns)


def solve(
    problem: Problem,
    solver_name: str,
    limits: Limits,
    options: Mapping[str, Any] | None = None,
    start: Schedule | None = None,
) -> SolverRun:
    """Run the solver of that name and judge what it says.

    Raises:
        ConfigError: unknown solver or option, or the solver does not take this problem.
        BrokenSolver: a schedule was illegal or over budget, or a bound lies above a judged schedule.
    """
    return run_solver(problem, make_solver(solver_name, options), limits, start)


def run_solver(problem: Problem, solver: Solver, limits: Limits, start: Schedule | None = None) -> SolverRun:
    """Run a solver and judge what it says; the best schedule it ever reported counts.

    Raises:
        ConfigError: the solver does not take this problem.
        BrokenSolver: a schedule was illegal or over budget, or a bound lies above a judged schedule.
    """
    if reason := solver.supports(problem):
        raise ConfigError(f"solver {solver.name} cannot take this problem: {reason}")
    floor = working_set_floor(problem)
    recorder = _Recorder(problem, solver.name, limits)
    if any(memory.budget_bytes < floor.bytes[i] for i, memory in enumerate(problem.memories)):
        solution = Solution(Status.INFEASIBLE, "free", facts={"reason": "working set above budget"})
    else:
        solution = solver.solve(problem, replace(limits, report=recorder.report, judge=recorder.judge), start)
    recorder.report(solution.schedule, solution.bound_ns)
    if recorder.best is None and solution.status is Status.NOT_FOUND:
        from remat_cli.solvers.floor.proof import impossible

        # A moment's proof may show that there is none.
        proof = impossible(problem, Limits(seconds=PROOF_SECONDS, should_stop=limits.should_stop))
        if proof is not None:
            solution = replace(solution, status=Status.INFEASIBLE, space="free", bound_ns=None, floor=proof)
    known = ProvedFloor(floor.bytes[0], () if floor.ops[0] is None else (floor.ops[0],))
    is_raised = solution.floor is not None and solution.floor.bytes > known.bytes
    return _result(solver, solution, recorder, solution.floor if solution.floor and is_raised else known)


def _result(solver: Solver, solution: Solution, recorder: _Recorder, floor: ProvedFloor) -> SolverRun:
    plan, bound_ns = recorder.best, recorder.bound_ns
    if plan is not None and bound_ns is not None and bound_ns > plan.time_ns:
        raise BrokenSolver(f"{solver.name}: bound {bound_ns} ns above a judged schedule of {plan.time_ns} ns")
    status = solution.status
    if plan is not None and status is Status.INFEASIBLE:
        raise BrokenSolver(f"{solver.name}: claims INFEASIBLE although it found a plan")
    if plan is not None:
        status = Status.OPTIMAL if status is Status.OPTIMAL or plan.time_ns == bound_ns else Status.FEASIBLE
    best = [point.seconds for point in recorder.trace if plan and point.time_ns == plan.time_ns]
    return SolverRun(
        solver=solver.name,
        seed=recorder.limits.seed,
        options=msgspec.to_builtins(solver),
        status=status,
        space=solution.space,
        plan=plan,
        bound_ns=plan.time_ns if plan and status is Status.OPTIMAL else bound_ns,
        floor=floor,
        seconds=time.monotonic() - recorder.limits.started,
        seconds_to_best=best[0] if best else None,
        trace=tuple(recorder.trace),
        facts=solution.facts,
    )
