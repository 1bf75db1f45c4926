"""The forecast of loading by hand; what the figures are above the structure of one op is in bytes."""

from __future__ import annotations

import pytest

from remat_cli.ort_rules.loading import LoadedFile, LoadedWeight, LoadForecast, LoadRules, load_forecast
from remat_cli.ort_rules.records import RULES_1_31, RULES_1_32

MIB = 2**20
OP, WEIGHT, CAPTURED = 4800, 4400, 7100
SESSION = 3 * 2**18


OLD, NEW = RULES_1_31.loading, RULES_1_32.loading


def above_structure(*weights: LoadedWeight, is_primed: bool = False, rules: LoadRules = OLD) -> LoadForecast:
    captured = sum(weight.is_captured for weight in weights)
    structure = SESSION + OP + WEIGHT * len(weights) + CAPTURED * captured + OLD.primed_bytes * is_primed
    found = load_forecast(weights, LoadedFile(1, is_primed=is_primed), rules)
    return LoadForecast(
        found.load_peak_bytes - structure,
        found.loaded_bytes - structure,
        found.mapped_bytes,
        found.reused_bytes,
        found.read_bytes,
    )


def inside(size: int, packed: int = 0, **how: bool) -> LoadedWeight:
    return LoadedWeight(size, packed, **how)


def mapped(size: int, packed: int = 0, **how: bool) -> LoadedWeight:
    return LoadedWeight(size, packed, is_mapped=True, **how)


def test_a_session_without_weights():
    assert load_forecast([], LoadedFile(10), OLD) == LoadForecast(SESSION + 10 * OP, SESSION + 10 * OP, 0, 0)


def test_a_weight_inside_is_there_twice_for_a_moment():
    assert above_structure(inside(2 * MIB), inside(8 * MIB)) == LoadForecast(18 * MIB, 10 * MIB, 0, 0)


