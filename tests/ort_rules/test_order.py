"""The orders in which sessions run a graph."""

from __future__ import annotations

from remat_cli.ort_rules.order import Wiring, depth_first_order, ready_order

TWO_BRANCHES = [
    Wiring(("x",), ("a",)),
    Wiring(("x",), ("b",)),
    Wiring(("b",), ("c",)),
    Wiring(("a", "c"), ("y",)),
    Wiring(("a",), ("z",)),
]


def test_a_default_session_goes_back_from_the_last_end_along_the_last_producers():
    assert depth_first_order(TWO_BRANCHES) == [0, 4, 1, 2, 3]


def test_who_corrects_the_order_is_asked_for_each_place_and_names_what_must_come_first():
    asked: list[tuple[int, int]] = []

    def hold(op: int, place: int) -> int | None:
        asked.append((op, place))
        return 1 if op == 4 and place == 1 else None

    assert depth_first_order(TWO_BRANCHES, hold) == [0, 1, 4, 2, 3]
    assert asked == [(0, 0), (4, 1), (1, 1), (4, 2), (2, 3), (3, 4)]


def test_a_priority_based_session_runs_shapes_as_soon_as_it_can():
    shapes = [*TWO_BRANCHES, Wiring(("b",), ("size",), early=True)]
    assert ready_order(TWO_BRANCHES) == [0, 1, 2, 3, 4]
    assert ready_order(shapes) == [0, 1, 5, 2, 3, 4]
