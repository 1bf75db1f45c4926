"""From a set of values to a real schedule: out in the forward sweep, back in the backward sweep (2.3 of the thesis).

Steps and writes start as early as they can, reads as late: the backward sweep is the forward one in reversed time. A
value's room is free when its write and its last use before the turn are over, and taken when its read starts. It
starts no sooner: the letter of 2.3 would let the value come back as a second copy, which is no faster than to keep it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from remat_cli.core.paging.paging import PagedProblem, PagedSchedule, PageTransfer


class _Away(NamedTuple):
    """A value on its way out: the step from whose end it may go, the one from whose end nobody uses it, how long."""

    since: int
    after: int
    ticks: int
    tensor: int


@dataclass
class _Half:
    """One sweep by itself, from its own time 0: when steps start and end, and the transfers, in order."""

    problem: PagedProblem
    queue: list[_Away]
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    transfers: dict[int, int] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    link_free: int = 0

    @property
    def last(self) -> int:
        """When the last step ends."""
        return self.ends[-1] if self.ends else 0

    def run(self, held: Sequence[int], durations: Sequence[int]) -> bool:
        """Each step as soon as there is room; whether there ever is."""
        for step, duration in enumerate(durations):
            self.move(step)
            start = first_room(self.problem.budget_bytes - held[step], self.last, self.leaving(step))
            if start is None:
                return False
            self.starts.append(start)
            self.ends.append(start + duration)
        self.move(len(durations))
        self.leaving(len(durations))
        return True

    def move(self, step: int) -> None:
        """Start what may go before a step, in order, each when the link is free."""
        for value in self.queue:
            if value.since < step and value.tensor not in self.transfers:
                start = max(self.link_free, self._end(value.since))
                self.transfers[value.tensor] = start
                self.link_free = start + value.ticks

    def leaving(self, step: int) -> list[tuple[int, int]]:
        """When the room of each value that is no longer used at a step is free, and its bytes."""
        gone = [value for value in self.queue if value.after < step]
        for value in gone:
            moved = self.transfers[value.tensor] + value.ticks
            self.released[value.tensor] = max(moved, self._end(value.after))
        return [(self.released[value.tensor], self.problem.tensors[value.tensor].size_bytes) for value in gone]

    def _end(self, step: int) -> int:
        return self.ends[step] if step >= 0 else 0


def two_phases(problem: PagedProblem, turn: int, gaps: Mapping[int, int]) -> PagedSchedule | None:
    """The schedule that pages these tensors, each in its gap across step `turn`; None where that does not fit."""
    held = problem.held_bytes((problem.tensors[tensor], gap) for tensor, gap in gaps.items())
    last = len(problem.durations) - 1
    out, back = [], []
    for tensor, gap in gaps.items():
        uses, final = problem.tensors[tensor].uses, problem.tensors[tensor].final
        out.append(_Away(uses[final], uses[gap], problem.transfer_ticks(tensor, "write"), tensor))
        needed = last - uses[gap + 1]
        back.append(_Away(needed, needed, problem.transfer_ticks(tensor, "read"), tensor))
    forward, backward = _Half(problem, sorted(out)), _Half(problem, sorted(back))
    needs = held[:turn], held[turn:][::-1]
    can_go = forward.run(needs[0], problem.durations[:turn])
    if not (can_go and backward.run(needs[1], problem.durations[turn:][::-1])):
        return None
    # The least makespan: what is read has gone, no write is left, a step has room for what the other sweep moves.
    total = max(forward.last + backward.last, forward.link_free + backward.link_free)
    total = max(total, *(forward.released[tensor] + backward.released[tensor] for tensor in forward.released), 0)
    for half, other, most in ((forward, backward, needs[0]), (backward, forward, needs[1])):
        pending = [(time, problem.tensors[tensor].size_bytes) for tensor, time in other.released.items()]
        for end, need in zip(half.ends, most, strict=True):
            room = first_room(problem.budget_bytes - need, 0, pending)
            total = max(total, end + (room or 0))
    starts = [*forward.starts, *(total - end for end in reversed(backward.ends))]
    writes = [PageTransfer(tensor, "write", start) for tensor, start in forward.transfers.items()]
    reads = [
        PageTransfer(tensor, "read", total - start - problem.transfer_ticks(tensor, "read"), gaps[tensor])
        for tensor, start in backward.transfers.items()
    ]
    return PagedSchedule(tuple(starts), (*writes, *reversed(reads)))


def first_room(room: int, now: int, waiting: Iterable[tuple[int, int]]) -> int | None:
    """The earliest time from `now` at which what is still to go fits into the room; None: never."""
    if room < 0:
        return None
    later = sorted(((time, size) for time, size in waiting if time > now), reverse=True)
    left = 0
    for time, size in later:
        left += size
        if left > room:
            return time
    return now
