from __future__ import annotations

from bench.compiling import RESULTS, read_rows
from bench.max_tensor import NAME, markdown


def test_the_committed_table_is_what_the_committed_rows_say_and_no_row_failed():
    rows = read_rows(NAME)
    assert rows
    assert (RESULTS / "max_tensor.md").read_text() == markdown(rows)
    held = [row for row in rows if row["exit_code"] == 0]
    assert all(row["bits_equal"] and row["written_bytes"] <= row["cap_bytes"] for row in held)
