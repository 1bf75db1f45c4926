"""Make Python's garbage collector run less often."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MANY_OBJECTS = 200_000


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Look for circles of garbage seldom: graphs of many ops are objects that stay, a third of the time went there."""
    before = gc.get_threshold()
    gc.set_threshold(MANY_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
