"""Paging of any graph's steps in a given order: simple schedules, a fluid bound, CP-SAT in between until they meet."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from remat_cli.base.errors import BrokenSolver, InvalidSchedule
from remat_cli.core.paging import PagedProblem, PagedRun, PagedSchedule
from remat_cli.core.paging_judge import follow_paging
from remat_cli.core.solver_run import Status
from remat_cli.solvers._paging.chain_steps import ChainSteps, chain_steps, keep_all_actions
from remat_cli.solvers._paging.comm import comm_sets
from remat_cli.solvers._paging.exact import Grain, PagingModel, grain_of, search_exact
from remat_cli.solvers._paging.fluid import fluid_bounds
from remat_cli.solvers._paging.hot import cut_bound, hot_gaps, is_possible
from remat_cli.solvers._paging.lists import list_schedules
from remat_cli.solvers._paging.paged_chain import PagedChain
from remat_cli.solvers._paging.retimed import retimed
from remat_cli.solvers._paging.two_phases import two_phases
from remat_cli.solvers.base import Limits

MOST_GAPS = 4_000  # more optional intervals than this CP-SAT does not get to search


@dataclass(frozen=True)
class PagingAnswer:
    """What is known: the best schedule as the judge sees it, and a bound in ticks that none of this order beats."""

    status: Status
    bound: int
    schedule: PagedSchedule | None = None
    run: PagedRun | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def page(problem: PagedProblem, limits: Limits, starts: Iterable[PagedSchedule] = ()) -> PagingAnswer:
    """The best schedule found within the limits; `starts` are schedules to begin with, which the judge sees first.

    Raises:
        BrokenSolver: a schedule was illegal or over budget.
    """
    bound = cut_bound(problem)
    if not is_possible(problem):
        return PagingAnswer(Status.INFEASIBLE, bound)
    search = _Search(problem, limits, bound)
    if next(hot_gaps(problem), None) is None:
        search.offer("nothing paged", _unpaged(problem))
        return search.answer()
    for start in starts:
        search.offer("given", start)
    for schedule in list_schedules(problem):
        search.offer("lists", schedule)
    if not search.is_over:
        search.bound = max(bound, *fluid_bounds([problem], limits))
    if not search.is_over:
        search.exactly()
    return search.answer()


def page_chain(chain: PagedChain, limits: Limits) -> tuple[ChainSteps, PagingAnswer]:
    """A chain without recomputation; begins with GREEDY and the sets that DYNPROG finds."""
    steps = chain_steps(chain, *keep_all_actions(chain.stages))
    sets = [chain.greedy_set(), *(found.stages for found in comm_sets(chain))]
    made = (two_phases(steps.problem, steps.turn, steps.gaps(stages)) for stages in dict.fromkeys(sets))
    return steps, page(steps.problem, limits, (schedule for schedule in made if schedule is not None))


def _unpaged(problem: PagedProblem) -> PagedSchedule:
    starts, now = [], 0
    for duration in problem.durations:
        starts.append(now)
        now += duration
    return PagedSchedule(tuple(starts))


@dataclass
class _Search:
    """One call: the best so far, where it came from, and the best bound."""

    problem: PagedProblem
    limits: Limits
    bound: int
    best: PagedSchedule | None = None
    run: PagedRun | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing better is to be had, or the limits say so."""
        allowed = self.bound + self.limits.gap * self.problem.compute_ticks
        return self.limits.is_over or (self.run is not None and self.run.makespan <= allowed)

    def offer(self, source: str, schedule: PagedSchedule) -> None:
        """Judge a schedule and keep it if it is faster."""
        try:
            run = follow_paging(self.problem, schedule)
        except InvalidSchedule as error:
            raise BrokenSolver(f"paging ({source}): illegal schedule: {error}") from error
        if run.peak_bytes > self.problem.budget_bytes:
            above = f"above the budget of {self.problem.budget_bytes}"
            raise BrokenSolver(f"paging ({source}): peak {run.peak_bytes} bytes {above}")
        if self.run is None or run.makespan < self.run.makespan:
            self.best, self.run, self.facts["best_from"] = schedule, run, source

    def exactly(self) -> None:
        """CP-SAT with the best as hint; its bound counts where its units are exact."""
        gaps = sum(1 for _ in hot_gaps(self.problem))
        if gaps > MOST_GAPS:
            self.facts["refused"] = f"{gaps} gaps are too many for CP-SAT"
            return
        assert self.best is not None
        assert self.run is not None
        grain = grain_of(self.problem, self.run.makespan)
        model = PagingModel(self.problem, grain, self._horizon(grain)).build(
            grain.time(self.bound) if grain.is_exact else 0
        )
        model.hint(self.best)
        outcome = search_exact(model, self.limits, lambda schedule: self._found(schedule, grain))
        self.facts |= outcome.facts | {"is_exact": grain.is_exact}
        if grain.is_exact:
            self.bound = max(self.bound, outcome.bound * grain.ticks)

    def _horizon(self, grain: Grain) -> int:
        """No later than the best so far, and where times are rounded up, as much later as that can make it."""
        assert self.best is not None
        assert self.run is not None
        events = 0 if grain.is_exact else len(self.best.starts) + len(self.best.transfers)
        return grain.time(self.run.makespan) + events

    def _found(self, schedule: PagedSchedule, grain: Grain) -> None:
        self.offer("CP-SAT", retimed(self.problem, schedule, grain.ticks))

    def answer(self) -> PagingAnswer:
        """What is known in the end."""
        if self.run is None:
            return PagingAnswer(Status.NOT_FOUND, self.bound, facts=self.facts)
        if self.bound > self.run.makespan:
            raise BrokenSolver(f"paging: bound {self.bound} above a judged schedule of {self.run.makespan}")
        status = Status.OPTIMAL if self.bound == self.run.makespan else Status.FEASIBLE
        return PagingAnswer(status, self.bound, self.best, self.run, self.facts)
