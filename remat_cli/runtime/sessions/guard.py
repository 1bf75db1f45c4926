"""A run of a user's model in this process that may be ended: by Ctrl-C, by SIGTERM, and once it has taken too long.

The runtime does not return to Python before a run is over, and a model may hold a loop that never is. So the run goes
on in a thread, and the main one waits, where signals reach it. It tells the runtime to stop, which looks at that
between two ops, those inside loops too.
"""

import _thread
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from remat_cli.runtime.sessions._ort import Doing, import_ort, too_long

T = TypeVar("T")
STOP_SECONDS = 10.0
"""For the op that is at work to end, once the runtime is told to stop."""
START_SECONDS = 60.0
"""For a thread to begin, which takes no time unless there is no memory for it: then it never does."""


def guarded(work: Callable[[Any], T], seconds: float, doing: Doing) -> T:
    """What `work(run_options)` returns; it must hand its argument to every run.

    Raises:
        RuntimeFailure: it took longer than that; `doing` opens the message.
    """
    options = import_ort().RunOptions()
    found: list[T] = []
    raised: list[BaseException] = []

    begun, over, context = threading.Event(), threading.Event(), copy_context()  # runs there count here

    def run() -> None:
        begun.set()
        try:
            found.append(context.run(work, options))
        except BaseException as error:  # it goes on in the thread that waits
            raised.append(error)
        finally:
            over.set()

    # Begin in another thread; `threading.Thread` would wait for ever for one that memory does not suffice for.
    try:
        _thread.start_new_thread(run, ())
        is_running = begun.wait(START_SECONDS)
    except (RuntimeError, MemoryError):
        is_running = False
    if not is_running:
        raise doing.failed("there is no memory left to begin it; allow more with --memory-limit")
    try:
        is_over = over.wait(seconds)
    finally:
        options.terminate = True  # does nothing where the run has ended
        over.wait(STOP_SECONDS)
    if not is_over:
        raise doing.failed(too_long(seconds))
    if raised:
        raise raised[0]
    return found[0]
