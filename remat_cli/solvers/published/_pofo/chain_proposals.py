"""Plans on the chain of blocks that `rotor` sees, as schedules of ops to be paged."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits, Reason
from remat_cli.solvers.chains.blocks import Blocks, find_blocks, spell_out
from remat_cli.solvers.chains.candidates import cleaned, why_not
from remat_cli.solvers.paging.pager import PagingProposal
from remat_cli.solvers.paging.question import PagingQuestion
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan
from remat_cli.solvers.published._pofo.paged_blocks import paged_blocks
from remat_cli.solvers.published._pofo.paged_chain import PagedChain

CHAIN_KERNELS = ("published._pofo.pofo_warmup",)  # what is compiled for plans on chains
PlanChain = Callable[[PagedChain], ChainPlan | None]


def no_chain(problem: Problem) -> Reason | None:
    """None, or why a problem of one device is no chain of blocks."""
    return why_not(problem, find_blocks)


def chain_proposals(
    source: str, question: PagingQuestion, limits: Limits, plan_chain: PlanChain
) -> Iterator[PagingProposal]:
    """The plan on the chain, spelled out; nothing where there is none."""
    condensed = condense(question.problem)
    blocks = find_blocks(condensed.problem, limits.order)
    if not isinstance(blocks, Blocks):
        return
    plan = plan_chain(paged_blocks(blocks, question.memory.link))
    if plan is None:
        return
    ops = spell_out(blocks, (*plan.forward, *plan.backward))
    spelled = cleaned(condensed.problem, ops, limits.order)
    yield PagingProposal(source, condensed.expand(spelled, judge=limits.judge))


def halved(limits: Limits) -> Limits:
    """Limits for a plan on the chain: what is left is for paging its ops closely."""
    return replace(limits, seconds=limits.seconds_left / 2, started=time.monotonic())


def baseline_order(problem: Problem) -> Schedule:
    """Every op once, as the model has them."""
    return Schedule.of_ops(tuple(range(len(problem.ops))))
