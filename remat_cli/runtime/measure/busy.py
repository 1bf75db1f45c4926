"""Measures which part of the machine's processors this process and all others used between two moments."""

import time
from dataclasses import dataclass

import psutil

IDLE = frozenset({"idle", "iowait", "guest", "guest_nice"})
"""What counts no work, or work that counts elsewhere; time stolen by other machines on the same host is work."""


@dataclass(frozen=True)
class CpuClock:
    """Seconds since some moment: on the wall, of work on all cores, and of this process on all of them."""

    wall_seconds: float
    all_seconds: float
    own_seconds: float

    def since(self, earlier: "CpuClock") -> tuple[float, float]:
        """How many cores others used in between, and how many this process left free."""
        wall = max(1e-9, self.wall_seconds - earlier.wall_seconds)
        own = (self.own_seconds - earlier.own_seconds) / wall
        others = (self.all_seconds - earlier.all_seconds) / wall - own
        return max(0.0, others), max(0.0, (psutil.cpu_count() or 1) - own)


def cpu_clock() -> CpuClock:
    """The clocks now."""
    times, own = psutil.cpu_times()._asdict(), psutil.Process().cpu_times()
    worked = sum(seconds for kind, seconds in times.items() if kind not in IDLE)
    return CpuClock(time.monotonic(), worked, own.user + own.system)
