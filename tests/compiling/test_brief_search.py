"""Without a time limit a search ends soon where there is a plan, and has all its time where there is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import remat_cli
from remat_cli.commands import compile as command
from remat_cli.commands.asked import request_of, settings_of
from remat_cli.compiling import plan
from remat_cli.compiling.plan import BRIEF_SECONDS, attempts, may_need_time
from remat_cli.core.schedule.solver_run import Status
from remat_cli.settings.settings import SEARCH_SECONDS
from tests.compiled_samples import SAMPLES
from tests.compiling.test_verdicts import planned

BOTH, ALL = [BRIEF_SECONDS, SEARCH_SECONDS], [SEARCH_SECONDS]
PREPARED = SimpleNamespace(conditions=SimpleNamespace(family=None), source=SimpleNamespace(ir=None))
PLATFORM = SimpleNamespace(specs=(SimpleNamespace(provider="cpu"),), spill=None)


@pytest.fixture(autouse=True)
def model_of_one_session(monkeypatch):
    monkeypatch.setattr(plan, "kind_of", lambda specs, is_spilled: "one_model")
    monkeypatch.setattr(plan, "is_training_step", lambda model: False)


def seconds_of(prepared=PREPARED, **words):
    request = request_of(settings_of({"budget": "50%", **words}))
    return [attempt.search.clock.seconds for attempt in attempts(request, prepared, PLATFORM)]


def test_a_search_is_brief_first_where_nothing_else_was_said():
    assert seconds_of() == seconds_of(time_limit="auto") == BOTH
    assert seconds_of(time_limit="30s") == seconds_of(budget="min") == seconds_of(solver="moccasin") == ALL
    assert seconds_of(time_limit="2s") == [2.0]


def test_only_a_brief_search_is_granted_the_rest_of_the_time_for_a_dear_plan():
    request = request_of(settings_of({"budget": "50%"}))
    granted = [attempt.search.dear_seconds for attempt in attempts(request, PREPARED, PLATFORM)]
    assert granted == [SEARCH_SECONDS - BRIEF_SECONDS, 0.0]


def test_models_for_many_sizes_and_steps_of_training_have_all_the_time_at_once(monkeypatch):
    assert seconds_of(SimpleNamespace(conditions=SimpleNamespace(family="sizes"), source=PREPARED.source)) == ALL
    monkeypatch.setattr(plan, "is_training_step", lambda model: True)
    assert seconds_of() == ALL


@pytest.mark.parametrize(
    ("status", "time_ns", "needs_time"),
    [
        (Status.FEASIBLE, 7, False),
        (Status.NOT_FOUND, None, True),
        (Status.INFEASIBLE, None, False),
    ],
)
def test_more_time_is_of_use_where_there_is_no_plan_and_none_is_ruled_out(status, time_ns, needs_time):
    assert may_need_time(planned(status, time_ns=time_ns)) is needs_time


@pytest.mark.parametrize(("finds_after", "tried"), [(1, BOTH[:1]), (2, BOTH), (3, BOTH)])
def test_a_compile_goes_on_until_there_is_a_plan(tmp_path, monkeypatch, finds_after, tried):
    seen, plan_whole = [], command.plan_model

    def plan_model(prepared, platform, request, work, progress):
        seen.append(request.search.clock.seconds)
        found = plan_whole(prepared, platform, request, work, progress)
        return found if len(seen) >= finds_after else found.refused(found.answer.without_plan())

    monkeypatch.setattr(command, "plan_model", plan_model)
    report = remat_cli.compile(SAMPLES / "chain.onnx", budget="100%", output=tmp_path / "o.onnx", verify="off")
    assert seen == tried
    assert (report.exit_code == 0) is (finds_after <= len(tried))
    assert report.asked.time_limit_seconds == tried[-1]
