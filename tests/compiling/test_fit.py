"""What a plan became has to fit in every session; under exact options alone only where nothing else is found."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from remat_cli.base.progress import silent
from remat_cli.compiling.fit import ATTEMPTS, fit
from remat_cli.compiling.solve import BudgetQuestion, Search, answer
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits
from tests.solvers.random_training import chain_training

SEARCH = Search(make_solver("auto"), Limits(seconds=5.0, work=2_000))


@dataclass(frozen=True)
class Form:
    """A form that needs so much."""

    exact_bytes: int
    default_bytes: int

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        return (self.exact_bytes,)

    @property
    def needed_bytes(self) -> tuple[int, ...]:
        return (max(self.exact_bytes, self.default_bytes),)


def fitted(more_bytes, *, least=False):
    """The forms that were built, and the one that was taken, where default sessions hold so much more each time."""
    problem = chain_training(8)
    plan = baseline(problem)
    question = BudgetQuestion(problem.with_budget(8), plan, "asked")
    first = replace(answer(question, SEARCH, silent()), question=replace(question, origin="min" if least else "typed"))
    built = []

    def build(found):
        more = more_bytes[min(len(built), len(more_bytes) - 1)]
        built.append(Form(found.plan.peak, found.plan.peak + more))
        return found, built[-1]

    return first.question.budget_bytes, built, fit(first, build, SEARCH, silent())[1]


def test_a_plan_that_only_default_sessions_break_is_made_again():
    budget_bytes, built, taken = fitted([1, 0])
    assert len(built) == 2
    assert taken is built[1]
    assert taken.default_bytes <= budget_bytes


def test_where_none_fits_every_session_the_first_that_fits_exactly_is_taken():
    _, built, taken = fitted([2**40])
    assert taken is built[0]
    assert len(built) <= ATTEMPTS


@pytest.mark.parametrize("more", [0, 2**40])
def test_the_least_budget_takes_what_comes(more):
    _, built, taken = fitted([more], least=True)
    assert [taken] == built


def test_a_plan_far_below_its_budget_whose_form_is_not_is_not_made_again_as_it_is():
    """The form needs three times what the plan does, as where free buffers are kept."""
    problem = chain_training(8)
    plan = baseline(problem)
    budget_bytes = 2 * plan.peak
    first = answer(BudgetQuestion(problem.with_budget(budget_bytes), plan, "asked"), SEARCH, silent())
    peaks = []

    def build(found):
        peaks.append(found.plan.peak)
        return found, Form(3 * found.plan.peak, 0)

    taken = fit(first, build, SEARCH, silent())[1]
    assert peaks[0] == plan.peak
    assert peaks[1] <= 2 / 3 * plan.peak
    assert taken is not None
    assert taken.exact_bytes <= budget_bytes
