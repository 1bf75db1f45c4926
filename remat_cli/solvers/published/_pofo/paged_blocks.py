"""A training step as rotor sees it, a chain of blocks, for plans that page; and back to the step's own ops."""

from remat_cli.core.paging.paging import Link, PagedProblem
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.chains.blocks import Blocks, spell_out
from remat_cli.solvers.paging.plan_steps import plan_steps
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan
from remat_cli.solvers.published._pofo.paged_chain import PagedChain


def paged_blocks(blocks: Blocks, link: Link) -> PagedChain:
    """The chain, with what its budget leaves when everything that stays all through is taken off."""
    room = blocks.problem.memories[0].free_bytes - blocks.resident_bytes
    return PagedChain(blocks.chain, max(0, room), link)


def paged_ops(blocks: Blocks, plan: ChainPlan, link: Link) -> PagedProblem:
    """The ops of a plan on blocks, each a step, every tensor to be paged where that helps.

    What the plan pages as one copy are several tensors here, and what it holds all through may go too: a plan that
    fits on the chain is possible here.
    """
    ops = spell_out(blocks, (*plan.forward, *plan.backward))
    judged = simulate(blocks.problem, Schedule.of_ops(ops))
    return plan_steps(blocks.problem, judged, link)
