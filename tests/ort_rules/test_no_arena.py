"""Sessions without an arena, by the rules: what is asked of the heap around each tensor, and what runs then hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from remat_cli.core.values.pages import PAGE_BYTES
from remat_cli.ort_rules import no_arena
from remat_cli.ort_rules.arena import RunMemory
from remat_cli.ort_rules.heaps.malloc import HeapChunk
from remat_cli.ort_rules.no_arena import LoadedHeap, simulate_runs_without_arena
from remat_cli.ort_rules.records import RULES_1_32, Rules
from remat_cli.ort_rules.requests import Request

MIB = 2**20
RULES: Rules = RULES_1_32


def tensors(*steps: int) -> list[Request]:
    """Requests: a positive number takes a tensor of so many MiB, -N gives the Nth taken back."""
    sizes: list[int] = []
    found = []
    for step in steps:
        if step > 0:
            sizes.append(step * MIB)
            found.append(Request(len(sizes), sizes[-1], True, in_block=False))
        else:
            found.append(Request(-step, sizes[-step - 1], False, in_block=False))
    return found


def runs(requests: list[Request], seed: int = 0, held: int = 1) -> tuple[RunMemory, ...]:
    return simulate_runs_without_arena(requests, held, LoadedHeap(seed), RULES.malloc, RULES.arena)


def test_a_run_holds_its_tensors_and_a_later_one_may_find_their_places_taken():
    found = [run.resident_bytes for run in runs(tensors(4, 2, -1, 1, -2))]
    assert 6 * MIB <= found[0] < 7 * MIB  # the first tensors are mapped, and go back to the system
    assert found[1] == pytest.approx(7 * MIB, rel=0.01)  # one output of a MiB is held meanwhile
    assert found[-1] > 8 * MIB  # small blocks stand where a tensor was, which then needs another place


def test_large_blocks_never_lie_in_the_heap():
    found = [run.resident_bytes / MIB for run in runs(tensors(40, 36, -1, -2))]
    assert found == pytest.approx([76] * len(found), abs=0.1)


def test_later_runs_with_a_pattern_ask_for_one_block():
    asked = tensors(40, 36, -1, 50, -2, -3, 1)
    in_block = [Request(each.number, each.bytes, each.takes, in_block=each.number != 4) for each in asked]
    first, second, *_ = [run.resident_bytes / MIB for run in runs(in_block)]
    assert first == pytest.approx(86, abs=0.5)
    assert second == pytest.approx(128, abs=0.5)  # the block, in which 50 lies behind 40 and 36, and two outputs


def test_heaps_are_drawn_alike_for_a_seed_and_differ_between_seeds():
    requests = tensors(4, 2, 4, -1, 2, -2, 4, -3, 1, -4, -5)
    assert runs(requests, 3) == runs(requests, 3)
    assert len({runs(requests, seed) for seed in range(8)}) > 1


def test_drawn_numbers_do_not_depend_on_those_of_others():
    random.seed(1)
    first = runs(tensors(4, 2, -1, 1, -2), 5)
    random.seed(2)
    assert runs(tensors(4, 2, -1, 1, -2), 5) == first


@dataclass
class Ledger:
    """A heap that finds a place for everything, keeps nothing that was given back, and notes what it is asked for.

    `lives` are bytes of blocks that were given back, and how much had been asked for when they were taken and then.
    """

    end: int = 0
    threshold_bytes: int = 0
    resident_bytes: int = 0
    asked: list[str] = field(default_factory=list)
    live: list[HeapChunk] = field(default_factory=list)
    written: list[HeapChunk] = field(default_factory=list)
    since: dict[int, int] = field(default_factory=dict)
    lives: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, size_bytes: int, how: str = "") -> HeapChunk:
        self.live.append(HeapChunk(self.end, size_bytes))
        self.since[self.end] = len(self.asked)
        self.asked.append(f"+{size_bytes}{how}")
        self.end += size_bytes
        return self.live[-1]

    def take_aligned(self, size_bytes: int, alignment: int) -> HeapChunk:
        return self.take(size_bytes, f" at {alignment}")

    def write(self, chunk: HeapChunk) -> None:
        self.resident_bytes += chunk.size
        self.asked.append("write")
        self.written.append(chunk)

    def give_back(self, chunk: HeapChunk, *, is_written: bool = True) -> None:
        self.live.remove(chunk)
        self.lives.append((chunk.size, self.since[chunk.start], len(self.asked)))
        self.resident_bytes -= chunk.size if chunk in self.written else 0
        self.asked.append(f"-{chunk.size}{'' if is_written else ' unwritten'}")


@pytest.fixture
def ledger(monkeypatch) -> Ledger:
    found = Ledger()
    monkeypatch.setattr(LoadedHeap, "malloc", lambda _: found)
    return found


ALONE = msgspec.structs.replace(RULES.malloc, passing_odds=10**12)
"""Rules by which nobody else takes anything meanwhile."""


def in_ledger(requests: list[Request], held: int = 0, rules=ALONE) -> tuple[RunMemory, ...]:
    return simulate_runs_without_arena(requests, held, LoadedHeap(0), rules, RULES.arena)


def pair(number: int, size: int, **how: bool) -> list[Request]:
    return [Request(number, size, takes, **how) for takes in (True, False)]


@pytest.mark.parametrize(
    ("requests", "asked"),
    [
        (pair(1, 5000, in_block=False), ["+160", "+5000 at 64", "write", "+32", "-5000", "-160", "-32"]),
        (pair(0, 5000, in_block=False), ["+160", "+5000 at 64", "write", "+32", "-5000", "-160", "-32"]),
        (pair(-1, 700, in_block=False), ["+700 at 64", "write", "+16", "-700", "-16"]),  # workspace
        (pair(1, 0, in_block=False), ["+160", "+32", "-160", "-32"]),  # a value in another's buffer
        (
            pair(1, 9000, in_block=False, is_written=False),
            ["+160", "+9000 at 64", "+32", "-9000 unwritten", "-160 unwritten", "-32 unwritten"],
        ),
    ],
)
def test_a_tensor_lies_between_small_blocks_that_live_as_long(ledger, requests, asked):
    in_ledger(requests)
    assert ledger.asked == 6 * asked
    assert ledger.live == []


IN_BLOCK = [
    Request(1, 1000, True),
    Request(2, 300, True, in_block=False),  # an output
    Request(3, 2000, True),
    Request(1, 1000, False),
    *pair(-1, 70, in_block=False),
    Request(3, 2000, False),
]
BLOCK_BYTES = 1024 + 2048  # in units of 256


@pytest.mark.parametrize(
    ("held", "later"),
    [(0, [BLOCK_BYTES + 370]), (1, [BLOCK_BYTES + 670]), (2, [BLOCK_BYTES + 670, BLOCK_BYTES + 970])],
)
def test_later_runs_hold_the_block_what_has_no_place_in_it_and_outputs_of_the_caller(ledger, held, later):
    found = [run.resident_bytes for run in in_ledger(IN_BLOCK, held)]
    assert found == [3300, *later, *later[-1:] * (5 - len(later))]
    assert ledger.resident_bytes == 300 * held


def test_tensors_in_the_block_still_take_their_small_blocks(ledger):
    in_ledger(IN_BLOCK)
    first = ledger.asked.index(f"+{BLOCK_BYTES} at 64") - 1
    run = ledger.asked[first : first + (len(ledger.asked) - first) // 5]
    small = ["+160", "+32"]
    assert run == [
        *("+160", f"+{BLOCK_BYTES} at 64", "write", "+32"),
        *(*small, "+160", "+300 at 64", "write", "+32", *small, "-160", "-32"),
        *("+70 at 64", "write", "+16", "-70", "-16", "-160", "-32"),
        *(f"-{BLOCK_BYTES}", "-160", "-32", "-300", "-160", "-32"),
    ]


def test_the_heap_grows_by_what_all_runs_so_far_asked_for_anew(ledger):
    found = [run.reserved_bytes for run in in_ledger(pair(1, 5000, in_block=False))]
    assert found == [run * (160 + 5000 + 32) for run in range(1, 7)]


def test_what_was_resident_before_the_first_run_is_not_counted(ledger):
    ledger.resident_bytes, ledger.end = 10**6, 10**6
    found = in_ledger(pair(1, 5000, in_block=False))
    assert [run.resident_bytes for run in found] == [5000] * 6
    assert found[0].reserved_bytes == 160 + 5000 + 32


def test_others_take_a_block_beside_each_tensor_and_hold_it_for_up_to_three_runs(ledger):
    often = msgspec.structs.replace(RULES.malloc, passing_odds=1, passing_bytes=(48, 64))
    requests = [each for number in range(1, 21) for each in pair(number, 5000, in_block=False)]
    in_ledger(requests, rules=often)
    passing = [step for step in ledger.asked if step in ("+48", "+64")]
    assert len(passing) == 6 * 20
    assert set(passing) == {"+48", "+64"}
    tensors = [at for at, step in enumerate(ledger.asked) if step == "+5000 at 64"]
    lengths = [
        sum(since < at < until for at in tensors) for size, since, until in ledger.lives if size in often.passing_bytes
    ]
    assert len(lengths) + len(ledger.live) == 6 * 20  # the last ones are still held
    assert min(lengths) < 5
    assert 55 <= max(lengths) <= 3 * 20


def test_others_take_a_block_beside_one_of_so_many_tensors(ledger):
    requests = [each for number in range(1, 101) for each in pair(number, 5000, in_block=False)]
    in_ledger(requests, rules=RULES.malloc)
    passing = sum(step in ("+48", "+64") for step in ledger.asked)
    assert passing == pytest.approx(6 * 100 / RULES.malloc.passing_odds, rel=0.3)
    # Each is held for less than the tenth part of three runs: what is left was taken in the last of them.
    assert len(ledger.live) < 100 * 3 / RULES.malloc.passing_odds


def test_what_a_process_did_before_leaves_small_free_places_between_others_and_a_threshold(monkeypatch):
    monkeypatch.setattr(no_arena, "Malloc", Ledger)
    heaps = [LoadedHeap(seed).malloc() for seed in range(40)]
    assert {heap.threshold_bytes for heap in heaps} == {212 * 2**10, 500 * 2**10, 2**20, 3 * 2**19}
    assert all(heap.resident_bytes == 0 for heap in heaps)
    taken = [[int(step) for step in heap.asked if step.startswith("+")] for heap in heaps]
    assert {len(each) for each in taken} == {0, 100, 400, 1600}
    sizes = [size for each in taken for size in each]
    assert min(sizes) == 8
    assert 2800 < max(sizes) <= 2**11.5
    assert sum(size < 2**7.25 for size in sizes) == pytest.approx(len(sizes) / 2, rel=0.05)  # most are short
    for heap, each in zip(heaps, taken, strict=True):
        assert len(heap.live) == pytest.approx(len(each) / 2, rel=0.3)
        assert all(step.endswith(" unwritten") for step in heap.asked if step.startswith("-"))


def test_heaps_begin_anywhere_in_a_page():
    starts = [LoadedHeap(seed).malloc().end % PAGE_BYTES for seed in range(40)]
    assert all(start % 16 == 0 for start in starts)
    assert min(starts) < 512
    assert max(starts) > PAGE_BYTES - 512


def test_a_run_that_asks_for_nothing_holds_nothing(ledger):
    assert in_ledger([]) == (RunMemory(0, 0, ()),) * 6


def test_others_hold_a_block_for_less_than_three_runs(ledger):
    """Of two requests each, of which the first is the one beside which it was taken."""
    often = msgspec.structs.replace(RULES.malloc, passing_odds=1, passing_bytes=(48,))
    for seed in range(40):
        simulate_runs_without_arena(pair(1, 5000, in_block=False), 0, LoadedHeap(seed), often, RULES.arena)
    spans = [ledger.asked[since:until] for size, since, until in ledger.lives if size == 48]
    lengths = [1 + span.count("+160") + span.count("-5000") for span in spans]
    assert set(lengths) == {1, 2, 3, 4, 5}
