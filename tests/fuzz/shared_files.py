"""What other processes do to files and to the profile cache in the stateful tests: write, run full, or die midway."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_cli.base.errors import RematError
from remat_cli.base.files import atomic_write
from remat_cli.base.processes import ProcessDied, Tell, started
from remat_cli.core.values.profile import OpCost, Provenance
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache

SCOPE = CacheScope(
    "cpu", Provenance("some cpu", "Linux", "onnxruntime", "1.31.1", "CPUExecutionProvider", 1, "all", 10, 2)
)
DONE, REFUSED, DIED = "done", "refused", "died"


@dataclass(frozen=True)
class Mishap:
    """What befalls a process: no file of it may grow beyond so many bytes; it dies at its n-th call of a function."""

    most_bytes: int | None = None
    dies_in: str = ""
    at_call: int = 1


@dataclass(frozen=True)
class Write:
    """One file to write."""

    path: Path
    content: bytes
    mishap: Mishap = Mishap()


@dataclass(frozen=True)
class Store:
    """Costs of ops to put into the cache of a folder, at once."""

    folder: Path
    times_ns: dict[str, int]
    mishap: Mishap = Mishap()


@contextlib.contextmanager
def befallen(mishap: Mishap) -> Iterator[None]:
    """Let it happen within the block; a full disk is one again afterwards, for what the process answers."""
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mishap.dies_in:
        _die_in(mishap.dies_in, mishap.at_call)
    if mishap.most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (mishap.most_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))


def _die_in(name: str, at_call: int) -> None:
    """Make a function of `os` the last one that is called."""
    function, calls = getattr(os, name), []

    def deadly(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == at_call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    setattr(os, name, deadly)


def write_file(job: Write, _tell: Tell) -> str:
    """Write a file."""
    with befallen(job.mishap):
        atomic_write(job.path, job.content)
    return DONE


def store_costs(job: Store, _tell: Tell) -> str:
    """Put costs into the cache, in one go."""
    costs = {key: OpCost(key, time_ns) for key, time_ns in job.times_ns.items()}
    with ProfileCache(job.folder) as cache, befallen(job.mishap):
        cache.store_ops(SCOPE, costs, replace=True)
    return DONE


def store_half(job: Store, _tell: Tell) -> str:
    """Begin to put costs into the cache, one transaction, and die before it is written."""
    with ProfileCache(job.folder) as cache, cache._changes() as database:
        for key, time_ns in job.times_ns.items():
            row = (key, SCOPE.key, time_ns, 0, 0.0)
            database.execute("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?, ?)", row)
        os.kill(os.getpid(), signal.SIGKILL)
    return DONE


def elsewhere(function: Any, *jobs: Any) -> list[str]:
    """Do jobs in processes of their own, all at the same time; how each ended."""
    if not jobs:
        return []
    with started(function, jobs[0]) as worker:
        others = elsewhere(function, *jobs[1:])
        try:
            return [str(worker.answer()), *others]
        except ProcessDied:
            return [DIED, *others]
        except RematError:
            return [REFUSED, *others]
