"""A live budget for a process, found from outside: the fastest plan that fits, and no more plans than are needed."""

from __future__ import annotations

from types import SimpleNamespace

from remat_cli.compiling.process.within_process import fastest_within
from remat_cli.core.values.budget import Budget

MOST_BYTES = 1000


def searched(tries: int, needs, slowest_ns: int = 2000, uncounted_bytes: int = 0):
    """Plans that are the faster the more may be live, down to 1000 ns, and what was asked for."""
    asked: list[int] = []

    def plan_for(target_bytes: int):
        asked.append(target_bytes)
        question = SimpleNamespace(baseline=SimpleNamespace(time_ns=1000))
        return SimpleNamespace(
            written=SimpleNamespace(promised_bytes=target_bytes),
            plan=SimpleNamespace(time_ns=max(1000, slowest_ns - target_bytes)),
            answer=SimpleNamespace(question=question),
        )

    budget = Budget(MOST_BYTES, "process", "typed")
    best = fastest_within(budget, uncounted_bytes, tries, plan_for, lambda found: needs(found.written.promised_bytes))
    return best, asked


def test_what_costs_nothing_is_taken_at_once():
    found, asked = searched(6, lambda live: live, slowest_ns=1000)
    assert found is not None
    assert len(asked) == 1


def test_room_that_is_left_is_used():
    found, asked = searched(6, lambda live: live // 2)
    assert asked == sorted(asked)
    assert found.written.promised_bytes == MOST_BYTES


def test_too_much_is_taken_off():
    found, asked = searched(6, lambda live: live + 300)
    assert max(asked) == asked[0]
    assert found.written.promised_bytes + 300 <= MOST_BYTES


def test_more_may_be_live_where_some_of_it_is_mapped():
    found, _ = searched(6, lambda live: live - 500, uncounted_bytes=500)
    assert found.written.promised_bytes > MOST_BYTES


def test_the_fastest_of_those_that_fit_is_kept():
    found, asked = searched(3, lambda live: live + (200 if live > 800 else -300))
    assert len(asked) <= 3
    assert found is not None
    assert found.written.promised_bytes <= 800


def test_a_plan_that_fits_is_found_where_halves_of_the_excess_never_get_there():
    found, asked = searched(6, lambda live: live + 500)
    assert found is not None
    assert MOST_BYTES - 600 <= found.written.promised_bytes <= MOST_BYTES - 500
    assert len(asked) <= 6


def test_none_where_none_fits():
    found, asked = searched(4, lambda live: live + 5000)
    assert found is None
    assert all(target > 0 for target in asked)
