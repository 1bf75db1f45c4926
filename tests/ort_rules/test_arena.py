"""The rules of the simulated arena and memory pattern, one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest

from remat_cli.ort_rules import arena as arenas
from remat_cli.ort_rules.arena import Arena, LoadedSession, simulate_runs
from remat_cli.ort_rules.records import RULES_1_32
from remat_cli.ort_rules.requests import Request

KIB, MIB = 2**10, 2**20
RULES = RULES_1_32.arena
pattern_bytes = partial(arenas.pattern_bytes, rules=RULES)


def requests(*steps: tuple[int, int]) -> list[Request]:
    """Requests from (number, bytes); 0 bytes give back."""
    known: dict[int, int] = {}
    found = []
    for number, size in steps:
        found.append(Request(number, size or known[number], bool(size)))
        known[number] = size or known[number]
    return found


def regions_of(*sizes: int) -> list[int]:
    """Regions after requests of so many bytes that stay."""
    arena = Arena(RULES)
    arena.run(Request(number, size, True) for number, size in enumerate(sizes))
    return arena.regions


def test_a_unit_is_taken_even_for_nothing():
    assert [RULES.rounded_bytes(size) for size in (0, 1, 256, 257)] == [256, 256, 256, 512]


def test_regions_double_until_one_fits_and_the_second_of_a_size_makes_the_next_larger():
    assert regions_of(4 * MIB, 4 * MIB, 8 * MIB) == [4 * MIB, 4 * MIB, 8 * MIB]
    assert regions_of(100) == [MIB]
    assert regions_of(1100 * MIB, 1100 * MIB, 1100 * MIB) == [2048 * MIB] * 3


def test_a_chunk_is_cut_only_where_as_much_would_be_left():
    arena = Arena(RULES)
    arena.run(requests((0, 700 * KIB), (0, 0), (1, 400 * KIB)))
    assert arena.regions == [MIB]
    assert arena.held[1].size == 400 * KIB
    arena.run(requests((2, 400 * KIB)))
    assert arena.held[2].size == 624 * KIB  # whole: less than twice as much
    assert arena.touched_bytes == 800 * KIB
    assert arena.resident_bytes == 800 * KIB + MIB // 32


def test_free_neighbours_join():
    arena = Arena(RULES)
    arena.run(requests((0, 256 * KIB), (1, 256 * KIB), (2, 256 * KIB), (0, 0), (2, 0), (1, 0), (3, MIB)))
    assert arena.regions == [MIB]
    assert [chunk.size for chunk in arena.chunks_of(0)] == [MIB]


def test_a_pattern_takes_the_tightest_gap_at_once():
    steps = ((0, 512), (1, 256), (2, 1024), (0, 0), (3, 256), (4, 512))
    assert pattern_bytes(requests(*steps)) == 512 + 256 + 1024 + 512
    assert pattern_bytes(requests((0, 512), (1, 256), (0, 0), (2, 512))) == 768


def test_what_is_above_the_last_live_request_is_a_gap_too():
    steps = ((0, 512), (1, 1024), (2, 512), (3, 1024), (1, 0), (3, 0), (4, 768))
    assert pattern_bytes(requests(*steps)) == 512 + 1024 + 512 + 1024
    assert (
        pattern_bytes(requests(*steps, (5, 1024))) == 512 + 1024 + 512 + 1024
    )  # the gap above fits, the other is left
    tight = ((0, 1280), (1, 512), (2, 1024), (0, 0), (2, 0), (3, 1024), (4, 1280))
    assert pattern_bytes(requests(*tight)) == 1280 + 512 + 1024


def test_a_run_that_leaves_the_arena_as_it_was_is_the_last_that_is_simulated():
    steps = requests((0, 3 * MIB), (1, MIB), (0, 0), (1, 0))
    steps.insert(3, Request(2, 2 * MIB, True, in_block=False))  # an output
    once, *later = simulate_runs(steps, 1000, 1, LoadedSession(RULES))
    assert later[5:] == later[5:6] * len(later[5:])
    assert later[-1].resident_bytes >= once.resident_bytes


def test_what_is_not_written_takes_an_address_and_no_memory():
    arena = Arena(RULES)
    arena.run([Request(0, 3 * MIB, True, is_written=False), Request(0, 3 * MIB, False), Request(1, MIB, True)])
    assert arena.regions == [4 * MIB]
    assert arena.touched_bytes == MIB


def test_where_regions_lie_decides_between_equal_chunks():
    steps = requests((0, 3 * MIB), (1, 3 * MIB), (0, 0), (1, 0), (2, 2 * MIB))
    newest, oldest = (Arena(RULES, newest_first=first) for first in (True, False))
    for arena in (newest, oldest):
        arena.run(steps)
        assert arena.regions == [4 * MIB, 4 * MIB]
    assert newest.held[2].region == 1
    assert oldest.held[2].region == 0


def test_runs_are_simulated_with_new_regions_before_older_ones_unless_told_otherwise():
    sizes = {0: 5, 1: 4, 2: 1, 4: 3}
    order = ((0, True), (1, True), (2, True), (2, False), (4, True), (0, False), (1, False))
    steps = [Request(number, sizes[number] * MIB, takes, in_block=False) for number, takes in order]
    newest, oldest = (simulate_runs(steps, 2, 0, LoadedSession(RULES, newest_first=first)) for first in (True, False))
    assert simulate_runs(steps, 2, 0, LoadedSession(RULES)) == newest
    assert [run.new_regions for run in newest] == [run.new_regions for run in oldest] == [(8 * MIB, 8 * MIB), ()]
    assert newest[0] == oldest[0]
    assert newest[1].resident_bytes > oldest[1].resident_bytes


def test_the_first_run_that_leaves_too_much_is_the_last():
    steps = requests((0, MIB), (0, 0))
    assert len(simulate_runs(steps, 5, 0, LoadedSession(RULES))) == 5
    assert len(simulate_runs(steps, 5, 0, LoadedSession(RULES), most_bytes=1)) == 1
    assert len(simulate_runs(steps, 5, 0, LoadedSession(RULES), most_bytes=2 * MIB)) == 5


def test_layouts_are_alike_where_the_same_bytes_are_held_for_as_long():
    one, swapped, other = Arena(RULES), Arena(RULES), Arena(RULES)
    for arena, numbers in ((one, (1, 2)), (swapped, (2, 1)), (other, (1, 2))):
        for number in numbers:
            arena.take(number, MIB)

    def until_run(number):
        return number

    def until_next(_):
        return 1

    assert one.layout(until_next) == swapped.layout(until_next) == other.layout(until_next)
    assert one.layout(until_run) != swapped.layout(until_run)
    other.take(3, MIB // 2)
    assert one.layout(until_next) != other.layout(until_next)


def test_a_run_that_leaves_the_same_bytes_held_as_one_before_is_steady_whoever_holds_them():
    # Two outputs of one size change places from run to run, beside copies of weights that stay for ever.
    steps = [Request(0, MIB, True, in_block=False), Request(1, MIB, True, in_block=False)]
    runs = arenas._Simulated(tuple(steps), 1, LoadedSession(RULES, (MIB,)))
    served = []
    runs._serve = lambda requests, offset: served.append(offset) or arenas._Simulated._serve(runs, requests, offset)
    found = runs.first(50, None)
    assert len(found) == 50
    assert len(served) < 10


@pytest.mark.parametrize("held", [0, 1, 2])
@pytest.mark.parametrize("newest_first", [True, False])
def test_runs_that_are_told_without_being_simulated_are_as_if_they_were(held, newest_first, monkeypatch):
    rng = random.Random(held + 2 * newest_first)
    for _ in range(30):
        asked = range(rng.randrange(4, 12))
        outputs = set(rng.sample(asked, 3))
        sizes = [rng.choice((100, 3000, MIB // 3, MIB, 2 * MIB)) for _ in asked]
        steps = [Request(at, sizes[at], True, in_block=at not in outputs and rng.random() < 0.3) for at in asked]
        for step in [each for each in steps if each.number not in outputs]:
            place = rng.randrange(steps.index(step) + 1, len(steps) + 1)
            steps.insert(place, replace(step, takes=False))
        session = LoadedSession(RULES, (rng.choice((300, MIB)),) * rng.randrange(3), newest_first)
        found = simulate_runs(steps, 24, held, session)
        with monkeypatch.context() as patched:
            patched.setattr(Arena, "layout", lambda arena, _: object())
            arenas._simulated.cache_clear()
            assert found == simulate_runs(steps, 24, held, session)
        arenas._simulated.cache_clear()


def test_copies_that_loading_leaves_are_held_apart():
    arena = LoadedSession(RULES, (MIB, 2 * MIB)).arena()
    assert sorted(chunk.size for chunk in arena.held.values()) == [MIB, 2 * MIB]


def test_regions_are_taken_as_long_as_callers_hold_more_and_then_no_more():
    output = [Request(0, 3 * MIB, True, in_block=False)]
    found = simulate_runs(output, 6, 2, LoadedSession(RULES))
    taken = [sum(run.new_regions) > 0 for run in found]
    assert taken == [True, True, True, False, False, False]
    assert [run.new_regions for run in found[3:]] == [()] * 3
    assert len({run.resident_bytes for run in found[2:]}) == 1


def test_nothing_has_no_place_in_the_block():
    assert pattern_bytes([Request(0, 0, True)]) == 0


def test_without_tensors_that_have_a_place_in_the_block_later_runs_ask_for_none():
    steps = [Request(0, MIB, True, in_block=False), Request(0, MIB, False, in_block=False)]
    found = simulate_runs(steps, 3, 0, LoadedSession(RULES))
    assert [run.new_regions for run in found] == [(MIB,), (), ()]


def test_what_was_written_is_one_span_where_it_meets():
    arena = Arena(RULES)
    arena.run([Request(0, 256 * KIB, True), Request(1, 256 * KIB, True, is_written=False), Request(2, 128 * KIB, True)])
    assert arena.touched == [[(0, 256 * KIB), (512 * KIB, 640 * KIB)]]
    arena.run([Request(1, 256 * KIB, False), Request(3, 256 * KIB, True)])
    assert arena.held[3].start == 256 * KIB
    assert arena.touched == [[(0, 640 * KIB)]]


def test_what_is_written_over_several_spans_is_counted_once():
    arena = Arena(RULES)
    parts = [Request(number, 128 * KIB, True, is_written=number % 2 == 0) for number in range(7)]
    arena.run([*parts, *[Request(number, 128 * KIB, False) for number in range(6)]])
    assert arena.touched == [[(at * 128 * KIB, (at + 1) * 128 * KIB) for at in (0, 2, 4, 6)]]
    arena.run([Request(7, 700 * KIB, True)])
    assert arena.touched == [[(0, 700 * KIB), (768 * KIB, 896 * KIB)]]
    assert arena.touched_bytes == 828 * KIB


def test_a_chunk_is_cut_where_128_mib_would_be_left():
    for size, taken in ((384 * MIB, 384 * MIB), (384 * MIB + 256, 512 * MIB)):
        arena = Arena(RULES)
        arena.take(0, size)
        assert arena.regions == [512 * MIB]
        assert arena.held[0].size == taken


def test_copies_that_loading_left_are_not_counted_for_runs():
    steps = requests((0, 3 * MIB), (1, 2 * MIB), (0, 0), (1, 0))
    found = simulate_runs(steps, 3, 0, LoadedSession(RULES, (MIB, 100)))
    arena = LoadedSession(RULES, (MIB, 100)).arena()
    before = arena.resident_bytes
    arena.run(steps)
    assert found[0].resident_bytes == arena.resident_bytes - before < arena.resident_bytes
    assert len(arena.held) == 2


def test_a_run_that_leaves_just_as_much_as_is_allowed_is_not_the_last():
    steps = requests((0, MIB), (0, 0))
    held = simulate_runs(steps, 1, 0, LoadedSession(RULES))[0].resident_bytes
    assert len(simulate_runs(steps, 5, 0, LoadedSession(RULES), most_bytes=held)) == 5
    assert len(simulate_runs(steps, 5, 0, LoadedSession(RULES), most_bytes=held - 1)) == 1


def test_a_run_that_asks_for_nothing_holds_nothing():
    found = simulate_runs([], 3, 1, LoadedSession(RULES))
    assert [(run.resident_bytes, run.reserved_bytes) for run in found] == [(0, 0)] * 3
