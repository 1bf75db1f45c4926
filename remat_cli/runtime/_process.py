"""Run a function of this package in a fresh process: a clean runtime, killable, with nothing left behind.

Files in a temporary directory carry the job and the result, lines on stdout the progress. The worker ends by itself
when its standard input closes, so it never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, get_type_hints

import msgspec

from remat_cli.base import errors
from remat_cli.base.errors import RematError, RuntimeFailure

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Advance: TypeAlias = Callable[[int, int], None]
"""Told how many of how many units of work are done."""

PROGRESS = "remat-progress"
JOB, ANSWER, FAILURE, STDERR = "job", "answer", "failure", "stderr"
BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from remat_cli.runtime.worker import main
sys.exit(main(sys.argv[2], sys.argv[3]))
"""
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class Failure(msgspec.Struct, frozen=True):
    """An error raised on purpose in a worker: the name of its class in `core.errors`, and its text."""

    kind: str
    text: str


def ignore_progress(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Pending(Generic[Answer]):
    """A worker that was started."""

    process: subprocess.Popen[str]
    folder: Path
    answer_type: type[Answer]

    def answer(self, advance: Advance = ignore_progress) -> Answer:
        """Wait for the worker to end and return what its function returned.

        Raises:
            RematError: what the function raised on purpose.
            RuntimeFailure: the worker crashed.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == [PROGRESS]:
                advance(int(words[1]), int(words[2]))
        code = self.process.wait()
        if (self.folder / FAILURE).exists():
            raise _revived((self.folder / FAILURE).read_bytes())
        if code != 0:
            raise RuntimeFailure(_crash_line(code, (self.folder / STDERR).read_text(errors="replace")))
        return msgspec.msgpack.decode((self.folder / ANSWER).read_bytes(), type=self.answer_type)


@contextlib.contextmanager
def started(function: Callable[[Job, Advance], Answer], job: Job) -> Iterator[Pending[Answer]]:
    """Start `function(job, advance)` in a fresh process, and end that process with the block, however it ends.

    `function` is a module-level function whose job and answer are annotated with msgspec types.
    """
    with tempfile.TemporaryDirectory(prefix="remat_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / JOB).write_bytes(msgspec.msgpack.encode(job))
        process = _start(f"{function.__module__}:{function.__qualname__}", folder)
        try:
            yield Pending(process, folder, get_type_hints(function)["return"])
        finally:
            _end(process)


def run_fresh(function: Callable[[Job, Advance], Answer], job: Job, advance: Advance = ignore_progress) -> Answer:
    """Run `function(job, advance)` in a fresh process and wait for what it returns.

    Raises:
        RematError: what the function raised on purpose.
        RuntimeFailure: the worker crashed.
    """
    with started(function, job) as pending:
        return pending.answer(advance)


def _start(target: str, folder: Path) -> subprocess.Popen[str]:
    with (folder / STDERR).open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", BOOT, str(PACKAGE_ROOT), target, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
            text=True,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a worker and the processes it forked, and reap it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            _kill(process)
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _kill(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _revived(data: bytes) -> RematError:
    failure = msgspec.msgpack.decode(data, type=Failure)
    kind: Any = getattr(errors, failure.kind)
    error: RematError = kind(failure.text)
    return error


def _crash_line(code: int, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    last = lines[-1].strip()[:300] if lines else "no message"
    how = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with code {code}"
    return f"the process that runs ONNX Runtime {how}: {last}"
