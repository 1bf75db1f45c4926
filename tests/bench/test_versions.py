"""What the page says of files on other versions: what holds, and what does not of that which is promised."""

from __future__ import annotations

from bench.versions import BENCH, broken, is_promised, table

MIB = 2**20
ROW = {
    "model": "net",
    "version": "1.28.0",
    "budget": "60%",
    "held_bytes": 20 * MIB,
    "outcome": "bits",
    "difference": None,
    "order": True,
    "peak_bytes": 5 * MIB,
    "promised_bytes": 5 * MIB,
    "process": {"original": {"later_runs_bytes": 50 * MIB}, "rewritten": {"later_runs_bytes": 19 * MIB}},
}


def test_the_committed_table_is_what_the_committed_rows_say_and_nothing_promised_is_broken():
    rows = BENCH.rows()
    assert len({row["version"] for row in rows}) == 6
    assert BENCH.page_path.read_text() == "\n".join(table(rows)) + "\n"
    assert [(row["model"], row["version"], broken(row)) for row in rows if is_promised(row) and broken(row)] == []


def test_a_cell_says_what_holds():
    assert "| net | 60% | 20.0 | bits, order, peak; 50.0 → 19.0 |" in table([ROW])
    without = {**ROW, "peak_bytes": None, "process": None}
    assert "| net | 60% | 20.0 | bits, order |" in table([without])


def test_a_cell_says_what_does_not():
    larger = {"process": {**ROW["process"], "rewritten": {"later_runs_bytes": 30 * MIB}}}
    for change, line in (
        ({"order": False}, "**another order**"),
        ({"peak_bytes": 6 * MIB}, "**more live tensors**"),
        (larger, "**a larger process**"),
        ({"outcome": "DIFFERENT", "difference": 1e-6}, "other bits by 1e-06"),
        ({"outcome": "refused at load", "process": None}, "refused at load"),
    ):
        assert line in "\n".join(table([{**ROW, **change}])), change
        assert len(broken({**ROW, **change})) == 1


def test_bits_are_promised_from_a_version_on():
    assert not is_promised({**ROW, "version": "1.24.4"})
    assert is_promised({**ROW, "version": "1.26.0"})
    assert "1 cells of versions for which bits are promised, of which 1 are not as promised." in table(
        [{**ROW, "order": False}, {**ROW, "version": "1.24.4", "order": False}]
    )
