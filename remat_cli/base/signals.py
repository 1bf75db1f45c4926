"""Let signals wait for what must not be disturbed."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block has ended: code in it would take an exception for one of its own.

    Only the main thread gets signals; in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in before.items() if handler is not None}  # None: not Python's
    for number in ours:
        signal.signal(number, lambda caught, frame: arrived.append(caught))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    if arrived:
        signal.raise_signal(arrived[0])
