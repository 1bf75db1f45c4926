"""The outside of a bench run: a process per run, so that runs cannot disturb each other and one that dies is a line."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec

from remat_cli.contest.family import SAMPLE_SECONDS, Sampler, kill_family
from remat_cli.contest.worker import Job, Message, versions
from remat_cli.report.bench_run import BenchCase, BenchRun, BenchStatus, TracePoint

BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from remat_cli.contest.family import SAMPLE_SECONDS, Sampler, kill_family
from remat_cli.contest.worker import main
main()
"""
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
LOADING_SECONDS = 900.0  # on a machine where the search kernels must be compiled first
GRACE_SECONDS = 60.0  # beyond twice the time limit, before a run is killed

Watch: TypeAlias = Callable[[TracePoint], None]


def run_case(case: BenchCase, path: Path, watch: Watch) -> BenchRun:
    """Run one case in a fresh process; whatever happens to that process becomes a run.

    A KeyboardInterrupt kills the process and goes on to the caller.
    """
    with CaseProcess(Job(case, str(path.resolve())), watch) as process:
        while (run := process.poll(SAMPLE_SECONDS)) is None:
            pass
        return run


class CaseProcess:
    """One case in a fresh process, which ends with the block; several may run beside each other."""

    def __init__(self, job: Job, watch: Watch) -> None:
        """Start the process and hand over the job; `watch` hears of every improvement."""
        self._case, self._watch = job.case, watch
        self._trace: list[TracePoint] = []
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = _start(self._stderr)
        self._lines, self._sampler = _lines(self._process), Sampler(self._process.pid)
        self._deadline = time.monotonic() + LOADING_SECONDS
        _send(self._process, job)

    def __enter__(self) -> CaseProcess:
        """The process itself."""
        return self

    def __exit__(self, *reason: object) -> None:
        """Kill the process, if it still runs, with what it started."""
        _end(self._process)
        self._stderr.close()

    def poll(self, seconds: float) -> BenchRun | None:
        """What came of the case; None if it goes on after the next message, or after so many seconds without one."""
        self._sampler.look()
        if time.monotonic() >= self._deadline:
            return self._failed("overran", f"killed {GRACE_SECONDS:.0f} s after twice its time limit")
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        if line is None:
            return self._failed("crashed", _last_words(self._process, self._stderr))
        return self._hear(msgspec.json.decode(line, type=Message))

    def _hear(self, message: Message) -> BenchRun | None:
        if message.run is not None:
            return _with_peak(message.run, self._sampler.peak_mib)
        if message.started:
            self._deadline = time.monotonic() + 2 * self._case.time_limit_seconds + GRACE_SECONDS
        if message.point is not None:
            self._trace.append(message.point)
            self._watch(message.point)
        return None

    def _failed(self, status: BenchStatus, message: str) -> BenchRun:
        """A run without an answer; what it had reported is kept, but is no result."""
        case = self._case
        asked: dict[str, Any] = {item.name: getattr(case, item.name) for item in msgspec.structs.fields(BenchCase)}
        return BenchRun(**asked, status=status, message=message, trace=tuple(self._trace), versions=versions())


def _with_peak(run: BenchRun, seen_mib: float) -> BenchRun:
    """The run with the peak of all its processes, where that is more than what the first of them knows of itself."""
    return msgspec.structs.replace(run, peak_rss_mib=max(run.peak_rss_mib or 0.0, seen_mib) or None)


def _start(stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """A worker process in a session of its own, so that Ctrl-C reaches only us."""
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", BOOT, str(PACKAGE_ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker with what it started, and reap it."""
    if process.poll() is None:
        kill_family(process.pid)
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _send(process: subprocess.Popen[bytes], job: Job) -> None:
    """Hand over the job; standard input stays open, as a sign that somebody waits for the answer."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died: its end of output will say so
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        process.stdin.flush()


def _lines(process: subprocess.Popen[bytes]) -> queue.Queue[bytes | None]:
    """The lines that a worker writes, as they come, then None."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed under us, when the run is over
            for line in process.stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _last_words(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> str:
    """How a worker died, and the last line of its stderr."""
    code = process.wait()
    stderr.seek(0)
    lines = [line for line in stderr.read().decode(errors="replace").splitlines() if line.strip()]
    how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"{how}: {lines[-1].strip()[:300]}" if lines else how
