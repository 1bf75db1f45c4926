"""Progress as people see it, and Ctrl-C: once keeps the best plan so far, twice aborts."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol, TextIO

from remat_cli.base.progress import SOLVING, STOPPABLE, Progress

REFRESH_SECONDS = 0.2


class Watcher(Progress, Protocol):
    """A progress listener on stderr that must be closed."""

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Stopper:
    """Remembers Ctrl-C: while searching, the first one asks for an early end; any other one aborts."""

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
        if not self.is_searching or self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


class Quiet:
    """Says nothing; Ctrl-C still works."""

    def __init__(self, stopper: Stopper) -> None:
        self._stopper = stopper

    def stage(self, text: str) -> None:
        """Only remember whether it can be stopped early."""
        self._stopper.is_searching = text in STOPPABLE

    def advance(self, done: int, total: int) -> None:
        """Ignore."""

    def detail(self, text: str) -> None:
        """Ignore."""

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore: what matters is in the report too."""

    def should_stop(self) -> bool:
        """Whether Ctrl-C was pressed while searching."""
        return self._stopper.is_asked

    def close(self) -> None:
        """Nothing to do."""


class PlainLines:
    """One line per stage, improvement and note, for logs and pipes; with `is_verbose` the time of each stage too."""

    def __init__(self, stopper: Stopper, stream: TextIO, *, is_verbose: bool) -> None:
        self._stopper = stopper
        self._stream: TextIO | None = stream
        self._is_verbose = is_verbose
        self._stage = ""
        self._started = time.monotonic()
        self._last = ""

    def stage(self, text: str) -> None:
        """Name the stage, once."""
        if text == self._stage:
            return
        self._end_stage()
        self._stage, self._started = text, time.monotonic()
        self._stopper.is_searching = text in STOPPABLE
        self._write(text)

    def advance(self, done: int, total: int) -> None:
        """Too much for a log."""

    def detail(self, text: str) -> None:
        """One line per part."""
        self._write(f"{text}  {_elapsed(self._started)}")

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """One line per improvement."""
        line = solving_text(overhead_percent, bound_percent)
        if line != self._last:
            self._last = line
            self._write(f"{line}  {_elapsed(self._started)}")

    def note(self, text: str) -> None:
        """A warning."""
        self._write(f"note: {text}")

    def should_stop(self) -> bool:
        """Whether Ctrl-C was pressed while searching."""
        return self._stopper.is_asked

    def close(self) -> None:
        """End the last stage."""
        self._end_stage()
        self._stage = ""

    def _end_stage(self) -> None:
        if self._stage and self._is_verbose:
            self._write(f"{self._stage}: {time.monotonic() - self._started:.2f} s")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._stream = None  # nobody reads it any more; the work goes on


class LiveLine:
    """One line on a terminal, redrawn in place; notes, and with `is_verbose` finished stages, stay above it."""

    def __init__(self, stopper: Stopper, *, has_color: bool, is_verbose: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self._stopper = stopper
        self._is_verbose = is_verbose
        self._console = Console(stderr=True, no_color=not has_color, highlight=False)
        # Redrawn by our calls only: a thread of its own would disturb the measurements.
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._lock = threading.RLock()
        self._stage = ""
        self._detail = ""
        self._started = self._drawn = time.monotonic()
        self._live.start()

    def stage(self, text: str) -> None:
        """Begin a stage; the same one again goes on."""
        if text == self._stage:
            return
        self._end_stage()
        self._stage, self._detail, self._started = text, "", time.monotonic()
        self._stopper.is_searching = text in STOPPABLE
        self._draw()

    def advance(self, done: int, total: int) -> None:
        """Show `12/59`."""
        self._detail = f"{done}/{total}"
        if done >= total or time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._draw()

    def detail(self, text: str) -> None:
        """Show it beside the stage."""
        self._detail = text
        self._draw()

    def incumbent(self, overhead_percent: float | None, bound_percent: float | None) -> None:
        """Show the best plan and the proved bound."""
        self._detail = solving_text(overhead_percent, bound_percent)
        self._draw()

    def note(self, text: str) -> None:
        """A warning that stays."""
        self._print(f"note: {text}", "yellow")

    def should_stop(self) -> bool:
        """Whether Ctrl-C was pressed while searching; being polled also keeps the clock running."""
        if time.monotonic() - self._drawn > REFRESH_SECONDS:
            self._draw()
        return self._stopper.is_asked

    def close(self) -> None:
        """Remove the line."""
        self._end_stage()
        self._stage = ""
        self._live.stop()

    def _end_stage(self) -> None:
        if self._stage and self._is_verbose:
            self._print(f"{self._stage}: {time.monotonic() - self._started:.2f} s", "dim")

    def _print(self, text: str, style: str) -> None:
        with self._lock:
            self._console.print(_plain(text), style=style)

    def _draw(self) -> None:
        stopping = "stopping, Ctrl-C again aborts" if self._stopper.is_asked and self._stopper.is_searching else ""
        name = "" if self._detail and self._stage == SOLVING else self._stage
        parts = [part for part in (name, self._detail, _elapsed(self._started), stopping) if part]
        with self._lock:
            self._drawn = time.monotonic()
            self._live.update(_plain("  ".join(parts)), refresh=True)


def _plain(text: str) -> Any:
    """Text for rich in which brackets are just brackets."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")


def solving_text(overhead_percent: float | None, bound_percent: float | None) -> str:
    """`incumbent +2.76%  bound +1.90%  gap 0.86%`, leaving out what is not known."""
    parts = ["incumbent none" if overhead_percent is None else f"incumbent {overhead_percent:+.2f}%"]
    if bound_percent is not None:
        parts.append(f"bound {bound_percent:+.2f}%")
    if overhead_percent is not None and bound_percent is not None:
        parts.append(f"gap {max(0.0, overhead_percent - bound_percent):.2f}%")
    return "  ".join(parts)


def _elapsed(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"
