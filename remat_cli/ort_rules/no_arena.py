"""What runs of a session hold whose CPU arena is off: each tensor is asked of malloc, and given back to it.

The runtime asks for small blocks beside each tensor, which live as long as it does. They matter: freed ones wait to be
taken again, and lie between the places of large tensors meanwhile.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import msgspec

from remat_cli.core.values.pages import PAGE_BYTES
from remat_cli.ort_rules.arena import BLOCK, ArenaRules, RunMemory, pattern_bytes
from remat_cli.ort_rules.heaps.heap import FIRST_THRESHOLD_BYTES
from remat_cli.ort_rules.heaps.kernel_heap import KernelHeap
from remat_cli.ort_rules.heaps.malloc import STEP_BYTES, HeapChunk, Malloc
from remat_cli.ort_rules.requests import Request, outputs_of

RUNS = 6
"""That are simulated: a heap seldom comes back to what it was, but grows little after some runs."""


class MallocRules(msgspec.Struct, frozen=True, kw_only=True):
    """How a session without an arena asks for a tensor: at a multiple of `alignment`, between blocks of its own.

    `before_bytes` are taken before the tensor, `after_bytes` after it, for workspace only `workspace_bytes` after it.
    Beside a tensor one of the `passing_bytes` is taken with a chance of one in `passing_odds`, and held for up to the
    `passing_odds`th part of three runs: what kernels, branches and callers take in between.
    """

    alignment: int
    before_bytes: int
    after_bytes: int
    workspace_bytes: int
    passing_bytes: tuple[int, ...]
    passing_odds: int


class LoadedHeap(msgspec.Struct, frozen=True):
    """How loading may leave the heap, by a number to draw it with: what a process did before is not known."""

    seed: int

    def malloc(self) -> Malloc:
        """Such a heap: its threshold, and small chunks that are free between others that are not."""
        dice = random.Random(self.seed)
        heap = Malloc(STEP_BYTES * dice.randrange(PAGE_BYTES // STEP_BYTES), dice.choice(THRESHOLDS))
        count = dice.choice(CHUNKS)
        for chunk in [heap.take(int(2 ** dice.uniform(3, LARGEST_POWER))) for _ in range(count)]:
            if dice.random() < FREE_SHARE:
                heap.give_back(chunk, is_written=False)
        return heap


THRESHOLDS = (FIRST_THRESHOLD_BYTES, 500 * 2**10, 2**20, 3 * 2**19)
"""As weights and parts of the file leave them that are given back while it is read."""
CHUNKS = (0, 100, 400, 1600)
LARGEST_POWER = 11.5
FREE_SHARE = 0.5
HEAPS = 12
"""That are drawn; what a process holds is promised for all of them."""
FEW_HEAPS = 3
"""While forms are compared."""


@dataclass
class _Session:
    """A session in a heap: who holds which chunks, and the most that was resident in a run.

    `passing` are small blocks that pass, by the number of the request at which they are given back. What kernels take
    for themselves may find room where tensors were, or lie apart (`is_apart`).
    """

    heap: Malloc
    rules: MallocRules
    dice: random.Random
    is_apart: bool = False
    kernels: KernelHeap = field(default_factory=KernelHeap)
    held: dict[int, tuple[Request, tuple[HeapChunk, ...]]] = field(default_factory=dict)
    passing: list[tuple[int, HeapChunk]] = field(default_factory=list)
    served: int = 0
    peak_bytes: int = 0

    @property
    def resident_bytes(self) -> int:
        """What is resident of both now."""
        return self.heap.resident_bytes + self.kernels.resident_bytes

    def run(self, requests: Sequence[Request], offset: int) -> None:
        """Serve requests in their order; `offset` is added to their numbers, which tells runs apart."""
        for request in requests:
            if request.takes:
                self.take(request, offset)
                if self.dice.random() * self.rules.passing_odds < 1:  # what others take in between
                    length = int(3 * len(requests) * self.dice.random() / self.rules.passing_odds)
                    block = self.heap.take(self.dice.choice(self.rules.passing_bytes))
                    insort(self.passing, (self.served + length, block), key=itemgetter(0))
            else:
                self.give_back(request.number + offset)
            self.served += 1
            while self.passing and self.passing[0][0] <= self.served:
                self.heap.give_back(self.passing.pop(0)[1])

    def take(self, request: Request, offset: int = 0) -> None:
        """Ask for a tensor, or workspace, with the small blocks beside it; without bytes for these alone.

        What a kernel takes for itself has none beside it.
        """
        if request.heap is not None:
            chunks = () if self.is_apart else (self.heap.take(request.bytes),)
            for chunk in chunks:
                self.heap.write(chunk)
            if self.is_apart:
                self.kernels.take(request.heap)
            self.held[request.number + offset] = request, chunks
            self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
            return
        is_workspace = request.number < 0
        before = () if is_workspace else (self.heap.take(self.rules.before_bytes),)
        block = (self.heap.take_aligned(request.bytes, self.rules.alignment),) if request.bytes else ()
        if block and request.is_written:
            self.heap.write(*block)
        after = self.heap.take(self.rules.workspace_bytes if is_workspace else self.rules.after_bytes)
        self.held[request.number + offset] = request, (*block, *before, after)
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)

    def give_back(self, number: int) -> None:
        """Give back what was taken under a number."""
        request, chunks = self.held.pop(number)
        if request.heap is not None and self.is_apart:
            self.kernels.give_back(request.heap)
        for chunk in chunks:
            self.heap.give_back(chunk, is_written=request.is_written)


def simulate_runs_without_arena(
    requests: Sequence[Request], held: int, loaded: LoadedHeap, rules: MallocRules, arena: ArenaRules
) -> tuple[RunMemory, ...]:
    """What is resident at most in each of the first runs, while the caller holds outputs of so many runs before.

    As with an arena the first run asks for tensors one by one, and later ones for one block for all that have a place
    in it; its length is a sum of units of the arena's.
    """
    session = _Session(loaded.malloc(), rules, random.Random(loaded.seed), loaded.seed % 2 == 1)
    found = list[RunMemory]()
    before_bytes, first_end = session.heap.resident_bytes, session.heap.end
    block_bytes = pattern_bytes([request for request in requests if request.in_block], arena)
    in_block = [replace(each, bytes=0) if each.in_block else each for each in requests]
    outputs = outputs_of(requests)
    shift = 1 + max((abs(request.number) for request in requests), default=0)
    for run in range(RUNS):
        offset, with_block = 2 * shift * run, run > 0 and block_bytes > 0
        session.peak_bytes = session.resident_bytes
        if with_block:
            session.take(Request(BLOCK, block_bytes, True))
        session.run(in_block if with_block else requests, offset)
        if with_block:
            session.give_back(BLOCK)
        if run >= held:
            for output in outputs:
                session.give_back(output.number + 2 * shift * (run - held))
        found.append(RunMemory(session.peak_bytes - before_bytes, session.heap.end - first_end, ()))
    return tuple(found)
