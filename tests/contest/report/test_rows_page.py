"""The page of rows of a sweep, and of a bench."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.contest.report.rows_page import rows_page
from remat_cli.contest.report.sweep_report import SweepRow

ROWS = (
    SweepRow(key="a", budget="80%", found="plan", peak_bytes=8 * 2**20, overhead_percent=1.0),
    SweepRow(key="b", budget="40%", found="plan", peak_bytes=4 * 2**20, overhead_percent=30.0),
    SweepRow(key="d", budget="35%", found="plan", peak_bytes=4 * 2**20, overhead_percent=30.0),
    SweepRow(key="e", budget="30%", found="plan", peak_bytes=5 * 2**20, overhead_percent=40.0),
    SweepRow(key="c", budget="20%", found="impossible", message="below the floor"),
)


def test_a_sweep_is_a_curve_and_a_table(tmp_path):
    file = tmp_path / "net.sweep.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, ROWS)) + b"\n")
    page = rows_page(file)
    assert [(point.bytes, point.label) for point in page.curve] == [(4 * 2**20, "40%, 35%"), (8 * 2**20, "80%")]
    assert [row[0] for row in page.tables[0].rows] == ["80%", "40%", "35%", "30%", "20%"]
    assert [row[-1] for row in page.tables[0].rows] == [*["on the curve"] * 3, "", "below the floor"]
    assert page.commands == (f"remat sweep {tmp_path}/net.onnx --resume",)


def test_a_last_row_that_was_cut_short_is_left_out(tmp_path):
    file = tmp_path / "net.sweep.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, ROWS))[:-20])
    assert [row[0] for row in rows_page(file).tables[0].rows] == ["80%", "40%", "35%", "30%"]


@pytest.mark.parametrize("text", [b"", b"nonsense\n"])
def test_rows_of_neither_are_refused(tmp_path, text):
    file = tmp_path / "x.jsonl"
    file.write_bytes(text)
    with pytest.raises(ModelError):
        rows_page(file)
