from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from bench.bench import read_rows
from bench.real import measure
from bench.real.measure import MODELS, Place, compiled_row, main, original_row
from bench.real.report import (
    BEGIN,
    END,
    LIVE_FIGURES,
    ORIGINAL,
    ROWS,
    SUMMARY,
    best_rows,
    best_svg,
    live_bytes,
    markdown,
    summary,
    with_best_rows,
)
from bench.real.report import main as report

MIB = 2**20
QUICK = ("demucs", "efficientnet-b4", "yolov8s")
FOLDER = Path(os.environ.get("REAL_MODELS", MODELS))


def process(run_1=80, best=1.0):
    """What a fresh process showed."""
    one = {"load_peak": 9 * MIB, "loaded": 8 * MIB, "run_1": run_1 * MIB, "run_3": 2 * run_1 * MIB, "runs": 3}
    return {name: {**one, "best_run_ns": int(best * 1e9)} for name in ("default", "without_pattern")}


def original(model="net"):
    known = {"model": model, "budget": ORIGINAL, "exit_code": 0, "threads": 1, "machine": "here", "reason": ""}
    sizes = {"file_bytes": 5 * MIB, "live_peak_bytes": 60 * MIB, "in_use_peak_bytes": 70 * MIB, "ops": 9}
    return {**known, **sizes, "resident": process(), "seconds": 4.0}


def row(model="net", budget="50%", **changed):
    """A verified row: 30 MiB of activations beside 10 MiB of weights, 4 % slower where 2 were expected."""
    sizes = {"fixed_bytes": 10 * MIB, "measured_peak_bytes": 40 * MIB, "predicted_peak_bytes": 40 * MIB}
    sizes |= {"measured_peak_default_session_bytes": 42 * MIB, "original_default_session_peak_bytes": 72 * MIB}
    sizes |= {"in_use_peak_bytes": 35 * MIB, "smallest_cap_bytes": None, "budget_bytes": 41 * MIB}
    times = {"predicted_overhead_percent": 2.0, "measured_overhead_percent": 4.0, "seconds": 55.0, "cache": "empty"}
    kept = {"outputs_identical": True, "order_honoured": True, "learnt": [], "tiles": [3, 2]}
    known = {"model": model, "budget": budget, "exit_code": 0, "threads": 1, "machine": "here", "reason": ""}
    return {**known, **sizes, **times, **kept, "resident": process(40), **changed}


def without_plan(**changed):
    """A row that ended without a model."""
    none = dict.fromkeys((*LIVE_FIGURES, "predicted_peak_bytes", "measured_overhead_percent", "fixed_bytes"))
    return row(exit_code=4, reason="too deep", **none, **changed)


def line(rows, words):
    (found,) = (line for line in summary(rows) if words in line)
    return found.rpartition(": ")[2]


@pytest.mark.skipif(not ROWS.exists(), reason="the bench of record has not been run as a whole")
def test_the_page_is_what_the_rows_say():
    assert ROWS.with_suffix(".md").read_text() == markdown(read_rows(ROWS))


def test_a_page_has_every_row_and_every_reason(tmp_path):
    rows = [
        original(),
        row(),
        without_plan(budget="min"),
        row(budget="25%", exit_code=None, measured_peak_bytes=None, tiles=[]),
    ]
    text = markdown(rows)
    assert "| net | 5.0 | 9 | 60.0 | 70.0 | 9.0 | 80.0 | 160.0 | 160.0 | 1.00 |" in text
    assert (
        "| net | 50% | 30.0 | 32.0 | 62.0 | 35.0 |  | 40.0 | 80.0 | 80.0 | 1.00 | 2.00 | 4.00 | 3, 2 | empty |" in text
    )
    assert "- net at min: no plan found, 55 s: too deep" in text
    assert "- net at 25%: stopped, 55 s: " in text
    path = tmp_path / "real.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    files = ["--results", str(path), "--picture", str(tmp_path / "real.svg"), "--into", str(page)]
    assert CliRunner().invoke(report, files).exit_code == 0
    assert "| net | 60 MiB | 30 MiB | 160 MiB | 80 MiB | +4 % |" in page.read_text()
    assert page.read_text().startswith(f"before\n{BEGIN}\n| model |")
    assert page.read_text().endswith(f"|\n\n{END}after\n")
    assert with_best_rows(page.read_text(), rows) == page.read_text()
    assert (tmp_path / "real.md").read_text() == text
    assert (tmp_path / "real.svg").read_bytes() == best_svg(rows)
    assert "Without a verified plan" not in markdown([original(), row()])


