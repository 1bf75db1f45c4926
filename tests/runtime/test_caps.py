from __future__ import annotations

import numpy as np
import pytest

from remat_cli.base.errors import RuntimeFailure
from remat_cli.runtime.observe import caps
from remat_cli.runtime.observe.caps import ApartAnswer, ApartJob, CapJob, Trial, find_apart, find_smallest_cap, try_cap
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.sessions.feeds import make_feeds
from remat_cli.runtime.sessions.session import SessionSettings
from tests.runtime.models import MIB, X, skip_model

FEEDS = pack_all(make_feeds([X], 0))
EXACT, DEFAULT = SessionSettings(exact=True), SessionSettings(exact=False)


@pytest.fixture
def model(tmp_path):
    return str(skip_model(tmp_path / "m.onnx"))


@pytest.mark.parametrize(("cap_bytes", "suffices"), [(9 * MIB, True), (7 * MIB - 4096, False)])
def test_arena_is_really_capped(model, cap_bytes, suffices):
    assert run_fresh(try_cap, Trial(model, FEEDS, EXACT, cap_bytes)) is suffices


@pytest.mark.parametrize("settings", [EXACT, DEFAULT])
def test_smallest_cap_lies_just_above_what_is_live(model, settings):
    tolerance = 64 * 1024
    answer = run_fresh(find_smallest_cap, CapJob(model, FEEDS, settings, 0, 7 * MIB, tolerance))
    assert answer.smallest_bytes is not None
    assert answer.failed_bytes is not None
    assert 7 * MIB <= answer.smallest_bytes < 11 * MIB
    assert 0 < answer.smallest_bytes - answer.failed_bytes <= tolerance


def test_starting_far_too_low_still_finds_it(model):
    answer = run_fresh(find_smallest_cap, CapJob(model, FEEDS, EXACT, 0, 2 * MIB, 64 * 1024))
    assert answer.smallest_bytes is not None
    assert answer.smallest_bytes >= 7 * MIB


def test_starting_too_high_proves_nothing(model):
    answer = run_fresh(find_smallest_cap, CapJob(model, FEEDS, EXACT, 0, 32 * MIB, 64 * 1024))
    assert answer.smallest_bytes is None
    assert answer.trials == 2


def test_failure_for_another_reason_than_memory_is_no_answer(model):
    wrong = pack_all({"x": np.zeros((3, 3), np.float32)})
    with pytest.raises(RuntimeFailure, match="Got invalid dimensions"):
        run_fresh(try_cap, Trial(model, wrong, EXACT, 9 * MIB))
    with pytest.raises(RuntimeFailure, match=r"a capped run of m\.onnx crashed: .*Got invalid dimensions"):
        run_fresh(find_smallest_cap, CapJob(model, wrong, EXACT, 0, 7 * MIB, 64 * 1024))


@pytest.fixture
def caps_of(monkeypatch):
    """What a search answers for models that run from these caps on; and the caps that were tried, by model."""

    def search(needs, smallest, most_runs=4, least_seconds=0.0) -> tuple[ApartAnswer, list[tuple[str, int]]]:
        tried = []

        def runs(trial: Trial) -> bool:
            tried.append((trial.model, trial.cap_bytes))
            assert trial.runs == 1
            return trial.cap_bytes >= smallest[trial.model]

        monkeypatch.setattr(caps, "runs_under", runs)
        models = (CapJob(name, (), EXACT, 0, needs[name], 10) for name in ("ours", "theirs"))
        job = ApartJob(*models, needs["ours"], needs["theirs"], most_runs, least_seconds)
        return find_apart(job), tried

    return search


NEEDS = {"ours": 600, "theirs": 900}


def test_two_runs_tell_models_apart_as_a_rule(caps_of):
    answer, tried = caps_of(NEEDS, {"ours": 700, "theirs": 950})
    assert answer == ApartAnswer(799, False, 2)
    assert tried == [("ours", 799), ("theirs", 799)]


def test_where_gaps_are_large_caps_rise(caps_of):
    answer, tried = caps_of(NEEDS, {"ours": 930, "theirs": 1100})
    assert tried == [("ours", 799), ("ours", 899), ("ours", 952), ("theirs", 952)]
    assert answer == ApartAnswer(952, False, 4)


def test_a_search_ends_with_its_runs_unless_they_are_short(caps_of):
    smallest = {"ours": 930, "theirs": 940}
    answer, tried = caps_of(NEEDS, smallest)
    assert answer == ApartAnswer(None, False, 4)
    assert len(tried) == 4
    answer, tried = caps_of(NEEDS, smallest, least_seconds=60.0)
    assert answer.cap_bytes is not None
    assert 930 <= answer.cap_bytes < 940
    assert answer.runs == len(tried)


def test_models_that_need_the_same_are_not_told_apart(caps_of):
    answer, tried = caps_of(NEEDS, {"ours": 930, "theirs": 930}, least_seconds=60.0)
    assert answer == ApartAnswer(None, True, len(tried))
