"""Where values lie in one range of addresses while a plan runs, and which pages come anew with each.

A process may hold so many pages and no more. So pages that nothing uses go back to the system when others need the
room, those that are taken last go first (Belady), and each that comes back costs a fault. How many do depends on the
places: they are chosen so that values take the pages that others have just left.

What is over before something begins in the plan is over before it in every run, by the rules. So values whose lives do
not meet in the plan may share addresses, however long things really take.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.values.pages import PAGE_BYTES, whole_pages

UNITS = 1024  # that what is held at once is counted in, when places are compared
WORK = 8 * 10**6  # pairs of lives that are looked at in all, when an order is searched for
MOST_TRIES = 400
REACH = 30  # by how many ranks a life moves in one try
Booleans = NDArray[np.bool_]


class PageLife(NamedTuple):
    """A value while it is there, from tick to tick. One that is handed over in the end lies apart, in no range."""

    tensor: int
    size_bytes: int
    begin: int
    end: int
    is_apart: bool = False

    @property
    def weight(self) -> int:
        """Bytes for so many ticks."""
        return self.size_bytes * (self.end - self.begin)


class PageRoom(NamedTuple):
    """What all values may take from a tick on."""

    tick: int
    bytes: int


@dataclass(frozen=True)
class PagePlaces:
    """Lives in the order in which they begin, the first address of each, and how many bytes of its pages come anew."""

    lives: tuple[PageLife, ...] = ()
    begins: tuple[int, ...] = ()
    fresh_bytes: tuple[int, ...] = ()


NO_PLACES = PagePlaces()


def place_pages(lives: Sequence[PageLife], rooms: Sequence[PageRoom], order: Sequence[int]) -> PagePlaces:
    """The places that lives get one after the other, in this order of their numbers, as they begin.

    Each is at the lowest addresses that are free all through. Those of lives that lie apart mean nothing.
    """
    search = _Search.of(lives, rooms)
    places = search.packed(order)
    unit = search.unit
    begins, fresh = (tuple(count * unit for count in row) for row in (places, search.fresh(places)))
    return PagePlaces(search.lives, begins, fresh)


def best_order(lives: Sequence[PageLife], rooms: Sequence[PageRoom]) -> tuple[int, ...]:
    """An order of places with few fresh pages in a run that follows another, searched for among a few hundred.

    O(n^2) for n lives and each that is tried.
    """
    search, chance = _Search.of(lives, rooms), Random(0)
    best = sorted(range(len(lives)), key=lambda number: (-search.lives[number].weight, number))
    least = sum(search.fresh(search.packed(best)))
    for _ in range(min(MOST_TRIES, WORK // max(1, len(lives)) ** 2)):
        if not least:
            break
        tried = list(best)
        rank = chance.randrange(len(tried))
        life = tried.pop(rank)
        tried.insert(max(0, rank + chance.randint(-REACH, REACH)), life)
        found = sum(search.fresh(search.packed(tried)))
        if found <= least:
            best, least = tried, found
    return tuple(best)


@dataclass(frozen=True)
class _Search:
    """Lives in the order in which they begin; sizes and places are counted in units of some pages."""

    lives: tuple[PageLife, ...]
    rooms: tuple[PageRoom, ...]

    @classmethod
    def of(cls, lives: Sequence[PageLife], rooms: Sequence[PageRoom]) -> _Search:
        """Sort lives by the tick at which they begin."""
        return cls(tuple(sorted(lives, key=lambda life: (life.begin, life.tensor))), tuple(rooms))

    @cached_property
    def unit(self) -> int:
        """Bytes of one unit: whole pages."""
        change: dict[int, int] = {}
        for life in self.lives:
            change[life.begin] = change.get(life.begin, 0) + life.size_bytes
            change[life.end] = change.get(life.end, 0) - life.size_bytes
        held = most = 0
        for _, more in sorted(change.items()):
            held += more
            most = max(most, held)
        return whole_pages(max(PAGE_BYTES, most // UNITS))

    @cached_property
    def sizes(self) -> list[int]:
        """How many units each life takes."""
        return [-(-max(1, life.size_bytes) // self.unit) for life in self.lives]

    @cached_property
    def beside(self) -> list[list[int]]:
        """For each life those that are in the range at the same time."""
        found: list[list[int]] = [[] for _ in self.lives]
        there: list[int] = []
        for number, life in enumerate(self.lives):
            if life.is_apart:
                continue
            there = [other for other in there if self.lives[other].end > life.begin]
            for other in there:
                found[number].append(other)
                found[other].append(number)
            there.append(number)
        return found

    @cached_property
    def events(self) -> list[tuple[int, int, int]]:
        """Tick, kind and number: what ends, rooms that change, what begins, in this order where ticks are the same."""
        ends = [(life.end, 0, number) for number, life in enumerate(self.lives)]
        rooms = [(room.tick, 1, room.bytes // self.unit) for room in self.rooms]
        return sorted([*ends, *rooms, *((life.begin, 2, number) for number, life in enumerate(self.lives))])

    def packed(self, order: Sequence[int]) -> list[int]:
        """Give each life, in this order, the lowest place that is free all through it."""
        places = [-1] * len(self.lives)
        for number in order:
            if self.lives[number].is_apart:
                continue
            size, place = self.sizes[number], 0
            taken: list[tuple[int, int]] = []
            for other in self.beside[number]:
                if places[other] >= 0:
                    insort(taken, (places[other], places[other] + self.sizes[other]))
            for begin, end in taken:
                if place + size <= begin:
                    break
                place = max(place, end)
            places[number] = place
        return [max(0, place) for place in places]

    def fresh(self, places: Sequence[int]) -> list[int]:
        """Units of each life that come anew, in a run that follows another."""
        state = _Pages(self, places)
        state.run()
        return state.run()


class _Pages:
    """The pages of a range while a plan runs."""

    def __init__(self, search: _Search, places: Sequence[int]) -> None:
        """Begin a first run, for which no page is there yet."""
        self._search = search
        self._spans = [
            slice(0, 0) if life.is_apart else slice(place, place + size)
            for life, place, size in zip(search.lives, places, search.sizes, strict=True)
        ]
        width = max([1, *(span.stop for span in self._spans)])
        # For each life, and the end, whose turn it is next to take each unit, counted on into the next run.
        count = len(self._spans)
        self._next = np.empty((count + 1, width), np.int32)
        row = np.full(width, 2 * count, np.int32)
        for turn in range(2 * count - 1, -1, -1):
            row[self._spans[turn % count]] = turn
            if turn <= count:
                self._next[turn] = row
        self._there: Booleans = np.zeros(width, bool)
        self._used: Booleans = np.zeros(width, bool)

    def run(self) -> list[int]:
        """One run: units of each life that come anew."""
        search, fresh = self._search, [0] * len(self._spans)
        apart = turn = room = 0
        for _, kind, number in search.events:
            if kind == 1:
                room = number
            elif search.lives[number].is_apart:
                apart += search.sizes[number] if kind else -search.sizes[number]
            elif not kind:
                self._used[self._spans[number]] = False
                continue
            else:
                span = self._spans[number]
                turn = number + 1
                fresh[number] = int(span.stop - span.start - np.count_nonzero(self._there[span]))
                self._there[span] = self._used[span] = True
            excess = int(np.count_nonzero(self._there)) + apart - room
            if excess > 0:
                # Let go of so many units, if there are so many, those first that are taken last.
                waiting = np.flatnonzero(self._there & ~self._used)
                if len(waiting) > excess:
                    last = np.argsort(-self._next[turn][waiting], kind="stable")[:excess]
                    waiting = waiting[last]
                self._there[waiting] = False
        return fresh
