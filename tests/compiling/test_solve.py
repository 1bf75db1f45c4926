"""A solver whose kernels are not compiled yet first says what it finds without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remat_cli.base.progress import COMPILING_KERNELS, SOLVING, Progress, Stage, silent
from remat_cli.compiling import solve as stage
from remat_cli.compiling.solve import BudgetQuestion, Search, answer
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.search.warmup import warm_up
from tests.solvers.random_training import chain_training


@pytest.fixture(autouse=True)
def _cold(monkeypatch):
    """As where nothing is compiled yet, but without compiling it all anew."""
    warm_up()
    monkeypatch.setattr(stage, "must_compile", lambda modules: True)
    monkeypatch.setattr(stage, "load_kernels", lambda modules, announce: announce())


def question(problem, fraction):
    plan = baseline(problem)
    return BudgetQuestion(problem.with_budget(int(fraction * plan.peak)), plan, "asked")


def stages_of(asked, solver, limits, should_stop=lambda: False):
    """The stages of an answer, and the answer."""
    heard = []
    found = answer(asked, Search(make_solver(solver), limits), Progress(heard.append, should_stop))
    return [event.text for event in heard if isinstance(event, Stage)], found


def test_a_proof_ends_it():
    stages, found = stages_of(question(chain_training(8), 0.9), "auto", Limits(seconds=20.0))
    assert stages == [SOLVING]
    assert found.run.status is Status.OPTIMAL


def test_without_a_proof_kernels_are_compiled_and_the_search_begins_anew():
    stages, found = stages_of(question(chain_training(8), 0.9), "local-search", Limits(seconds=0.5))
    assert stages == [SOLVING, COMPILING_KERNELS, SOLVING]
    assert found.run.status is Status.FEASIBLE


def test_a_work_limit_gives_the_same_plan_cold_as_warm_so_there_is_no_look():
    stages, _ = stages_of(question(chain_training(8), 0.9), "auto", Limits(seconds=20.0, work=2_000))
    assert stages == [COMPILING_KERNELS, SOLVING]


def test_who_asks_it_to_stop_does_not_wait_for_kernels():
    stages, _ = stages_of(question(chain_training(8), 0.9), "local-search", Limits(seconds=20.0), lambda: True)
    assert stages == [SOLVING]


def test_a_plan_of_the_look_is_kept_where_the_search_finds_no_better_one():
    asked = question(chain_training(8), 0.9)
    found = answer(asked, Search(make_solver("auto"), Limits(seconds=20.0)), silent()).run
    assert stage.better_of(replace(found, plan=None, status=Status.NOT_FOUND), found).plan is found.plan
    assert stage.better_of(found, found) is found
