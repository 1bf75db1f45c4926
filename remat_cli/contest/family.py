"""A process and those it started, however deep: their memory together, and an end for all of them.

On Linux, from /proc; elsewhere only the process itself is known.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MIB = 2**20
SAMPLE_SECONDS = 0.25


def family(pid: int) -> list[int]:
    """The process and all its descendants, itself first."""
    parents = _parents()
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def _parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may be gone by now
            # The name, in parentheses, may hold anything: what is wanted comes after the last one.
            found[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    return found


def resident_mib(pids: list[int]) -> float:
    """Memory that these processes hold together; what they share counts for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages += int((PROC / str(pid) / "statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / MIB, 1) if pages else 0.0


def kill_family(pid: int) -> None:
    """End a process and its descendants, at once."""
    for member in family(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)


@dataclass
class Sampler:
    """The most memory that a process and its descendants were seen to hold."""

    pid: int
    peak_mib: float = 0.0
    sampled: float = 0.0

    def look(self) -> None:
        """Look now, unless that was done a moment ago."""
        if time.monotonic() - self.sampled >= SAMPLE_SECONDS:
            self.peak_mib = max(self.peak_mib, resident_mib(family(self.pid)))
            self.sampled = time.monotonic()
