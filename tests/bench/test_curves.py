"""What every budget costs: the committed page, and what it must show once all budgets of a model are known."""

from __future__ import annotations

from bench.curves import BENCH, DEAR_PERCENT, dominated, out_of_order


def row(budget: str, size: int, peak: int | None, overhead: float | None, **more: object) -> dict[str, object]:
    found = {"model": "m", "pass": "again", "budget": budget, "budget_bytes": size}
    return {**found, "peak_bytes": peak, "overhead_percent": overhead, **more}


def test_plans_that_are_worse_than_others_are_found():
    rows = [row("90%", 90, 80, 20.0), row("50%", 50, 50, 10.0), row("25%", 25, None, None), row("min", 20, 20, 90.0)]
    assert [each["budget"] for each in dominated(rows)] == ["90%"]
    assert [(large["budget"], small["budget"]) for large, small in out_of_order(rows)] == [("90%", "50%")]
    assert dominated([row("90%", 90, 50, 14.0), row("50%", 50, 50, 10.0)]) == []
    other = row("50%", 50, 50, 10.0, model="other")
    assert dominated([rows[0], other]) == out_of_order([rows[0], other]) == []


def test_the_committed_page_is_what_the_rows_say_and_no_known_plan_is_worse_than_another():
    rows = BENCH.rows()
    assert rows
    assert BENCH.page_path.read_text() == BENCH.table(rows)
    again = [each for each in rows if each["pass"] == "again"]
    assert dominated(again) == []
    assert out_of_order(again) == []
    assert all(each["exit_code"] in (0, 3, 4) for each in rows)
    assert all(each["overhead_percent"] <= DEAR_PERCENT for each in rows if each["overhead_percent"] is not None)
