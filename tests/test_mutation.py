"""The table of what became of changes to the core."""

from __future__ import annotations

import pytest

from tests.mutation import counted, table

LINES = """
    remat_cli.core.schedule.simulate.x_simulate__mutmut_1: killed
    remat_cli.core.schedule.simulate.x__name__mutmut_12: timeout
    remat_cli.core.schedule.simulate.x__name__mutmut_2: survived
    remat_cli.core.files.plan_check.x__check_family__mutmut_2: no tests
""".splitlines()


def test_mutants_are_counted_by_file():
    rows = table(counted(LINES))[-3:]
    assert rows == [
        "| `core/files/plan_check.py` | 1 | 0 | 0.0 % |",
        "| `core/schedule/simulate.py` | 3 | 2 | 66.7 % |",
        "| all | 4 | 2 | 50.0 % |",
    ]


@pytest.mark.parametrize("lines", [[], ["    remat_cli.core.schedule.simulate.x_simulate__mutmut_1: not checked"]])
def test_a_run_that_did_not_end_makes_no_table(lines):
    with pytest.raises(ValueError, match="were not tried: run mutmut first"):
        table(counted(lines))
