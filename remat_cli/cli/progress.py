"""Progress as people see it, and Ctrl-C: once keeps the best plan so far, twice aborts."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO

import msgspec

from remat_cli.base.progress import SOLVING, STOPPABLE, Advance, Detail, Event, Incumbent, Note, Stage
from remat_cli.base.run_count import RunCount

REFRESH_SECONDS = 0.2


class Stopper:
    """Remembers Ctrl-C: while searching, the first one asks for an early end; any other one aborts.

    What it aborts may be a part of a search that goes on with what it has (`giving_way`).
    """

    def __init__(self) -> None:
        self.is_searching = False
        self.is_asked = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGINT during the block; only the main thread may, others leave it as it is."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        goes_on = self.is_searching and not self.is_asked
        self.is_asked = True
        if not goes_on:
            raise KeyboardInterrupt


class Took(msgspec.Struct, frozen=True):
    """A stage has ended, in which models ran so often."""

    stage: str
    seconds: float
    runs: int = 0

    def __str__(self) -> str:
        ran = f", {self.runs} run{'s' * (self.runs != 1)}" if self.runs else ""
        return f"{self.stage}: {self.seconds:.2f} s{ran}"


Show = Callable[[Event | Took | None, float], None]
"""Shows what is new in the stage that began at that time; None: nothing is, but the clock goes on."""


class Watcher:
    """Knows the stage and when it began, and what Ctrl-C means there; with `is_verbose` says what each took."""

    def __init__(self, show: Show, stopper: Stopper, count: RunCount, *, is_verbose: bool) -> None:
        self._show = show
        self._count, self._ran = count, 0
        self._stopper = stopper
        self._is_verbose = is_verbose
        self._stage = ""
        self._started = time.monotonic()

    def tell(self, event: Event) -> None:
        """Show an event; a stage that is told again goes on."""
        if isinstance(event, Stage):
            if event.text == self._stage:
                return
            self.end_stage()
            self._stage, self._started, self._ran = event.text, time.monotonic(), self._count.runs
            self._stopper.is_searching = event.text in STOPPABLE
        self._show(event, self._started)

    def should_stop(self) -> bool:
        """Whether Ctrl-C was pressed while searching; being polled also keeps the clock running."""
        self._show(None, self._started)
        return self._stopper.is_asked

    def end_stage(self) -> None:
        """End the stage that runs, if one does."""
        if self._stage and self._is_verbose:
            seconds, runs = time.monotonic() - self._started, self._count.runs - self._ran
            self._show(Took(self._stage, seconds, runs), self._started)
        self._stage = ""


class Lines:
    """One line per stage, improvement and note, for logs and pipes; without a stream, nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._incumbent = ""

    def show(self, sign: Event | Took | None, started: float) -> None:
        """Write an event as a line, unless it is too much for a log."""
        line = str(sign)
        if sign is None or isinstance(sign, Advance) or (isinstance(sign, Incumbent) and line == self._incumbent):
            return
        if isinstance(sign, Incumbent):
            self._incumbent = line
        if isinstance(sign, Incumbent):
            line = f"{line}  {_elapsed(started)}"
        elif isinstance(sign, Detail):  # which may name seconds of its own
            line = f"{line} ({_elapsed(started)} so far)"
        if self._stream is None:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:
            self._stream = None  # nobody reads it any more, or it is full; the work goes on


class LiveLine:
    """One line on a terminal, redrawn in place; notes and ended stages stay above it."""

    def __init__(self, stopper: Stopper, *, has_color: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._stopper = stopper
        self._console = Console(stderr=True, no_color=not has_color, highlight=False)
        # Redrawn by our calls only: a thread of its own would disturb the measurements.
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._lock = threading.RLock()
        self._stage = ""
        self._detail = ""
        self._drawn = time.monotonic()
        self._live.start()

    def show(self, sign: Event | Took | None, started: float) -> None:
        """Draw an event beside the stage, frequent ones only now and then; print above it what is to stay."""
        if isinstance(sign, Note | Took):
            with self._lock:
                self._console.print(_plain(str(sign)), style="yellow" if isinstance(sign, Note) else "dim")
            return
        if isinstance(sign, Stage):
            self._stage, self._detail = sign.text, ""
        elif sign is not None:
            self._detail = str(sign)
        is_often = sign is None or (isinstance(sign, Advance) and sign.done < sign.total)
        if not is_often or time.monotonic() - self._drawn > REFRESH_SECONDS:
            stopping = "stopping, Ctrl-C again aborts" if self._stopper.is_asked and self._stopper.is_searching else ""
            name = "" if self._detail and self._stage == SOLVING else self._stage
            parts = [part for part in (name, self._detail, _elapsed(started), stopping) if part]
            with self._lock:
                self._drawn = time.monotonic()
                self._live.update(_plain("  ".join(parts)), refresh=True)

    def close(self) -> None:
        """Remove the line."""
        self._live.stop()


def _plain(text: str) -> Any:
    """Text for rich in which brackets are just brackets."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")


def _elapsed(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"
