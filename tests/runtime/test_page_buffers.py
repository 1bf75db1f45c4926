"""Buffers take the pages that others left, never hold more than they may, and find places that do not meet."""

from __future__ import annotations

import random

import numpy as np
import pytest

from remat_cli.runtime.page_buffers import PageBuffer, PageBuffers
from remat_cli.runtime.page_ranges import Life, shortest_places

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


def test_a_second_run_takes_the_shortest_range():
    buffers = PageBuffers()
    for _ in range(3):
        buffers.begin_run()
        buffers.limit(2**30)
        held = buffers.take("x", 8 * PAGE)
        for number in range(6):
            following = buffers.take(f"{number}", (number + 1) * PAGE)
            buffers.give(held)
            held = following
        buffers.give(held)
    (only,) = buffers._ranges
    assert len(only.pages) == 11 * PAGE  # 5 and 6 pages at once
    assert buffers.kept_bytes == 11 * PAGE


@pytest.mark.parametrize("seed", range(6))
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


@pytest.mark.parametrize("seed", range(10))
def test_places_do_not_meet_and_are_short(seed: int):
    rng = random.Random(seed)
    lives = []
    for _ in range(40):
        begin = rng.randrange(50)
        lives.append(Life(rng.randrange(1, 9) * PAGE, begin, begin + rng.randrange(1, 20)))
    places = shortest_places(lives)
    for a in range(len(lives)):
        for b in range(a):
            if lives[a].begin < lives[b].end and lives[b].begin < lives[a].end:
                assert places[a] + lives[a].size <= places[b] or places[b] + lives[b].size <= places[a]
    most = max(sum(life.size for life in lives if life.begin <= now < life.end) for now in range(70))
    assert most <= max(p + life.size for p, life in zip(places, lives, strict=True)) <= 1.5 * most
