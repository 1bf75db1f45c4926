"""Cutting a schedule open: some computations become free, all else stays where it is.

A cut frees ops inside a stretch of the schedule: their recomputes are taken out and may run again in any gap between
the steps that stay (the skeleton), and first computations of `movable` ops may leave their place too. Outside the
stretch nothing changes: tensors that later steps read must be there at its end, and those alive at its start may be
read, or dropped. So what a cut finds holds for the whole schedule, exactly.

Events: gap g holds events `g * width .. g * width + width - 2`, one for each free op, ordered as their first
computations are now; the skeleton step after it is the event `g * width + width - 1`. The last gap is followed by the
boundary, an event at which what is needed later is read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from remat_cli.core.schedule.problem import Problem

NEVER = 2**60


@dataclass(frozen=True)
class Lives:
    """A schedule and who reads what: `births[x]` and `reads[x]` are steps, rising; `first[v]` is v's first step."""

    problem: Problem
    ops: tuple[int, ...]
    first: tuple[int, ...]
    births: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]

    def deaths(self, tensor: int) -> list[int]:
        """Last read of each instance, its birth if nobody reads it; past the end for the last of a kept tensor."""
        births, reads, at = self.births[tensor], self.reads[tensor], 0
        found = []
        for birth, following in zip(births, (*births[1:], NEVER), strict=True):
            last = birth
            while at < len(reads) and reads[at] < following:
                last = max(last, reads[at])
                at += 1
            found.append(last)
        if found and self.problem.tensors[tensor].kept:
            found[-1] = len(self.ops)
        return found


def make_lives(problem: Problem, ops: Sequence[int]) -> Lives:
    """Follow a legal sequence of ops of a problem without views and in-place pairs."""
    first = [-1] * len(problem.ops)
    births: list[list[int]] = [[] for _ in problem.tensors]
    reads: list[list[int]] = [[] for _ in problem.tensors]
    for step, op in enumerate(ops):
        if first[op] < 0:
            first[op] = step
        for tensor in problem.ops[op].inputs:
            reads[tensor].append(step)
        for tensor in problem.ops[op].outputs:
            births[tensor].append(step)
    return Lives(problem, tuple(ops), tuple(first), tuple(map(tuple, births)), tuple(map(tuple, reads)))


@dataclass(frozen=True)
class Stretch:
    """What to free: steps `start .. end - 1`; the ops whose recomputes, and those whose first computations, may move.

    `is_ranked`: computations of one gap run in the order of their first ones now; else in any order. `copies` bounds
    the computations of an op inside, first ones included, if more do not run there now.
    """

    start: int
    end: int
    free: frozenset[int]
    movable: frozenset[int] = frozenset()
    is_ranked: bool = True
    copies: int = 3


@dataclass(frozen=True)
class FreeRun:
    """A computation that is free: in one of the gaps `earliest .. latest`; `is_first`: it must run."""

    op: int
    rank: int
    earliest: int
    latest: int
    is_first: bool


@dataclass(frozen=True)
class Held:
    """An instance made by a step that stays, or before the stretch: read at `until` at the latest, by steps that stay.

    `limit` is the last event at which it may be read: then the next one made by a step that stays is there.
    """

    birth: int
    until: int
    limit: int


HeldOf: TypeAlias = dict[int, tuple[Held, ...]]


@dataclass(frozen=True)
class OpenCut:
    """What CP-SAT is to decide, and what it has to respect.

    `runs[v]` are the free computations of op v in time order. `held[x]` are the fixed instances of tensors that free
    ops make or read. `demands[x]` are the events at which steps that stay, and the boundary, read tensors of free
    ops. `background` lists (from event, to event, bytes) of all other storage and of the workspace of the skeleton.
    """

    lives: Lives
    stretch: Stretch
    skeleton: tuple[int, ...]
    width: int
    runs: dict[int, tuple[FreeRun, ...]]
    held: HeldOf
    demands: dict[int, tuple[int, ...]]
    background: tuple[tuple[int, int, int], ...]

    @property
    def boundary(self) -> int:
        """The number of the last event."""
        return len(self.skeleton) * self.width + self.width - 1


