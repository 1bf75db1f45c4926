"""Buffers for values that may be paged: whole pages out of one range of addresses, used again by whoever comes next.

Memory that is asked of the system costs a fault for each page, so pages that one value leaves are the first that
another one takes, whatever its size; but never are more of them there than the plan has room for, since what is kept
for later counts like what is used. Addresses cost nothing: where free pieces lie apart, a value takes a longer one,
whose missing pages come with their first use, and as many others go back to the system.

Runs of a plan take about the same buffers in about the same order. So the first run is watched, and from then on each
buffer has a place for which the range is about as short as what is held at once: nothing goes back, nothing comes anew.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from remat_cli.core.pages import whole_pages
from remat_cli.runtime._ort import Array
from remat_cli.runtime.page_ranges import Life, PageRange, addresses, shortest_places

LEAST_RANGE_BYTES = 64 * 2**20  # of addresses, which are plenty
RANGE_FACTOR = 2  # a range is so many times longer than the value that found no room

Use = tuple[str, int]
"""A buffer's name, and how many of this name a run took before it."""


@dataclass(frozen=True)
class PageBuffer:
    """Whole pages, and how many bytes of them are asked for; `home` is None where they are somebody else's to keep."""

    pages: Any
    size_bytes: int
    use: Use = ("", 0)
    home: PageRange | None = None
    begin: int = 0

    def values(self, element: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """The array that lies in it."""
        return np.frombuffer(self.pages, element, self.size_bytes // element.itemsize).reshape(shape)


class PageBuffers:
    """Takes and gives buffers; `held_bytes` are asked for, `kept_bytes` wait to be used again. Threads may share it."""

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._lock = threading.Lock()
        self._ranges: list[PageRange] = []
        self._clock = count(1)
        self._taken: Counter[str] = Counter()
        self._lives: dict[Use, Life] = {}
        self._places: dict[Use, int] = {}
        self._most = 0
        self.held_bytes = self.kept_bytes = self.most_held_bytes = 0

    def begin_run(self) -> None:
        """Nothing is in use, and about the same buffers are taken as since the last call."""
        with self._lock:
            if self._lives and not self._places:
                found = shortest_places(tuple(self._lives.values()))
                self._places = dict(zip(self._lives, found, strict=True))
                length = max(self._places[use] + life.size for use, life in self._lives.items())
                self._ranges, self.kept_bytes = [PageRange.of(length)], 0
            self._lives = {}
            self._taken.clear()

    def take(self, name: str, size_bytes: int) -> PageBuffer:
        """A buffer of at least so many bytes, in whole pages; what is in it is anybody's guess."""
        size = whole_pages(max(1, size_bytes))
        with self._lock:
            use = (name, self._taken[name])
            self._taken[name] += 1
            now = next(self._clock)
            self._lives[use] = Life(size, now, now + 1)
            home, begin = self._planned(use, size) or self._found(size) or self._grown(size)
            self.kept_bytes -= home.take(begin, size, now)
            self._hold(size_bytes)
        return PageBuffer(memoryview(home.pages)[begin : begin + size], size_bytes, use, home, begin)

    def take_apart(self, size_bytes: int) -> PageBuffer:
        """The same for somebody who keeps it: the pages are a mapping of their own, which ends with its last reader."""
        with self._lock:
            self._hold(size_bytes)
        return PageBuffer(addresses(whole_pages(max(1, size_bytes))), size_bytes)

    def give(self, buffer: PageBuffer) -> None:
        """Let go of a buffer that nothing reads any more."""
        with self._lock:
            self.held_bytes -= buffer.size_bytes
            if buffer.home is not None:
                now = next(self._clock)
                self._lives[buffer.use] = replace(self._lives[buffer.use], end=now)
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

    def _planned(self, use: Use, size: int) -> tuple[PageRange, int] | None:
        """The place that was chosen for a buffer, if it is free: transfers may take longer than when it was chosen."""
        begin = self._places.get(use)
        if begin is None or not self._ranges[0].is_free(begin, size):
            return None
        return self._ranges[0], begin

    def _found(self, size: int) -> tuple[PageRange, int] | None:
        """The best place that is free in some range."""
        found = [(good, home, begin) for home in self._ranges for good, begin in home.places(size)]
        if not found:
            return None
        _, home, begin = max(found, key=lambda each: each[0])
        return home, begin

    def _grown(self, size: int) -> tuple[PageRange, int]:
        """The begin of a new range."""
        self._ranges.append(PageRange.of(max(LEAST_RANGE_BYTES, RANGE_FACTOR * size)))
        return self._ranges[-1], 0

    def _shrink(self) -> None:
        """Give back to the system what waits longest."""
        excess = self.held_bytes + self.kept_bytes - self._most
        if excess <= 0 or not self.kept_bytes:
            return
        waiting = [(piece.warm, home, piece) for home in self._ranges for piece in home.free if piece.warm is not None]
        for _, home, piece in sorted(waiting, key=lambda each: each[0]):
            if excess <= 0:
                return
            size = min(piece.size, whole_pages(excess))
            home.cool(piece, size)
            self.kept_bytes -= size
            excess -= size
