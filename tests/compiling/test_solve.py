"""A solver whose kernels are not compiled yet first says what it finds without them."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from typing import Any

import pytest

from remat_cli.base.progress import COMPILING_KERNELS, SOLVING, Progress, Stage, silent
from remat_cli.compiling import solve as stage
from remat_cli.compiling.solve import BudgetQuestion, Search, answer
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers import make_solver
from remat_cli.solvers._kernel import compiled
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


def test_who_asks_it_to_stop_while_kernels_are_compiled_gets_the_plan_that_is_known(monkeypatch):
    asked_to_stop = []

    def pressed(modules, announce):
        announce()
        asked_to_stop.append(True)
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "load_kernels", pressed)
    limits, found = Limits(seconds=20.0), question(chain_training(8), 0.9)
    stages, known = stages_of(found, "local-search", limits, lambda: bool(asked_to_stop))
    assert stages == [SOLVING, COMPILING_KERNELS]
    assert known.run.plan is not None
    with pytest.raises(KeyboardInterrupt):  # of a solver that had no look
        stages_of(found, "auto", replace(limits, work=2_000), lambda: bool(asked_to_stop))


def test_an_interruption_waits_for_the_kernel_that_is_being_compiled():
    written = dict[str, Any]()
    exec("def twice(number):\n    return 2 * number", written)  # in no file: it is compiled each time
    twice = compiled(written["twice"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed = threading.Timer(0.02, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    pressed.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            twice(21)  # takes several times as long to compile
    finally:
        pressed.join()
        signal.signal(signal.SIGINT, before)
    assert len(twice.signatures) == 1  # it is there whole


def test_a_plan_of_the_look_is_kept_where_the_search_finds_no_better_one():
    asked = question(chain_training(8), 0.9)
    found = answer(asked, Search(make_solver("auto"), Limits(seconds=20.0)), silent()).run
    assert stage.better_of(replace(found, plan=None, status=Status.NOT_FOUND), found).plan is found.plan
    assert stage.better_of(found, found) is found
