"""The forecast of loading by hand; what the figures are above the structure of one op is in bytes."""

from __future__ import annotations

import pytest

from remat_cli.core.load_forecast import LoadedWeight, LoadForecast, load_forecast

MIB = 2**20
OP, WEIGHT, CAPTURED = 4800, 4400, 7100
SESSION = 3 * 2**18


def above_structure(*weights: LoadedWeight) -> LoadForecast:
    captured = sum(weight.is_captured for weight in weights)
    structure = SESSION + OP + WEIGHT * len(weights) + CAPTURED * captured
    found = load_forecast(weights, 1)
    return LoadForecast(
        found.load_peak_bytes - structure, found.loaded_bytes - structure, found.mapped_bytes, found.reused_bytes
    )


def inside(size: int, packed: int = 0, **how: bool) -> LoadedWeight:
    return LoadedWeight(size, packed, **how)


def mapped(size: int, packed: int = 0, **how: bool) -> LoadedWeight:
    return LoadedWeight(size, packed, is_mapped=True, **how)


def test_a_session_without_weights():
    assert load_forecast([], 10) == LoadForecast(SESSION + 10 * OP, SESSION + 10 * OP, 0, 0)


def test_a_weight_inside_is_there_twice_for_a_moment():
    assert above_structure(inside(2 * MIB), inside(8 * MIB)) == LoadForecast(18 * MIB, 10 * MIB, 0, 0)


def test_many_weights_are_read_through_a_buffer():
    """64 weights of 256 KiB: the buffer of 4 MiB is more than one of them and the structure together."""
    found = load_forecast([inside(MIB // 4)] * 64, 1)
    assert found.load_peak_bytes == 20 * MIB


def test_small_weights_of_one_size_take_it_twice():
    """An aligned block needs 96 bytes more than the one that was freed; 1 MiB is copied meanwhile."""
    found = above_structure(inside(100_000), inside(100_000), inside(99_905), inside(MIB))
    assert found == LoadForecast(2 * MIB + 599_810, MIB + 599_810, 0, 0)


def test_a_small_weight_lies_where_a_larger_one_was_read():
    """60 000 is copied into the place of 100 000, 30 000 into what is left of that."""
    found = above_structure(inside(100_000), inside(60_000), inside(30_000))
    assert found.loaded_bytes == 190_000 + 10_000 + 60_000 + 30_000


def test_weights_that_are_mapped_when_they_are_read_leave_no_place():
    assert above_structure(inside(217_088), inside(217_088)).loaded_bytes == 2 * 217_088
    assert above_structure(inside(217_087), inside(217_087)).loaded_bytes == 4 * 217_087


def test_copies_may_lie_where_weights_were_read():
    """Not more of them than there are places, and not more than there is to place."""
    small = [inside(100_000)] * 3
    assert above_structure(*small, inside(8 * MIB, 8 * MIB, is_captured=True)).reused_bytes == 300_000
    assert above_structure(*small, inside(300_000, 200_000)).reused_bytes == 200_000
    assert above_structure(*small, mapped(8 * MIB, 8 * MIB)).reused_bytes == 0


def test_the_heap_keeps_originals_of_packed_weights():
    """Three of 4 MiB stay beside copies of 5, unless these lie in their places."""
    found = above_structure(*[inside(4 * MIB, 5 * MIB)] * 3)
    assert found == LoadForecast(27 * MIB, 27 * MIB, 0, 12 * MIB)


def test_large_originals_go_back():
    """6 is above 4, and lifts what counts as large to 6: so 5 is not. 40 is above what it can be lifted to."""
    weights = [inside(size * MIB, size * MIB) for size in (6, 5, 40, 40)]
    found = above_structure(*weights)
    assert found.loaded_bytes == (91 + 5) * MIB
    assert found.reused_bytes == 5 * MIB
    # before the last original goes: 91 of the file, all copies, less the originals of 6 and 40
    assert found.load_peak_bytes == (91 + 91 - 46) * MIB


def test_mapped_weights_come_with_the_first_run():
    """In whole pages."""
    assert above_structure(mapped(8 * MIB), mapped(5000)) == LoadForecast(0, 8 * MIB + 8192, 8 * MIB + 8192, 0)


def test_one_mapped_weight_at_a_time_is_beside_its_copy():
    """Copies of 2, of 2 and 9, of 2 and 9 and 1, and the original of the last one."""
    found = above_structure(mapped(2 * MIB, 2 * MIB), mapped(9 * MIB, 9 * MIB), mapped(MIB, MIB), mapped(7 * MIB))
    assert found == LoadForecast(20 * MIB, 19 * MIB, 7 * MIB, 0)


def test_originals_that_a_branch_reads_from_outside_wait_for_the_last():
    weights = [mapped(size * MIB, size * MIB, is_captured=True) for size in (2, 9, 1)]
    assert above_structure(*weights) == LoadForecast(24 * MIB, 12 * MIB, 0, 0)
    weights = [inside(size * MIB, size * MIB, is_captured=True) for size in (2, 9, 1)]
    assert above_structure(*weights) == LoadForecast(24 * MIB, (24 - 9) * MIB, 0, 0)


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_weight_that_is_read_plainly_too_stays_beside_its_copy(is_captured):
    found = above_structure(mapped(8 * MIB, 8 * MIB, is_read_plainly=True, is_captured=is_captured))
    assert found == LoadForecast(16 * MIB, 16 * MIB, 8 * MIB, 0)
    found = above_structure(inside(8 * MIB, 8 * MIB, is_read_plainly=True, is_captured=is_captured))
    assert found == LoadForecast(16 * MIB, 16 * MIB, 0, 0)


def test_saved_copies_are_mapped_and_what_the_heap_keeps_of_dropped_ones_is_not():
    """Of copies of 2, 9 and 8 MiB it keeps 10, all but the largest; at most there are that one and its original."""
    weights = [mapped(size * MIB, size * MIB, is_saved=True) for size in (2, 9, 8)]
    assert above_structure(*weights) == LoadForecast((9 + 9 + 1) * MIB, (19 + 10) * MIB, 19 * MIB, 0)
    weights = [mapped(size * MIB, size * MIB, is_captured=True, is_saved=True) for size in (2, 9, 8)]
    assert above_structure(*weights) == LoadForecast((19 + 8 + 1) * MIB, (19 + 10) * MIB, 19 * MIB, 0)


@pytest.mark.parametrize("size", [64 * MIB, 8 * MIB])
def test_of_a_single_copy_or_one_that_the_heap_does_not_serve_nothing_is_kept(size):
    assert above_structure(mapped(size, size, is_saved=True)) == LoadForecast(2 * size, size, size, 0)
