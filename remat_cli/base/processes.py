"""Run a function in a process of its own: killable, with nothing left behind, and no harm done where it dies.

A folder of its own carries the job and the answer; each message on the way is one line of JSON on a pipe. A fresh
process ends by itself when its standard input closes, so it never outlives the one that started it. Also how many
cores there are to run them on.
"""

import contextlib
import gc
import json
import os
import pickle
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, TypeAlias, TypeVar

import psutil

from remat_cli.base.errors import RematError
from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.garbage import rare_collection
from remat_cli.base.run_count import counting, ran


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def memory_limited(limit_bytes: int | None) -> Iterator[None]:
    """Limit the private bytes of this process, and of each that it starts, in the block; None: to all that there are.

    They are counted where they are reserved, touched or not. Only where the system can (Linux counts them since 4.7).
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = total_memory_bytes() + int(psutil.swap_memory().total) if limit_bytes is None else limit_bytes
    lower = min([most, *(each for each in before if each != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (lower, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def total_memory_bytes() -> int:
    """What this machine has, without swap."""
    return int(psutil.virtual_memory().total)


CONTAINERS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Where Linux says what a container may hold, and what it holds now: the newer way first."""
SPARE_SHARE = 0.9  # of what is free: what others take meanwhile comes out of the rest


def spare_memory_bytes() -> int:
    """How much a process that is started now may take without harm: most of what is free, at most its own limit.

    What is free is what the machine, and the container if there is one, could still give, files in memory included.
    """
    free = [int(psutil.virtual_memory().available)]
    for folder, limit, usage in CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # no such limit, or the word "max" in place of a number
            kept = Path(folder, "memory.stat").read_text().split("inactive_file ")[-1].split()[0]
            held = int(Path(folder, usage).read_text()) - int(kept)
            free.append(int(Path(folder, limit).read_text()) - held)
    spare = int(SPARE_SHARE * max(0, min(free)))
    if sys.platform != "linux":
        return spare
    import resource

    own = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return spare if own == resource.RLIM_INFINITY else min(spare, own)


WORTH_A_PROCESS_BYTES = 2**28
"""256 MiB: where a model has so many weights, what opens it does so in a process of its own, and maps them."""

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Tell: TypeAlias = Callable[..., None]
"""Takes one message: numbers, texts and None, as arguments."""
Start: TypeAlias = Callable[[Callable[[Any, Tell], Any], Any, Path], tuple[psutil.Process, IO[bytes]]]
"""Starts a function on a job; the process, and the end of the pipe on which it tells."""

