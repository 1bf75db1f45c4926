"""POFO: the shared vectors, every plan of small chains beside it, and its plans as schedules of the judge."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from remat_cli.core.paging_judge import follow_paging
from remat_cli.solvers._chains.rotor_tables import build_table, make_slots
from remat_cli.solvers._paging.chain_steps import chain_steps
from remat_cli.solvers._paging.comm import comm, comm_simple_gap
from remat_cli.solvers._paging.pofo import PofoPlan, pofo, remat_only
from remat_cli.solvers._paging.two_phases import two_phases
from tests.solvers.paging_vectors import actions_of, figure, paged_chain, paging_vectors, time_of
from tests.solvers.pofo_oracle import Plan, every_plan, makespan
from tests.solvers.random_paging import chains

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def cases():
    for entry in paging_vectors()["pofo_chain"]:
        for case in entry["cases"]:
            yield entry, case, paged_chain(entry, case["M"])


def as_plan(found: PofoPlan) -> Plan:
    return Plan(found.forward, found.backward, found.paged)


def test_vectors():
    for entry, case, chain in cases():
        plans = {
            "pofo": pofo(chain),
            "remat_only": remat_only(chain),
            "offload_only_comm": comm(chain),
            "pofo_if_t_at_most_L_minus_1": pofo(chain, "printed"),
        }
        found = {name: time_of(plan and plan.ticks, chain.link) for name, plan in plans.items()}
        assert found == {name: figure(case[name]) for name in plans}, (entry["id"], case["M"])


def test_plans_of_the_vectors():
    """The plan that is given and the one that is found take what is said, by the definition."""
    for entry, case, chain in cases():
        if case["pofo"] is None:
            continue
        actions = (tuple(actions_of(case[name])) for name in ("forward_ops", "backward_ops"))
        given_plan = Plan(*actions, tuple(case["offloaded"]))
        found = pofo(chain)
        assert found is not None
        wanted = figure(case["pofo"])
        assert makespan(chain, given_plan) == makespan(chain, as_plan(found)) == wanted, (entry["id"], case["M"])


def test_high_budgets_take_no_more_than_the_steps():
    for entry, case, chain in cases():
        if case["M"] >= entry["M_high"]:
            found = pofo(chain)
            assert found is not None
            assert time_of(found.ticks, chain.link) == entry["compute"]


@SETTINGS
@given(chains(most=4, is_low=True))
def test_no_plan_is_better(chain):
    times = [time for plan in every_plan(chain.stages) if (time := makespan(chain, plan)) is not None]
    found = pofo(chain)
    assert (min(times) if times else None) == (found and Fraction(found.ticks, chain.link.ticks))
    if found is not None:
        assert makespan(chain, as_plan(found)) == min(times)


@SETTINGS
@given(chains(most=4, is_low=True))
def test_no_plan_without_paging_is_better(chain):
    plans = (plan for plan in every_plan(chain.stages) if not plan.paged)
    times = [time for plan in plans if (time := makespan(chain, plan)) is not None]
    found = remat_only(chain)
    assert (min(times) if times else None) == (found and Fraction(found.ticks, chain.link.ticks))
    assert found is None or found.paged == ()


@SETTINGS
@given(chains(most=6, is_low=True))
def test_beside_its_parts(chain):
    """Never worse than recomputation alone, than paging alone that pauses at the loss, than as printed."""
    found = pofo(chain)
    others = [remat_only(chain), pofo(chain, "printed")]
    times = [other.ticks for other in others if other is not None]
    pausing = comm_simple_gap(chain)
    times += [] if pausing is None else [pausing]
    if times:
        assert found is not None
        assert found.ticks <= min(times)


@SETTINGS
@given(chains(most=6, is_low=True))
def test_recomputation_alone_is_the_table_of_rotor(chain):
    slots = make_slots(chain.chain, chain.budget_bytes, chain.budget_bytes, 1000)
    table = build_table(chain.chain, "persistent", slots, lambda: False)
    assert table is not None
    found = remat_only(chain)
    assert table.least_ns(chain.budget_bytes) == (found and found.ticks // chain.link.ticks)


@SETTINGS
@given(chains(most=6, is_low=True))
def test_plans_become_schedules_that_fit(chain):
    found = pofo(chain)
    if found is None:
        return
    steps = chain_steps(chain, found.forward, found.backward)
    schedule = two_phases(steps.problem, steps.turn, steps.gaps(found.paged))
    assert schedule is not None
    run = follow_paging(steps.problem, schedule)
    assert run.peak_bytes <= chain.budget_bytes
    actions = (*found.forward, *found.backward)
    compute = sum((chain.backward_ticks if a.kind == "back" else chain.forward_ticks)[a.stage] for a in actions)
    assert run.makespan >= compute


@pytest.mark.parametrize("quantum", [1, 2, 3])
def test_rounded_tables_promise_what_plans_keep(quantum):
    """Never better than the best, never later than promised; in units of what divides everything, exact."""
    is_any = False
    for _, _, chain in cases():
        best, found = pofo(chain), pofo(chain, quantum_bytes=quantum)
        if found is not None:
            is_any = True
            assert best is not None
            assert best.ticks <= found.ticks
            real = makespan(chain, as_plan(found))
            assert real is not None
            assert real <= Fraction(found.ticks, chain.link.ticks)
    assert is_any
