"""A default session that needs a few bytes more than the plan gets them."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import onnx
import pytest

from remat_cli.base.progress import silent
from remat_cli.commands.compile import compile_model
from remat_cli.settings.settings import load_settings
from remat_cli.stages import settle
from tests.report.samples import verification

ROOT = Path(__file__).resolve().parents[2]
EXTRA_BYTES = 700


@pytest.fixture
def first_look(monkeypatch):
    """Verifications as they are made; the first one sees a default session over the budget."""
    seen = []

    def look(run, whole, work, checks, progress):
        budget_bytes, planned_bytes = run.plan.request.budget_bytes, run.plan.promise.peak_bytes
        peak_bytes = budget_bytes + EXTRA_BYTES if not seen else planned_bytes
        found = msgspec.structs.replace(
            verification(), within_budget=bool(seen), measured_peak_default_session_bytes=peak_bytes
        )
        seen.append((budget_bytes, planned_bytes))
        return found

    monkeypatch.setattr(settle, "verify_plan", look)
    return seen


def compiled(tmp_path, model, budget):
    path = shutil.copy(ROOT / "sample_models" / f"{model}.onnx", tmp_path / "net.onnx")
    config = load_settings({"budget": budget, "split": "off", "time_limit": "2s", "cache_dir": str(tmp_path / "cache")})
    report = compile_model(Path(path), config, silent())
    props = {entry.key: entry.value for entry in onnx.load(report.output).metadata_props}
    return report, props


def test_a_plan_leaves_room_and_is_verified_again(tmp_path, first_look):
    report, props = compiled(tmp_path, "unet", "80%")
    (budget_bytes, _), (same_budget_bytes, peak_bytes) = first_look
    assert budget_bytes == same_budget_bytes == report.solution.budget_bytes == int(props["remat.budget_bytes"])
    assert peak_bytes <= budget_bytes - EXTRA_BYTES
    assert report.solution.peak_bytes == peak_bytes


def test_the_least_budget_is_what_a_default_session_needs(tmp_path, first_look):
    report, props = compiled(tmp_path, "transformer", "min")
    ((budget_bytes, peak_bytes),) = first_look
    assert budget_bytes == peak_bytes
    assert report.solution.budget_bytes == budget_bytes + EXTRA_BYTES == int(props["remat.budget_bytes"])
    assert report.verification.passed


def test_a_least_budget_that_is_far_off_is_a_broken_promise(tmp_path, first_look, monkeypatch):
    monkeypatch.setattr(settle, "MOST_ROOM", 1.0)
    path = shutil.copy(ROOT / "sample_models" / "transformer.onnx", tmp_path / "net.onnx")
    config = load_settings({"budget": "min", "split": "off", "time_limit": "2s", "cache_dir": str(tmp_path / "cache")})
    report = compile_model(Path(path), config, silent())
    assert report.exit_code == 5
    assert report.output is None
