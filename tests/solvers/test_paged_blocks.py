"""Training steps as chains of blocks: plans of POFO and of the baselines, spelled out as ops and paged."""

from __future__ import annotations

import pytest

from remat_cli.core.paging.paging import Link, PagedProblem
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import solve
from remat_cli.solvers.base import Limits, Reason
from remat_cli.solvers.chains.blocks import Blocks, find_blocks, spell_out
from remat_cli.solvers.paging.hot import is_possible
from remat_cli.solvers.paging.paging import page
from remat_cli.solvers.paging.plan_steps import plan_steps
from remat_cli.solvers.published._pofo.autocapper import autocapper
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan
from remat_cli.solvers.published._pofo.opportunist import opportunist
from remat_cli.solvers.published._pofo.paged_blocks import paged_blocks
from remat_cli.solvers.published._pofo.pofo_schedule import pofo_schedule, recomputed
from tests.solvers.greedy_paging import greedy_paging
from tests.solvers.random_training import chain_training, random_training

LINK = Link(1, 1)
ALGORITHMS = (pofo_schedule, autocapper, opportunist, greedy_paging)


def paged_ops(blocks: Blocks, plan: ChainPlan) -> PagedProblem:
    """The ops of a plan on blocks, each a step, every tensor to be paged where that helps.

    What the plan pages as one copy are several tensors here, and what it holds all through may go too: a plan that
    fits on the chain is possible here.
    """
    ops = spell_out(blocks, (*plan.forward, *plan.backward))
    return plan_steps(blocks.problem, simulate(blocks.problem, Schedule.of_ops(ops)), LINK)


def blocks_at(percent: int) -> Blocks:
    problem = chain_training(10, size=6, forward_ns=7)
    blocks = find_blocks(problem.with_budget(baseline(problem).peak * percent // 100), "free")
    assert isinstance(blocks, Blocks)
    return blocks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("percent", [40, *(pytest.param(each, marks=pytest.mark.slow) for each in (60, 80))])
def test_plans_on_blocks_are_possible_for_ops(percent, algorithm):
    blocks = blocks_at(percent)
    plan = algorithm(paged_blocks(blocks, LINK))
    if plan is None:
        assert algorithm is not pofo_schedule
        return
    problem = paged_ops(blocks, plan)
    assert is_possible(problem)
    answer = page(problem, Limits(seconds=3.0))
    assert answer.schedule is not None
    run = follow_paging(problem, answer.schedule)
    assert run.peak_bytes <= blocks.problem.memories[0].free_bytes
    assert answer.bound <= run.makespan


@pytest.mark.parametrize("percent", [40, 60, 80])
def test_recomputation_alone_takes_what_rotor_takes(percent):
    """The same view and the same table: no plan of rotor's own variant is faster."""
    blocks = blocks_at(percent)
    plan = recomputed(paged_blocks(blocks, LINK))
    found = solve(blocks.problem, "rotor", Limits(seconds=20.0), {"close_gaps": False, "inflate": False}).plan
    assert plan is not None
    assert found is not None
    assert found.time_ns <= plan.run.makespan // LINK.ticks


def test_both_together_are_faster_than_either():
    """At 40 % neither recomputation alone nor paging alone comes near."""
    chain = paged_blocks(blocks_at(40), Link(1, 1))
    both, alone, paged = pofo_schedule(chain), recomputed(chain), greedy_paging(chain)
    assert both is not None
    assert alone is not None
    assert both.run.makespan <= alone.run.makespan
    assert paged is None or both.run.makespan < paged.run.makespan


def test_random_steps_that_are_chains():
    taken = 0
    for seed in range(60):
        problem = random_training(seed)
        limited = problem.with_budget(baseline(problem).peak - 1)
        blocks = find_blocks(limited, "free")
        if isinstance(blocks, Reason):
            continue
        plan = pofo_schedule(paged_blocks(blocks, LINK))
        if plan is not None:
            assert is_possible(paged_ops(blocks, plan))
            taken += bool(plan.paged)
    assert taken > 0
