from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers._precedence import bits_of, make_events
from remat_cli.solvers.base import Limits
from remat_cli.solvers.bounds.free import critical_events, forced_loads, forced_tensors, free_order_milp
from remat_cli.solvers.bounds.free_frontier import choose_chain, free_frontier_milp
from remat_cli.solvers.bounds.pressure import Pressure, make_pressure
from remat_cli.solvers.floor.proof import proved_floor
from remat_cli.solvers.milp.program import Milp, solve_milp
from tests.seeds import few
from tests.solvers.brute_force import optimum
from tests.solvers.random_graphs import at_fraction, fusion_net, one_device, random_problem, skip_net
from tests.solvers.vectors import load_cases
from tests.strategies import problems


def bound(problem: Problem, milp: Milp) -> int | None:
    """Time that no schedule falls below; None: there is no schedule."""
    pressure = make_pressure(problem)
    if pressure.is_surely_too_much():
        return None
    answer = solve_milp(milp, "cp-sat", Limits(seconds=60))
    return None if answer.bound is None else problem.baseline_time_ns + answer.bound * pressure.time_unit


def frontier_bound(problem: Problem, boundaries: int) -> int | None:
    pressure = make_pressure(problem)
    return bound(problem, free_frontier_milp(pressure, choose_chain(pressure, boundaries)))


def cover_bound(problem: Problem) -> int | None:
    return bound(problem, free_order_milp(make_pressure(problem)))


def check(problem: Problem, best: int | None) -> bool:
    """Whether the best bound is the optimum; fails when a bound is above it, or denies schedules that exist."""
    bounds = [cover_bound(problem), *(frontier_bound(problem, count) for count in (1, 3, 30))]
    if best is not None:
        assert all(time is not None and time <= best for time in bounds)
    return any(time == best for time in bounds)


def test_bounds_hold_on_the_vectors_and_are_mostly_exact_where_recomputing_is_needed():
    cases = [(p, case.optimum["free"][i]) for case in load_cases() for i, p in enumerate(case.problems)]
    exact = [check(problem, best) for problem, best in cases if best is None or best > problem.baseline_time_ns]
    assert sum(exact) > 0.8 * len(exact)


def test_bounds_hold_on_nets_with_skips_and_say_more_than_the_cover_alone():
    exact = more = 0
    for problem, best in hard_nets(range(30), 6):
        exact += check(problem, best)
        more += (frontier_bound(problem, 30) or 0) > (cover_bound(problem) or 0)
    assert exact >= 10
    assert more >= 2


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(problems(max_ops=5), st.data())
def test_bounds_hold_with_views_in_place_results_and_everything_else(problem, data):
    least, peak = proved_floor(problem, Limits(seconds=5)).bytes, baseline(problem).peak
    problem = problem.with_budget(data.draw(st.integers(least, peak)))
    best = optimum(problem, "free")
    check(problem, best[0] if best else None)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_bounds_hold_on_many_more_nets(block):
    checked = [check(*net) for net in hard_nets(range(1000 + 40 * block, 1040 + 40 * block), 8)]
    assert sum(checked) > 0.3 * len(checked)


def hard_nets(seeds: range, most_ops: int) -> list[tuple[Problem, int]]:
    """Nets under every budget that needs recomputes, with the least time."""
    found = []
    for seed in seeds:
        problem = skip_net(seed, random.Random(seed).randint(5, most_ops))
        for budget in range(proved_floor(problem, Limits(seconds=5)).bytes, baseline(problem).peak):
            best = optimum(problem.with_budget(budget), "free")
            if best is not None and best[0] > problem.baseline_time_ns:
                found.append((problem.with_budget(budget), best[0]))
    return found


def training_chain(length: int) -> Problem:
    """A forward chain and its reverse, which reads the forward results."""
    forward: list[tuple[list[int], int, int]] = [([v - 1] if v else [], 2, 4) for v in range(length)]
    backward = [([length + v - 1, length - 1 - v] if v else [length - 1], 3, 4) for v in range(length)]
    return one_device(forward + backward, kept=(2 * length - 1,))


