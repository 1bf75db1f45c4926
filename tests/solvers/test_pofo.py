"""POFO: the shared vectors, every plan of small chains beside it, and its plans as schedules of the judge."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from remat_cli.base.errors import ModelError
from remat_cli.core.paging.paging import Link
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.solvers._warmup import load_kernels
from remat_cli.solvers.base import Limits
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.chains.rotor_tables import build_table, make_slots
from remat_cli.solvers.published._pofo.chain_proposals import CHAIN_KERNELS
from remat_cli.solvers.published._pofo.chain_steps import chain_steps
from remat_cli.solvers.published._pofo.comm import comm, comm_simple_gap
from remat_cli.solvers.published._pofo.paged_chain import PagedChain
from remat_cli.solvers.published._pofo.pofo import PofoPlan, PofoRecurrences, pofo, pofo_plans
from remat_cli.solvers.published._pofo.pofo_kernels import NEVER
from remat_cli.solvers.published._pofo.pofo_schedule import EXACT_STAGES, affordable_slots, pofo_schedule, recomputed
from remat_cli.solvers.published._pofo.two_phases import two_phases
from tests.solvers.chain_bounds import remat_only
from tests.solvers.paging_vectors import actions_of, figure, paged_chain, paging_vectors, time_of
from tests.solvers.pofo_oracle import Plan, every_plan, makespan
from tests.solvers.random_paging import chains, random_chain

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


@pytest.mark.parametrize("variant", ["corrected", "printed"])
@pytest.mark.parametrize("quantum", [1, 2, 3])
def test_tables_say_what_the_recurrences_say(quantum, variant):
    """Compiled loops over all states, and the states that come up one by one, rounded alike."""
    is_any = False
    for seed in range(40):
        chain = random_chain(seed, 6, True)
        alone = PofoRecurrences(chain, variant, (False, True), quantum)
        ticks = alone.forward((False, 1, 0, 0, 0)).ticks if alone.budget >= alone.a[0] else NEVER
        found = pofo(chain, variant, quantum)
        assert (found.ticks if found else NEVER) == ticks
        is_any |= found is not None
    assert is_any


def test_a_quantum_that_divides_everything_rounds_nothing():
    for _, _, chain in cases():
        if chain.link.write_ticks == 1 == chain.link.ticks:
            assert pofo(chain, quantum_bytes=1) == pofo(chain)


def test_plans_of_lower_budgets_come_from_the_same_tables():
    for _, _, chain in cases():
        for less, plan in enumerate(pofo_plans(chain, 1)):
            alone = pofo(replace(chain, budget_bytes=chain.budget_bytes - less), quantum_bytes=1)
            assert alone == plan


def test_tables_that_are_too_large_are_refused():
    with pytest.raises(ModelError, match=r"POFO's tables for \d stages and 1000 slots take \d+ MiB"):
        pofo(replace(random_chain(7, 6, False), budget_bytes=1000), quantum_bytes=1)
    chain = random_chain(7, 6, False)
    endless = replace(chain.chain, forward_ns=(0, *[2**58] * chain.stages))
    with pytest.raises(ModelError, match="cannot add up times"):
        pofo(replace(chain, chain=endless), quantum_bytes=1)


@SETTINGS
@given(chains(most=7, is_low=True))
def test_schedules_of_few_stages_are_those_of_the_exact_plan(chain):
    plan, found = pofo_schedule(chain), pofo(chain)
    assert (plan is None) == (found is None)
    if plan is not None and found is not None:
        assert (plan.forward, plan.backward, plan.paged) == (found.forward, found.backward, found.paged)
        assert plan.run.peak_bytes <= chain.budget_bytes


def many_stages(stages: int) -> PagedChain:
    """A chain of uneven sizes."""
    figures = random_chain(11, 2, False).chain
    rows = {name: getattr(figures, name) for name in figures.__dataclass_fields__}
    sizes = [1 + 37 * number % 101 for number in range(1, stages + 1)]
    zeros = (0,) * (stages + 1)
    rows |= {
        "forward_ns": (0, *(20 + size for size in sizes)),
        "backward_ns": (0, *(30 + size for size in sizes)),
        "value_bytes": (50, *sizes),
        "saved_bytes": (0, *(3 * size for size in sizes)),
        "gradient_bytes": (*sizes, 0),
        "forward_extra_bytes": zeros,
        "saving_extra_bytes": zeros,
        "backward_extra_bytes": (0, *sizes),
    }
    return PagedChain(Chain(**rows), 0, Link(2, 2))


def test_schedules_of_many_stages():
    """Within bytes that are no slots, and never later than recomputation alone."""
    free = many_stages(EXACT_STAGES + 4)
    gains = 0
    for percent in (40, 55, 70, 85):
        chain = replace(free, budget_bytes=free.peak_bytes * percent // 100)
        plan, alone = pofo_schedule(chain), recomputed(chain)
        assert plan is not None
        assert plan.run == follow_paging(plan.steps.problem, plan.schedule)
        assert plan.run.peak_bytes <= chain.budget_bytes
        if alone is not None:
            assert plan.run.makespan <= alone.run.makespan
            gains += plan.run.makespan < alone.run.makespan
    assert gains >= 2


@pytest.mark.parametrize("stages", [EXACT_STAGES - 2, EXACT_STAGES + 4])
def test_times_that_are_too_large_to_be_added_up_are_counted_in_larger_units(stages):
    """Costs in operations, as some instances have them: the same chain a hundred million million times as slow."""
    free, slow = many_stages(stages), 10**14
    figures = free.chain
    rows = {name: tuple(slow * ns for ns in getattr(figures, name)) for name in ("forward_ns", "backward_ns")}
    for percent in (55, 70):
        chain = replace(free, budget_bytes=free.peak_bytes * percent // 100)
        slower = replace(chain, chain=replace(figures, **rows), link=Link(2, 2, slow))
        plan, found = pofo_schedule(slower), pofo_schedule(chain)
        assert plan is not None
        assert found is not None
        assert plan.run.peak_bytes <= chain.budget_bytes
        assert plan.run.makespan / slower.compute_ticks <= 1.02 * found.run.makespan / chain.compute_ticks


def test_tables_end_with_the_limits():
    """Stage by stage: what is asked to stop in between has no plan of POFO's, and no half a table."""
    free = many_stages(EXACT_STAGES + 4)
    chain = replace(free, budget_bytes=free.peak_bytes * 55 // 100)
    asked = iter(range(100))
    assert list(pofo_plans(chain, chain.budget_bytes // 20, lambda: next(asked) > 3)) == []
    assert next(asked) == 5
    assert pofo_schedule(chain, limits=Limits(seconds=0.0)) is None
    assert pofo_schedule(chain, limits=Limits(should_stop=lambda: True)) is None


def test_slots_are_as_many_as_there_is_time_for():
    load_kernels(CHAIN_KERNELS, lambda: None)
    free = many_stages(60)
    chain = replace(free, budget_bytes=free.peak_bytes * 55 // 100)
    begin = time.monotonic()
    found = pofo_schedule(chain, 200, Limits(seconds=1.0))
    assert time.monotonic() - begin < 3.0  # 200 slots would take minutes
    alone = recomputed(chain)
    assert found is not None
    assert alone is None or found.run.makespan <= alone.run.makespan
    assert affordable_slots(10, 1.0, 1.0) == 10
    assert affordable_slots(10, 1.0, 0.1) < 10
    assert 10 < affordable_slots(10, 1.0, 4.0) < affordable_slots(10, 0.5, 4.0) < affordable_slots(10, 0.0, 4.0)
