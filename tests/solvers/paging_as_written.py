"""2.3 of the paging algorithms to the letter: what a set of paged values costs if a value may come back as a copy.

The letter asks that all writes end before the first read starts, not that a value has left before it is read: its copy
on the device may still be in use meanwhile, and then counts twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from remat_cli.solvers.published._pofo.paged_chain import PagedChain


@dataclass
class Sweep:
    """Stages 1..n in a time of their own: when each starts and ends, when each transfer ends, when its room is free."""

    chain: PagedChain
    paged: Collection[int]
    needs: tuple[int, ...]
    starts: list[int] = field(default_factory=lambda: [0])
    ends: list[int] = field(default_factory=lambda: [0])
    moved: dict[int, int] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)

    def run(self, ticks: tuple[int, ...], is_write: bool) -> bool:
        """Each stage as soon as there is room, transfers in order; whether there ever is."""
        link, each = self.chain.link, 0
        per_byte = link.write_ticks if is_write else link.read_ticks
        for stage in range(1, self.chain.stages + 1):
            room = self.chain.budget_bytes - self.need(stage)
            times = sorted({self.ends[-1], *(time for time in self.released.values() if time > self.ends[-1])})
            start = next((time for time in times if self.leaving(time) <= room), None)
            if start is None:
                return False
            self.starts.append(start)
            self.ends.append(start + ticks[stage])
            if stage - 1 in self.paged:  # a write may start once it is made, a read ends before its reader starts
                ready = self.ends[stage - 1] if is_write else self.ends[stage]
                each = max(each, ready) + self.chain.kept_bytes[stage - 1] * per_byte
                self.moved[stage - 1], self.released[stage - 1] = each, max(each, self.ends[stage])
        return True

    def need(self, stage: int) -> int:
        """Bytes at a stage without what is on its way."""
        kept = (size for k, size in enumerate(self.chain.kept_bytes[: stage - 1]) if k not in self.paged)
        return sum(kept) + self.chain.kept_bytes[stage - 1] + self.needs[stage]

    def leaving(self, time: int) -> int:
        """Bytes of values that nobody uses any more in this sweep and whose room is not free yet."""
        size = self.chain.kept_bytes
        return sum(size[k] for k, end in self.released.items() if self.ends[k + 1] <= time < end)

    def at(self, time: int) -> int:
        """Bytes at a time, stages and what is on its way; nothing of a stage outside of this sweep."""
        stages = range(1, self.chain.stages + 1)
        now = next((stage for stage in stages if self.starts[stage] <= time < self.ends[stage]), None)
        return (0 if now is None else self.need(now)) + self.leaving(time)

    def events(self) -> Iterator[int]:
        """All times at which something happens."""
        yield from (*self.starts, *self.ends, *self.moved.values(), *self.released.values())


def as_written(chain: PagedChain, paged: Collection[int]) -> tuple[int, bool] | None:
    """The makespan in ticks of 2.3, and whether a value is read while its copy is still there; None: it never fits."""
    out, back = Sweep(chain, paged, chain.forward_bytes), Sweep(chain, paged, chain.backward_bytes)
    if not (out.run(chain.forward_ticks, True) and back.run(chain.backward_ticks, False)):
        return None
    least = max(out.ends[-1] + back.ends[-1], max(out.moved.values(), default=0) + max(back.moved.values(), default=0))
    between = sum(size for k, size in enumerate(chain.kept_bytes) if k not in paged)
    for total in sorted({least, *(a + b for a in out.events() for b in back.events() if a + b >= least)}):
        if all(held <= chain.budget_bytes for held in _held(out, back, total, between)):
            return total, any(total - back.moved[k] < out.released[k] for k in paged)
    raise AssertionError("apart, both sweeps fit")


def _held(out: Sweep, back: Sweep, total: int, between: int) -> Iterator[int]:
    """Bytes at each event of both sweeps together, and between them; the backward one runs in reversed time."""
    times = sorted({*out.events(), *(total - time for time in back.events()), total})
    for time, then in pairwise(times):
        idle = between if out.ends[-1] <= time < total - back.ends[-1] else 0
        yield out.at(time) + back.at(total - then) + idle
