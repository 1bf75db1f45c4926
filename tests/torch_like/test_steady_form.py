"""Random models that are all put into the steady form, whether that saves anything or not: same bits, same order."""

from __future__ import annotations

import pytest

from remat_cli.ort_rules import forms
from tests.torch_like.outcome import ERROR, FAILED, outcome_of

SEEDS = range(5000, 5300)
FEW = range(5000, 5003)


@pytest.fixture(autouse=True)
def every_model_takes_the_form(monkeypatch, tmp_path):
    monkeypatch.setattr(forms, "LEAST_GAIN_BYTES", -(2**40))
    monkeypatch.setattr(forms, "LEAST_GAIN_SHARE", -1e6)
    monkeypatch.setattr(forms, "MOST_TIME_SHARE", 1e6)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))


def compiled(seed: int, folder) -> None:
    found = outcome_of(seed, "80%" if seed % 2 else "100%", folder, verify="fast", split="auto" if seed % 3 else "off")
    assert found.status not in (FAILED, ERROR), found.line


@pytest.mark.parametrize("seed", FEW)
def test_a_few_models_in_the_form(seed, tmp_path):
    compiled(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed not in FEW])
def test_random_models_in_the_form(seed, tmp_path):
    compiled(seed, tmp_path)
