"""The integers CP-SAT works with: bytes and times divided by what they have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from remat_cli.core.problem import Problem

# CP-SAT refuses a cumulative whose demands times durations leave 64 bits.
_ENERGY_LIMIT = 2**60


@dataclass(frozen=True)
class Units:
    """A problem in small integers.

    `sizes[x]`, `workspaces[v]` and `capacity` are in units of `byte_unit` bytes, `times[v]` in `time_unit` ns.
    `is_exact` is False when sizes had to be rounded up: then some schedules are lost, and proofs with them.
    """

    sizes: tuple[int, ...]
    workspaces: tuple[int, ...]
    capacity: int
    times: tuple[int, ...]
    byte_unit: int
    time_unit: int
    is_exact: bool

    def capacity_for(self, free_bytes: int) -> int:
        """A number of bytes (fixed part excluded) in byte units, rounded up."""
        return -(-free_bytes // self.byte_unit)


def make_units(problem: Problem, horizon: int) -> Units:
    """Divide by the greatest common divisors; the budget is rounded down, so that no schedule exceeds it."""
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    workspaces = [op.workspace_bytes[0] for op in problem.ops]
    times = [op.time_ns[0] or 0 for op in problem.ops]
    common = math.gcd(*sizes, *workspaces) or 1
    coarse = -(-sum(sizes + workspaces) * horizon // (common * _ENERGY_LIMIT)) or 1
    byte_unit, time_unit = common * coarse, math.gcd(*times) or 1
    return Units(
        sizes=tuple(-(-size // byte_unit) for size in sizes),
        workspaces=tuple(-(-size // byte_unit) for size in workspaces),
        capacity=problem.memories[0].free_bytes // byte_unit,
        times=tuple(time // time_unit for time in times),
        byte_unit=byte_unit,
        time_unit=time_unit,
        is_exact=coarse == 1,
    )
