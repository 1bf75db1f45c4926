"""Pages: what the system hands memory out in, and what a place in a file of pages begins at a multiple of."""

from typing import Final

PAGE_BYTES: Final = 4096


def whole_pages(size_bytes: int) -> int:
    """Bytes of the pages that hold so many."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
