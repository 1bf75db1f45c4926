"""The runtime's CPU arena, simulated: which regions a session takes from the system, and how much of them it touches.

The `BFCArena` of a default session, strategy `kNextPowerOfTwo`; compared with its own log, region by region, in
tests/runtime/test_arena.py.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from operator import itemgetter
from threading import Lock

import msgspec

from remat_cli.ort_rules.heaps.kernel_heap import KernelHeap
from remat_cli.ort_rules.requests import Request, outputs_of


class ArenaRules(msgspec.Struct, frozen=True, kw_only=True):
    """How an arena takes memory, and hands it out in whole units, of which even a request for nothing takes one.

    The first region has `first_region_bytes`; each next one of its size makes the one after it twice as large, up to
    `largest_growth_bytes`. A chunk is cut where `most_dead_bytes` or more would be left unused in it, or as much as is
    asked for. Every region has a table that is written when it is made: the `table_share`th part of it.
    """

    unit_bytes: int
    first_region_bytes: int
    largest_growth_bytes: int
    most_dead_bytes: int
    table_share: int

    def rounded_bytes(self, size_bytes: int) -> int:
        """What a request takes of the arena at least."""
        return -(-size_bytes // self.unit_bytes) * self.unit_bytes or self.unit_bytes


Layout = tuple[tuple[tuple[tuple[int, int | None], ...], ...], tuple[tuple[tuple[int, int], ...], ...], int]


_start = itemgetter(0)


@dataclass(eq=False, slots=True)
class Chunk:
    """A part of a region, between those `before` and `after` it, had by the request that is its `owner`; None: free."""

    region: int
    start: int
    size: int
    owner: int | None = None
    before: Chunk | None = None
    after: Chunk | None = None


@dataclass
class Arena:
    """An arena from its first request on; requests of later runs go on in the regions that are there.

    `first_chunks` begin regions. `free` are the free chunks behind (size, place of the region, start), in the order in
    which they are tried: of equal chunks the one at the lower address comes first. The system decides where regions
    lie: large ones mostly below older ones (`newest_first`), small ones above them, in the heap.
    """

    rules: ArenaRules
    regions: list[int] = field(default_factory=list)
    first_chunks: list[Chunk] = field(default_factory=list)
    touched: list[list[tuple[int, int]]] = field(default_factory=list)
    held: dict[int, Chunk] = field(default_factory=dict)
    free: list[tuple[int, int, int, Chunk]] = field(default_factory=list)
    growth_bytes: int = 0
    newest_first: bool = True

    def __post_init__(self) -> None:
        """The first region is as large as the rules say."""
        self.growth_bytes = self.growth_bytes or self.rules.first_region_bytes

    def run(self, requests: Iterable[Request], offset: int = 0) -> None:
        """Serve requests in their order; `offset` is added to their numbers, which tells runs apart."""
        take, give_back = self.take, self.give_back
        for request in requests:
            if request.takes:
                take(request.number + offset, request.bytes, is_written=request.is_written)
            else:
                give_back(request.number + offset)

    def take(self, number: int, size_bytes: int, *, is_written: bool = True) -> None:
        """Give a request a chunk: the smallest free one that is large enough, of equal ones the lowest."""
        rules, free = self.rules, self.free
        rounded = rules.rounded_bytes(size_bytes)
        at = bisect_left(free, (rounded,))
        chunk = free.pop(at)[-1] if at < len(free) else self._new_region(rounded)
        spare = chunk.size - rounded
        if spare >= rounded or spare >= rules.most_dead_bytes:
            after, start = chunk.after, chunk.start + rounded
            rest = Chunk(chunk.region, start, spare, None, chunk, after)
            chunk.size, chunk.after = rounded, rest
            if after is not None:
                after.before = rest
            insort(free, (spare, -chunk.region if self.newest_first else chunk.region, start, rest))
        chunk.owner = number
        self.held[number] = chunk
        if is_written:
            self._write(self.touched[chunk.region], chunk.start, chunk.start + rounded)

    @staticmethod
    def _write(spans: list[tuple[int, int]], start: int, end: int) -> None:
        """Note that a span was written; all spans stay disjoint and in order: those that it meets go into it."""
        first = bisect_right(spans, start, key=_start)  # the first that begins behind it
        if first and spans[first - 1][1] >= start:
            if spans[first - 1][1] >= end:
                return
            first -= 1
        last = first
        while last < len(spans) and spans[last][0] <= end:
            start, end = min(start, spans[last][0]), max(end, spans[last][1])
            last += 1
        spans[first:last] = [(start, end)]

    def give_back(self, number: int) -> None:
        """Free a request's chunk and join it with free neighbours in its region."""
        chunk, free = self.held.pop(number), self.free
        chunk.owner = None
        before, after = chunk.before, chunk.after
        if after is not None and after.owner is None:
            del free[bisect_left(free, self._entry(after))]
            self._join(chunk, after)
        if before is not None and before.owner is None:
            del free[bisect_left(free, self._entry(before))]
            self._join(before, chunk)
            chunk = before
        insort(free, self._entry(chunk))

    def chunks_of(self, region: int) -> Iterator[Chunk]:
        """The chunks of a region, by address."""
        chunk: Chunk | None = self.first_chunks[region]
        while chunk is not None:
            yield chunk
            chunk = chunk.after

    def layout(self, when_back: Callable[[int], int]) -> Layout:
        """All that decides the future: what of which region is held until when, and what was written.

        `when_back` says, by its number, when a request is given back. Which of neighbours that go together has which
        chunk decides nothing, since they are one free chunk then.
        """
        held = tuple(
            tuple(
                (next(chunks).start, until)
                for until, chunks in itertools.groupby(
                    self.chunks_of(region), lambda each: None if each.owner is None else when_back(each.owner)
                )
            )
            for region in range(len(self.regions))
        )
        return held, tuple(map(tuple, self.touched)), self.growth_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all regions."""
        return sum(self.regions)

    @property
    def touched_bytes(self) -> int:
        """Bytes of regions that were ever handed out, so that they are resident."""
        return sum(end - start for spans in self.touched for start, end in spans)

    @property
    def resident_bytes(self) -> int:
        """What the process holds for the arena: what was touched, and the tables of regions."""
        return self.touched_bytes + self.reserved_bytes // self.rules.table_share

    def _new_region(self, rounded: int) -> Chunk:
        """A region of the system, as one chunk: of the size whose turn it is, or doubled until it suffices."""
        if rounded > self.growth_bytes:
            while self.growth_bytes < rounded:
                self.growth_bytes *= 2
            region_bytes = self.growth_bytes
        else:
            region_bytes = self.growth_bytes
            self.growth_bytes = min(2 * self.growth_bytes, self.rules.largest_growth_bytes)
        chunk = Chunk(len(self.regions), 0, region_bytes)
        self.regions.append(region_bytes)
        self.first_chunks.append(chunk)
        self.touched.append([])
        return chunk

    def _join(self, chunk: Chunk, after: Chunk) -> None:
        """Make one chunk of two neighbours."""
        chunk.size += after.size
        chunk.after = after.after
        if chunk.after is not None:
            chunk.after.before = chunk

    def _entry(self, chunk: Chunk) -> tuple[int, int, int, Chunk]:
        return chunk.size, -chunk.region if self.newest_first else chunk.region, chunk.start, chunk


@dataclass(frozen=True)
class RunMemory:
    """What the process holds for a session's arena when a run has ended, beyond what it held before the first one.

    Or, where kernels take something of the heap, the most that it holds for both during the run. `reserved_bytes` are
    those of all regions; `new_regions` were taken during the run.
    """

    resident_bytes: int
    reserved_bytes: int
    new_regions: tuple[int, ...]


LOADED = -(10**12)
"""Number of the request for the first of the copies that loading leaves in the arena; others follow."""
BLOCK = 10**12
"""Number of the request for a run's block."""


