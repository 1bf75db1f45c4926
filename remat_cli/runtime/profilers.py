"""Measure what every op of a model costs, and what it costs to copy a tensor from one memory to another.

Of an op: least time over several runs, workspace, and how noisy the time was. Of a copy: times over sizes, fitted by
latency and bandwidth.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.base.errors import RuntimeFailure
from remat_cli.core.profile import LinkCost, OpCost
from remat_cli.runtime._events import ProfiledRun, ProfileEvent
from remat_cli.runtime._ort import (
    Advance,
    Array,
    PackedArray,
    ignore_progress,
    pack_all,
    run_fresh,
    run_session,
    runtime_errors,
    share_arena,
    unpack,
)
from remat_cli.runtime._segment_sessions import copied
from remat_cli.runtime.providers import place_of, placed_value, require_device
from remat_cli.runtime.session import (
    SessionSettings,
    counted_baseline_bytes,
    open_session,
    profiled_session,
    session_device,
    session_options,
)

MOST_RUNS = 200
STATS_ENTRY = "session.collect_node_memory_stats_to_file"


class ProfileRequest(msgspec.Struct, frozen=True):
    """How to measure.

    Runs go on until there were `runs` of them and they took `least_seconds`, since short runs are noisy and cheap.
    `optimization` is the level at which the model was optimised, kept for the record.
    """

    device: str = "cpu"
    runs: int = 10
    warmups: int = 2
    least_seconds: float = 0.5
    intra_op_threads: int = 0
    optimization: str = "all"
    custom_ops: tuple[str, ...] = ()

    @property
    def settings(self) -> SessionSettings:
        """Sessions that run exactly the file."""
        return SessionSettings(intra_op_threads=self.intra_op_threads, device=self.device, custom_ops=self.custom_ops)


class Measured(msgspec.Struct, frozen=True):
    """What measuring gave, under exact options.

    `ops` are in the order of the names asked for; times are raw minima, whose sum is a few percent below `run_ns`,
    the least time of a whole run without profiling. `packed_bytes` is what the session holds in its arena before the
    first op: packed weights, and weights of at most 127 bytes (None: this runtime does not
    count). `loading_peak_bytes` is how much resident memory loading took at most beyond what it left (None: this
    system does not tell).
    """

    ops: tuple[OpCost, ...]
    run_ns: int
    packed_bytes: int | None
    loading_peak_bytes: int | None = None


class MeasureJob(msgspec.Struct, frozen=True):
    """What the measuring process needs to know."""

    model: str
    feeds: tuple[PackedArray, ...]
    op_names: tuple[str, ...]
    request: ProfileRequest


def measure(
    path: Path,
    feeds: Mapping[str, Array],
    op_names: Sequence[str],
    request: ProfileRequest,
    advance: Advance = ignore_progress,
) -> Measured:
    """Measure every op of a model in a fresh process. Nothing else should run meanwhile.

    Raises:
        RuntimeFailure: the runtime refuses or fails to run the model, or did not run an op that was asked for.
        MissingDependency: the device cannot be used.
    """
    job = MeasureJob(str(path.resolve()), pack_all(feeds), tuple(op_names), request)
    return run_fresh(measure_here, job, advance)


def measure_here(job: MeasureJob, advance: Advance) -> Measured:
    """Measure in this process, which must not have measured before."""
    path, request = Path(job.model), job.request
    feeds = {packed.name: unpack(packed) for packed in job.feeds}
    total = 2 * (request.warmups + request.runs) + 1
    loading = loading_peak_bytes(path, request.settings)
    first, temporary = _observe(path, feeds, request)
    advance(1, total)
    runs = _profiled_runs(path, feeds, request, lambda done: advance(1 + done, total))
    run_ns = _least_run_ns(path, feeds, request, lambda done: advance(1 + total // 2 + done, total))
    durations = _durations_us(runs[request.warmups :])
    workspace = workspace_bytes(first.events, temporary)
    for name in job.op_names:
        if name not in durations:
            raise RuntimeFailure(f"{path.name}: the runtime did not run op '{name}', so it has no measured cost")
    ops = tuple(_cost(name, durations[name], workspace.get(name, 0)) for name in job.op_names)
    return Measured(ops, run_ns, counted_baseline_bytes(first.events), loading)


def workspace_bytes(events: Sequence[ProfileEvent], temporary: Mapping[str, int]) -> dict[str, int]:
    """Workspace of each op: what its kernel allocates besides its outputs, at most at one time.

    `temporary` is the runtime's sum of all such allocations of a kernel. Where kernels allocate several times in a
    row this is too much; the most ever in use while the kernel ended is a second upper limit, and the smaller counts.
    For an op with a subgraph it is what the subgraph held. A runtime without counters gives the sum alone.
    """
    result = {}
    for event in events:
        if not event.has_counters:
            result[event.name] = temporary.get(event.name, 0)
            continue
        limit = max(0, event.peak_bytes - event.in_use_bytes)
        nested = max(0, event.nested_bytes - event.requested_bytes)
        result[event.name] = max(min(temporary.get(event.name, 0), limit), nested)
    return result


def read_node_stats(path: Path) -> dict[str, int]:
    """Temporary bytes by op name from the runtime's memory statistics; names there are `NAME_HASH`.

    Raises:
        RuntimeFailure: the file is missing or has another form.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        column = header.removeprefix("#").split(",").index("total_temp_allocations")
        rows = [line.rsplit(",", 4) for line in lines if line]
        return {row[0].rpartition("_")[0]: int(row[column]) for row in rows}
    except (OSError, ValueError, IndexError) as error:
        raise RuntimeFailure(f"the runtime's memory statistics cannot be read: {error}") from None


