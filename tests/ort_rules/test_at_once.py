"""Several runs at once in one arena: as single ones where nothing is shared out anew, and more where they meet."""

from __future__ import annotations

import pytest

from remat_cli.ort_rules.arena import LoadedSession, simulate_runs
from remat_cli.ort_rules.at_once import ROUNDS, simulate_at_once
from remat_cli.ort_rules.records import RULES_1_32
from remat_cli.ort_rules.requests import Request
from tests.ort_rules.test_arena import MIB, requests

SESSION = LoadedSession(RULES_1_32.arena)
INSIDE = requests((0, 4 * MIB), (1, 3 * MIB), (0, 0), (2, 5 * MIB), (1, 0))
CHAIN = [*INSIDE, Request(3, 2 * MIB, takes=True, in_block=False), *requests((2, 5 * MIB), (2, 0))[1:]]
"""Its last result is the caller's.
"""


def most(found):
    return max(each.resident_bytes for each in found)


def test_one_run_alone_holds_what_a_single_one_does():
    alone = simulate_runs(CHAIN, ROUNDS, 1, SESSION)
    assert most(simulate_at_once(CHAIN, 1, SESSION)) == most(alone)


@pytest.mark.parametrize("count", [2, 3])
def test_more_runs_hold_more_and_never_less_than_is_live(count):
    fewer, more = (most(simulate_at_once(CHAIN, each, SESSION)) for each in (count - 1, count))
    assert more > fewer
    assert more >= count * 2 * MIB  # their outputs, which the caller holds


def test_the_same_again():
    assert simulate_at_once(CHAIN, 2, SESSION) == simulate_at_once(CHAIN, 2, SESSION)


def test_a_run_that_asks_for_nothing_holds_nothing():
    assert most(simulate_at_once([], 2, SESSION)) == 0


def test_requests_outside_of_the_block_are_asked_for_one_by_one_in_later_runs_too():
    outside = [Request(0, MIB, takes=True, in_block=False), Request(0, MIB, takes=False, in_block=False)]
    assert most(simulate_at_once(outside, 2, SESSION)) >= MIB


def test_callers_hold_outputs_of_one_round_until_the_next_has_ended():
    output = [Request(1, 3 * MIB, takes=True, in_block=False)]
    first, second, *later = simulate_at_once(output, 2, SESSION)
    table = 4 * MIB // 32  # of the region of each
    assert first.resident_bytes == 2 * (3 * MIB + table)
    assert sum(first.new_regions) == first.reserved_bytes == 8 * MIB
    assert second.resident_bytes > first.resident_bytes
    assert all(each.reserved_bytes == second.reserved_bytes for each in later)
    assert all(each.new_regions == () for each in later)


def test_copies_that_loading_left_are_not_counted_for_runs_at_once():
    output = [Request(1, 3 * MIB, takes=True, in_block=False)]
    with_copies = LoadedSession(RULES_1_32.arena, (MIB, 100))
    found = simulate_at_once(output, 2, with_copies)
    before = with_copies.arena().resident_bytes
    assert found[0].resident_bytes < 2 * 3 * MIB + before
    assert found[0].reserved_bytes > simulate_at_once(output, 2, SESSION)[0].reserved_bytes
