"""A run of a user's model in this process that may be ended: by Ctrl-C, by SIGTERM, and once it has taken too long.

The runtime does not return to Python before a run is over, and a model may hold a loop that never is. So the run goes
on in a thread, and the main one waits, where signals reach it. It tells the runtime to stop, which looks at that
between two ops, those inside loops too.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from remat_cli.base.errors import RuntimeFailure
from remat_cli.runtime._ort import import_ort, too_long

T = TypeVar("T")
STOP_SECONDS = 10.0
"""For the op that is at work to end, once the runtime is told to stop."""


def guarded(work: Callable[[Any], T], seconds: float, doing: str) -> T:
    """What `work(run_options)` returns; it must hand its argument to every run.

    Raises:
        RuntimeFailure: it took longer than that; `doing` opens the message.
    """
    options = import_ort().RunOptions()
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work(options))
        except BaseException as error:  # it goes on in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
        is_over = not thread.is_alive()
    finally:
        options.terminate = True  # does nothing where the run has ended
        thread.join(STOP_SECONDS)
    if not is_over:
        raise RuntimeFailure(too_long(doing, seconds))
    if raised:
        raise raised[0]
    return found[0]
