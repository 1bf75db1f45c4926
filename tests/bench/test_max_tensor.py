from __future__ import annotations

from bench.max_tensor import BENCH


def test_the_committed_table_is_what_the_committed_rows_say_and_no_row_failed():
    rows = BENCH.rows()
    assert rows
    assert BENCH.page_path.read_text() == BENCH.table(rows)
    held = [row for row in rows if row["exit_code"] == 0]
    assert all(row["bits_equal"] and row["written_bytes"] <= row["cap_bytes"] for row in held)
