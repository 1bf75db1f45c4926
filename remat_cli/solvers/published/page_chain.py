"""Plans on chains of blocks that recompute and page: POFO, and what its source compares it with."""

from functools import partial
from typing import Annotated, ClassVar

import msgspec

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Limits, Reason
from remat_cli.solvers.paging.pager import CLOSER, page_best
from remat_cli.solvers.paging.question import PagingFound, PagingQuestion
from remat_cli.solvers.published._pofo.autocapper import BUDGETS, autocapper
from remat_cli.solvers.published._pofo.chain_proposals import CHAIN_KERNELS, PlanChain, chain_proposals, no_chain
from remat_cli.solvers.published._pofo.opportunist import opportunist
from remat_cli.solvers.published._pofo.pofo_proposals import KERNELS, pofo_proposals
from remat_cli.solvers.published._pofo.pofo_schedule import SLOTS

CHAINS_ONLY = "A training step on one device that is a chain of blocks, with --spill."


class PofoPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POFO: recomputation and paging together on a chain of blocks (Shilova 2021, chapter 4), then ops paged closely.

    Attributes:
        slots: parts that the budget is counted in.
    """

    name: ClassVar[str] = "pofo"
    summary: ClassVar[str] = "recompute and page a chain of blocks together (Shilova 2021, ch. 4)"
    takes: ClassVar[str] = CHAINS_ONLY
    proves: ClassVar[str] = "a bound on its order in its sessions"

    slots: Annotated[int, msgspec.Meta(ge=2)] = SLOTS

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return no_chain(problem)

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """POFO's plan on blocks and rotor's, spelled out and paged."""
        return page_best(question, pofo_proposals(question, limits, self.slots), limits, CLOSER)

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """Those that fill its tables and rotor's."""
        return KERNELS


class AutocapperPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recompute for a larger budget, then page what is still too much; the best of many budgets.

    Attributes:
        budgets: how many are tried.
    """

    name: ClassVar[str] = "autocapper"
    summary: ClassVar[str] = "recompute a chain of blocks for a larger budget and page the rest (Shilova 2021, 4.4)"
    takes: ClassVar[str] = CHAINS_ONLY
    proves: ClassVar[str] = "a bound on its order in its sessions"

    budgets: Annotated[int, msgspec.Meta(ge=2)] = BUDGETS

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return no_chain(problem)

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """Its plan on blocks, spelled out and paged."""
        plan = partial(autocapper, budgets=self.budgets, is_over=lambda: limits.is_over)
        return _page(self.name, question, limits, plan)

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """The compiled functions of its table."""
        return CHAIN_KERNELS


class OpportunistPager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keep and page all of a stage whenever the link has nothing to do, and recompute the others."""

    name: ClassVar[str] = "opportunist"
    summary: ClassVar[str] = "page a stage of a chain whenever the link is idle (Shilova 2021, 4.4)"
    takes: ClassVar[str] = CHAINS_ONLY
    proves: ClassVar[str] = "a bound on its order in its sessions"

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return no_chain(problem)

    def page(self, question: PagingQuestion, limits: Limits) -> PagingFound:
        """Its plan on blocks, spelled out and paged."""
        return _page(self.name, question, limits, opportunist)

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """The compiled functions of its tables."""
        return CHAIN_KERNELS


def _page(name: str, question: PagingQuestion, limits: Limits, plan: PlanChain) -> PagingFound:
    return page_best(question, chain_proposals(name, question, limits, plan), limits, CLOSER)
