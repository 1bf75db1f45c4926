"""Starts a Python by a command of the user's and talks with it: another environment, ssh, an emulator, a container.

The Python is started as `COMMAND -i`, so that no word of it needs quoting on the way through a shell elsewhere: it
reads one line, which takes in `there.py` from standard input, and the job and the files behind it. Each message that
comes back is a line that begins with a token of this call, so that banners of a login are not mistaken for one.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import psutil

from remat_cli.base.errors import ConfigError, RematError
from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.present import present
from remat_cli.base.processes import kill_family
from remat_cli.runtime.sessions._ort import Advance

SCRIPT: Final = Path(__file__).with_name("there.py")
START_SECONDS: Final = 120.0  # for a Python with numpy and onnxruntime, which an emulator takes long to start
END_SECONDS: Final = 5.0  # for taking files away
PIECE_BYTES: Final = 2**20
LONGEST_LINE: Final = 200  # of what a command printed, in an error
BOOT: Final = (
    "import os, sys; os.write(1, b'\\nREMAT {token} ready null\\n'); s = sys.stdin.buffer; "
    "m = {{'__name__': 'there'}}; exec(compile(s.read({count}), 'there', 'exec'), m); "
    "m['serve'](s, 1, '{token}'); os._exit(0)\n"
)
"""Typed at a Python's prompt. The rest is sent when it is ready: the prompt would take it for lines of its own."""


@dataclass(frozen=True)
class Sent:
    """A file that is needed elsewhere, under a name with folders."""

    name: str
    path: Path
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Errand:
    """What is to be done elsewhere: see `there.checked`; `original`, `file` and `feeds` are names of files.

    `session` are options of sessions that are not the runtime's own.
    """

    files: tuple[Sent, ...]
    original: str
    file: str
    feeds: tuple[str, ...]
    watches: bool
    keeps: bool = False
    session: Mapping[str, object] = field(default_factory=dict)


@dataclass
class _Line:
    """A started command: what it says, as it comes, and the last that it printed besides."""

    command: str
    process: subprocess.Popen[bytes]
    token: str
    stderr: Path
    said: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    noise: str = ""

    def send(self, data: bytes) -> None:
        """Write to its standard input.

        Raises:
            RematError: it is gone.
        """
        try:
            pipe_of(self.process.stdin).write(data)
            pipe_of(self.process.stdin).flush()
        except OSError:
            with contextlib.suppress(queue.Empty):  # what it printed last may be on the way
                while self.said.get(timeout=1.0) is not None:
                    pass
            raise self.gone() from None

    def hear(self, seconds: float) -> tuple[str, Any]:
        """The next message: a word and a value.

        Raises:
            RematError: it ended, was silent for so long, or says that it cannot go on.
        """
        try:
            line = self.said.get(timeout=seconds)
        except queue.Empty:
            told = f"; it printed '{self.noise}'" if self.noise else ""
            raise RematError(f"--on '{self.command}' did not answer in {seconds:g} s{told}") from None
        if line is None:
            raise self.gone()
        word, _, text = line.decode().partition(" ")
        if word == "refused":
            raise RematError(f"--on '{self.command}': {json.loads(text)}")
        return word, json.loads(text)

    def listen(self) -> None:
        """Take in all messages, as they come, then None; of what is printed besides the last line is kept."""
        wanted = f"REMAT {self.token} ".encode()
        with pipe_of(self.process.stdout) as pipe:
            for line in pipe:
                if line.startswith(wanted):
                    self.said.put(line[len(wanted) :])
                else:
                    self.noise = line[:LONGEST_LINE].decode(errors="replace").strip() or self.noise
        self.said.put(None)

    def gone(self) -> RematError:
        """The error for a command that ended too early."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.poll()
        how = "closed its output" if code is None else f"ended with code {code}"
        printed = [line.strip() for line in self.stderr.read_text(errors="replace").split("\n")]
        last = next((line for line in reversed(printed) if line and not line.startswith(">>>")), self.noise)
        told = f": {last[:LONGEST_LINE]}" if last else ""
        return RematError(f"--on '{self.command}' {how} before it had answered{told}")


def see_elsewhere(
    command: str, errand_at: Callable[[Mapping[str, Any]], tuple[Errand, Any]], advance: Advance, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a place is that a command leads to, and what `there.checked` saw there.

    `errand_at` makes the errand, and the options under which a session runs exactly its file, for such a place.
    Nothing may be silent for longer than `seconds`.

    Raises:
        ConfigError: the command is no program of this machine.
        RematError: it ended early, was silent, or cannot go on.
    """
    with _started(command) as line:
        _, place = line.hear(START_SECONDS)
        errand, exact = errand_at(place)
        job = {
            "files": [{"name": each.name, "bytes": each.bytes, "sha256": each.sha256} for each in errand.files],
            "original": errand.original,
            "file": errand.file,
            "feeds": errand.feeds,
            "watches": errand.watches,
            "keeps": errand.keeps,
            "exact": exact,
            "session": dict(errand.session),
        }
        text = json.dumps(job).encode()
        line.send(b"%d\n%s" % (len(text), text))
        _, there = line.hear(seconds)
        for each in errand.files:
            if each.sha256 not in there:
                _send_file(line, each.path)
        while True:
            word, value = line.hear(seconds)
            if word == "answer":
                return place, value
            advance(*value)


def _send_file(line: _Line, path: Path) -> None:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            line.send(piece)


@contextlib.contextmanager
def _started(command: str) -> Iterator[_Line]:
    """The command at work, with `there.py` typed into it; it is ended with the block.

    Raises:
        ConfigError: it has no words, a quote is open, or it does not start.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--on '{command}': {error}") from None
    if not words:
        raise ConfigError("--on '': give a command that starts a Python, such as --on 'ssh pi@board python3'")
    script, token = SCRIPT.read_bytes(), secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER, ignore_cleanup_errors=True) as folder:
        stderr = Path(folder) / "stderr"
        with stderr.open("wb") as errors:
            try:
                process = subprocess.Popen(
                    [*words, "-i"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"--on '{command}': {words[0]} does not start: {error.strerror}") from None
        line = _Line(command, process, token, stderr)
        threading.Thread(target=line.listen, daemon=True).start()
        try:
            line.send(BOOT.format(count=len(script), token=token).encode())
            line.hear(START_SECONDS)
            line.send(script)
            yield line
        finally:
            # it ends by itself when its standard input closes, and takes its files away then
            with contextlib.suppress(OSError):
                pipe_of(process.stdin).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            if process.poll() is None:
                kill_family(psutil.Process(process.pid))
                process.wait()


def pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    """A pipe of a process that was started with it."""
    return present(pipe, "a pipe of the process that --on started")
