"""Interpreted kernels do what compiled ones do, bit by bit."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits
from remat_cli.solvers.search.state import make_net
from remat_cli.solvers.search.tracks import COMPILED, interpreted_kernels, make_track
from remat_cli.solvers.search.warmup import warm_up
from tests.solvers.random_graphs import random_problem
from tests.solvers.random_training import chain_training


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


def searched(problem, kernels, is_pinned, seed):
    """Tables after some of all that a search does."""
    condensed = condense(problem)
    net = make_net(condensed.problem, condensed.in_place)
    budget_bytes = int(0.7 * (baseline(problem).peak - problem.memories[0].fixed_bytes))
    track = make_track(net, budget_bytes, seed, is_pinned, 0.1, kernels)
    track.improve(150)
    if not is_pinned:
        track.begin_greedy(0.3, track.random())
        track.reorder(50, 0.01)
    peak = track.peak_bytes()
    track.improve(50)
    return track.state, track.records, peak


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("problem", [*map(random_problem, range(6)), chain_training(12)])
def test_interpreted_and_compiled_searches_are_the_same(problem, is_pinned):
    compiled, plain = (searched(problem, kernels, is_pinned, 3) for kernels in (COMPILED, interpreted_kernels()))
    assert np.array_equal(compiled[0], plain[0])
    assert np.array_equal(compiled[1], plain[1])
    assert compiled[2] == plain[2]


@pytest.mark.parametrize("solver", ["local-search", "auto"])
@pytest.mark.parametrize("order", ["free", "keep"])
def test_a_look_without_kernels_finds_a_plan(solver, order):
    problem = chain_training(40)
    problem = problem.with_budget(int(0.7 * baseline(problem).peak))
    found = solve(problem, solver, Limits(seconds=20.0, order=order, interpreted=True))
    assert found.plan is not None


def test_a_look_often_asks_whether_to_stop():
    problem = chain_training(100)
    problem = problem.with_budget(int(0.3 * baseline(problem).peak))
    asks = count()
    limits = Limits(seconds=60.0, interpreted=True, should_stop=lambda: next(asks) >= 10)
    assert make_solver("local-search").solve(problem, limits).facts["moves"] <= 1_000
