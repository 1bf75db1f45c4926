"""A problem whose values may wait in a larger memory, answered without a model: by one pager, or by the best of all."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import msgspec

from remat_cli.base.errors import ConfigError
from remat_cli.compiling.platform import Platform
from remat_cli.core.paging.paged_plan import PagedPlan
from remat_cli.core.paging.paged_sessions import SessionCosts, own_sizes
from remat_cli.core.paging.weight_paging import NO_WEIGHTS, WeightPaging
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status
from remat_cli.core.values.spill import SpillSpec
from remat_cli.report.solution import SolutionReport, solution_report, with_paging
from remat_cli.solvers import make_solver, run_solver
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.question import Pager, PagingQuestion, PagingTerms

AUTO = "auto"
WITHOUT_SHARE = 0.3  # of the time limit, for a plan that pages nothing


@dataclass(frozen=True)
class PagedAnswer:
    """What a pager said, judged; `run.plan` are the ops, and `paged` says what waits where (None: nothing does)."""

    run: SolverRun
    paged: PagedPlan | None = None

    @property
    def time_ns(self) -> int | None:
        """How long the plan takes, stalls included; None: there is none."""
        if self.paged:
            return self.paged.paging.time_ns
        return None if self.run.plan is None else self.run.plan.time_ns


def abstract_terms(problem: Problem, spec: SpillSpec) -> PagingTerms:
    """A problem without a model: its sessions cost nothing of their own, and its units of time are nanoseconds.

    Raises:
        ConfigError: the memory's bandwidths are not given.
    """
    if spec.write_bytes_per_second is None or spec.read_bytes_per_second is None:
        raise ConfigError(f"--spill {spec.name}: an instance knows no memory: write its bandwidth, host:12GB/s")
    memory = spec.at(spec.write_bytes_per_second, spec.read_bytes_per_second)
    return PagingTerms(memory, SessionCosts(tuple(tensor.size_bytes for tensor in problem.tensors)))


def terms_of(platform: Platform, problem: Problem, weights: WeightPaging = NO_WEIGHTS) -> PagingTerms | None:
    """On which terms values of a model may page, and its weights; None: there is no memory to page to."""
    if platform.spill is None:
        return None
    sizes, call_ns = own_sizes(platform.graph, problem), platform.profile.call_ns
    return PagingTerms(platform.spill, SessionCosts(sizes, call_ns, platform.spill.fresh_page_ns, weights))


def answer_paged(question: PagingQuestion, pager: Pager, limits: Limits) -> PagedAnswer:
    """The best plan of the pager, or under `auto` of all that recompute, page, or do both.

    Raises:
        ConfigError: the pager does not take the problem.
    """
    if reason := pager.supports(question.problem):
        raise ConfigError(f"solver {pager.name} cannot take this problem: {reason}")
    if pager.name != AUTO:
        return page_by(question, pager, limits)
    # First a plan that pages nothing, then one that may page, and more time for the first where that is faster.
    problem, begin = question.problem, time.monotonic()
    limits = replace(limits, started=begin)
    first = _recomputed(problem, _for(limits, WITHOUT_SHARE * limits.seconds), None)
    known_ns = None if first is None else first.time_ns
    paged = page_by(replace(question, beat_ns=known_ns), pager, _for(limits, (1 - WITHOUT_SHARE) * limits.seconds))
    seconds = time.monotonic() - begin
    if first is None or (paged.time_ns is not None and paged.time_ns < first.time_ns):
        return replace(paged, run=replace(paged.run, seconds=seconds))
    is_settled = first.time_ns <= problem.baseline_time_ns or limits.is_over
    again = None if is_settled else _recomputed(problem, _for(limits, limits.seconds_left), first.schedule)
    plan = first if again is None or again.time_ns >= first.time_ns else again
    status = Status.OPTIMAL if plan.time_ns <= problem.baseline_time_ns else Status.FEASIBLE
    seconds = time.monotonic() - begin
    return PagedAnswer(replace(paged.run, plan=plan, status=status, seconds=seconds, facts={"best_from": "recompute"}))


def page_by(question: PagingQuestion, pager: Pager, limits: Limits, uncounted_bytes: int = 0) -> PagedAnswer:
    """What one pager finds; of the floor so many bytes are no part of a proof."""
    begin = time.monotonic()
    limits = replace(limits, started=begin)
    found, most_bytes = pager.page(question, limits), question.memory.budget_bytes
    file_bytes = found.paged.paging.file_bytes if found.paged else 0
    if most_bytes is not None and file_bytes > most_bytes:
        # The other memory has too little room for the plan.
        found = replace(found, plan=None, paged=None, facts={**found.facts, "file_bytes": file_bytes})
    problem = question.problem
    # What some op needs whatever else is dropped, without the weights that may be away and what a process was measured
    # to hold beside tensors: another may hold less.
    needed, uncounted_bytes = working_set_floor(problem), min(uncounted_bytes, problem.memories[0].fixed_bytes)
    floor = ProvedFloor(needed.bytes[0] - uncounted_bytes, () if needed.ops[0] is None else (needed.ops[0],))
    if found.time_ns is None:
        status = Status.INFEASIBLE if floor.bytes > problem.memories[0].budget_bytes else Status.NOT_FOUND
    else:
        status = Status.OPTIMAL if found.time_ns <= problem.baseline_time_ns else Status.FEASIBLE
    run = SolverRun(
        solver=pager.name,
        seed=limits.seed,
        options=msgspec.to_builtins(pager),
        status=status,
        space="first_in_order" if pager.name != AUTO else "free",
        floor=floor,
        plan=found.plan,
        bound_ns=problem.baseline_time_ns,
        seconds=time.monotonic() - begin,
        seconds_to_best=found.seconds_to_best,
        facts=found.facts,
    )
    return PagedAnswer(run, found.paged)


def paged_solution(found: PagedAnswer, problem: Problem, whole: Plan) -> SolutionReport:
    """The solution for reports, with what moves and what that stalls among its facts; `whole` is the baseline."""
    solution = solution_report(found.run, problem, whole)
    if not found.paged:
        return solution
    paging = found.paged.paging
    moved = {"written_bytes": paging.written_bytes, "read_bytes": paging.read_bytes, "stall": paging.stall_ns}
    return with_paging(msgspec.structs.replace(solution, facts=solution.facts | moved), paging)


def _for(limits: Limits, seconds: float) -> Limits:
    """So many seconds from now on."""
    return replace(limits, seconds=seconds, started=time.monotonic())


def _recomputed(problem: Problem, limits: Limits, start: Schedule | None) -> Plan | None:
    """The best plan that pages nothing."""
    return run_solver(problem, make_solver(AUTO), limits, start).plan
