"""Paging of any graph's steps in a given order: simple schedules, a fluid bound, CP-SAT in between until they meet."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from remat_cli.base.errors import BrokenSolver, InvalidSchedule
from remat_cli.base.present import present
from remat_cli.core.paging.paging import PagedProblem, PagedRun, PagedSchedule
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.core.paging.paging_rules import rules_of, run_rules
from remat_cli.core.schedule.solver_run import Status
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.exact import MOST_UNITS, Grain, PagingModel, coarser, grain_of, search_exact
from remat_cli.solvers.paging.fluid import fluid_bounds
from remat_cli.solvers.paging.hot import cut_bound, hot_gaps, is_possible
from remat_cli.solvers.paging.lists import list_schedules
from remat_cli.solvers.published._pofo.chain_steps import ChainSteps, chain_steps, keep_all_actions
from remat_cli.solvers.published._pofo.comm import comm_sets
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.two_phases import two_phases

MOST_GAPS = 4_000  # more optional intervals than this CP-SAT does not get to search
FEW_GAPS, MOMENT = 40, 1.0  # with so few, CP-SAT is often done in so many seconds, before the fluid is even asked
FLUID_SHARE = 0.4  # of the time that is left
# Units of time, share of what is left, and whether to round down: coarse models find schedules that fine ones do not.
PASSES = ((2_000, 0.4, False), (20_000, 0.4, False), (20_000, 1.0, True))


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
    if not search.gaps:
        search.offer("nothing paged", unpaged(problem))
        return search.answer()
    for start in starts:
        search.offer("given", start)
    for schedule in list_schedules(problem):
        search.offer("lists", schedule)
    if not search.is_over and search.gaps <= FEW_GAPS:
        search.exactly(MOMENT)
    if not search.is_over:
        # Limits that end after a share of what is left.
        search.bound = max(
            search.bound,
            *fluid_bounds(
                [problem], replace(limits, seconds=FLUID_SHARE * limits.seconds_left, started=time.monotonic())
            ),
        )
    if not search.is_over:
        search.exactly(limits.seconds_left)
    return search.answer()


def page_chain(chain: PagedChain, limits: Limits) -> tuple[ChainSteps, PagingAnswer]:
    """A chain without recomputation; begins with GREEDY and the sets that DYNPROG finds."""
    steps = chain_steps(chain, *keep_all_actions(chain.stages))
    sets = [chain.greedy_set(), *(found.stages for found in comm_sets(chain))]
    made = (two_phases(steps.problem, steps.turn, steps.gaps(stages)) for stages in dict.fromkeys(sets))
    return steps, page(steps.problem, limits, (schedule for schedule in made if schedule is not None))


def unpaged(problem: PagedProblem) -> PagedSchedule:
    """Steps one after the other, nothing paged."""
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

    @cached_property
    def gaps(self) -> int:
        """How many gaps between uses may be worth paging."""
        return sum(1 for _ in hot_gaps(self.problem))

    def exactly(self, seconds: float) -> None:
        """CP-SAT with the best as hint; where it cannot count exactly, coarsely for schedules, then for a bound."""
        if self.gaps > MOST_GAPS:
            self.facts["refused"] = f"{self.gaps} gaps are too many for CP-SAT"
            return
        until = time.monotonic() + seconds
        horizon = self._makespan
        exact = grain_of(self.problem, horizon)
        self.facts["is_exact"] = exact.is_exact and horizon <= MOST_UNITS * exact.ticks
        if self.facts["is_exact"]:
            self._run(exact, seconds)
            return
        for units, share, is_down in PASSES:
            if not self.is_over:
                self._run(coarser(exact, self._makespan, units, is_down), share * (until - time.monotonic()))

    @property
    def _makespan(self) -> int:
        """Of the best schedule so far."""
        return present(self.run, "a schedule to begin with").makespan

    def _run(self, grain: Grain, seconds: float) -> None:
        """One model; its schedules count unless times were rounded down, its bound unless they were rounded up."""
        may_tell = not grain.is_down
        may_bound = grain.is_exact or grain.is_down
        # No later than the best so far, and where times are rounded up, as much later as that can make it.
        best = present(self.best, "a schedule to begin with")
        events = 0 if grain.is_exact else len(best.starts) + len(best.transfers)
        horizon = grain.time(self._makespan) + events
        # From the bound so far; a makespan in exact units is a whole number of them.
        model = PagingModel(self.problem, grain, horizon).build(
            grain.time(self.bound) if grain.is_exact else self.bound // grain.ticks
        )
        if may_tell:
            model.hint(best)

        def found(schedule: PagedSchedule) -> None:
            if may_tell:  # where times are rounded down it is none
                self.offer("CP-SAT", run_rules(self.problem, rules_of(self.problem, schedule, grain.ticks)))

        outcome = search_exact(model, seconds, self.limits, found)
        self.facts |= outcome.facts
        if may_bound and not outcome.is_infeasible:
            self.bound = max(self.bound, outcome.bound * grain.ticks)

    def answer(self) -> PagingAnswer:
        """The best schedule and bound that are known in the end."""
        if self.run is None:
            return PagingAnswer(Status.NOT_FOUND, self.bound, facts=self.facts)
        if self.bound > self.run.makespan:
            raise BrokenSolver(f"paging: bound {self.bound} above a judged schedule of {self.run.makespan}")
        status = Status.OPTIMAL if self.bound == self.run.makespan else Status.FEASIBLE
        return PagingAnswer(status, self.bound, self.best, self.run, self.facts)
