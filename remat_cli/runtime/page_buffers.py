"""Buffers for values that may be paged: whole pages of their own, used again for values of the same size.

Memory that is asked of the system costs a fault for each page, so what one value leaves another one takes; but never
more than the plan has room for, since what is kept for later counts like what is used.
"""

import mmap
import threading
from collections import deque
from dataclasses import dataclass

from remat_cli.core.paged_plan import PAGE_BYTES

HUGE_BYTES = 2 * 2**20  # from here on large pages are asked for, where there are some


@dataclass(frozen=True)
class PageBuffer:
    """Whole pages, and how many bytes of them are asked for."""

    pages: mmap.mmap
    size_bytes: int


class PageBuffers:
    """Takes and gives buffers; `held_bytes` are asked for, `kept_bytes` wait to be used again. Threads may share it."""

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._lock = threading.Lock()
        self._free: deque[mmap.mmap] = deque()
        self._most = 0
        self.held_bytes = self.kept_bytes = self.most_held_bytes = 0

    def take(self, size_bytes: int) -> PageBuffer:
        """A buffer of at least so many bytes, in whole pages; what is in it is anybody's guess."""
        size = -(-max(1, size_bytes) // PAGE_BYTES) * PAGE_BYTES
        with self._lock:
            found = next((each for each in self._free if len(each) == size), None)
            if found is not None:
                self._free.remove(found)
                self.kept_bytes -= size
            self.held_bytes += size_bytes
            self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
            self._shrink()
        return PageBuffer(_pages(size) if found is None else found, size_bytes)

    def give(self, buffer: PageBuffer) -> None:
        """Let go of a buffer that nothing reads any more."""
        with self._lock:
            self.held_bytes -= buffer.size_bytes
            self._free.append(buffer.pages)
            self.kept_bytes += len(buffer.pages)
            self._shrink()

    def forget(self, buffer: PageBuffer) -> None:
        """A buffer is somebody else's from now on."""
        with self._lock:
            self.held_bytes -= buffer.size_bytes

    def limit(self, most_bytes: int) -> None:
        """From now on no more than so many bytes together, as far as those in use allow; the most is counted anew."""
        with self._lock:
            self._most = most_bytes
            self.most_held_bytes = self.held_bytes
            self._shrink()

    def _shrink(self) -> None:
        """Give back to the system what waits longest."""
        while self._free and self.held_bytes + self.kept_bytes > self._most:
            self.kept_bytes -= len(self._free.popleft())  # unmapped with its last reference


def _pages(size: int) -> mmap.mmap:
    """Fresh memory; of this process alone where the system tells private from shared."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        import contextlib

        with contextlib.suppress(OSError):  # a system without large pages
            made.madvise(mmap.MADV_HUGEPAGE)
    return made
