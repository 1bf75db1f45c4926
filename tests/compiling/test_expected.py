"""What candidates are expected to cost and to gain, by estimates and by what was measured of their kin."""

from __future__ import annotations

import pytest

from remat_cli.compiling.search.expected import SPREAD, Expected, Promising

MIB = 2**20


def regions(mib: float, share: float) -> Promising:
    return Promising("regions", int(mib * MIB), share)


def test_nothing_measured_leaves_estimates_as_they_are() -> None:
    assert Expected().cost(regions(8, 0.1)) == 0.1
    assert Expected().gain(regions(8, 0.1), best=0.1) == pytest.approx(SPREAD * 0.399, rel=0.01)


def test_what_was_measured_is_known_and_corrects_its_kin_the_nearer_the_more() -> None:
    known = Expected().with_measured(regions(8, 0.1), 0.5)
    assert known.cost(regions(8, 0.1)) == 0.5
    assert known.gain(regions(8, 0.1), best=0.5) == 0.0
    near, far = (known.cost(regions(mib, 0.1)) for mib in (7.5, 2))
    assert 0.1 < far < near < 0.5
    assert known.cost(Promising("bands", 8 * MIB, 0.1)) == pytest.approx(0.3)


def test_the_next_of_kin_says_most() -> None:
    known = Expected(((regions(8, 0.1), 0.5), (regions(2, 0.3), 0.2)))
    assert known.cost(regions(2.1, 0.3)) < 0.3
    assert known.cost(regions(7.9, 0.1)) > 0.4


def test_less_is_expected_of_what_costs_more_and_of_what_is_nearly_known() -> None:
    known = Expected().with_measured(regions(8, 0.1), 0.1)
    assert known.gain(regions(4, 0.1), 0.1) > known.gain(regions(4, 0.2), 0.1) > 0
    assert known.gain(regions(4, 0.1), 0.1) > known.gain(regions(7.9, 0.1), 0.1)