def test_sums():
    rows = [original(), row(), row(budget="80%", learnt=["a"], room_bytes=MIB, measured_overhead_percent=9.0)]
    rows += [row(budget="25%", exit_code=5, cache="filled", seconds=20.0), without_plan(budget="min", seconds=60.0)]
    rows += [row("slow", room_bytes=0)]
    assert line(rows, "verified plan") == "3 of 5 (60 %)"
    assert line(rows, "exit 5") == "1"
    assert line(rows, "bits and order") == "3 of 3 (100 %)"
    assert line(rows, "unused") == "1 of 2 (50 %)"
    assert line(rows, "first prediction") == "2 of 3 (67 %)"
    assert line(rows, "within 5 points") == "2 of 3 (67 %)"
    assert line(rows, "30 s + 25 runs") == "2 of 3 (67 %)"
    assert line(rows, "10 s + 15 runs") == "1 of 1 (100 %)"
    assert line([], "verified plan") == "0 of 0"


def test_the_picture_has_the_smallest_fast_row_of_each_model():
    small = row(budget="25%", measured_peak_bytes=20 * MIB)
    slow = row(budget="min", measured_peak_bytes=15 * MIB, measured_overhead_percent=11.0)
    other = [original("none"), {**without_plan(), "model": "none"}]
    rows = [original(), row(), small, slow, *other, original("big"), row("big")]
    assert [(a["model"], live_bytes(b)) for a, b in best_rows(rows)] == [("net", 10 * MIB), ("big", 30 * MIB)]


def test_the_summary_has_the_rows_that_are_here():
    assert with_best_rows(SUMMARY.read_text(), read_rows(ROWS)) == SUMMARY.read_text()


@pytest.fixture
def bench(tmp_path):
    """A folder with one small model."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\nnet (float[64, 512] x) => (float[64, 512] y)\n'
        "{\n a = Exp(x)\n b = Sin(a)\n c = Cos(b)\n d = Tanh(c)\n y = Add(a, d)\n}"
    )
    onnx.save(proto, tmp_path / "net.onnx")
    return Place(tmp_path, 1, 300)


def test_rows_are_measured_once(bench, tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    known = {"threads": 1, "machine": "here", "reason": "", "exit_code": 0, "seconds": 1.0}
    monkeypatch.setattr(measure, "original_row", lambda _, path: {"model": path.stem, "budget": ORIGINAL, **known})
    monkeypatch.setattr(measure, "compiled_row", lambda _, path, at: {"model": path.stem, "budget": at, **known})
    bench.cache("net").mkdir(parents=True)
    words = ["--models", str(bench.models), "--results", str(rows)]
    for budgets in ("50%", "50%,min", "50%,min"):
        assert CliRunner().invoke(main, [*words, "--budgets", budgets], catch_exceptions=False).exit_code == 0
        assert not bench.cache("net").exists()  # begun anew with the first compile, and nothing filled it here
    assert [each["budget"] for each in read_rows(rows)] == [ORIGINAL, "50%", "min"]
    assert "no other in" in CliRunner().invoke(main, [*words, "--only", "other"]).output


def test_a_compile_that_takes_too_long_is_stopped(bench):
    found = compiled_row(Place(bench.models, 1, 0.01), bench.models / "net.onnx", "50%")
    assert (found["exit_code"], found["reason"], found["cache"]) == (None, "stopped after 0 s", "empty")
    assert "resident" not in found


def test_a_model_as_it_is(bench):
    found = original_row(bench, bench.models / "net.onnx")
    assert found["live_peak_bytes"] >= 2 * 64 * 512 * 4
    assert found["in_use_peak_bytes"] >= found["live_peak_bytes"]
    if sys.platform == "linux":
        one = found["resident"]["default"]
        assert one["run_3"] >= one["run_1"] > 0
        assert one["runs"] >= 3
        assert not found["resident"]["without_pattern"]["has_pattern"]
    assert "| net | " in markdown([found])


def test_a_budget_below_the_floor_has_its_reason(bench):
    found = compiled_row(bench, bench.models / "net.onnx", "1KiB")
    assert found["exit_code"] in (3, 4)
    assert found["reason"]
    assert found["reason"] in markdown([original(), found])


@pytest.mark.slow
@pytest.mark.parametrize("model", QUICK)
def test_quick_models_of_record_keep_their_promises_at_half(model, tmp_path):
    if not (FOLDER / f"{model}.onnx").exists():
        pytest.skip("models of the bench of record are not there: make bench-real-models")
    (tmp_path / f"{model}.onnx").symlink_to((FOLDER / f"{model}.onnx").resolve())
    one = Place(tmp_path, 0, 1800)
    found = compiled_row(one, tmp_path / f"{model}.onnx", "50%")
    assert found["exit_code"] == 0, found["reason"]
    assert found["outputs_identical"]
    assert found["order_honoured"]
    assert found["measured_peak_bytes"] <= found["budget_bytes"]
    assert np.isfinite(found["measured_overhead_percent"])
