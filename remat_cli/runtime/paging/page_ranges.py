"""A range of addresses, and which of its pages are free and there: room for buffers without asking the system anew."""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

Span = tuple[int, int]
"""First address, and the first that is not in it."""

FIRST_ADDRESS = attrgetter("begin")
HUGE_BYTES = 2 * 2**20
"""Of a large page: one fault for all of it, and a disk writes and reads it in one piece."""


@dataclass(frozen=True)
class FreePages:
    """Free addresses of a range; `warm` says when pages there were last left, None that there are none."""

    begin: int
    size: int
    warm: int | None = None

    @property
    def end(self) -> int:
        """The first address that is not in it."""
        return self.begin + self.size

    def shared(self, begin: int, end: int) -> int:
        """How many bytes of other addresses are in it."""
        return max(0, min(self.end, end) - max(self.begin, begin))


@dataclass(eq=False)
class PageRange:
    """Addresses of this process, and the pieces of them that are free, in order."""

    pages: mmap.mmap
    free: list[FreePages] = field(default_factory=list)

    @classmethod
    def of(cls, size: int) -> PageRange:
        """So many bytes of addresses, without any pages."""
        return cls(addresses(size), [FreePages(0, size)])

    def places(self, size: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Where so many bytes would find room, at either end of each free piece, and how good that is.

        The more pages are there the better, and the shorter the row of pieces that it is taken from.
        """
        rows: list[list[FreePages]] = []  # free pieces that follow each other without a gap
        for piece in self.free:
            if rows and rows[-1][-1].end == piece.begin:
                rows[-1].append(piece)
            else:
                rows.append([piece])
        for row in rows:
            begin, end = row[0].begin, row[-1].end
            starts = {piece.begin for piece in row} | {piece.end - size for piece in row}
            for start in sorted(starts):
                if begin <= start and start + size <= end:
                    warm = sum(piece.shared(start, start + size) for piece in row if piece.warm is not None)
                    yield (warm, begin - end), start

    def is_free(self, begin: int, size: int) -> bool:
        """Whether nothing is in these addresses."""
        near = self._near(begin, begin + size)
        return sum(piece.shared(begin, begin + size) for piece in self.free[near]) == size

    def take(self, begin: int, size: int, now: int) -> int:
        """Take addresses out of what is free: how many bytes fewer are there that nobody uses; may be less than none.

        With its first use a large page comes as a whole, and with it free pages beside what is taken.
        """
        large = HUGE_BYTES if len(self.pages) >= HUGE_BYTES else 1
        first, last = begin // large * large, -(-(begin + size) // large) * large
        warm, free, near = 0, list[FreePages](), self._near(first, last)
        for piece in self.free[near]:
            for part in _cut(piece, (first, begin, begin + size, last)):
                is_taken, is_beside = begin <= part.begin < begin + size, first <= part.begin < last
                if is_taken:
                    warm += part.size if part.warm is not None else 0
                elif is_beside and part.warm is None:
                    warm -= part.size
                    free.append(replace(part, warm=now))
                else:
                    free.append(part)
        self.free[near] = _joined(free)
        return warm

    def give(self, begin: int, size: int, now: int) -> None:
        """Addresses are free again; their pages stay."""
        near = self._near(begin, begin + size)
        self.free[near] = _joined(sorted((*self.free[near], FreePages(begin, size, now)), key=FIRST_ADDRESS))

    def cool(self, spans: Sequence[Span]) -> None:
        """Give free pages back to the system; spans in order."""
        free: list[FreePages] = []
        after = 0
        for piece in self.free:
            while after < len(spans) and spans[after][1] <= piece.begin:
                after += 1
            if after == len(spans) or piece.end <= spans[after][0]:
                free.append(piece)
                continue
            mine = [span for span in spans[after:] if span[0] < piece.end]
            for part in _cut(piece, [address for span in mine for address in span]):
                is_cooled = any(begin <= part.begin < end for begin, end in mine)
                free.append(FreePages(part.begin, part.size) if is_cooled else part)
        self.free[:] = _joined(free)
        if hasattr(mmap, "MADV_DONTNEED"):
            for begin, end in spans:
                self.pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _near(self, begin: int, end: int) -> slice:
        """The free pieces that are in these addresses or next to them, with those beside, which may be joined."""
        first = bisect_left(self.free, begin, key=FIRST_ADDRESS) - 1
        return slice(max(0, first - 1), bisect_right(self.free, end, key=FIRST_ADDRESS) + 1)


def addresses(size: int) -> mmap.mmap:
    """A range without any pages; of this process alone where the system tells private from shared."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            made.madvise(mmap.MADV_HUGEPAGE)
    return made


def _cut(piece: FreePages, at: Sequence[int]) -> Iterator[FreePages]:
    """A piece in parts that end at these addresses, as far as they are in it."""
    begin = piece.begin
    for end in (*(each for each in at if piece.begin < each < piece.end), piece.end):
        if begin < end:
            yield FreePages(begin, end - begin, piece.warm)
        begin = end


def _joined(free: Sequence[FreePages]) -> list[FreePages]:
    """Pieces that follow each other as one, those with pages and those without; the youngest says how old it is."""
    joined: list[FreePages] = []
    for piece in free:
        last = joined[-1] if joined else None
        if last is not None and last.end == piece.begin and (last.warm is None) == (piece.warm is None):
            warm = None if last.warm is None or piece.warm is None else max(last.warm, piece.warm)
            joined[-1] = FreePages(last.begin, last.size + piece.size, warm)
        else:
            joined.append(piece)
    return joined


def joined_spans(spans: Sequence[Span]) -> list[Span]:
    """Spans that follow each other as one, in order."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined
