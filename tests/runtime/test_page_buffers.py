"""Buffers take the pages that others left, never hold more than they may, and find places that do not meet."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from remat_cli.core.paging.page_places import PageLife, PageRoom, best_order, place_pages
from remat_cli.core.schedule.program import PagePlace
from remat_cli.runtime.paging.page_buffers import PageBuffer, PageBuffers
from remat_cli.runtime.paging.page_ranges import PageRange, Span
from tests.seeds import few

PAGE = 4096


def test_pages_are_used_again_by_a_value_of_another_size():
    buffers = PageBuffers()
    buffers.limit(2**20)
    first = buffers.take("a", 3 * PAGE)
    assert len(first.pages) == 3 * PAGE
    assert buffers.held_bytes == 3 * PAGE
    beside = buffers.kept_bytes
    buffers.give(first)
    assert (buffers.held_bytes, buffers.kept_bytes) == (0, beside + 3 * PAGE)
    second = buffers.take("b", PAGE - 1)
    assert second.begin == first.begin
    assert buffers.kept_bytes == beside + 2 * PAGE


def test_what_waits_counts_against_the_limit():
    buffers = PageBuffers()
    buffers.limit(3 * PAGE)
    some = [buffers.take(name, PAGE) for name in "abc"]
    for each in some:
        buffers.give(each)
    assert buffers.kept_bytes == 3 * PAGE
    buffers.take("d", 2 * PAGE)
    assert buffers.held_bytes + buffers.kept_bytes <= 3 * PAGE
    buffers.limit(2 * PAGE)
    assert buffers.kept_bytes == 0


def test_what_is_forgotten_is_held_no_more():
    buffers = PageBuffers()
    buffers.limit(2**20)
    mine = buffers.take_apart(PAGE)
    assert buffers.most_held_bytes == PAGE
    buffers.forget(mine)
    assert (buffers.held_bytes, buffers.most_held_bytes) == (0, PAGE)


def test_what_is_taken_last_goes_first():
    """Three places, room for two: the page that goes is that of the buffer whose turn comes last.

    First b goes for c, as a comes before it. Then a goes for b, as c comes next; and c for a, as b comes before it.
    """
    places = [PagePlace(name, number * PAGE, PAGE) for number, name in enumerate("abc")]
    buffers = PageBuffers([*places, PagePlace("a", 0, PAGE)])
    for there in ([0, 2 * PAGE], [0, PAGE]):
        buffers.begin_run()
        buffers.limit(2 * PAGE)
        for name in "abca":
            buffer = buffers.take(name, PAGE)
            assert buffer.begin == "abc".index(name) * PAGE
            buffers.give(buffer)
        (only,) = buffers._ranges
        warm = [piece for piece in only.free if piece.warm is not None]
        assert [at for piece in warm for at in range(piece.begin, piece.end, PAGE)] == there


def random_lives(rng: random.Random) -> tuple[list[PageLife], list[PageRoom]]:
    lives = []
    for number in range(30):
        begin = 3 * rng.randrange(40)
        lives.append(PageLife(number, rng.randrange(1, 9) * PAGE, begin, begin + 3 * rng.randrange(1, 12) - 1))
    most = max(sum(life.size_bytes for life in lives if life.begin <= tick < life.end) for tick in range(160))
    return lives, [PageRoom(0, most), PageRoom(61, most + 4 * PAGE), PageRoom(100, most + PAGE)]


@pytest.mark.parametrize("seed", few(range(10), 2))
def test_pages_come_as_they_were_planned(seed: int):
    """What a run takes of pages that are not there is what the plan says, buffer by buffer."""
    lives, rooms = random_lives(random.Random(seed))
    found = place_pages(lives, rooms, best_order(lives, rooms))
    names = [f"{life.tensor}" for life in found.lives]
    rows = zip(names, found.begins, found.lives, strict=True)
    buffers = PageBuffers([PagePlace(name, begin, life.size_bytes) for name, begin, life in rows])
    events = sorted(
        [(life.end, 0, number) for number, life in enumerate(found.lives)]
        + [(room.tick, 1, room.bytes) for room in rooms]
        + [(life.begin, 2, number) for number, life in enumerate(found.lives)]
    )
    for run in range(3):
        buffers.begin_run()
        there: dict[int, PageBuffer] = {}
        fresh = []
        for _, kind, number in events:
            if kind == 0:
                buffers.give(there.pop(number))
            elif kind == 1:
                buffers.limit(number)
            else:
                size = found.lives[number].size_bytes
                kept = sum(p.size for home in buffers._ranges for p in home.free if p.warm is not None)
                before = kept + buffers.held_bytes
                cooled = []
                home = buffers._ranges[0]
                there[number] = _taken(buffers, names[number], size, cooled)
                assert there[number].home is home
                assert there[number].begin == found.begins[number]
                kept = sum(p.size for home in buffers._ranges for p in home.free if p.warm is not None)
                fresh.append(kept + buffers.held_bytes + sum(cooled) - before)
        if run:
            assert fresh == list(found.fresh_bytes)
    assert len(buffers._ranges) == 1


def _taken(buffers: PageBuffers, name: str, size: int, cooled: list[int]) -> PageBuffer:
    """A buffer, and what went back to the system for it."""
    cool = PageRange.cool

    def told(home: PageRange, spans: Sequence[Span]) -> None:
        cooled.extend(end - begin for begin, end in spans)
        cool(home, spans)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PageRange, "cool", told)
        return buffers.take(name, size)


@pytest.mark.parametrize("seed", few(range(6), 2))
def test_buffers_never_meet_and_never_hold_more_than_they_may(seed: int):
    """Random takes and gives, with limits that change: every value keeps its bytes, and the sum stays below."""
    rng = random.Random(seed)
    buffers = PageBuffers()
    for _ in range(3):
        buffers.begin_run()
        buffers.limit(most := 4 * 2**20)
        held: list[tuple[PageBuffer, int]] = []
        for number in range(120):
            size = rng.choice((1, PAGE, 5 * PAGE + 1, 700_000))
            if held and (rng.random() < 0.45 or sum(b.size_bytes for b, _ in held) + size > most):
                buffer, value = held.pop(rng.randrange(len(held)))
                assert (buffer.values(np.dtype(np.uint8), (buffer.size_bytes,)) == value).all()
                buffers.give(buffer)
                continue
            buffer = buffers.take(f"{number % 7}", size)
            buffer.values(np.dtype(np.uint8), (size,))[:] = number
            held.append((buffer, number))
            used = sum(each.size_bytes for each, _ in held)
            assert buffers.held_bytes == used
            assert buffers.kept_bytes >= 0
            assert buffers.kept_bytes == 0 or used + buffers.kept_bytes <= most
        for buffer, _ in held:
            buffers.give(buffer)
