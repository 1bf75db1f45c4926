"""Places in one range of addresses: values never meet, and few pages come anew."""

from __future__ import annotations

import random

import pytest

from remat_cli.core.paging.page_places import PageLife, PageRoom, best_order, place_pages

PAGE = 4096


def random_lives(seed: int) -> list[PageLife]:
    rng = random.Random(seed)
    lives = []
    for number in range(40):
        begin = rng.randrange(50)
        lives.append(PageLife(number, rng.randrange(1, 9) * PAGE, begin, begin + rng.randrange(1, 20), not number % 9))
    return lives


def most_of(lives: list[PageLife]) -> int:
    return max(sum(life.size_bytes for life in lives if life.begin <= now < life.end) for now in range(70))


@pytest.mark.parametrize("seed", range(10))
def test_places_do_not_meet_and_are_short(seed: int):
    lives = random_lives(seed)
    rooms = [PageRoom(0, most_of(lives))]
    found = place_pages(lives, rooms, best_order(lives, rooms))
    rows = [row for row in zip(found.lives, found.begins, strict=True) if not row[0].is_apart]
    assert len(rows) == 35
    for number, (life, place) in enumerate(rows):
        for other, there in rows[:number]:
            if life.begin < other.end and other.begin < life.end:
                assert place + life.size_bytes <= there or there + other.size_bytes <= place
    most = most_of([life for life, _ in rows])
    assert most <= max(place + life.size_bytes for life, place in rows) <= 1.5 * most


@pytest.mark.parametrize("seed", range(10))
def test_with_room_for_all_no_page_comes_anew(seed: int):
    lives = random_lives(seed)
    rooms = [PageRoom(0, 4 * most_of(lives))]
    assert sum(place_pages(lives, rooms, best_order(lives, rooms)).fresh_bytes) == 0


@pytest.mark.parametrize("seed", range(10))
def test_orders_that_are_searched_for_are_no_worse(seed: int):
    lives = random_lives(seed)
    rooms = [PageRoom(0, most_of(lives)), PageRoom(30, most_of(lives) // 2), PageRoom(40, most_of(lives))]
    order = best_order(lives, rooms)
    assert sorted(order) == list(range(len(lives)))
    found, plain = (place_pages(lives, rooms, each) for each in (order, tuple(range(len(lives)))))
    assert 0 < sum(found.fresh_bytes) <= sum(plain.fresh_bytes)
    assert best_order(lives, rooms) == order


def test_fresh_pages_by_hand():
    """Two pages of room: b takes the page that a left, and c, beside b, one that is there; d needs a third page.

    Then two must go again: in every later run one page comes anew, with d.
    """
    lives = [
        PageLife(0, PAGE, 0, 2),
        PageLife(1, PAGE, 2, 6),
        PageLife(2, PAGE, 3, 9),
        PageLife(3, PAGE, 5, 9),
    ]
    rooms = [PageRoom(0, 2 * PAGE), PageRoom(5, 3 * PAGE)]
    found = place_pages(lives, rooms, (0, 1, 2, 3))
    assert found.begins == (0, 0, PAGE, 2 * PAGE)
    assert found.fresh_bytes == (0, 0, 0, PAGE)


def test_nothing_has_no_place():
    assert best_order([], []) == ()
    found = place_pages([], [], ())
    assert (found.lives, found.begins, found.fresh_bytes) == ((), (), ())