JOB, ANSWER, STDERR = "job", "answer", "stderr"
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from remat_cli.base.processes import main
main(sys.argv[2])
"""


class ProcessDied(Exception):
    """A process ended without an answer, with this code, after this last line of what it wrote (empty: nothing)."""

    def __init__(self, code: int, line: str) -> None:
        self.code, self.line = code, line
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        super().__init__(f"{how}: {line}" if line else how)


class Silent(Exception):
    """A process told nothing for as long as it may."""


def ignore(*message: object) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Worker(Generic[Answer]):
    """A function at work in a process."""

    process: psutil.Process
    folder: Path
    lines: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    silence_seconds: float | None = None

    def has_ended(self, tell: Tell = ignore, seconds: float | None = None) -> bool:
        """Pass on the next message, waiting at most so long for it; whether there will be none any more."""
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return False
        if line is not None:
            tell(*json.loads(line))
        return line is None

    def result(self) -> Answer:
        """What the function returned, once it has ended.

        Raises:
            RematError: what the function raised on purpose.
            ProcessDied: the process broke down.
        """
        if not (self.folder / ANSWER).exists():
            code = self.process.wait()
            lines = (self.folder / STDERR).read_text(errors="replace").split("\n")
            raise ProcessDied(code, next((line.strip()[:300] for line in reversed(lines) if line.strip()), ""))
        answer, runs = pickle.loads((self.folder / ANSWER).read_bytes())
        ran(runs)
        if isinstance(answer, RematError):
            raise answer
        result: Answer = answer
        return result

    def answer(self, tell: Tell = ignore) -> Answer:
        """Wait for what the function returns; raises as `result` does.

        Raises:
            Silent: nothing was told for longer than `silence_seconds`.
        """
        told = time.monotonic()

        def heard(*message: Any) -> None:
            nonlocal told
            told = time.monotonic()
            tell(*message)

        while not self.has_ended(heard, self.silence_seconds):
            if self.silence_seconds is not None and time.monotonic() - told >= self.silence_seconds:
                raise Silent
        return self.result()

    def read(self, pipe: IO[bytes]) -> None:
        """Take in all lines, as they come, then None."""
        with pipe:
            for line in pipe:
                self.lines.put(line)
        self.lines.put(None)


def fresh(function: Callable[[Any, Tell], Any], job: Any, folder: Path) -> tuple[psutil.Process, IO[bytes]]:
    """Start in a new Python, and in a session of its own, so that Ctrl-C reaches only us."""
    (folder / JOB).write_bytes(pickle.dumps((function, job)))
    with (folder / STDERR).open("wb") as stderr:
        process = psutil.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", BOOT, str(PACKAGE_ROOT), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=folder,
            start_new_session=True,
        )
    return process, process.stdout


def forked(function: Callable[[Any, Tell], Any], job: Any, folder: Path) -> tuple[psutil.Process, IO[bytes]]:
    """Start with all that this process has loaded, where the system can fork; else in a new Python."""
    if not hasattr(os, "fork"):
        return fresh(function, job, folder)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.freeze()  # what the parent left is not ours to end: a session in it would wait for threads that are not here
        try:
            _work(function, job, folder, writer)
        except BaseException:
            (folder / STDERR).write_text(traceback.format_exc())
        finally:
            os._exit(1)  # without the clean-up of what belongs to the parent; where there is an answer, no code is read
    os.close(writer)
    (folder / STDERR).touch()
    return psutil.Process(child), os.fdopen(reader, "rb")


@contextlib.contextmanager
def started(
    function: Callable[[Job, Tell], Answer],
    job: Job,
    start: Start = fresh,
    silence_seconds: float | None = None,
) -> Iterator[Worker[Answer]]:
    """Start `function(job, tell)`, a function of a module, and end its process with the block, however that ends."""
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER, ignore_cleanup_errors=True) as name:
        process, pipe = start(function, job, Path(name))
        worker: Worker[Answer] = Worker(process, Path(name), silence_seconds=silence_seconds)
        reader = threading.Thread(target=worker.read, args=(pipe,), daemon=True)
        reader.start()
        try:
            yield worker
        finally:
            kill_family(process)
            process.wait()
            if isinstance(process, psutil.Popen):
                process.stdin.close()
            reader.join(1)  # it ends with the processes that hold the other end of its pipe


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process and those it started, however deep; none once it is gone."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_family(process: psutil.Process) -> None:
    """End a process and its descendants, at once."""
    members = family(process)
    if members and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # a process may lead no group
            os.killpg(process.pid, signal.SIGKILL)
    for member in members:
        with contextlib.suppress(psutil.Error):
            member.kill()


def end_children() -> None:
    """End all that this process has started, at once."""
    for child in family(psutil.Process())[1:]:
        with contextlib.suppress(psutil.Error):
            child.kill()


def main(name: str) -> None:
    """The other side of `fresh`: do the job in a folder; what anybody prints goes to stderr."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    tempfile.tempdir = name  # what a killed process leaves behind goes with the folder
    threading.Thread(target=_exit_when_orphaned, daemon=True).start()
    function, job = pickle.loads((Path(name) / JOB).read_bytes())
    with rare_collection():
        _work(function, job, Path(name), pipe)


def _work(function: Callable[[Any, Tell], Any], job: Any, folder: Path, pipe: int) -> None:
    """Do a job; the end of the pipe says that the answer, whole, is there."""
    with os.fdopen(pipe, "wb", buffering=0) as out:

        def tell(*message: object) -> None:
            out.write(json.dumps(message).encode() + b"\n")

        with counting() as count:
            try:
                answer = function(job, tell)
            except RematError as error:
                answer = error
        unfinished = folder / "unfinished"
        unfinished.write_bytes(pickle.dumps((answer, count.runs)))
        unfinished.rename(folder / ANSWER)


def _exit_when_orphaned() -> None:
    """End this process when its parent is gone, even killed: then standard input closes."""
    while os.read(0, 1):
        pass
    os._exit(1)


def has_glibc() -> bool:
    """Whether this system's malloc is glibc's, whose rules are known."""
    return platform.libc_ver()[0] == "glibc"
