"""What options of a session change in a forecast."""

from __future__ import annotations

from remat_cli.core.values.resident import ProcessMemory
from remat_cli.ort_rules.forecast import _at_once

MIB = 2**20


def test_runs_at_once_share_the_weights_and_nothing_else():
    one = ProcessMemory(7 * MIB, 5 * MIB, 20 * MIB, 24 * MIB, 0, 24 * MIB)
    assert _at_once(one, one, 1, 4 * MIB) == one
    three = _at_once(one, one, 3, 4 * MIB)
    assert (three.load_peak_bytes, three.loaded_bytes) == (7 * MIB, 5 * MIB)
    assert three.first_run_bytes == 4 * MIB + 3 * 16 * MIB
    assert three.later_runs_bytes == three.anonymous_bytes == 4 * MIB + 3 * 20 * MIB


def test_what_runs_hold_that_meet_by_chance_counts_where_it_is_more():
    one = ProcessMemory(7 * MIB, 5 * MIB, 20 * MIB, 24 * MIB, 0, 24 * MIB)
    crowd = ProcessMemory(7 * MIB, 5 * MIB, 30 * MIB, 70 * MIB, 0, 70 * MIB)
    two = _at_once(one, crowd, 2, 4 * MIB)
    assert two.first_run_bytes == 4 * MIB + 2 * 16 * MIB
    assert two.later_runs_bytes == two.anonymous_bytes == 70 * MIB
