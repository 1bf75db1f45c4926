"""Paging alone: every op once, in the model's order."""

from typing import ClassVar

import msgspec

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits, Reason, several_devices
from remat_cli.solvers.paging.pager import CLOSER, PagingProposal, page_best
from remat_cli.solvers.paging.question import PagingFound, PagingQuestion
from remat_cli.solvers.published._pofo.chain_proposals import baseline_order


class FixedOrderPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least makespan of a model's own order when values may be away: simple rules, a fluid bound, CP-SAT between.

    Shilova 2021, chapter 3, for any graph. Nothing is recomputed.
    """

    name: ClassVar[str] = "paging"
    summary: ClassVar[str] = "page what is not needed for a while, recompute nothing (Shilova 2021, ch. 3)"
    takes: ClassVar[str] = "Any model on one device, with --spill."
    proves: ClassVar[str] = "a bound on its order in its sessions"

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return several_devices(problem)

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """Page the baseline order."""
        proposal = PagingProposal(self.name, baseline_order(question.problem))
        return page_best(question, iter([proposal]), limits, CLOSER)


class GreedyPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model's own order, paged by simple rules: what is made first, lies longest, or is largest goes first."""

    name: ClassVar[str] = "greedy-paging"
    summary: ClassVar[str] = "page by simple rules, recompute nothing (Shilova 2021, ch. 3)"
    takes: ClassVar[str] = "Any model on one device, with --spill."
    proves: ClassVar[str] = "nothing"

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return several_devices(problem)

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """Page the baseline order by rules."""
        proposal = PagingProposal(self.name, baseline_order(question.problem))
        return page_best(question, iter([proposal]), limits, 0)