def loading_peak_bytes(path: Path, settings: SessionSettings) -> int | None:
    """How far resident memory rose, while a session was loaded, above what the loaded session keeps; Linux only."""
    if not _reset_peak():
        return None
    session = open_session(path, settings)
    peak, kept = _status_bytes("VmHWM"), _status_bytes("VmRSS")
    del session
    return max(0, peak - kept)


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def _observe(path: Path, feeds: Mapping[str, Array], request: ProfileRequest) -> tuple[ProfiledRun, dict[str, int]]:
    """One run, with its memory counters and statistics."""
    with tempfile.TemporaryDirectory(prefix="remat_") as folder:
        stats = Path(folder) / "stats.csv"
        options = session_options(request.settings)
        options.add_session_config_entry(STATS_ENTRY, str(stats))
        if request.device == "cpu":
            share_arena(options)
        with (
            profiled_session(path, request.settings, options) as (session, runs),
            runtime_errors(f"ONNX Runtime fails to run {path.name}"),
        ):
            run_session(session, feeds)
        return runs[0], read_node_stats(stats)


def _profiled_runs(
    path: Path, feeds: Mapping[str, Array], request: ProfileRequest, advance: Callable[[int], None]
) -> list[ProfiledRun]:
    """Warm-ups and runs of one session, each kernel timed."""
    with (
        profiled_session(path, request.settings) as (session, runs),
        runtime_errors(f"ONNX Runtime fails to run {path.name}"),
    ):
        _run_times_ns(session, feeds, request, advance)
    return runs


def _least_run_ns(
    path: Path, feeds: Mapping[str, Array], request: ProfileRequest, advance: Callable[[int], None]
) -> int:
    """Least wall time of a whole run; without profiling, which costs about 10 us per op."""
    session = open_session(path, request.settings)
    with runtime_errors(f"ONNX Runtime fails to run {path.name}"):
        times = _run_times_ns(session, feeds, request, advance)
    return min(times[request.warmups :])


def _run_times_ns(
    session: Any, feeds: Mapping[str, Array], request: ProfileRequest, advance: Callable[[int], None]
) -> list[int]:
    """Wall times of runs, warm-ups first."""
    times: list[int] = []
    least, end = request.warmups + request.runs, time.monotonic() + request.least_seconds
    while len(times) < least or (len(times) < MOST_RUNS and time.monotonic() < end):
        start = time.perf_counter_ns()
        run_session(session, feeds)
        times.append(time.perf_counter_ns() - start)
        advance(min(len(times), least))
    return times


def _durations_us(runs: Sequence[ProfiledRun]) -> dict[str, list[int]]:
    durations: dict[str, list[int]] = {}
    for run in runs:
        for event in run.events:
            durations.setdefault(event.name, []).append(event.duration_us)
    return durations


