"""The baselines of the thesis: greedy-paging, autocapper, opportunist."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from remat_cli.core.paging.paging import Link
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.solvers.chains.actions import Action, Chain
from remat_cli.solvers.published._pofo.autocapper import autocapper, capper
from remat_cli.solvers.published._pofo.chain_plan import ChainPlan, at_the_loss, realised
from remat_cli.solvers.published._pofo.chain_steps import keep_all_actions
from remat_cli.solvers.published._pofo.opportunist import opportunist
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.pofo import pofo
from tests.solvers.greedy_paging import greedy_paging
from tests.solvers.paging_vectors import figure, paged_chain, paging_vectors, time_of
from tests.solvers.pofo_oracle import Plan, makespan
from tests.solvers.random_paging import chains

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)


def even_chain(stages: int = 8, budget: int = 12, bandwidth: int = 1) -> PagedChain:
    """Values of 1 byte, 2 to keep of each stage; a forward takes 2 ns, a backward 3."""
    ones, twos = (1,) * (stages + 1), (0, *(2,) * stages)
    nothing = (0,) * (stages + 1)
    chain = Chain((0, *(2,) * stages), (0, *(3,) * stages), ones, twos, (*ones[1:], 0), nothing, nothing, nothing)
    return PagedChain(chain, budget, Link(bandwidth, bandwidth))


def test_greedy_paging_is_the_greedy_of_the_vectors():
    for entry in paging_vectors()["offload_chain"]:
        for case in entry["cases"]:
            chain = paged_chain(entry, case["M"])
            plan = greedy_paging(chain)
            if case["greedy_int"] is None:
                assert plan is None
                continue
            assert plan is not None
            assert time_of(plan.run.makespan, chain.link) == figure(case["greedy_int"])
            assert plan.paged == tuple(k for k in case["greedy_set"] if chain.kept_bytes[k])


def check(chain: PagedChain, plan: ChainPlan | None) -> None:
    """Within the budget, as the judge says, and possible for POFO where it is for a baseline of its class."""
    if plan is None:
        return
    assert plan.run == follow_paging(plan.steps.problem, plan.schedule)
    assert plan.run.peak_bytes <= chain.budget_bytes
    best = pofo(chain)
    assert best is not None
    fluid = makespan(chain, Plan(plan.forward, plan.backward, plan.paged))
    assert fluid is not None
    assert time_of(best.ticks, chain.link) <= fluid


@SETTINGS
@given(chains(most=7, is_low=True))
def test_baselines_fit_and_pofo_is_never_worse_in_its_model(chain):
    for plan in (greedy_paging(chain), autocapper(chain), opportunist(chain)):
        check(chain, plan)
    assert (greedy_paging(chain) is None) == (chain.budget_bytes < chain.least_bytes)


@SETTINGS
@given(chains(most=6))
def test_autocapper_without_recomputation_is_greedy_in_what_it_pages(chain):
    """The thesis says so; at the peak the first values are there, so that the same ones go until the rest fits."""
    plan = capper(chain, [action for sweep in keep_all_actions(chain.stages) for action in sweep])
    greedy = greedy_paging(chain)
    assert (plan is None) == (greedy is None)
    if plan is not None and greedy is not None:
        assert plan.paged[: len(greedy.paged)] == greedy.paged


def test_autocapper_takes_the_best_of_many_budgets():
    chain = even_chain(budget=8, bandwidth=2)
    one, many = autocapper(chain, budgets=1), autocapper(chain)
    assert one is not None
    assert many is not None
    assert not one.paged  # recomputation for the budget itself leaves nothing to page
    assert many.run.makespan < one.run.makespan


def test_autocapper_where_all_fits_does_nothing():
    chain = even_chain(budget=100)
    plan = autocapper(chain)
    assert plan is not None
    assert (plan.run.stall, plan.paged) == (0, ())


def test_opportunist_pages_when_the_link_is_idle():
    """1 + 2 bytes take 3 ns, less 2 of the forward itself: two more, one stage passes by, and the next is kept."""
    chain = even_chain(stages=8, budget=9)
    plan = opportunist(chain)
    assert plan is not None
    kinds = [action.kind for action in plan.forward]
    assert kinds == ["all", "keep", "all", "keep", "all", "all", "all", "all"]
    assert plan.paged == (0, 1, 2, 3, 4, 5)[: len(plan.paged)]
    assert [action.stage for action in plan.backward if action.kind == "back"] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert Action("all", 2) in plan.backward


def test_opportunist_has_no_plan_with_little_memory():
    chain = even_chain(budget=4)
    assert opportunist(chain) is None
    assert opportunist(replace(chain, budget_bytes=100)) is not None


def test_a_plan_falls_apart_at_the_loss():
    forward, backward = at_the_loss([Action("all", 1), Action("all", 2), Action("back", 2), Action("back", 1)])
    assert (len(forward), len(backward)) == (2, 2)


def test_what_does_not_fit_has_no_schedule():
    chain = even_chain(budget=4)
    assert realised(chain, *keep_all_actions(chain.stages), range(chain.stages)) is None
