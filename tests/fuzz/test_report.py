"""The table of what became of the fuzz cases."""

from __future__ import annotations

from tests.fuzz.campaign import KINDS
from tests.fuzz.outcomes import NOT_LOADED, OK, REFUSED, UNEXPECTED, row_of
from tests.fuzz.report import table


def test_the_table_counts_and_names_what_must_not_be():
    first, second, third, fourth = KINDS["node"].cases()[::3][:4]
    rows = [
        row_of(first, OK, code=0, left=("temporary/remat_*",)),
        row_of(second, REFUSED, code=2, line="error: op 'a' is | unknown"),
        row_of(third, UNEXPECTED, code=1, line="error: unexpected ValueError: 7"),
        row_of(fourth, NOT_LOADED),
    ]
    text = "\n".join(table(rows))
    assert "- node tests that stock ONNX Runtime loads: 3" in text
    assert "- what must not be: 1 unexpected" in text
    assert "- cases that left files: 1" in text
    assert f"| {first.action} | 3 | 1 | 1 | 1 | 1 |" in text
    assert "| 1 | refused | op '...' is \\| unknown |" in text
    assert f"| 1 | unexpected | unexpected ValueError: N | {third.name} {third.action} |" in text


def test_rows_of_cases_that_are_no_more_do_not_count():
    case = KINDS["kill"].cases()[0]
    old = row_of(type(case)("kill", "gone", "KILL"), UNEXPECTED, code=1)
    assert "- what must not be: none" in table([old])
