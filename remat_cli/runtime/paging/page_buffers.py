"""Buffers for values that may be paged: whole pages out of one range of addresses, used again by whoever comes next.

Memory that is asked of the system costs a fault for each page, so pages that one value leaves are the first that
another one takes, whatever its size; but never are more of them there than the plan has room for, since what is kept
for later counts like what is used. Addresses cost nothing: where free pieces lie apart, a value takes a longer one,
whose missing pages come with their first use, and as many others go back to the system.

Runs of a plan take the same buffers in the same order, so each has a place that the plan chose for it, and where pages
must go, those go first that are taken last.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from remat_cli.core.schedule.program import PagePlace
from remat_cli.core.values.pages import whole_pages
from remat_cli.runtime.paging.page_forecast import NOTHING_TAKEN, PageForecast
from remat_cli.runtime.paging.page_ranges import PageRange, Span, addresses, joined_spans
from remat_cli.runtime.sessions._ort import Array

LEAST_RANGE_BYTES = 64 * 2**20  # of addresses, which are plenty
RANGE_FACTOR = 2  # a range is so many times longer than the value that found no room

Use = tuple[str, int]
"""A buffer's name, and how many of this name a run took before it."""


@dataclass(frozen=True)
class PageBuffer:
    """Whole pages, and how many bytes of them are asked for; `home` is None where they are somebody else's to keep."""

    pages: Any
    size_bytes: int
    home: PageRange | None = None
    begin: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """What tells its addresses from others."""
        return id(self.home), self.begin, len(self.pages)

    def values(self, element: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """The array that lies in it."""
        return np.frombuffer(self.pages, element, self.size_bytes // element.itemsize).reshape(shape)


class PageBuffers:
    """Takes and gives buffers; `held_bytes` are asked for, `kept_bytes` wait to be used again. Threads may share it."""

    def __init__(self, places: Sequence[PagePlace] = ()) -> None:
        """Nothing is held yet. A run takes buffers of these names in this order; others find places by themselves."""
        self._lock = threading.Lock()
        self._clock = count(1)
        self._taken: Counter[str] = Counter()
        self._places: dict[Use, PagePlace] = {}
        self._turns: dict[Use, int] = {}
        for turn, place in enumerate(places):
            use = (place.value, self._taken[place.value])
            self._taken[place.value] += 1
            self._places[use], self._turns[use] = place, turn
        self._taken.clear()
        spans = [(place.begin, place.begin + whole_pages(place.size_bytes)) for place in places]
        self._ranges = [PageRange.of(max(end for _, end in spans))] if spans else []
        self._forecast, self._turn = PageForecast(spans), 0
        self._most = 0
        self.held_bytes = self.kept_bytes = self.most_held_bytes = 0

    def begin_run(self) -> None:
        """Nothing is in use, and buffers are taken in the same order again."""
        with self._lock:
            self._taken.clear()
            self._turn = 0

    def take(self, name: str, size_bytes: int) -> PageBuffer:
        """A buffer of at least so many bytes, in whole pages; what is in it is anybody's guess."""
        size = whole_pages(max(1, size_bytes))
        with self._lock:
            use = (name, self._taken[name])
            self._taken[name] += 1
            now = next(self._clock)
            self._turn = max(self._turn, self._turns.get(use, -1) + 1)
            # Where a buffer goes: the place that was chosen for it, else the best one in some range, else a new
            # range.
            place = self._places.get(use)
            if place is not None and self._ranges[0].is_free(place.begin, size):  # transfers may take longer
                home, begin = self._ranges[0], place.begin
            else:
                found = [(good, home, begin) for home in self._ranges for good, begin in home.places(size)]
                if found:
                    _, home, begin = max(found, key=lambda each: each[0])
                else:
                    self._ranges.append(PageRange.of(max(LEAST_RANGE_BYTES, RANGE_FACTOR * size)))
                    home, begin = self._ranges[-1], 0
            self.kept_bytes -= home.take(begin, size, now)
            self._hold(size_bytes)
        return PageBuffer(memoryview(home.pages)[begin : begin + size], size_bytes, home, begin)

    def take_apart(self, size_bytes: int) -> PageBuffer:
        """A buffer for somebody who keeps it: its pages are a mapping of their own, which ends with its last reader."""
        with self._lock:
            self._hold(size_bytes)
        return PageBuffer(addresses(whole_pages(max(1, size_bytes))), size_bytes)

    def give(self, buffer: PageBuffer) -> None:
        """Let go of a buffer that nothing reads any more."""
        with self._lock:
            self.held_bytes -= buffer.size_bytes
            if buffer.home is not None:
                now = next(self._clock)
                size = len(buffer.pages)
                self.kept_bytes += size
                buffer.home.give(buffer.begin, size, now)
            self._shrink()

    def forget(self, buffer: PageBuffer) -> None:
        """A buffer that was taken apart is somebody else's from now on."""
        with self._lock:
            self.held_bytes -= buffer.size_bytes

    def limit(self, most_bytes: int) -> None:
        """From now on no more than so many bytes together, as far as those in use allow; the most is counted anew."""
        with self._lock:
            self._most = most_bytes
            self.most_held_bytes = self.held_bytes
            self._shrink()

    def _hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
        self._shrink()

    def _shrink(self) -> None:
        """Give back to the system what is taken last, of pages in other ranges what waits longest."""
        excess = self.held_bytes + self.kept_bytes - self._most
        if excess <= 0 or not self.kept_bytes:
            return
        excess = max(excess, self._forecast.grain)
        # Free pages that are there: when they are taken, how long they wait, their range, first address and bytes.
        waiting = [
            (distance, -piece.warm, number, begin, end - begin)
            for number, home in enumerate(self._ranges)
            for piece in home.free
            if piece.warm is not None
            for distance, (begin, end) in (NOTHING_TAKEN if number else self._forecast).parts(piece, self._turn)
        ]
        going: list[list[Span]] = [[] for _ in self._ranges]
        for *_, number, begin, size in sorted(waiting, reverse=True):
            if excess <= 0:
                break
            gone = min(size, whole_pages(excess))
            going[number].append((begin + size - gone, begin + size))
            self.kept_bytes -= gone
            excess -= gone
        for home, spans in zip(self._ranges, going, strict=True):
            if spans:
                home.cool(joined_spans(spans))