@dataclass(frozen=True)
class LoadedSession:
    """A session that has been loaded, with copies of weights of so many bytes in its arena, and not run."""

    rules: ArenaRules
    copies: tuple[int, ...] = ()
    newest_first: bool = True

    def arena(self) -> Arena:
        """Its arena."""
        arena = Arena(self.rules, newest_first=self.newest_first)
        for number, size_bytes in enumerate(self.copies):
            arena.take(LOADED + number, size_bytes)
        return arena


def simulate_runs(
    requests: Iterable[Request], runs: int, held: int, session: LoadedSession, most_bytes: int | None = None
) -> tuple[RunMemory, ...]:
    """What each of the first runs of a session leaves behind, while the caller holds outputs of so many runs before.

    What the arena holds for copies that loading has put into it is not counted.

    The first run asks for tensors one by one, later ones for one block for all that have a place in it, before
    anything else. Outputs of a run are given back when `held` more runs have ended: with 0 before the next one begins.
    Once a run has left the arena as one before it did, nothing is taken of the system any more. The first run that
    leaves more than `most_bytes` is the last that is told.
    """
    return _simulated(tuple(requests), held, session).first(runs, most_bytes)


class _Simulated:
    """Runs of one session, each simulated when it is first asked for."""

    def __init__(self, requests: tuple[Request, ...], held: int, session: LoadedSession) -> None:
        self._requests, self._held = requests, held
        self._arena = session.arena()
        self._loaded_bytes = self._arena.resident_bytes
        self._block_bytes = pattern_bytes([request for request in requests if request.in_block], session.rules)
        self._later = tuple(request for request in requests if not (self._block_bytes and request.in_block))
        self._outputs = outputs_of(requests)
        self._shift = 2 * (1 + max((abs(request.number) for request in requests), default=0))
        self._found, self._seen = list[RunMemory](), set[tuple[Layout, tuple[int, ...]]]()
        self._heap, self._in_heap = KernelHeap(), any(request.heap for request in requests)
        self._is_steady = False
        self._lock = Lock()

    def first(self, runs: int, most_bytes: int | None) -> tuple[RunMemory, ...]:
        """What so many runs leave behind, or as many as leave no more than that, and one."""
        with self._lock:
            for run in range(runs):
                if run == len(self._found):
                    self._simulate(run)
                if most_bytes is not None and self._found[run].resident_bytes > most_bytes:
                    return tuple(self._found[: run + 1])
            return tuple(self._found[:runs])

    def _simulate(self, run: int) -> None:
        if self._is_steady:
            self._found.append(replace(self._found[-1], new_regions=()))
            return
        arena, before, offset = self._arena, len(self._arena.regions), self._shift * run
        if run == 0 or not self._block_bytes:
            peak_bytes = self._serve(self._requests, offset)
        else:
            arena.take(BLOCK, self._block_bytes)
            peak_bytes = self._serve(self._later, offset)
            arena.give_back(BLOCK)
        if run >= self._held:
            for output in self._outputs:
                arena.give_back(output.number + self._shift * (run - self._held))
        resident_bytes = max(peak_bytes, arena.resident_bytes + self._heap.resident_bytes) - self._loaded_bytes
        self._found.append(RunMemory(resident_bytes, arena.reserved_bytes, tuple(arena.regions[before:])))
        layout = arena.layout(partial(self._runs_left, run)), tuple(self._heap.kept_bytes.values())
        self._is_steady = layout in self._seen
        self._seen.add(layout)

    def _runs_left(self, run: int, number: int) -> int:
        """When what is held after a run is given back: outputs by the run that made them, copies of weights never."""
        return self._held + 1 if number < LOADED // 2 else (number + self._shift // 2) // self._shift - run

    def _serve(self, requests: tuple[Request, ...], offset: int) -> int:
        """Serve the requests of a run; the most that is resident while kernels have something in the heap."""
        if not self._in_heap:
            self._arena.run(requests, offset)
            return 0
        most_bytes = 0
        for request in requests:
            if request.heap is None:
                self._arena.run([request], offset)
            elif request.takes:
                self._heap.take(request.heap)
                most_bytes = max(most_bytes, self._arena.resident_bytes + self._heap.resident_bytes)
            else:
                self._heap.give_back(request.heap)
        return most_bytes