def cut_open(lives: Lives, stretch: Stretch) -> OpenCut:
    """Take the free computations of a stretch out of a schedule."""
    return _Cutter(lives, stretch).cut()


@dataclass
class _Cutter:
    lives: Lives
    stretch: Stretch
    skeleton: list[int] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lives, stretch = self.lives, self.stretch
        for step in range(stretch.start, stretch.end):
            op = lives.ops[step]
            if op in (stretch.movable if step == lives.first[op] else stretch.free):
                self.taken[op] = self.taken.get(op, 0) + 1
            else:
                self.index[step] = len(self.skeleton)
                self.skeleton.append(op)
        by_first = sorted(stretch.free, key=lambda op: lives.first[op])
        self.order = [op for op in by_first if lives.first[op] < stretch.end]
        slots = len(self.order) if stretch.is_ranked else sum(map(self._copies, self.order))
        self.width = slots + 1
        self.last_gap = len(self.skeleton)
        self.boundary = self.last_gap * self.width + slots

    def cut(self) -> OpenCut:
        problem = self.lives.problem
        free = set(self.order)
        made = [tensor for op in self.order for tensor in problem.ops[op].outputs]
        read = {tensor for op in self.order for tensor in problem.ops[op].inputs}
        read = {tensor for tensor in read if problem.tensors[tensor].producer not in free}
        held = {tensor: self._held(tensor) for tensor in (*made, *sorted(read))}
        demands = {tensor: self._demands(tensor) for tensor in made}
        # Computations with the gaps in which they are possible and of use.
        earliest, latest = self._useful_gaps(held, demands)
        runs: dict[int, tuple[FreeRun, ...]] = {}
        for rank, op in enumerate(self.order):
            is_first_free = self._is_first_free(op)
            family = []
            for copy in range(self._copies(op)):
                is_first = copy == 0 and is_first_free
                if is_first or earliest[op] <= latest[op]:
                    family.append(FreeRun(op, rank, earliest[op], max(latest[op], earliest[op]), is_first))
            runs[op] = tuple(family)
        return OpenCut(
            lives=self.lives,
            stretch=self.stretch,
            skeleton=tuple(self.skeleton),
            width=self.width,
            runs=runs,
            held=held,
            demands=demands,
            background=tuple(self._background({*made, *read})),
        )

    def _copies(self, op: int) -> int:
        """How many computations of an op a cut may hold."""
        taken, stretch = self.taken.get(op, 0), self.stretch
        can_recompute = op in stretch.free and self.lives.problem.ops[op].repeatable
        if not can_recompute:
            return taken
        is_first_inside = self.lives.first[op] >= stretch.start
        is_first_free = is_first_inside and op in stretch.movable
        allowed = stretch.copies - (is_first_inside and not is_first_free)
        return max(taken, allowed)

    def _event(self, step: int) -> int:
        """The event of a skeleton step; -1 before the stretch, the boundary behind it."""
        if step < self.stretch.start:
            return -1
        if step >= self.stretch.end:
            return self.boundary
        return self.index[step] * self.width + self.width - 1

    def _held(self, tensor: int) -> tuple[Held, ...]:
        """Fixed instances of a tensor that can be read inside the stretch."""
        lives, (start, end) = self.lives, (self.stretch.start, self.stretch.end)
        deaths = lives.deaths(tensor)
        lasting = [
            (birth, death)
            for birth, death in zip(lives.births[tensor], deaths, strict=True)
            if birth < end and death >= start and (birth in self.index or birth < start)
        ]
        is_made_inside = lives.problem.tensors[tensor].producer in self.order
        reads = [step for step in lives.reads[tensor] if start <= step < end and step in self.index]
        found = []
        for number, (birth, death) in enumerate(lasting):
            following = lasting[number + 1][0] if number + 1 < len(lasting) else end
            until = max([birth, *(step for step in reads if birth < step < following)])
            if death >= end:
                until = end
            limit = self.boundary if following == end else self._event(following) - 1
            found.append(Held(self._event(birth), -1 if is_made_inside else self._event(until), limit))
        return tuple(found)

    def _demands(self, tensor: int) -> tuple[int, ...]:
        """Events at which the skeleton reads a tensor of a free op, and the boundary if later steps read it."""
        lives, (start, end) = self.lives, (self.stretch.start, self.stretch.end)
        found = {self._event(step) for step in lives.reads[tensor] if start <= step < end and step in self.index}
        newest = [d for b, d in zip(lives.births[tensor], lives.deaths(tensor), strict=True) if b < end]
        if newest and newest[-1] >= end:
            found.add(self.boundary)
        return tuple(sorted(found))

    def _is_first_free(self, op: int) -> bool:
        return op in self.stretch.movable and self.lives.first[op] >= self.stretch.start

    def _useful_gaps(self, held: HeldOf, demands: dict[int, tuple[int, ...]]) -> tuple[dict[int, int], dict[int, int]]:
        """First gap in which each free op can run, and the last in which that serves somebody."""
        earliest: dict[int, int] = {}
        tensors, ops = self.lives.problem.tensors, self.lives.problem.ops
        for op in self.order:
            # Its inputs are there, and so is its first computation.
            gap = 0
            if not self._is_first_free(op) and self.lives.first[op] >= self.stretch.start:
                gap = self.index[self.lives.first[op]] + 1
            for tensor in ops[op].inputs:
                sources = [0 if one.birth < 0 else one.birth // self.width + 1 for one in held[tensor]]
                if tensors[tensor].producer in earliest:
                    sources.append(earliest[tensors[tensor].producer])
                gap = max(gap, min(sources, default=self.last_gap + 1))
            earliest[op] = gap
        latest = dict.fromkeys(self.order, -1)
        for op in reversed(self.order):
            events = [event for tensor in ops[op].outputs for event in demands[tensor]]
            latest[op] = max(latest[op], max(events, default=-1) // self.width)
            if self._is_first_free(op) and latest[op] < 0:  # nobody reads it, so it may run anywhere
                latest[op] = self.last_gap
            for tensor in ops[op].inputs:
                producer = tensors[tensor].producer
                if producer in latest:
                    latest[producer] = max(latest[producer], latest[op])
        return earliest, latest

    def _background(self, variable: set[int]) -> Iterable[tuple[int, int, int]]:
        """Bytes in each gap and at each skeleton step of what the cut leaves alone, equal neighbours merged."""
        problem, width = self.lives.problem, self.width
        # Live bytes of the tensors that do not vary, in each gap and at each skeleton step.
        gaps, events = [0] * (self.last_gap + 2), [0] * (self.last_gap + 2)
        for tensor, spec in enumerate(self.lives.problem.tensors):
            if tensor in variable or spec.size_bytes == 0:
                continue
            for birth, death in zip(self.lives.births[tensor], self.lives.deaths(tensor), strict=True):
                if birth >= self.stretch.end or death < self.stretch.start:
                    continue
                born = -1 if birth < self.stretch.start else self.index[birth]
                died = self.last_gap if death >= self.stretch.end else self.index[death]
                gaps[born + 1] += spec.size_bytes
                gaps[died + 1] -= spec.size_bytes
                events[max(born, 0)] += spec.size_bytes
                events[died + 1] -= spec.size_bytes
        gaps, events = list(accumulate(gaps))[:-1], list(accumulate(events))[:-1]
        for number, gap_bytes in enumerate(gaps):
            if width > 1:
                yield number * width, number * width + width - 2, gap_bytes
            if number < self.last_gap:
                event = number * width + width - 1
                yield event, event, events[number] + problem.ops[self.skeleton[number]].workspace_bytes[0]
