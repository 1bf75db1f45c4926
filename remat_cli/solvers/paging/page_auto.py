"""Keep, recompute or page: plans that recompute for this budget and larger ones, each paged where it holds too much."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import msgspec

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver, must_search, run_solver
from remat_cli.solvers.base import Limits, Reason, several_devices
from remat_cli.solvers.least_budget import KERNELS
from remat_cli.solvers.paging.pager import CLOSER, PagingProposal, page_best
from remat_cli.solvers.paging.question import PagingFound, PagingQuestion
from remat_cli.solvers.published._pofo.autocapper import autocapper
from remat_cli.solvers.published._pofo.chain_proposals import baseline_order, chain_proposals, halved, no_chain
from remat_cli.solvers.published._pofo.pofo_proposals import KERNELS as POFO_KERNELS
from remat_cli.solvers.published._pofo.pofo_proposals import pofo_proposals

RECOMPUTE_SHARE = 0.5  # of the time, for plans that recompute
LOOK_SHARE = 0.3  # of the time, for all kinds of proposals together; the best have the rest
NEAR = 1.02  # times what the best takes, and a kind may still be the best
PARTS = 4  # budgets between the given one and what keeping everything takes


Kind = Callable[[PagingQuestion, Limits], Iterator[PagingProposal]]


class BestPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best of paging alone, POFO, and plans of `auto` for this and larger budgets whose rest is paged."""

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep, recompute or page, whatever is fastest"
    takes: ClassVar[str] = "Any model on one device, with --spill."
    proves: ClassVar[str] = "that nothing is faster than every op once"

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return several_devices(problem)

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """POFO's, where the model is a chain, and those of plans that recompute."""
        if not must_search(problem):
            return ()
        return (*POFO_KERNELS, *KERNELS) if no_chain(problem) is None else KERNELS

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """The best of each kind of proposal in a short part of the time, and of the best kinds in all the rest.

        The rest is left over where no kind comes near what is to be beaten.
        """
        kinds = KINDS if no_chain(question.problem) is None else KINDS_FOR_ANY
        looks = [_look(kind, question, limits, LOOK_SHARE * limits.seconds / len(kinds)) for kind in kinds]
        best = min(looks, key=_time_ns)
        is_worth_more = question.beat_ns is None or _time_ns(best) < question.beat_ns
        if limits.is_over or not is_worth_more or _time_ns(best) <= question.problem.baseline_time_ns:
            return best
        near = [kind for kind, found in zip(kinds, looks, strict=True) if _time_ns(found) <= NEAR * _time_ns(best)]
        more = [_look(kind, question, limits, limits.seconds_left / (len(near) - n)) for n, kind in enumerate(near)]
        return min([best, *more], key=_time_ns)


def _look(kind: Kind, question: PagingQuestion, limits: Limits, seconds: float) -> PagingFound:
    """What a kind of proposals comes to in so much time."""
    part = replace(limits, seconds=min(seconds, limits.seconds_left), started=time.monotonic())
    found = page_best(question, kind(question, part), part, CLOSER)
    if found.seconds_to_best is None:
        return found
    return replace(found, seconds_to_best=part.started - limits.started + found.seconds_to_best)


def _time_ns(found: PagingFound) -> float:
    return math.inf if found.time_ns is None else found.time_ns


def _capped(question: PagingQuestion, limits: Limits) -> Iterator[PagingProposal]:
    """autocapper, where the model is a chain."""
    half = halved(limits)
    return chain_proposals("autocapper", question, limits, partial(autocapper, is_over=lambda: half.is_over))


def _recomputed(question: PagingQuestion, limits: Limits) -> Iterator[PagingProposal]:
    """Plans of `auto` for budgets from the given one up to what keeping everything takes."""
    problem, solver = question.problem, make_solver("auto")
    low, high = problem.memories[0].budget_bytes, baseline(problem).peak
    low = max(low, working_set_floor(problem).bytes[0])
    share = limits.seconds_left * RECOMPUTE_SHARE / PARTS
    for part in range(PARTS):
        if limits.is_over or low >= high:
            return
        budget = low + (high - low) * part // PARTS
        mine = Limits(
            seconds=share,
            workers=limits.workers,
            seed=limits.seed,
            gap=limits.gap,
            order=limits.order,
            should_stop=limits.should_stop,
        )
        run = run_solver(problem.with_budget(budget), solver, mine)
        if run.plan is not None:
            yield PagingProposal(f"recompute to {100 * budget // high} %", run.plan.schedule)


KINDS_FOR_ANY: tuple[Kind, ...] = (
    lambda question, limits: iter([PagingProposal("paging", baseline_order(question.problem))]),  # nothing recomputed
    _recomputed,
)
KINDS: tuple[Kind, ...] = (*KINDS_FOR_ANY, _capped, pofo_proposals)
"""Each has a part of the time of its own, so that none is worse than by itself in it."""