@lru_cache(maxsize=64)  # a plan is predicted when its form is chosen, when it is written, when it is read back
def _simulated(requests: tuple[Request, ...], held: int, session: LoadedSession) -> _Simulated:
    return _Simulated(requests, held, session)


def pattern_bytes(requests: Sequence[Request], rules: ArenaRules) -> int:
    """The block that later runs take for the requests of a first one: each is placed at once, in the tightest gap.

    Requests are rounded up to whole units. What lies between the last live one and the highest end so far is a gap too;
    one that fits no gap goes behind the last live one. Nothing is sorted and nothing looks ahead (`MemPatternPlanner`
    in the runtime).
    """
    live: list[tuple[int, int, int]] = []
    height = 0
    for request in requests:
        if not request.takes:
            live = [block for block in live if block[2] != request.number]
            continue
        size = rules.rounded_bytes(request.bytes) if request.bytes else 0
        ends = [0, *(end for _, end, _ in live)]
        starts = [*(start for start, _, _ in live), height]
        gaps = [(start - end, end) for end, start in zip(ends, starts, strict=True) if start - end >= size]
        offset = min(gaps, key=itemgetter(0))[1] if gaps else ends[-1]
        insort(live, (offset, offset + size, request.number))
        height = max(height, offset + size)
    return height
