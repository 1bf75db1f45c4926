"""Measures the resident memory of a process that loads a model and runs it, above an idle runtime.

The process stays an ordinary one: no allocator, environment or option is changed for the measurement. What is known
of the noise is in the docstring of `measure_resident`.
"""

import contextlib
import gc
import itertools
import mmap
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from remat_cli.base.files import WORK_FOLDER
from remat_cli.base.run_count import uncounted
from remat_cli.core.values.resident import ProcessTrace
from remat_cli.runtime.sessions._ort import (
    Advance,
    Array,
    PackedArray,
    run_session,
    running,
    runtime_errors,
    unpack_all,
)
from remat_cli.runtime.sessions.heap import return_free_memory
from remat_cli.runtime.sessions.session import SessionSettings, open_session

STATUS: Final = Path("/proc/self/status")
CLEAR_REFS: Final = Path("/proc/self/clear_refs")
RESET_HIGH_WATER: Final = "5"
SAMPLE_SECONDS: Final = 0.001
MOST_POINTS: Final = 200  # of a trace, about
PROBE_BYTES: Final = 8 * 2**20
RELU_MODEL: Final = bytes.fromhex(
    "08083a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a02"
    "080142040a00100d"
)
"""An ONNX file: y = Relu(x), one number. Written out, since this room knows no library that makes one."""

PeakBy: TypeAlias = Literal["hwm", "samples"]
Done = TypeVar("Done")
Watch: TypeAlias = Callable[[], contextlib.AbstractContextManager[Callable[[], int]]]
"""Watches resident bytes during a block; after it, the function says what the most was."""


class ResidentBytes(msgspec.Struct, frozen=True):
    """Resident bytes of a process: what it wrote or allocated, and pages of files (and shared memory) it has mapped."""

    anonymous_bytes: int
    mapped_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.anonymous_bytes + self.mapped_bytes

    def above(self, baseline: "ResidentBytes") -> "ResidentBytes":
        """How much more of each than in the baseline; below zero where it is less."""
        return ResidentBytes(self.anonymous_bytes - baseline.anonymous_bytes, self.mapped_bytes - baseline.mapped_bytes)


class ResidentJob(msgspec.Struct, frozen=True):
    """Load a model and run it so many times, while resident memory is watched.

    `held` is how many generations of outputs the caller still holds during a run: 0, the outputs of a run are dropped
    before the next one; 1, they die when the next run has ended, as in a loop `outputs = session.run(...)`; and so on.
    Each run is `at_once` runs in as many threads, which begin together. With `others` runs after the first are on these
    inputs, one after the other.
    With `is_traced` resident memory is also noted over time, at the price of some time.
    """

    model: str
    feeds: tuple[PackedArray, ...]
    settings: SessionSettings = SessionSettings(exact=False)
    runs: int = 3
    held: int = 1
    is_traced: bool = False
    at_once: int = 1
    others: tuple[tuple[PackedArray, ...], ...] = ()


class ResidentFigures(msgspec.Struct, frozen=True):
    """Resident bytes above the baseline, and wall times.

    The peaks are those of the phase alone: while the model was loaded, and during each run. Their `mapped_bytes` are
    those at the end of the phase, since the system keeps one peak for both kinds; their sum is what was measured.
    (So a file that is mapped only while the model is loaded counts as anonymous in that peak.)
    `loaded_bytes` is after loading, `after_bytes` after the last run, with all outputs dropped and the session still
    open. `data_bytes` is private writable memory, touched or not, after loading and after each run: what RLIMIT_DATA
    counts. `peak_by` says how peaks were found: by the system's high-water mark, exact to a few pages per core, or by
    samples every millisecond, which may miss shorter ones.
    """

    load_peak_bytes: ResidentBytes
    loaded_bytes: ResidentBytes
    run_peak_bytes: tuple[ResidentBytes, ...]
    after_bytes: ResidentBytes
    load_seconds: float
    run_seconds: tuple[float, ...]
    data_bytes: tuple[int, ...]
    peak_by: PeakBy
    trace: ProcessTrace | None = None


def can_measure_resident() -> bool:
    """Whether this system tells a process how much of its memory is resident, and of which kind."""
    return {"VmRSS", "RssAnon", "RssFile"} <= status_bytes().keys()


