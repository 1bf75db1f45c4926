"""The rules of glibc's heap by hand."""

from __future__ import annotations

from functools import reduce

from remat_cli.ort_rules.heaps.heap import (
    FIRST_THRESHOLD_BYTES,
    HEADER_BYTES,
    LARGEST_THRESHOLD_BYTES,
    SLACK_BYTES,
    Heap,
)

MIB = 2**20


def after(*sizes: int, places: int = 0) -> Heap:
    return reduce(Heap.after, sizes, Heap(places=places))


def test_the_first_large_block_goes_back_and_lifts_the_threshold():
    heap = after(16 * MIB)
    assert heap.held_bytes == 0
    assert heap.threshold_bytes == 16 * MIB + 4096
    assert heap.during(16 * MIB) == 16 * MIB


def test_the_next_of_its_size_stays_at_the_end_and_is_taken_again():
    assert after(16 * MIB, 16 * MIB).held_bytes == 16 * MIB
    assert after(16 * MIB, 16 * MIB, 16 * MIB, 3 * MIB).held_bytes == 16 * MIB


def test_rising_sizes_all_go_back():
    assert after(2 * MIB, 3 * MIB, 30 * MIB).held_bytes == 0


def test_blocks_above_the_largest_threshold_always_go_back():
    heap = after(64 * MIB, 64 * MIB, 32 * MIB, 32 * MIB)
    assert heap.held_bytes == 0
    assert heap.threshold_bytes == FIRST_THRESHOLD_BYTES


def test_small_blocks_lie_in_the_heap_from_the_beginning():
    assert after(100_000).held_bytes == 100_000


def test_blocks_stay_stuck_while_remainders_find_a_place():
    assert after(*[2 * MIB] * 4, places=7).held_bytes == 3 * 2 * MIB
    assert after(*[2 * MIB] * 40, places=7).held_bytes == 8 * 2 * MIB


def test_a_block_that_lifts_the_threshold_to_the_largest_counts_still():
    size_bytes = LARGEST_THRESHOLD_BYTES - HEADER_BYTES
    assert after(size_bytes).threshold_bytes == LARGEST_THRESHOLD_BYTES
    assert after(size_bytes + 1).threshold_bytes == FIRST_THRESHOLD_BYTES


def test_an_end_of_twice_the_threshold_goes_back():
    heap = Heap(threshold_bytes=4 * MIB, end_bytes=0, stuck_bytes=0, places=0)
    assert heap.after(3 * MIB).end_bytes == 3 * MIB
    assert Heap(4 * MIB, 8 * MIB, 0, 0).after(MIB).end_bytes == 0


def test_a_block_is_mapped_from_the_threshold_on_less_what_aligning_it_takes():
    assert Heap().is_mapped(FIRST_THRESHOLD_BYTES - SLACK_BYTES)
    assert not Heap().is_mapped(FIRST_THRESHOLD_BYTES - SLACK_BYTES - 1)