def test_many_weights_are_read_through_a_buffer():
    """64 weights of 256 KiB: the buffer of 4 MiB is more than one of them and the structure together."""
    found = load_forecast([inside(MIB // 4)] * 64, LoadedFile(1), OLD)
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


def test_what_a_copy_of_another_weight_takes_of_one_that_stays_is_read_while_loading():
    scales = mapped(MIB, is_read_early=True)
    found = above_structure(scales)
    assert found == LoadForecast(MIB, MIB, mapped_bytes=MIB, reused_bytes=0, read_bytes=MIB)
    late, early = (above_structure(mapped(4 * MIB, 6 * MIB), each) for each in (mapped(MIB), scales))
    assert (early.load_peak_bytes, early.loaded_bytes) == (late.load_peak_bytes + MIB, late.loaded_bytes)


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
    assert found == LoadForecast(16 * MIB, 16 * MIB, 8 * MIB, 0, read_bytes=8 * MIB)
    found = above_structure(inside(8 * MIB, 8 * MIB, is_read_plainly=True, is_captured=is_captured))
    assert found == LoadForecast(16 * MIB, 16 * MIB, 0, 0)


def of_branch(size: int, packed: int = 0) -> LoadedWeight:
    return LoadedWeight(size, packed, is_of_branch=True)


def test_a_weight_of_a_branch_is_there_once_more_and_while_it_is_read_a_third_time():
    """Of what is freed of that the heap keeps what is no larger than the buffer of 4 MiB; a copy passes."""
    assert above_structure(of_branch(2 * MIB)) == LoadForecast(8 * MIB, 6 * MIB, 0, 0)
    assert above_structure(of_branch(4 * MIB)) == LoadForecast(16 * MIB, 12 * MIB, 0, 0)
    assert above_structure(of_branch(8 * MIB)) == LoadForecast(24 * MIB, 16 * MIB, 0, 0)
    mapped_ones = LoadedWeight(8 * MIB, is_of_branch=True, is_mapped=True)
    assert above_structure(mapped_ones) == LoadForecast(0, 8 * MIB, 8 * MIB, 0)


@pytest.mark.parametrize(
    ("count", "size", "packed", "loaded"),
    [
        (5, 2, 2, 5 * (6 + 2) - (10 - 4)),  # copies go where weights were read, but for two
        (1, 2, 2, 6 + 2),
        (5, 4, 4, 5 * (12 + 4) - (20 - 8)),
        (5, 2, 6, 5 * (6 + 6)),  # larger than what the heap keeps
        (5, 8, 2, 5 * (16 + 2)),  # of which it keeps nothing
        (5, 1, 3, 5 * (3 + 3)),  # more than it keeps, less the two largest
    ],
)
def test_packed_copies_of_weights_of_a_branch_lie_where_these_were_read(count, size, packed, loaded):
    """In MiB; the weight stays beside its copy."""
    found = above_structure(*[of_branch(size * MIB, packed * MIB)] * count)
    assert found.loaded_bytes == loaded * MIB
    assert found.load_peak_bytes >= found.loaded_bytes


def test_structure_grows_with_ops_in_branches_and_what_the_arena_holds():
    bare = load_forecast([], LoadedFile(10), OLD)
    more = load_forecast([], LoadedFile(10, nested_ops=4, arena_extra_bytes=1000), OLD)
    assert more.load_peak_bytes == more.loaded_bytes == bare.loaded_bytes + 4 * 3400 + 1000


def saved(size: int, packings: int = 1, **how: bool) -> LoadedWeight:
    return LoadedWeight(size, size, packings=packings, is_mapped=True, is_saved=True, **how)


def test_saved_copies_are_mapped_and_what_the_heap_keeps_of_dropped_ones_is_not():
    """Those of 2 and 9 are mapped one after the other and go back; that of 8 lies in the heap, which keeps it."""
    weights = [saved(size * MIB) for size in (2, 9, 8)]
    assert above_structure(*weights) == LoadForecast(18 * MIB, (19 + 8) * MIB, 19 * MIB, 0)
    weights = [saved(size * MIB, is_captured=True) for size in (2, 9, 8)]
    assert above_structure(*weights) == LoadForecast((19 + 8) * MIB, (19 + 8) * MIB, 19 * MIB, 0)


def test_without_primers_seven_copies_may_stay_and_with_them_one():
    """Of twelve, the first is mapped and goes back."""
    weights = [saved(16 * MIB)] * 12
    assert above_structure(*weights).loaded_bytes == (12 * 16 + 8 * 16) * MIB
    assert above_structure(*weights[:6]).loaded_bytes == (6 * 16 + 5 * 16) * MIB
    primed = above_structure(*weights, is_primed=True)
    assert primed.loaded_bytes == (12 * 16 + 16) * MIB
    assert primed.load_peak_bytes == 2 * 16 * MIB


def test_every_op_that_reads_a_weight_makes_a_copy_of_its_own():
    assert above_structure(saved(16 * MIB, packings=3)).loaded_bytes == (16 + 2 * 16) * MIB
    assert above_structure(saved(16 * MIB, packings=3), is_primed=True).loaded_bytes == (16 + 16) * MIB
    kept = above_structure(mapped(16 * MIB, 16 * MIB), is_primed=True).loaded_bytes
    again = LoadedWeight(16 * MIB, 16 * MIB, packings=3, is_mapped=True)
    assert above_structure(again, is_primed=True).loaded_bytes == kept + 16 * MIB


def test_an_original_stays_until_the_last_op_has_packed_it():
    """Two that ops read in turn are both there beside the copy."""
    weights = [saved(4 * MIB, packings=2), saved(4 * MIB, packings=2)]
    peaks = [
        load_forecast(weights, LoadedFile(4, is_primed=True, packing_order=order), OLD).load_peak_bytes
        for order in ((0, 0, 1, 1), (0, 1, 0, 1))
    ]
    assert peaks[1] - peaks[0] == 4 * MIB


def test_newer_runtimes_read_saved_copies_while_they_load():
    """All of them, beside one copy in the heap and the original that it is made of; with a branch all originals."""
    weights = [saved(16 * MIB)] * 5
    old, new = (above_structure(*weights, is_primed=True, rules=rules) for rules in (OLD, NEW))
    assert new.load_peak_bytes == old.load_peak_bytes + 5 * 16 * MIB == 7 * 16 * MIB
    assert (old.read_bytes, new.read_bytes) == (0, 5 * 16 * MIB)
    assert old.loaded_bytes == new.loaded_bytes
    captured = [saved(16 * MIB, is_captured=True)] * 5
    assert above_structure(*captured, is_primed=True, rules=NEW).load_peak_bytes == 11 * 16 * MIB


@pytest.mark.parametrize("size", [64 * MIB, 8 * MIB])
def test_of_a_single_copy_or_one_that_the_heap_does_not_serve_nothing_is_kept(size):
    assert above_structure(saved(size)) == LoadForecast(2 * size, size, size, 0)


def test_copies_that_stay_in_spite_of_primers_are_room_that_budgets_leave():
    weights = [LoadedWeight(16 * MIB, 16 * MIB, is_mapped=True, is_saved=True) for _ in range(5)]
    usual, rare = (
        load_forecast(weights, LoadedFile(5, is_primed=True, stuck_copies=count), OLD)
        for count in (0, OLD.stuck_copies)
    )
    assert rare.loaded_bytes - usual.loaded_bytes == OLD.stuck_copies * 16 * MIB
    assert rare.load_peak_bytes >= usual.load_peak_bytes
