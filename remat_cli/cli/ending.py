"""End a command that gets SIGTERM: its temporary files are removed, whatever the process was busy with.

SIGTERM and Ctrl-C reach Python code between two of its steps, and a call of the runtime or of a solver is one step. So
a thread waits for the signal too; where nothing has come of it after a while, that thread removes the folder and ends
the process. Processes that it has started end by themselves when it is gone.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from remat_cli.base.files import WORK_FOLDER

PATIENCE_SECONDS = 5.0
"""What Python code has to unwind, or a native call to return, before the process is ended as it is."""
EXIT_TERMINATED = 128 + signal.SIGTERM


class Terminated(BaseException):
    """SIGTERM arrived; no handler of errors is to stop it."""


@dataclass
class Heard:
    """Whether SIGTERM arrived: a library whose callback it was raised in may have dropped it, and failed later."""

    is_terminated: bool = False


@contextlib.contextmanager
def orderly_end(*, is_last: bool = False, heard: Heard | None = None) -> Iterator[None]:
    """Give the block a folder of its own for temporary files, which is gone afterwards, also after SIGTERM.

    Only the main thread may handle signals; a block in another one gets just its folder. After a block that is the
    last thing that the process does, signals stay ignored: how it ends is settled.

    Raises:
        Terminated: SIGTERM arrived.
    """
    before = tempfile.tempdir
    restore: Callable[[bool], None] | None = None
    try:
        with _held_back():
            folder = tempfile.mkdtemp(prefix=WORK_FOLDER)
            restore = _handle(folder, heard or Heard())
            tempfile.tempdir = folder
        yield  # inside the `try`, as is the end of what holds signals back: those that wait arrive there
    finally:
        tempfile.tempdir = before
        while restore is not None and not _has_restored(restore, is_last):
            pass


def _has_restored(restore: Callable[[bool], None], is_last: bool) -> bool:
    """Whether no signal came in between: two at once are handled one after the other, the second in the clean-up."""
    try:
        restore(is_last)
    except (KeyboardInterrupt, Terminated):
        return False
    return True


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Let signals wait until the block has ended, so that no folder is made that nobody knows of."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(folder: str, heard: Heard) -> Callable[[bool], None]:
    """Handle SIGTERM from now on; returns what ends that and removes the folder, again if a signal disturbs it."""
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":
        return lambda is_last: shutil.rmtree(folder, ignore_errors=True)
    over = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def terminate(number: int, frame: FrameType | None) -> None:
        heard.is_terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: the clean-up goes on undisturbed
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_insist, args=(reader, folder, over), daemon=True).start()

    interrupt = signal.getsignal(signal.SIGINT)

    def restore(is_last: bool) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # either may raise for a signal that has arrived, none after them
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        over.set()
        signal.set_wakeup_fd(wakeup)
        os.close(writer)  # which ends the thread
        shutil.rmtree(folder, ignore_errors=True)
        if not is_last:
            signal.signal(signal.SIGTERM, before)
            signal.signal(signal.SIGINT, interrupt)

    return restore


def _insist(reader: int, folder: str, over: threading.Event) -> None:
    """End the process a while after SIGTERM, if it still is there then. The system writes the number of each signal."""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while (byte := pipe.read(1)) and byte[0] != signal.SIGTERM:
            pass
        if byte and not over.wait(PATIENCE_SECONDS):
            from remat_cli.base.processes import end_children

            end_children()
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(EXIT_TERMINATED)


def open_streams() -> None:
    """Give a process whose standard streams are closed ones that lead nowhere, so that no file takes their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process
