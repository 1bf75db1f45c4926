"""glibc's malloc, simulated: where its main heap puts blocks, what stays resident of it, what is mapped by itself.

One thread, in chunks as glibc cuts them; compared with glibc, address by address, in tests/ort_rules/test_malloc.py. A
block goes to a free chunk that it fits in, the smallest of them, else to the end of the heap, else, where it is of at
least the threshold, to a mapping of its own, else the heap grows. An aligned block is cut out of a larger chunk, and
both ends of that are given back. Small chunks that are given back wait to be taken again, and are not joined with free
neighbours meanwhile: so they keep large ones apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Final

from remat_cli.core.values.pages import PAGE_BYTES, whole_pages
from remat_cli.ort_rules.heaps.heap import LARGEST_THRESHOLD_BYTES

FIRST_THRESHOLD_BYTES: Final = 128 * 2**10
TOP_PAD_BYTES: Final = 128 * 2**10  # by which the heap grows beyond what is asked for, and which trimming leaves
STEP_BYTES: Final = 16
HEAD_BYTES: Final = 8
LEAST_BYTES: Final = 32
MOST_CACHED_BYTES: Final = 1040  # of a chunk that waits for its size to be asked for again
CACHED: Final = 7  # that wait, of each size
MOST_FAST_BYTES: Final = 128  # of a chunk that waits, when no more may, until a large one is taken or given back
SMALL_BYTES: Final = 1024  # from here on free chunks of one size are not taken oldest first
BINS: Final = ((6, 48, 48), (9, 20, 91), (12, 10, 110), (15, 4, 119), (18, 2, 124))
"""Of chunks that are not small, by so many bits of their sizes: up to so many steps, from this number on."""
LAST_BIN: Final = 126
JOINING_BYTES: Final = 2**16  # what is given back and joined to so much ends the waiting, and may trim the heap


@dataclass(eq=False)
class HeapChunk:
    """A part of the heap between two others, or a mapping of its own (`is_mapped`).

    `state` is "sorted" or "unsorted" where it is free; no text where it is used, waits, or is the free end.
    """

    start: int
    size: int
    before: HeapChunk | None = None
    after: HeapChunk | None = None
    state: str = ""
    is_mapped: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it is joined with what is given back beside it."""
        return bool(self.state)

    def cut(self, size: int) -> HeapChunk:
        """Keep so many bytes of it; the rest is a chunk of its own behind it."""
        rest = HeapChunk(self.start + size, self.size - size, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def join(self) -> None:
        """Add the chunk behind it to it, if there is one."""
        behind = self.after
        if behind is None:
            return
        self.size, self.after = self.size + behind.size, behind.after
        if behind.after is not None:
            behind.after.before = self


@dataclass
class Written:
    """Bytes of the heap that were written, and so are resident, as spans in order that do not touch."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    bytes: int = 0

    def add(self, start: int, end: int) -> None:
        """Write from one place to another."""
        first = bisect_left(self.spans, (start,))
        if first and self.spans[first - 1][1] >= start:
            first -= 1
        last = bisect_right(self.spans, (end, float("inf")))
        old = self.spans[first:last]
        new = (min(start, old[0][0]), max(end, old[-1][1])) if old else (start, end)
        self.spans[first:last] = [new]
        self.bytes += new[1] - new[0] - sum(upto - since for since, upto in old)

    def cut(self, end: int) -> None:
        """Give all behind a place back to the system."""
        while self.spans and self.spans[-1][1] > end:
            start, upto = self.spans.pop()
            self.bytes -= upto - max(start, end)
            if start < end:
                self.spans.append((start, end))


class Malloc:
    """The heap of a process from one moment on, at which nothing of it is free but `free_bytes` at its end."""

    def __init__(self, start: int = 0, threshold_bytes: int = FIRST_THRESHOLD_BYTES, free_bytes: int = 0) -> None:
        is_first = threshold_bytes == FIRST_THRESHOLD_BYTES
        self.threshold_bytes, self.trim_bytes = threshold_bytes, threshold_bytes * (1 if is_first else 2)
        self.end = start + free_bytes
        self.written, self.mapped_bytes = Written(), 0
        self._top = HeapChunk(start, free_bytes)
        self._cached: dict[int, list[HeapChunk]] = {}
        self._fast: dict[int, list[HeapChunk]] = {}
        self._unsorted: list[HeapChunk] = []  # oldest first
        self._sorted: dict[int, list[HeapChunk]] = {}
        self._sizes: list[int] = []  # of what is sorted
        self._rest: HeapChunk | None = None  # of the last small chunk that was cut

    @property
    def resident_bytes(self) -> int:
        """What was written and not given back to the system."""
        return self.written.bytes + self.mapped_bytes

    def take(self, size_bytes: int) -> HeapChunk:
        """Ask for a block."""
        size = _chunk_bytes(size_bytes)
        waiting = self._cached.get(size)
        return waiting.pop() if waiting else self._take(size)

    def take_aligned(self, size_bytes: int, alignment: int) -> HeapChunk:
        """Ask for a block at a multiple of `alignment`, 32 or more."""
        size = _chunk_bytes(size_bytes)
        chunk = self._take(_chunk_bytes(size + alignment + LEAST_BYTES))
        lead = -(chunk.start + 2 * HEAD_BYTES) % alignment
        lead += alignment if 0 < lead < LEAST_BYTES else 0
        if chunk.is_mapped:
            chunk.size -= lead  # so says its head, though nothing of the mapping is given back
            return chunk
        if lead:
            front, chunk = chunk, chunk.cut(lead)
            self._give_back(front)
        if chunk.size > size + LEAST_BYTES:
            self._give_back(chunk.cut(size))
        return chunk

    def write(self, chunk: HeapChunk) -> None:
        """Write all of a block that was taken."""
        if chunk.is_mapped:
            self.mapped_bytes += chunk.size
        else:
            self.written.add(chunk.start, chunk.start + chunk.size)

    def give_back(self, chunk: HeapChunk, *, is_written: bool = True) -> None:
        """Give a block back; a mapped one raises the threshold to its size."""
        if not chunk.is_mapped:
            self._give_back(chunk)
            return
        self.mapped_bytes -= chunk.size if is_written else 0
        if self.threshold_bytes < chunk.size <= LARGEST_THRESHOLD_BYTES:
            self.threshold_bytes, self.trim_bytes = chunk.size, 2 * chunk.size

    def _take(self, size: int) -> HeapChunk:
        """Take a chunk of a size that has no cached one."""
        fast, same = self._fast.get(size), self._sorted.get(size) if size < SMALL_BYTES else None
        if fast:
            found = fast.pop()
            while fast and self._may_cache(fast[-1]):
                self._cache(fast.pop())
            return found
        if same:
            found = self._unlinked(same[0])
            while self._sorted.get(size) and self._may_cache(self._sorted[size][0]):
                self._cache(self._unlinked(self._sorted[size][0]))
            return found
        if size >= SMALL_BYTES:
            self._end_waiting()
        while True:
            free = self._free_chunk(size)
            if free is not None:
                return free
            if self._top.size >= size + LEAST_BYTES:
                return self._from_top(size)
            if not any(self._fast.values()):
                return self._from_system(size)
            self._end_waiting()

    def _free_chunk(self, size: int) -> HeapChunk | None:
        """Sort what is not sorted until it has just this size; else the smallest free chunk in which it fits."""
        is_cached = False
        while self._unsorted:
            chunk = self._unsorted[0]
            is_rest = size < SMALL_BYTES and len(self._unsorted) == 1 and chunk is self._rest
            if is_rest and chunk.size > size + LEAST_BYTES:
                return self._cut(self._unlinked(chunk), size)
            self._unlinked(chunk)
            if chunk.size != size:
                # Put it among those of its size.
                chunk.state = "sorted"
                alike = self._sorted.get(chunk.size)
                if alike is None:
                    self._sorted[chunk.size] = [chunk]
                    insort(self._sizes, chunk.size)
                else:
                    alike.insert(len(alike) if chunk.size < SMALL_BYTES else 1, chunk)
            elif self._may_cache(chunk):
                self._cache(chunk)
                is_cached = True
            else:
                return chunk
        if is_cached:
            return self._cached[size].pop()
        at = bisect_left(self._sizes, size)
        if at == len(self._sizes):
            return None
        same = self._sorted[self._sizes[at]]
        if self._sizes[at] < SMALL_BYTES:
            chosen = same[0]
        else:  # the second, or the last where it lies in another bin than one of the size would
            chosen = same[:2][-1] if _bin(size) == _bin(self._sizes[at]) else same[-1]
        return self._cut(self._unlinked(chosen), size)

    def _cut(self, chunk: HeapChunk, size: int) -> HeapChunk:
        """A part of a free chunk that was taken; the rest is free."""
        if chunk.size - size >= LEAST_BYTES:
            rest = chunk.cut(size)
            rest.state = "unsorted"
            self._unsorted.append(rest)
            self._rest = rest if size < SMALL_BYTES else self._rest
        return chunk

    def _from_top(self, size: int) -> HeapChunk:
        """A part of the free end."""
        taken, self._top = self._top, self._top.cut(size)
        return taken

    def _from_system(self, size: int) -> HeapChunk:
        """A mapping of its own, or a part of the heap once that has grown."""
        if size >= self.threshold_bytes:
            return HeapChunk(0, whole_pages(size + HEAD_BYTES), is_mapped=True)
        grown = whole_pages(size + TOP_PAD_BYTES + LEAST_BYTES - self._top.size)
        self.end += grown
        self._top.size += grown
        return self._from_top(size)

    def _give_back(self, chunk: HeapChunk) -> None:
        if self._may_cache(chunk):
            self._cache(chunk)
        elif chunk.size <= MOST_FAST_BYTES:
            self._fast.setdefault(chunk.size, []).append(chunk)
        elif self._join(chunk).size >= JOINING_BYTES:
            self._end_waiting()
            # The free end of the heap goes back to the system where that is long enough.
            spare = (self._top.size - LEAST_BYTES - 1 - TOP_PAD_BYTES) // PAGE_BYTES * PAGE_BYTES
            if self._top.size >= self.trim_bytes and spare > 0:
                self._top.size -= spare
                self.end -= spare
                self.written.cut(self.end)

    def _end_waiting(self) -> None:
        """Join all that waits, but for what is cached."""
        waiting, self._fast = self._fast, {}
        for size in sorted(waiting):
            for chunk in reversed(waiting[size]):
                self._join(chunk)

    def _join(self, chunk: HeapChunk) -> HeapChunk:
        """Make a chunk free, as one with what is free beside it."""
        if chunk.before is not None and chunk.before.is_free:
            chunk = self._unlinked(chunk.before)
            chunk.join()
        behind = chunk.after
        if behind is self._top:
            chunk.join()
            self._top = chunk
            return chunk
        if behind is not None and behind.is_free:
            self._unlinked(behind)
            chunk.join()
        chunk.state = "unsorted"
        self._unsorted.append(chunk)
        return chunk

    def _unlinked(self, chunk: HeapChunk) -> HeapChunk:
        """A free chunk, taken out of the list that it is in."""
        if chunk.state == "unsorted":
            self._unsorted.remove(chunk)
        else:
            same = self._sorted[chunk.size]
            same.remove(chunk)
            if not same:
                del self._sorted[chunk.size]
                del self._sizes[bisect_left(self._sizes, chunk.size)]
        chunk.state = ""
        return chunk

    def _may_cache(self, chunk: HeapChunk) -> bool:
        return chunk.size <= MOST_CACHED_BYTES and len(self._cached.get(chunk.size, ())) < CACHED

    def _cache(self, chunk: HeapChunk) -> None:
        self._cached.setdefault(chunk.size, []).append(chunk)


def _bin(size: int) -> int:
    """In which bin free chunks of a size lie, where they are sorted by size."""
    if size < SMALL_BYTES:
        return size // STEP_BYTES
    return next((first + (size >> bits) for bits, most, first in BINS if size >> bits <= most), LAST_BIN)


def _chunk_bytes(size_bytes: int) -> int:
    """What a block takes with its head."""
    return max(LEAST_BYTES, -(-(size_bytes + HEAD_BYTES) // STEP_BYTES) * STEP_BYTES)