def _cost(name: str, durations_us: Sequence[int], workspace: int) -> OpCost:
    least, second = sorted(durations_us)[:2] if len(durations_us) > 1 else (durations_us[0], durations_us[0])
    noise = 100.0 * (second / least - 1.0) if least else 0.0
    return OpCost(name, 1000 * least, workspace, round(noise, 2))


SIZES = tuple(4096 * 4**power for power in range(8))  # 4 KiB ... 64 MiB
LEAST_RUNS, MOST_RUNS, LEAST_SECONDS = 5, 200, 0.05
FASTEST = 1e15  # bytes per second, where time does not grow with size


class LinkJob(msgspec.Struct, frozen=True):
    """Two devices whose memories are to be linked, each as the settings of a session on it."""

    source: SessionSettings
    target: SessionSettings


class CopyTime(msgspec.Struct, frozen=True):
    """The least time of a copy of so many bytes, and the second-least."""

    size_bytes: int
    least_ns: int
    second_ns: int


def measure_link(
    names: tuple[str, str], devices: tuple[SessionSettings, SessionSettings], advance: Advance = ignore_progress
) -> LinkCost:
    """Cost of copies from one memory to the other, by name, in a fresh process. Nothing else should run meanwhile.

    Raises:
        RuntimeFailure: the runtime cannot copy there.
        MissingDependency: a device cannot be used.
    """
    return fitted_link(names, run_fresh(time_copies, LinkJob(*devices), advance))


def time_copies(job: LinkJob, advance: Advance) -> tuple[CopyTime, ...]:
    """Times of copies of each size; a copy includes the allocation of what it makes."""
    devices = [session_device(settings) for settings in (job.source, job.target)]
    for device in devices:
        require_device(device)
    found = []
    for number, size_bytes in enumerate(SIZES):
        with runtime_errors("ONNX Runtime cannot copy between the devices"):
            copy = copier(size_bytes, place_of(devices[0]), place_of(devices[1]))
            least, second = sorted(_times_ns(copy))[:2]
        found.append(CopyTime(size_bytes, least, second))
        advance(number + 1, len(SIZES))
    return tuple(found)


def copier(size_bytes: int, source: tuple[str, int], target: tuple[str, int]) -> Callable[[], object]:
    """A call that copies a tensor from one place to another; between two devices it goes through the host."""
    value = placed_value(np.zeros(size_bytes // 4, np.float32), source)
    return lambda: copied(value, target)


def fitted_link(names: tuple[str, str], times: Sequence[CopyTime]) -> LinkCost:
    """Latency and bandwidth that are nearest to the times, by least squares of relative errors; neither is negative.

    `noise_percent` is the median over sizes of how far the second-least time lies above the least.
    """
    sizes = np.array([time.size_bytes for time in times], np.float64)
    least = np.array([max(1, time.least_ns) for time in times], np.float64)
    latency, slope = _nonnegative_fit(np.stack([1 / least, sizes / least], axis=1))
    noise = float(np.median([100 * (time.second_ns / max(1, time.least_ns) - 1) for time in times]))
    per_second = min(FASTEST, 1e9 / slope) if slope > 0 else FASTEST
    return LinkCost(*names, round(latency), per_second, noise_percent=round(noise, 2))


def _nonnegative_fit(rows: Any) -> tuple[float, float]:
    """The two factors, not negative, with which the columns come nearest to ones."""
    ones = np.ones(len(rows))
    both = np.linalg.lstsq(rows, ones, rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    first, second = rows[:, 0], rows[:, 1]
    singles = [(float(first.sum() / (first @ first)), 0.0), (0.0, float(second.sum() / (second @ second)))]
    return min(singles, key=lambda pair: float(np.square(rows @ np.array(pair) - ones).sum()))


def _times_ns(run: Callable[[], object]) -> list[int]:
    """Wall times of runs, after one to warm up; what a run returns is freed outside of the time."""
    run()
    times: list[int] = []
    end = time.monotonic() + LEAST_SECONDS
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and time.monotonic() < end):
        start = time.perf_counter_ns()
        made = run()
        times.append(time.perf_counter_ns() - start)
        del made
    return times
