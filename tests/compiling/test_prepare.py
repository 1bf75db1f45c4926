"""What is kept between runs, and what happens when it cannot be read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from examples.make_encoder import save_encoder
from remat_cli.base.progress import silent
from remat_cli.compiling import optimise as optimise_stage
from remat_cli.compiling import prepare as prepare_stage
from remat_cli.compiling import profile as profiles
from remat_cli.compiling.prepare import prepare
from remat_cli.compiling.profile import profile_model
from remat_cli.core.values.profile import OpCost
from remat_cli.runtime.measure.profilers import Measured
from remat_cli.settings.settings import load_settings

CHAIN = Path(__file__).resolve().parents[2] / "sample_models" / "chain.onnx"


def prepared(work):
    conditions = load_settings({"cache_dir": str(work / "cache")}).conditions
    model = prepare(CHAIN, conditions, work, silent())
    return model, profile_model(model, conditions, silent()).profile


@pytest.fixture
def quiet_minute(monkeypatch):
    """A run of a known model takes as long as its costs say, however busy this machine is."""
    monkeypatch.setattr(profiles, "is_wrong", lambda prepared, expected_ns, seen: False)


@pytest.mark.usefixtures("quiet_minute")
def test_a_second_run_measures_nothing_and_a_record_in_another_form_is_measured_again(tmp_path):
    _, first = prepared(tmp_path)
    model, second = prepared(tmp_path)
    assert second == first
    assert model.facts.measured is not None
    with sqlite3.connect(tmp_path / "cache" / "profiles.sqlite3") as database:
        database.execute("UPDATE models SET facts = ?", (b'{"form": "of another version"}',))
    database.close()
    model, third = prepared(tmp_path)
    assert model.facts.measured is None
    assert third.ops == first.ops
    assert third.packed_bytes == first.packed_bytes


def test_the_reference_is_the_same_every_time(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert prepared(one)[0].reference_sha256 == prepared(two)[0].reference_sha256


def test_a_model_that_is_known_to_be_settled_is_optimised_once(tmp_path, monkeypatch):
    passes = []
    real = optimise_stage.optimize
    monkeypatch.setattr(optimise_stage, "optimize", lambda *words: (passes.append(words), real(*words)))
    first, _ = prepared(tmp_path)
    assert len(passes) >= 2
    passes.clear()
    second, _ = prepared(tmp_path)
    assert len(passes) == 1
    assert second.reference_sha256 == first.reference_sha256


def test_a_long_model_of_many_sizes_is_run_once_for_costs_and_outputs_though_its_costs_are_known(tmp_path, monkeypatch):
    """Else two runs would say whether costs hold, and a third what comes out."""
    save_encoder(tmp_path / "encoder.onnx", 1, 32, 2)
    asked = load_settings({"cache_dir": str(tmp_path / "cache"), "dims": {"batch": "1..2", "seq": "1..8"}}).conditions
    real, looks = prepare_stage.look, []

    def long_look(*words):
        seen = real(*words)
        looks.append(seen)
        costs = tuple(OpCost(name, 10**9) for name in seen.types)
        return msgspec.structs.replace(seen, measured=Measured(costs, 3 * 10**9 * len(looks), 0, None, runs=1))

    monkeypatch.setattr(prepare_stage, "look", long_look)
    monkeypatch.setattr(profiles, "time_apart", lambda *words: pytest.fail("a run more"))
    for times in (1, 2):
        model = prepare(tmp_path / "encoder.onnx", asked, tmp_path, silent())
        profile_model(model, asked, silent())
        assert len(looks) == times
        assert model.was_long
        assert model.first_outputs is not None
        assert model.facts.measured is not None
        assert model.facts.measured.run_ns == 3 * 10**9 * times
