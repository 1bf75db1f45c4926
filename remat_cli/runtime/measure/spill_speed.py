"""How fast a folder takes pages and gives them back beside work, as in a run, and what pages cost that come anew."""

import statistics
import threading
import time
from collections.abc import Callable
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
    found: dict[str, list[float]] = {"write": [], "read": [], "page": []}
    end = time.monotonic() + SECONDS
    with SpillFile(Path(job.folder), SIZE_BYTES) as file, _Busy():
        while len(found["write"]) < LEAST_PASSES or (len(found["write"]) < MOST_PASSES and time.monotonic() < end):
            found["write"].append(seconds_of(lambda: _write_in_blocks(file, block)))
            found["read"].append(seconds_of(lambda: _read_in_blocks(file)))
            advance(len(found["write"]), MOST_PASSES)
    found["page"] = [_fresh_seconds() for _ in range(LEAST_PASSES)]  # by itself: it is the ops that take pages
    return SpillTimes(tuple(found["write"]), tuple(found["read"]), tuple(found["page"]))


def _write_in_blocks(file: SpillFile, block: memoryview) -> None:
    """All of the file from pages that lie apart, as those of a value do where others came and went."""
    for begin in range(0, SIZE_BYTES, BLOCK_BYTES):
        file.write(begin, block)


def _read_in_blocks(file: SpillFile) -> None:
    """All of the file into room that is new to this process, as a value finds it that comes back in a tight plan."""
    for begin in range(0, SIZE_BYTES, BLOCK_BYTES):
        file.read(begin, PageBuffers().take_apart(BLOCK_BYTES).pages)


def _fresh_seconds() -> float:
    """How much longer it takes to fill `SIZE_BYTES` in blocks of the system, and to give them back, than to fill again.

    Blocks are as large as those of ops: what lies in a cache costs less the second time, as it does in a run. Of either
    the least block counts, as of ops the least time does: others only add, and what they do is no part of a plan.
    """
    blocks = [_block_seconds() for _ in range(SIZE_BYTES // BLOCK_BYTES)]
    one = min(fresh for fresh, _ in blocks) - min(again for _, again in blocks)
    return max(LEAST_SECONDS, one * len(blocks))


def _block_seconds() -> tuple[float, float]:
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


class _Busy:
    """A thread that multiplies matrices during a block."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        matrix = np.ones((BUSY_ELEMENTS, BUSY_ELEMENTS), np.float32)
        while not self._is_over.is_set():
            matrix @ matrix
