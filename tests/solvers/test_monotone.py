"""A smaller budget's plan is a plan for the larger one: more memory never makes a plan slower."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits
from tests.solvers.random_training import chain_training
from tests.strategies import fraction_of, problems

FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def times(problem: Problem) -> list[int | None]:
    """The time of `auto`'s plan at each budget, smallest first; None where there is none."""
    peak = baseline(problem).peak
    limits = Limits(seconds=60.0, workers=1, gap=0.0)
    found = []
    for fraction in FRACTIONS:
        budget = fraction_of(peak, fraction, problem.memories[0].fixed_bytes)
        schedule = make_solver("auto").solve(problem.with_budget(budget), limits).schedule
        found.append(None if schedule is None else simulate(problem, schedule).time_ns)
    return found


def check(found: list[int | None]) -> None:
    for smaller, larger in pairwise(found):
        assert smaller is None or (larger is not None and larger <= smaller)
    assert found[-1] is not None


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_random_problems(problem: Problem) -> None:
    check(times(problem))


@pytest.mark.slow
def test_training_chains() -> None:
    for length in (6,):
        check(times(chain_training(length)))
