"""Measures how fast a folder takes and gives back pages beside work, as in a run, and what fresh pages cost."""

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remat_cli.core.values.profile import HOST_MEMORY, LinkCost
from remat_cli.runtime.paging.page_buffers import PageBuffers
from remat_cli.runtime.paging.spill_file import SpillFile
from remat_cli.runtime.sessions._ort import Advance, ignore_progress, run_fresh

SIZE_BYTES = 64 * 2**20
LEAST_PASSES, MOST_PASSES, SECONDS = 3, 12, 2.0
BLOCK_BYTES = 2**20
LEAST_SECONDS = 1e-6  # so that a speed follows, however coarse the clock is
SYSTEM = "system"  # where memory comes from that a process does not have
BUSY_ELEMENTS = 512  # of a side of the matrices that keep a processor busy


class SpillJob(msgspec.Struct, frozen=True):
    """A folder that is to be measured."""

    folder: str


class SpillTimes(msgspec.Struct, frozen=True):
    """Seconds that each write and each read of `SIZE_BYTES` took, and what taking so many bytes anew does."""

    writes: tuple[float, ...]
    reads: tuple[float, ...]
    pages: tuple[float, ...]


def measure_spill(folder: str, name: str, advance: Advance = ignore_progress) -> tuple[LinkCost, LinkCost, LinkCost]:
    """The way out, the way back, and the way of fresh memory into this process, measured in a fresh one.

    Of each the median pass, since a run meets slow ones too; the disk's beside work, that of memory by itself.

    Raises:
        ConfigError: the folder cannot be written to.
        RematError: its disk is too full, or failed.
    """
    found = run_fresh(time_spill, SpillJob(folder), advance)
    there, back = _cost(HOST_MEMORY, name, found.writes), _cost(name, HOST_MEMORY, found.reads)
    return there, back, _cost(SYSTEM, HOST_MEMORY, found.pages)


def _cost(source: str, target: str, seconds: tuple[float, ...]) -> LinkCost:
    middle = statistics.median(seconds)
    noise = 100 * (sorted(seconds)[1] / min(seconds) - 1)
    return LinkCost(source, target, 0, SIZE_BYTES / middle, noise_percent=round(noise, 2))


def time_spill(job: SpillJob, advance: Advance) -> SpillTimes:
    """Write and read in turns, in this process."""
    block = PageBuffers().take_apart(BLOCK_BYTES).pages
    block[:] = np.random.default_rng(0).bytes(BLOCK_BYTES)
    writes: list[float] = []
    reads: list[float] = []
    end = time.monotonic() + SECONDS
    with SpillFile(Path(job.folder), SIZE_BYTES) as file, busy_thread():
        while len(writes) < LEAST_PASSES or (len(writes) < MOST_PASSES and time.monotonic() < end):
            begin = time.perf_counter()
            # From pages that lie apart, as those of a value do where others came and went.
            for offset in range(0, SIZE_BYTES, BLOCK_BYTES):
                file.write(offset, block)
            middle = time.perf_counter()
            # Into room that is new to this process, as a value finds it that comes back in a tight plan.
            for offset in range(0, SIZE_BYTES, BLOCK_BYTES):
                file.read(offset, PageBuffers().take_apart(BLOCK_BYTES).pages)
            reads.append(time.perf_counter() - middle)
            writes.append(middle - begin)
            advance(len(writes), MOST_PASSES)
    pages = tuple(fresh_seconds() for _ in range(LEAST_PASSES))  # by itself: it is the ops that take pages
    return SpillTimes(tuple(writes), tuple(reads), pages)


def fresh_seconds() -> float:
    """How much longer it takes to fill `SIZE_BYTES` in blocks of the system, and to give them back, than to fill again.

    Blocks are as large as those of ops: what lies in a cache costs less the second time, as it does in a run. Of either
    the least block counts, as of ops the least time does: others only add, and what they do is no part of a plan.
    """
    blocks = [block_seconds() for _ in range(SIZE_BYTES // BLOCK_BYTES)]
    one = min(fresh for fresh, _ in blocks) - min(again for _, again in blocks)
    return max(LEAST_SECONDS, one * len(blocks))


def block_seconds() -> tuple[float, float]:
    """What a block takes that comes anew and goes again, and what it takes to fill it once more."""
    begin = time.perf_counter()
    block = PageBuffers().take_apart(BLOCK_BYTES)
    values = np.frombuffer(block.pages, np.float32)
    values.fill(1)
    middle = time.perf_counter()
    values.fill(2)
    end = time.perf_counter()
    del values, block
    return time.perf_counter() - end + middle - begin, end - middle


def seconds_of(do: Callable[[], Any]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


@contextlib.contextmanager
def busy_thread() -> Iterator[None]:
    """Multiply matrices in a thread during a block, so that what is measured is measured beside work."""
    is_over = threading.Event()

    def work() -> None:
        matrix = np.ones((BUSY_ELEMENTS, BUSY_ELEMENTS), np.float32)
        while not is_over.is_set():
            matrix @ matrix

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
