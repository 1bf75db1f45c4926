"""Asks the C library's allocator to give memory back that this process frees: by itself it keeps much of it."""

import contextlib
import ctypes
from typing import Final

from remat_cli.core.paging.paged_sessions import MAPPED_FROM_BYTES

_M_MMAP_THRESHOLD: Final = -3  # glibc's number


def give_blocks_back() -> None:
    """Let the allocator map large blocks one by one, so that they go back to the system when they are freed.

    glibc takes larger and larger blocks from its heap else, and a heap only shrinks at its end.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another allocator than glibc's
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


def return_free_memory() -> None:
    """Let the allocator give free memory back to the system, where it can be asked to."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
