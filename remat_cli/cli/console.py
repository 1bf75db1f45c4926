"""The only file that prints: results on stdout, errors and progress on stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from remat_cli.base.errors import RematError
from remat_cli.base.progress import Progress
from remat_cli.base.run_count import counting
from remat_cli.cli.progress import Lines, LiveLine, Stopper, Watcher

if TYPE_CHECKING:
    from remat_cli.cli.printing import Printing
    from remat_cli.report.style import Style

BLOCKS = "█▲╌┤░"
"""What pictures in text are drawn with."""


def emit(text: str) -> None:
    """Write a result to stdout; characters it cannot show are escaped. A reader that went away is no error.

    Raises:
        RematError: stdout cannot be written, such as a file on a full disk.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
    except OSError as error:
        _give_up(sys.stdout)
        raise RematError(f"the result cannot be written to stdout: {error.strerror}") from None


def _give_up(stream: TextIO) -> None:
    """Send what is left in a buffer nowhere, or the interpreter complains again when it exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(text: str) -> None:
    """Write one line about an error to stderr."""
    line = " ".join(text.splitlines())
    _tell(f"error: {line}\n".encode("utf-8", "backslashreplace").decode())


def show_traceback(error: BaseException) -> None:
    """Write a traceback to stderr."""
    _tell("".join(traceback.format_exception(error)))


def _tell(text: str) -> None:
    """Write to stderr; where that fails it is left out, as the exit code says enough."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _give_up(sys.stderr)


def stdout_style(printing: Printing) -> Style:
    """What the reader of stdout can show."""
    from remat_cli.report.style import Style

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 100
    encoding = sys.stdout.encoding or "utf-8"
    has_blocks = BLOCKS.encode(encoding, "ignore").decode(encoding) == BLOCKS
    return Style(
        max(40, min(width, 160)), is_terminal and printing.color, has_blocks, is_terminal, not printing.verbose
    )


@contextlib.contextmanager
def watching(printing: Printing) -> Iterator[Progress]:
    """Progress on stderr as asked: none, a live line on a terminal, or plain lines. Ctrl-C is caught."""
    stopper = Stopper()
    is_live = sys.stderr.isatty() and not printing.quiet
    live = LiveLine(stopper, has_color=printing.color) if is_live else None
    show = live.show if live else Lines(None if printing.quiet else sys.stderr).show
    with stopper.installed(), counting() as count:
        watcher = Watcher(show, stopper, count, is_verbose=printing.verbose)
        try:
            yield Progress(watcher.tell, watcher.should_stop)
        finally:
            watcher.end_stage()
            if live:
                live.close()
