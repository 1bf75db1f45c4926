"""What glibc's heap holds of blocks that are taken and given back one after the other, by its rules.

A block of at least the threshold is mapped by itself and goes back to the system; the threshold then rises to its size,
up to 32 MiB. Smaller ones lie in the heap: at its free end, which keeps them for the next one and goes back only once
it is twice the threshold. While places for remainders are free (`primers`), a block may stay stuck where it was
instead, and the next one needs a place of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from remat_cli.core.values.pages import whole_pages

FIRST_THRESHOLD_BYTES: Final = 212 * 2**10  # in a process that has imported NumPy
LARGEST_THRESHOLD_BYTES: Final = 2**25
HEADER_BYTES: Final = 16
SLACK_BYTES: Final = 96  # that an aligned block needs beyond its size
REMAINDERS: Final = 7  # of a size that are kept for small requests


def threshold_after(sizes: Iterable[int]) -> int:
    """Bytes below which blocks lie in the heap, once blocks of these sizes were given back."""
    risen = (whole_pages(size + HEADER_BYTES) for size in sizes)
    return max([FIRST_THRESHOLD_BYTES, *(each for each in risen if each <= LARGEST_THRESHOLD_BYTES)])


class Heap(msgspec.Struct, frozen=True):
    """The heap after some blocks: what is free at its end, what is stuck before, and how many more may be."""

    threshold_bytes: int = FIRST_THRESHOLD_BYTES
    end_bytes: int = 0
    stuck_bytes: int = 0
    places: int = REMAINDERS

    @property
    def held_bytes(self) -> int:
        """What it keeps of blocks that were given back."""
        return self.end_bytes + self.stuck_bytes

    def is_mapped(self, size_bytes: int) -> bool:
        """Whether a block of this size does not come from the heap."""
        return size_bytes + SLACK_BYTES >= self.threshold_bytes

    def during(self, size_bytes: int) -> int:
        """What is held while one more block is taken."""
        if self.is_mapped(size_bytes):
            return self.held_bytes + size_bytes
        return self.stuck_bytes + max(self.end_bytes, size_bytes)

    def after(self, size_bytes: int) -> Heap:
        """The heap once one more block was taken and given back."""
        if self.is_mapped(size_bytes):
            risen_bytes = max(self.threshold_bytes, threshold_after([size_bytes]))
            return msgspec.structs.replace(self, threshold_bytes=risen_bytes)
        end_bytes = max(self.end_bytes, size_bytes)
        if self.places:
            stuck_bytes = self.stuck_bytes + size_bytes
            return Heap(self.threshold_bytes, end_bytes - size_bytes, stuck_bytes, self.places - 1)
        return msgspec.structs.replace(self, end_bytes=0 if end_bytes >= 2 * self.threshold_bytes else end_bytes)
