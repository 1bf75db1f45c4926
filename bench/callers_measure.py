"""Call a model as one kind of caller would, in this process, and watch how far its resident memory rises."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from remat_cli.base.errors import RuntimeFailure
from remat_cli.runtime.observe.resident import CLEAR_REFS, RESET_HIGH_WATER, ready, resident_bytes, status_bytes
from remat_cli.runtime.sessions._ort import Advance, Array, PackedArray, import_ort, runtime_errors
from remat_cli.runtime.sessions.session import SessionSettings, open_session, session_options

RUNS = 40  # some ways take more for dozens of runs
SETTINGS = SessionSettings(exact=False, intra_op_threads=1)
MARK_BYTES = 2**20  # a mark that was reset lies no further above what is resident


class CallingWay(msgspec.Struct, frozen=True):
    """How a caller runs a model, since each way holds something else; the defaults are what the promise is for.

    `held` is how many generations of outputs are alive during a run, beside those that it makes. With `binding`
    outputs go to the caller's own `buffers`, or are left where the runtime puts them on the `device`. `reason` is why
    its figures are other ones.
    """

    name: str
    title: str
    reason: str
    held: int = 1
    binding: Literal["", "buffers", "device"] = ""
    sessions: int = 1
    threads: int = 1
    has_pattern: bool = True
    has_arena: bool = True
    shrinks: bool = False
    runs: int = RUNS

    @property
    def callers(self) -> int:
        """How many there are, in turn or at once."""
        return max(self.sessions, self.threads)

    @property
    def has_buffers(self) -> bool:
        """Whether outputs go to buffers that the caller has made."""
        return self.binding == "buffers"

    @property
    def further(self) -> int:
        """Generations of outputs held at most beyond the one that the promise is for."""
        return min(self.held, self.runs - 1) - 1


class MadeOutput(msgspec.Struct, frozen=True):
    """An output's type, and a hash of its bits, to tell whether two ways to call give the same ones."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class CallerJob(msgspec.Struct, frozen=True):
    """Load a model and run it in one way; `buffers` are the outputs for which the caller makes some."""

    model: str
    feeds: tuple[PackedArray, ...]
    way: CallingWay
    buffers: tuple[MadeOutput, ...] = ()


class CallerFigures(msgspec.Struct, frozen=True):
    """Peaks of resident bytes above an empty session, while loading and in each run; a run of all threads is one.

    `buffer_bytes` are the caller's own and not in them, `mapped_bytes` pages of files after the last run, in them.
    `outputs` are those of the last run, one entry per caller.
    """

    load_bytes: int
    run_bytes: tuple[int, ...]
    mapped_bytes: int
    buffer_bytes: int
    outputs: tuple[tuple[MadeOutput, ...], ...]


class Caller:
    """Runs a session in one way, and holds what a caller of this way holds."""

    def __init__(self, session: Any, feeds: Mapping[str, Array], way: CallingWay, buffers: Mapping[str, Array]) -> None:
        self._session, self._feeds = session, dict(feeds)
        self._names = [output.name for output in session.get_outputs()]
        self._generations: deque[list[Array]] = deque(maxlen=way.held)
        self._options = import_ort().RunOptions()
        if way.shrinks:
            self._options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._binding: Any = session.io_binding() if way.binding else None
        self._has_buffers = way.has_buffers
        if way.binding:
            self._bind(buffers)

    def _bind(self, buffers: Mapping[str, Array]) -> None:
        value_of = import_ort().OrtValue.ortvalue_from_numpy
        for name, array in self._feeds.items():
            self._binding.bind_cpu_input(name, array)
        for name in self._names:
            if self._has_buffers:
                self._binding.bind_ortvalue_output(name, value_of(buffers[name]))
            else:
                self._binding.bind_output(name, "cpu")

    def run(self) -> None:
        """Run once, and hold the outputs for as long as this way does."""
        self._generations.append(self._outputs())

    def made(self) -> tuple[MadeOutput, ...]:
        """What the last run made; who dropped that runs once more."""
        outputs = self._generations[-1] if self._generations else self._outputs()
        if self._has_buffers:
            outputs = self._binding.copy_outputs_to_cpu()
        return tuple(
            MadeOutput(name, array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
            for name, array in zip(self._names, outputs, strict=True)
        )

    def _outputs(self) -> list[Array]:
        if self._binding is None:
            outputs: list[Array] = self._session.run(self._names, self._feeds, self._options)
            return outputs
        self._session.run_with_iobinding(self._binding, self._options)
        return [] if self._has_buffers else list(self._binding.copy_outputs_to_cpu())


def measure_caller(job: CallerJob, advance: Advance) -> CallerFigures:
    """Call a model in one way and report how far resident memory rises; to be run in a fresh process.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model, or the system cannot reset its high-water mark.
    """
    way, path, total = job.way, Path(job.model), job.way.runs + 1
    feeds, _tiny = ready(job.feeds, SETTINGS)
    own = [{each.name: np.full(each.shape, 1, each.dtype) for each in job.buffers} for _ in range(way.callers)]
    baseline = resident_bytes()
    options = session_options(SETTINGS)
    options.enable_mem_pattern, options.enable_cpu_mem_arena = way.has_pattern, way.has_arena
    _reset_mark()
    sessions = [open_session(path, SETTINGS, options) for _ in range(way.sessions)]
    peaks = [status_bytes()["VmHWM"]]
    callers = [Caller(sessions[at % way.sessions], feeds, way, own[at]) for at in range(way.callers)]
    with runtime_errors(f"ONNX Runtime fails to run {path.name}"), ThreadPoolExecutor(way.threads) as pool:
        for done in range(1, total):
            _reset_mark()
            _run_all(callers, pool if way.threads > 1 else None)
            peaks.append(status_bytes()["VmHWM"])
            advance(done, total)
        mapped = resident_bytes().mapped_bytes
        made = [caller.made() for caller in callers]
    load, *runs = (peak - baseline.total_bytes for peak in peaks)
    buffer_bytes = sum(array.nbytes for buffers in own for array in buffers.values())
    return CallerFigures(load, tuple(runs), mapped - baseline.mapped_bytes, buffer_bytes, tuple(made))


def _run_all(callers: Sequence[Caller], pool: ThreadPoolExecutor | None) -> None:
    """Each caller runs once: all at once, from threads of a pool, or in turn."""
    if pool is None:
        for caller in callers:
            caller.run()
        return
    start = threading.Barrier(len(callers))

    def run(caller: Caller) -> None:
        start.wait()
        caller.run()

    for future in [pool.submit(run, caller) for caller in callers]:
        future.result()


def _reset_mark() -> None:
    """Begin the system's high-water mark anew.

    Raises:
        RuntimeFailure: it cannot be.
    """
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER, encoding="ascii")
    except OSError as error:
        raise RuntimeFailure(f"{CLEAR_REFS}: {error.strerror}") from None
    if status_bytes()["VmHWM"] > resident_bytes().total_bytes + MARK_BYTES:
        raise RuntimeFailure("this system does not reset the high-water mark of a process")
