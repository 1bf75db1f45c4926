"""Plans on a chain of blocks: rotor's, POFO's, and POFO's with gaps closed."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers import make_solver, run_solver
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits
from remat_cli.solvers.chains.candidates import close_gaps
from remat_cli.solvers.paging.pager import PagingProposal
from remat_cli.solvers.paging.question import PagingQuestion
from remat_cli.solvers.published._pofo.chain_proposals import CHAIN_KERNELS, chain_proposals, halved
from remat_cli.solvers.published._pofo.pofo_schedule import SLOTS, pofo_schedule

KERNELS = (*CHAIN_KERNELS, "chains.rotor_warmup")  # what is compiled for them
ROTOR_SHARE = 0.4  # of the time, for the plan that pages nothing


def pofo_proposals(question: PagingQuestion, limits: Limits, slots: int = SLOTS) -> Iterator[PagingProposal]:
    """What rotor makes of the blocks, which pages nothing, POFO's plan, and the same with gaps closed.

    A chain counts a block's needs for the whole block: rotor's plans, judged op by op, fit where the chain says no.
    """
    # Limits that end after a share of what is left.
    run = run_solver(
        question.problem,
        make_solver("rotor"),
        replace(limits, seconds=ROTOR_SHARE * limits.seconds_left, started=time.monotonic()),
    )
    if run.plan is not None:
        yield PagingProposal("rotor", run.plan.schedule)
    plan = partial(pofo_schedule, slots=slots, limits=halved(limits))
    for proposal in chain_proposals("pofo", question, limits, plan):
        yield proposal
        # The same with values held that it makes again, wherever it holds less than at its peak.
        half = halved(limits)
        problem = question.problem
        most_bytes = max(problem.memories[0].budget_bytes, simulate(problem, proposal.schedule).peak)
        condensed = condense(problem.with_budget(most_bytes))
        closed = close_gaps(condensed, condensed.contract(proposal.schedule), half)
        yield PagingProposal("pofo, gaps closed", condensed.expand(closed, judge=half.judge))
