"""The table of what became of changes to the core."""

from __future__ import annotations

import pytest

from tests import mutation
from tests.mutation import counted, sample, table

LINES = """
    remat_cli.core.schedule.simulate.x_simulate__mutmut_1: killed
    remat_cli.core.schedule.simulate.x__name__mutmut_12: timeout
    remat_cli.core.schedule.simulate.x__name__mutmut_2: survived
    remat_cli.core.files.plan_check.x__check_family__mutmut_2: no tests
""".splitlines()


def test_mutants_are_counted_by_file():
    rows = table(counted(LINES))[-4:]
    assert rows == [
        "| `core/files/plan_check.py` | 1 | 0 | 0.0 % |",
        "| `core/schedule/simulate.py` | 3 | 2 | 66.7 % |",
        "| the runtime's rules | 0 | 0 | 0.0 % |",
        "| the core of trust | 4 | 2 | 50.0 % |",
    ]


def rules(*ends: str) -> list[str]:
    """Lines of changes to methods of the runtime's rules."""
    return [f"    remat_cli.ort_rules.arena.xǁArenaǁrun__mutmut_{number}: {end}" for number, end in enumerate(ends)]


def test_a_sample_of_the_rules_is_drawn_by_a_seed():
    lines = [*LINES, *rules(*["not checked"] * 50)]
    drawn = sample(lines, 10)
    assert len(set(drawn)) == 10
    assert all(name.startswith("remat_cli.ort_rules.arena.xǁArenaǁrun__mutmut_") for name in drawn)
    assert drawn == sample(lines[::-1], 10)
    assert len(sample(lines)) == 50


def test_of_the_rules_only_the_sample_has_to_be_tried(monkeypatch):
    monkeypatch.setattr(mutation, "SAMPLE", 2)
    lines = [*LINES, *rules("killed", "survived", "not checked")]
    assert "| the runtime's rules | 2 | 1 | 50.0 % |" in table(counted(lines))
    with pytest.raises(ValueError, match="1 of 7 mutants were not tried"):
        table(counted([*LINES, *rules("killed", "not checked", "not checked")]))


@pytest.mark.parametrize("lines", [[], ["    remat_cli.core.schedule.simulate.x_simulate__mutmut_1: not checked"]])
def test_a_run_that_did_not_end_makes_no_table(lines):
    with pytest.raises(ValueError, match="were not tried: run mutmut first"):
        table(counted(lines))
