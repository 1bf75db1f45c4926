"""The time of a search: what counts, what does not, and how its parts share it."""

from __future__ import annotations

import math

import pytest

from remat_cli.base.clock import SearchClock, SearchOver, endless


class Hands:
    """A clock's time, moved by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_time_passes_but_for_runs_of_the_model(hands):
    clock = SearchClock(10, hands)
    hands.at += 4
    assert clock.left == 6
    with clock.running():
        hands.at += 50
    assert (clock.left, clock.is_over) == (6, False)
    with pytest.raises(ZeroDivisionError), clock.running():
        hands.at += 1 / 0
    hands.at += 6
    assert (clock.left, clock.is_over) == (0, True)


def test_a_part_has_no_more_than_the_whole(hands):
    whole = SearchClock(10, hands)
    hands.at += 2
    part = whole.share(0.5)
    assert part.left == 4
    with part.running():
        hands.at += 30
    assert (whole.left, part.left) == (8, 4)
    hands.at += 5
    assert (whole.left, part.left, part.is_over, whole.is_over) == (3, 0, True, False)
    assert whole.share(1).share(1).left == 3


def test_what_is_cut_is_noted_in_the_whole(hands):
    whole = SearchClock(1, hands)
    part = whole.share(0.5)
    part.look()
    assert not part.ends()
    assert not whole.has_cut
    hands.at += 0.75
    with pytest.raises(SearchOver):
        part.look()
    assert part.has_cut
    assert whole.has_cut
    assert not whole.is_over
    assert not whole.ends()


def test_without_a_limit_time_is_never_over(hands):
    clock = SearchClock(now=hands)
    hands.at += 1e9
    assert (clock.left, clock.ends(), endless()) == (math.inf, False, math.inf)
    assert clock.share(0.5).left == math.inf


def test_more_time_is_granted_to_a_part_and_its_whole_and_none_is_taken():
    hands = Hands()
    whole = SearchClock(8.0, hands)
    part = whole.share(0.5)
    hands.at += 20
    assert part.is_over
    part.grant(10.0)
    assert part.left == pytest.approx(10.0)
    assert whole.left == pytest.approx(10.0)
    hands.at += 4
    part.grant(1.0)
    assert part.left == pytest.approx(6.0)