@pytest.mark.parametrize("fraction", [0.9, 0.8, 0.7])
def test_frontier_is_optimal_on_a_training_chain(fraction):
    problem = at_fraction(training_chain(4), fraction)
    best = optimum(problem, "free")
    assert best is not None
    assert frontier_bound(problem, 8) == best[0]


def test_ops_beside_the_chain_count_in_whichever_stage_they_run():
    # The skip over the wide chain must be recomputed, although two ops on the way are unrelated to each other.
    ops = [([], 7, 6), ([0], 1, 1), ([0], 1, 1), ([1, 2], 1, 10), ([3], 1, 1), ([4, 0], 1, 1)]
    problem = one_device(ops, budget=15)
    best = optimum(problem, "free")
    assert best is not None
    assert frontier_bound(problem, 8) == best[0] == 12 + 7


def test_a_network_of_wide_stages_gets_a_bound_in_any_order():
    problem = at_fraction(fusion_net(), 0.95)
    pressure = make_pressure(problem)
    milp = free_frontier_milp(pressure, choose_chain(pressure, 4))
    assert (solve_milp(milp, "cp-sat", Limits(seconds=60)).bound or 0) > 0


def relatives(problem: Problem) -> tuple[list[int], list[int]]:
    """Ancestors and descendants of each op as bit sets, op by op."""
    ancestors = [0] * len(problem.ops)
    for op, spec in enumerate(problem.ops):
        for source in {problem.tensors[tensor].producer for tensor in spec.inputs}:
            ancestors[op] |= ancestors[source] | 1 << source
    descendants = [sum(1 << v for v, bits in enumerate(ancestors) if bits >> op & 1) for op in range(len(ancestors))]
    return ancestors, descendants


@pytest.mark.parametrize("seed", few(range(5), 1))
def test_events_know_their_relatives(seed):
    problem = random_problem(seed, 60)
    ancestors, descendants = relatives(problem)
    chosen = make_events(problem, range(0, 60, 3))
    for op in range(60):
        assert [chosen.events[i] for i in bits_of(chosen.before[op])] == [
            e for e in chosen.events if ancestors[op] >> e & 1
        ]
        assert [chosen.events[i] for i in bits_of(chosen.after[op])] == [
            e for e in chosen.events if descendants[op] >> e & 1
        ]


@pytest.mark.parametrize("seed", few(range(5), 1))
def test_forced_loads_add_up_what_is_forced(seed):
    problem = random_problem(seed, 60)
    pressure = make_pressure(problem)
    ops = list(range(1, 60, 2))
    forced = list(forced_tensors(pressure, make_events(problem, ops)))
    for i, (op, load) in enumerate(zip(ops, forced_loads(pressure, ops), strict=True)):
        there = {pressure.class_of[tensor] for tensor, needed in forced if needed >> i & 1} - pressure.own[op]
        assert load == pressure.working[op] + sum(pressure.weight[root] for root in there)
        assert load <= pressure.live()[op]


def test_chosen_boundaries_follow_one_another_in_every_order():
    for problem in (at_fraction(fusion_net(), 0.9), at_fraction(random_problem(1, 80), 0.7)):
        ancestors, _ = relatives(problem)
        chain = choose_chain(make_pressure(problem), 6)
        assert 0 < len(chain) <= 6
        assert all(ancestors[later] >> earlier & 1 for earlier, later in itertools.pairwise(chain))


def test_only_ops_over_budget_in_every_order_get_rows():
    pressure: Pressure = make_pressure(at_fraction(training_chain(30), 0.5))
    events = critical_events(pressure)
    assert events
    assert all(load > pressure.capacity for load in forced_loads(pressure, events))


@pytest.mark.parametrize("engine", ["cp-sat", "highs"])
def test_a_graph_without_forced_loads_gets_no_rows_and_the_trivial_bound(engine):
    problem = one_device([([], 1, 4) for _ in range(6)], budget=4)
    milp = free_order_milp(make_pressure(problem))
    assert milp.rows == []
    answer = solve_milp(milp, engine, Limits(seconds=10))
    assert (answer.bound, answer.is_tight) == (0, True)
