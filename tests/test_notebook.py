"""The example notebook runs, and what its cells show is small."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

from remat_cli.base.errors import AnswerError
from remat_cli.report.pictures.shown import MOST_POINTS, memory_picture
from tests.report import samples

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))
MOST_CHARACTERS = 20_000


def shown(source: str, names: dict) -> object:
    """Run a cell; the value of its last line, as a notebook shows it."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "digits.onnx", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    names: dict = {}
    found = [shown("".join(cell["source"]), names) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    pictures = [value._repr_html_() for value in found if hasattr(value, "_repr_html_")]
    assert len(pictures) == 2
    assert all(text.count("<svg") == 1 and len(text) < MOST_CHARACTERS for text in pictures)
    assert found[0].peak_bytes
    printed = capsys.readouterr().out
    assert "does not fit: proved impossible" in printed
    assert "InferenceSession" in printed


def test_no_cell_keeps_what_a_run_showed():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


def test_reports_are_short_in_python():
    for report in (samples.compile_report(), samples.impossible_report(), samples.verify_report()):
        assert str(report).splitlines()[0] == report.verdict
        assert len(str(report)) < 3000
    assert len(str(samples.plan_file())) < 200
    assert "<pre>" in samples.plan_file()._repr_html_()


def test_an_answer_is_made_an_error_on_demand():
    samples.compile_report().raise_for_status()
    samples.solve_report().raise_for_status()
    with pytest.raises(AnswerError, match="does not fit: proved impossible within") as told:
        samples.impossible_report().raise_for_status()
    assert told.value.code == 3
    with pytest.raises(AnswerError) as told:
        samples.failed_report().raise_for_status()
    assert told.value.code == 5


def test_a_picture_of_many_steps_is_small_and_keeps_the_peak():
    memory = [1] * 100_000
    memory[77_777] = 10
    picture = memory_picture(memory)
    assert picture.count(" ") < 3 * MOST_POINTS
    assert ",0.0 " in picture  # the top


def test_markup_in_a_name_stays_text():
    import msgspec

    report = msgspec.structs.replace(samples.compile_report(), output="<script>.onnx")
    assert "<script>" not in report._repr_html_()