def measure_resident(job: ResidentJob, advance: Advance) -> ResidentFigures:
    """Load a model and run it, and report how far resident memory rises; to be run in a fresh process.

    The baseline is a process with the runtime imported, a tiny session open that has run, and the feeds made.

    How far two measurements differ, with glibc on two cores:

    * Runs: by less than 0.1 MiB with one thread, up to 0.4 MiB with more. Up to 1 MiB of each figure is the runtime's
      own code and tables, read in the first time that a kernel runs (`mapped_bytes`), and bookkeeping.
    * Loading, where weights are in a file beside the model: 0.2 MiB.
    * Loading, where they are in the model and the runtime packs copies of them: by one to three weights (68 to 80 MiB
      for twelve of 4 MiB each), since whether the allocator uses a freed one again depends on where it lay.
      glibc also keeps more of what is freed once it has got a large block back, and may serve later runs from that:
      after feeds of 8 MiB, which come as such a block, the same weights take 100 MiB, and the second run 0 or 16 MiB
      more. So compare models of this kind on the same feeds.
    * One malloc arena instead of one per thread makes no difference beyond that. None is asked for.
    * Where the system gives huge pages unasked (transparent_hugepage: always), figures move in steps of 2 MiB; that
      has not been measured. Pages that a busy system writes to swap are missing.
    * Element types that numpy lacks are copied into the runtime at each run, and count as the run's.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    return _measured(job, advance, deque(maxlen=job.held))


def measure_and_keep(job: ResidentJob, advance: Advance) -> tuple[ResidentFigures, tuple[dict[str, Array], ...]]:
    """`measure_resident`, and all outputs; where there are two runs, as many are held as `held` of 1 asks for.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model.
        MissingDependency: the device cannot be used.
    """
    kept: deque[Any] = deque()
    figures = _measured(job, advance, kept)
    return figures, tuple(kept)


def _measured(job: ResidentJob, advance: Advance, generations: deque[Any]) -> ResidentFigures:
    """The figures; outputs are held in `generations`."""
    path, total = Path(job.model), job.runs + 1
    others = [unpack_all(each) for each in job.others]
    feeds, _tiny = ready(job.feeds, job.settings)
    peak_by, watch = watch_here()
    baseline, data = resident_bytes(), [status_bytes().get("VmData", 0)]
    tracer = _Tracer(baseline.total_bytes)
    if job.is_traced:
        tracer.start()
    session, load_peak, load_seconds = watched(lambda: open_session(path, job.settings), watch)
    tracer.mark()
    loaded = resident_bytes()
    load_peak = max(load_peak, loaded, key=lambda found: found.total_bytes)  # the mark may be some pages behind
    data.append(status_bytes().get("VmData", 0))
    advance(1, total)
    runs = held_runs(session, (feeds, *others), generations, job.at_once)
    peaks, seconds = [], []
    with runtime_errors(running(path)):
        for done in range(1, total):
            _, peak, took = watched(lambda: next(runs), watch)
            peaks.append(peak)
            seconds.append(took)
            tracer.mark()
            data.append(status_bytes().get("VmData", 0))
            advance(done + 1, total)
    trace = tracer.stop() if job.is_traced else None
    runs.close()
    return ResidentFigures(
        load_peak_bytes=load_peak.above(baseline),
        loaded_bytes=loaded.above(baseline),
        run_peak_bytes=tuple(peak.above(baseline) for peak in peaks),
        after_bytes=resident_bytes().above(baseline),
        load_seconds=load_seconds,
        run_seconds=tuple(seconds),
        data_bytes=tuple(count - data[0] for count in data[1:]),
        peak_by=peak_by,
        trace=trace,
    )


class _Tracer:
    """Notes resident bytes above a baseline, over time, in a thread."""

    def __init__(self, baseline_bytes: int) -> None:
        self._baseline_bytes = baseline_bytes
        self._begin = time.perf_counter()
        self._found: list[tuple[float, int]] = [(0.0, 0)]
        self._marks: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._begin = time.perf_counter()
        self._thread.start()

    def mark(self) -> None:
        """A phase ends."""
        self._marks.append(time.perf_counter() - self._begin)

    def stop(self) -> ProcessTrace:
        """End; of many points only the highest of each short stretch is kept."""
        self._is_over.set()
        self._thread.join()
        stretch = max(1, len(self._found) // MOST_POINTS)
        kept = [
            max(self._found[at : at + stretch], key=lambda point: point[1])
            for at in range(0, len(self._found), stretch)
        ]
        seconds, resident = zip(*kept, strict=True) if kept else ((), ())
        return ProcessTrace(tuple(round(each, 5) for each in seconds), resident, tuple(self._marks))

    def _look(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            seconds = time.perf_counter() - self._begin
            self._found.append((seconds, resident_bytes().total_bytes - self._baseline_bytes))


def ready(packed: Sequence[PackedArray], settings: SessionSettings) -> tuple[dict[str, Array], Any]:
    """The feeds, and a tiny session that has run and must be kept: what a process has before it loads a model.

    What imports left behind is given back, so that the model does not find it and seem smaller than it is.
    """
    feeds = unpack_all(packed)
    with tempfile.TemporaryDirectory(prefix=WORK_FOLDER) as folder:
        path = Path(folder) / "relu.onnx"
        path.write_bytes(RELU_MODEL)
        session = open_session(path, settings)
    import numpy as np

    with uncounted(), runtime_errors("ONNX Runtime fails to run a tiny model"):
        run_session(session, {"x": np.ones(1, np.float32)})
    gc.collect()
    return_free_memory()
    return feeds, session


def held_runs(
    session: Any, feeds: Sequence[Mapping[str, Array]], generations: deque[Any], at_once: int = 1
) -> Generator[None, None, None]:
    """Run a session once per step, or `at_once` times in threads; outputs go to `generations`, which hold them.

    Each step takes the next of the feeds, and the last ones for ever.
    """
    groups = itertools.chain(feeds, itertools.repeat(feeds[-1]))
    if at_once == 1:
        for group in groups:
            generations.append(run_session(session, group))
            yield
    start = threading.Barrier(at_once)

    def run(group: Mapping[str, Array]) -> dict[str, Array]:
        start.wait()
        return run_session(session, group)

    with ThreadPoolExecutor(at_once) as pool:
        for group in groups:
            generations.append(list(pool.map(run, [group] * at_once)))
            yield


def status_bytes(status: Path | None = None) -> dict[str, int]:
    """All that the system says of a process's memory, by the system's names; empty where it says nothing.

    `status` is the file in which it says so; that of this process where it is left out.
    """
    try:
        lines = (status or STATUS).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines if line.endswith(" kB"))
    return {name.removesuffix(":"): int(kib) * 1024 for name, kib, _ in pairs}


def resident_bytes() -> ResidentBytes:
    """What of this process is resident now."""
    status = status_bytes()
    return ResidentBytes(status["RssAnon"], status["RssFile"] + status.get("RssShmem", 0))


def watched(do: Callable[[], Done], watch: Watch) -> tuple[Done, ResidentBytes, float]:
    """What a function returns, the peak while it ran, and how many seconds that took."""
    with watch() as peak:
        begin = time.perf_counter()
        done = do()
        seconds = time.perf_counter() - begin
    peak_bytes, mapped_bytes = peak(), resident_bytes().mapped_bytes
    return done, ResidentBytes(peak_bytes - mapped_bytes, mapped_bytes), seconds


def watch_here() -> tuple[PeakBy, Watch]:
    """How peaks are found on this system, and what finds them.

    By the high-water mark only if, after a known rise and fall, it can be seen to drop. The allocator has no part in
    that, since each large block that it gets back changes how it serves the next ones.
    """
    with mmap.mmap(-1, PROBE_BYTES) as block:
        for _ in range(PROBE_BYTES // mmap.PAGESIZE):
            block.write(bytes(mmap.PAGESIZE))
    before = status_bytes().get("VmHWM", 0)
    dropped = reset_high_water() and status_bytes().get("VmHWM", 0) <= before - PROBE_BYTES // 2
    return ("hwm", _high_water) if dropped else ("samples", _sampled)


def reset_high_water() -> bool:
    """Let the system's high-water mark of this process begin anew; whether the system lets us."""
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER, encoding="ascii")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _high_water() -> Iterator[Callable[[], int]]:
    """Watch by the system's high-water mark."""
    reset_high_water()
    yield lambda: status_bytes()["VmHWM"]


@contextlib.contextmanager
def _sampled() -> Iterator[Callable[[], int]]:
    """Watch by a thread that looks every millisecond."""
    highest = [resident_bytes().total_bytes]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            highest[0] = max(highest[0], resident_bytes().total_bytes)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: max(highest[0], resident_bytes().total_bytes)
    finally:
        is_over.set()
        thread.join()
