"""Measure what it costs to copy a tensor from one memory to another: times over sizes, by latency and bandwidth."""

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from remat_cli.core.values.profile import LinkCost
from remat_cli.runtime.segments._segment_sessions import copied
from remat_cli.runtime.sessions._ort import Advance, ignore_progress, run_fresh, runtime_errors
from remat_cli.runtime.sessions.providers import UsableDevice, place_of, placed_value, require_device
from remat_cli.runtime.sessions.session import SessionSettings, session_device

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
            copy = finished(copier(size_bytes, place_of(devices[0]), place_of(devices[1])), devices[1])
            # Wall times of runs, after one to warm up; what a run returns is freed outside of the time.
            copy()
            times_ns: list[int] = []
            end = time.monotonic() + LEAST_SECONDS
            while len(times_ns) < LEAST_RUNS or (len(times_ns) < MOST_RUNS and time.monotonic() < end):
                start = time.perf_counter_ns()
                made = copy()
                times_ns.append(time.perf_counter_ns() - start)
                del made
            least, second = sorted(times_ns)[:2]
        found.append(CopyTime(size_bytes, least, second))
        advance(number + 1, len(SIZES))
    return tuple(found)


def copier(size_bytes: int, source: tuple[str, int], target: tuple[str, int]) -> Callable[[], object]:
    """A call that copies a tensor from one place to another; between two devices it goes through the host."""
    value = placed_value(np.zeros(size_bytes // 4, np.float32), source)
    return lambda: copied(value, target)


def finished(copy: Callable[[], object], target: UsableDevice) -> Callable[[], object]:
    """The same copy, waited for: where a device works behind our back, by fetching a value of 4 bytes from it."""
    if not target.provider.is_asynchronous:
        return copy
    least = placed_value(np.zeros(1, np.float32), place_of(target))

    def run() -> object:
        made = copy()
        least.numpy()
        return made

    return run


def fitted_link(names: tuple[str, str], times: Sequence[CopyTime]) -> LinkCost:
    """Latency and bandwidth that are nearest to the times, by least squares of relative errors; neither is negative.

    `noise_percent` is the median over sizes of how far the second-least time lies above the least.
    """
    sizes = np.array([time.size_bytes for time in times], np.float64)
    least = np.array([max(1, time.least_ns) for time in times], np.float64)
    # The two factors, not negative, with which the columns come nearest to ones.
    rows = np.stack([1 / least, sizes / least], axis=1)
    ones = np.ones(len(rows))
    both = np.linalg.lstsq(rows, ones, rcond=None)[0]
    if (both >= 0).all():
        latency, slope = float(both[0]), float(both[1])
    else:
        first, second = rows[:, 0], rows[:, 1]
        singles = [(float(first.sum() / (first @ first)), 0.0), (0.0, float(second.sum() / (second @ second)))]
        latency, slope = min(singles, key=lambda pair: float(np.square(rows @ np.array(pair) - ones).sum()))
    noise = float(np.median([100 * (time.second_ns / max(1, time.least_ns) - 1) for time in times]))
    per_second = min(FASTEST, 1e9 / slope) if slope > 0 else FASTEST
    return LinkCost(*names, round(latency), per_second, noise_percent=round(noise, 2))
