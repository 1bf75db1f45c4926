"""The same question gets the same answer from `inspect`, `compile` and `verify`, as text, as JSON and as exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import remat_cli as remat
from remat_cli.cli import main
from remat_cli.runtime.observe.resident import can_measure_resident

CHAIN = Path(__file__).resolve().parents[2] / "sample_models" / "chain.onnx"
BETWEEN = "14MiB"  # of what a process holds for the model as it is, and compiled

pytestmark = pytest.mark.skipif(not can_measure_resident(), reason="the system does not tell resident memory")


@pytest.fixture
def chain(tmp_path, monkeypatch):
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    return Path(shutil.copy(CHAIN, tmp_path / "chain.onnx"))


def test_a_budget_on_the_process_is_judged_alike_by_all_commands(chain, capsys):
    as_it_is = remat.inspect(chain, budget=BETWEEN)
    compiled = remat.compile(chain, budget=BETWEEN, time_limit="2s")
    assert (as_it_is.fits, compiled.fits, compiled.exit_code) == (False, True, 0)
    process = compiled.verification.process
    original_bytes = process.original.counted_bytes(with_mapped=False) + process.input_bytes
    assert original_bytes > process.budget_bytes >= process.needed_bytes
    verified, planned = remat.verify(compiled.plan), remat.inspect(compiled.plan)
    assert verified.fits is planned.fits is True
    for report in (compiled, verified, planned):
        assert "of 14.00 MiB in the process" in report.verdict
    kept = {each.measure: each.kept for each in compiled.promises}
    assert kept == dict.fromkeys(kept, True)
    assert {"outputs", "order", "live", "default_session", "process", "loading", "later_runs"} <= set(kept)
    assert [each.measure for each in verified.promises] == [each.measure for each in planned.promises] == list(kept)
    assert main(["inspect", str(chain), "--budget", BETWEEN, "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["fits"], values["promises"]) == (False, [])
    assert values["verdict"] == as_it_is.verdict


@pytest.mark.slow  # test_open_sizes.py judges a share too
def test_a_share_is_judged_by_what_is_live(chain, samples):
    made = samples.compiled("chain", "60%")
    compiled, planned = made.report, remat.inspect(made.plan)
    assert (remat.inspect(chain, budget="60%").fits, compiled.fits, planned.fits) == (False, True, True)
    assert " live (was " in compiled.verdict
    assert " live (was " in planned.verdict


def test_without_verification_it_fits_by_prediction(chain):
    report = remat.compile(chain, budget=BETWEEN, verify=False, time_limit="2s")
    assert report.fits
    assert report.verdict.startswith("fits by prediction: ")
    assert "not verified" in report.verdict
    assert {each.kept for each in report.promises} == {None}
