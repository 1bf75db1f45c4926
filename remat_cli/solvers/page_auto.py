"""Keep, recompute or page: plans that recompute for this budget and larger ones, each paged where it holds too much."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import msgspec

from remat_cli.core.floor import working_set_floor
from remat_cli.core.problem import Problem
from remat_cli.core.simulate import baseline
from remat_cli.solvers import make_solver, must_search, run_solver
from remat_cli.solvers._paging.autocapper import autocapper
from remat_cli.solvers._paging.chain_proposals import CHAIN_KERNELS, baseline_order, chain_proposals, no_chain
from remat_cli.solvers._paging.pager import CLOSER, PagingProposal, page_best
from remat_cli.solvers._paging.pofo_schedule import pofo_schedule
from remat_cli.solvers._paging.question import PagingFound, PagingQuestion
from remat_cli.solvers.base import Limits
from remat_cli.solvers.least_budget import KERNELS

RECOMPUTE_SHARE = 0.5  # of the time, for plans that recompute
PARTS = 4  # budgets between the given one and what keeping everything takes


class BestPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best of paging alone, POFO, and plans of `auto` for this and larger budgets whose rest is paged."""

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "keep, recompute or page, whatever is fastest"
    takes: ClassVar[str] = "Any model on one device, with --spill."
    proves: ClassVar[str] = "that nothing is faster than every op once"

    def supports(self, problem: Problem) -> str | None:
        """None, or why not."""
        return "it plans for one device" if len(problem.devices) > 1 else None

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """POFO's, where the model is a chain, and those of plans that recompute."""
        if not must_search(problem):
            return ()
        return (*CHAIN_KERNELS, *KERNELS) if no_chain(problem) is None else KERNELS

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """The best of what each kind of proposal comes to in its part of the time."""
        found = []
        for number, kind in enumerate(KINDS):
            part = replace(limits, seconds=limits.seconds_left / (len(KINDS) - number), started=time.monotonic())
            best = page_best(question, kind(question, part), part, CLOSER)
            if best.paged is not None and best.seconds_to_best is not None:
                late = part.started - limits.started
                found.append(replace(best, seconds_to_best=late + best.seconds_to_best))
        return min(found, key=lambda each: each.paged.paging.time_ns if each.paged else 0, default=PagingFound())


def _as_it_is(question: PagingQuestion, limits: Limits) -> Iterator[PagingProposal]:
    """Paging alone."""
    yield PagingProposal("paging", baseline_order(question.problem))


def _on_chains(question: PagingQuestion, limits: Limits) -> Iterator[PagingProposal]:
    """POFO and autocapper, where the model is a chain."""
    if no_chain(question.problem) is None:
        early = replace(limits, seconds=limits.seconds_left / 2, started=time.monotonic())
        over = partial(_is_over, early)
        yield from chain_proposals("pofo", question, early, partial(pofo_schedule, limits=early))
        yield from chain_proposals("autocapper", question, early, partial(autocapper, is_over=over))


def _is_over(limits: Limits) -> bool:
    return limits.is_over


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


KINDS = (_as_it_is, _recomputed, _on_chains)
"""Each has a part of the time, so that none is worse than by itself in it. POFO may take longer, so it is last."""
