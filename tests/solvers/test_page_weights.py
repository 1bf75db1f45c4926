"""Pagers where weights are more than the budget: plans follow, fit, read what they need, and no more than they must."""

from __future__ import annotations

import random

import msgspec
import pytest

from remat_cli.core.paging.paged_plan import read_paging
from remat_cli.core.paging.paged_sessions import SessionCosts
from remat_cli.core.paging.weight_paging import HostedWeight, LoadCosts, WeightPaging
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.values.spill import SpillMemory
from remat_cli.solvers import make_pager
from remat_cli.solvers.base import Limits
from remat_cli.solvers.paging.pager import spread
from remat_cli.solvers.paging.question import PagingFound, PagingQuestion
from tests.seeds import few

MEMORY = SpillMemory(folder="/x", write_bytes_per_second=1e9, read_bytes_per_second=1e9)


def layers(count: int, budget: int, packs: bool = True, weight: int = 1000, value: int = 50) -> PagingQuestion:
    """A chain of layers with a weight each; each takes as long as a quarter of its weight's read."""
    ops = tuple(OpSpec((n - 1,) if n else (), (n,), (weight // 4,), (0,), weights=(n,)) for n in range(count))
    tensors = tuple(TensorSpec(value, n, kept=n == count - 1) for n in range(count))
    fixed = count * weight
    problem = Problem(
        ops, tensors, (Memory("cpu", budget, fixed),), (Device("cpu", 0),), weight_bytes=(weight,) * count
    )
    hosted = tuple(HostedWeight(n, weight + 8, weight if packs else 0) for n in range(count))
    weights = WeightPaging(weights=hosted, costs=LoadCosts(10, 0))
    return PagingQuestion(problem, MEMORY, SessionCosts((value,) * count, 3, weights=weights))


def page(name: str, asked: PagingQuestion, seconds: float = 1.0) -> PagingFound:
    found = make_pager(name).page(asked, Limits(seconds=seconds))
    if found.paged is not None:
        assert found.plan is not None
        plan = simulate(asked.problem, found.plan.schedule)
        again = read_paging(asked.problem, plan, found.paged.paging, asked.costs.sizes)
        fixed = asked.problem.memories[0].fixed_bytes - again.sessions.released_bytes
        assert fixed + max(again.held_bytes) <= asked.problem.memories[0].budget_bytes
        assert again.paging.bound_ns <= again.paging.time_ns
    return found


@pytest.mark.parametrize("name", ["paging", "greedy-paging", "auto"])
@pytest.mark.parametrize("budget", [2300, *(pytest.param(each, marks=pytest.mark.slow) for each in (4500, 7900))])
def test_a_plan_below_the_sum_of_weights(name, budget):
    found = page(name, layers(10, budget))
    assert found.paged is not None
    paging = found.paged.paging
    assert paging.weights is not None
    away = len(paging.weights.sessions)
    assert paging.read_bytes == away * 1008
    assert away * 1000 >= 10_000 - budget
    assert paging.written_bytes == 0


@pytest.mark.parametrize("budget", [2008, 2007])
def test_what_packs_needs_room_for_a_weight_twice(budget):
    """One that is read and packed: 1,008 and 1,000 bytes; values may be away meanwhile."""
    assert (page("paging", layers(10, budget)).paged is not None) == (budget == 2008)
    assert page("paging", layers(10, budget, packs=False)).paged is not None


def test_where_all_weights_fit_none_pages():
    found = page("paging", layers(10, 10_200))
    assert found.paged is not None
    assert found.paged.paging.weights is None
    assert not found.paged.schedule.transfers


def test_more_room_is_never_slower():
    times = [page("paging", layers(8, budget)).paged.paging.time_ns for budget in (2300, 3400, 5000, 6500, 7900)]
    assert times == sorted(times, reverse=True)


def test_reads_go_on_beside_sessions():
    """A read takes four times what a layer does; of all but the first that is away, a layer's time is hidden."""
    asked = layers(6, 3400, packs=False)
    found = page("paging", asked)
    assert found.paged is not None
    one_after_the_other = sum((1008 + 10 + 253) for _ in range(6))
    assert found.paged.paging.time_ns < one_after_the_other - 3 * 250


@pytest.mark.parametrize("seed", few(range(12), 2))
def test_random_graphs_with_weights(seed):
    rng = random.Random(seed)
    count = rng.randint(4, 14)
    weights = [rng.choice([0, 200, 700]) + rng.randint(1, 90) for _ in range(count)]
    ops, tensors = [], []
    for n in range(count):
        reads = tuple(sorted(rng.sample(range(n), min(n, rng.randint(0, 2)))))
        mine = tuple(sorted({rng.randrange(count) for _ in range(rng.randint(0, 2))}))
        ops.append(OpSpec(reads, (n,), (rng.randint(10, 400),), (rng.choice([0, 20]),), weights=mine))
        tensors.append(TensorSpec(rng.randint(1, 60), n, kept=n == count - 1))
    total = sum(weights)
    budget = rng.randint(total // 4, total)
    problem = Problem(
        tuple(ops), tuple(tensors), (Memory("cpu", budget, total),), (Device("cpu", 0),), weight_bytes=tuple(weights)
    )
    hosted = tuple(HostedWeight(n, size + 8, size * rng.randint(0, 1)) for n, size in enumerate(weights) if size >= 100)
    costs = SessionCosts(
        tuple(t.size_bytes for t in tensors), 3, weights=WeightPaging(weights=hosted, costs=LoadCosts(10, 0))
    )
    found = page("paging", PagingQuestion(problem, MEMORY, costs), seconds=0.5)
    alone = page("paging", PagingQuestion(problem, MEMORY, msgspec.structs.replace(costs, weights=WeightPaging())), 0.5)
    assert found.paged is not None or alone.paged is None
    if alone.paged is not None:
        assert found.paged.paging.time_ns <= alone.paged.paging.time_ns


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_beginnings_of_the_order_are_spread(count):
    order = spread(range(count))
    assert sorted(order) == list(range(count))
    assert order[0] == count - 1
    for number in range(1, count + 1):
        places = sorted(order[:number])
        gaps = [b - a for a, b in zip([-1, *places], [*places, count], strict=True)]
        assert max(gaps) <= 2 * -(-count // number) + 1
