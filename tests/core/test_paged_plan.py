"""Plans of one device as sessions that page, and what a file may not say of them."""

from __future__ import annotations

import msgspec
import pytest

from remat_cli.base.errors import ModelError
from remat_cli.core.paging.paged_plan import PagedPlan, file_offsets, paged_plan, read_paging
from remat_cli.core.paging.paged_sessions import (
    MAPPED_FROM_BYTES,
    SessionCosts,
    fresh_pages,
    grouped,
    paged_sessions,
)
from remat_cli.core.paging.paging import PagedSchedule, PageTransfer
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.spill import SpillMemory

# Four ops of 10 ns: a (100 bytes) is read by the second and by the fourth, b by the third, c by the fourth.
PROBLEM = Problem(
    ops=(
        OpSpec((), (0,), (10,), (0,)),
        OpSpec((0,), (1,), (10,), (7,)),
        OpSpec((1,), (2,), (10,), (0,)),
        OpSpec((0, 2), (3,), (10,), (0,)),
    ),
    tensors=(TensorSpec(100, 0), TensorSpec(20, 1), TensorSpec(30, 2), TensorSpec(5, 3, kept=True)),
    memories=(Memory("cpu", 140, 10),),
    devices=(Device("cpu", 0),),
)
SIZES = (100, 20, 30, 5)
MEMORY = SpillMemory(folder="/x", write_bytes_per_second=2e10, read_bytes_per_second=2e10)  # 100 bytes in 5 ns


def planned() -> tuple[Plan, PagedPlan]:
    plan = baseline(PROBLEM)
    firsts = (0, 1, 2, 3)
    sessions = paged_sessions(PROBLEM, plan, firsts, MEMORY.link, SessionCosts(SIZES))
    ticks = MEMORY.link.ticks
    schedule = PagedSchedule(
        tuple(t * ticks for t in (0, 10, 20, 35, 45)),
        (PageTransfer(0, "write", 10 * ticks), PageTransfer(0, "read", 30 * ticks, 1)),
    )
    return plan, paged_plan(sessions, firsts, SessionCosts(SIZES), MEMORY, schedule)


def test_sessions_hold_what_they_are_given_and_what_they_give():
    plan = baseline(PROBLEM)
    found = paged_sessions(PROBLEM, plan, (0, 2), MEMORY.link, SessionCosts(SIZES, call_ns=3))
    problem = found.problem
    assert problem.durations_ns == (23, 23, 1)
    # inside the first session only workspace, inside the second the value that does not leave it
    assert problem.workspace_bytes == (7, 30, 0)
    # at the end the output is handed over, and until then it may be away
    assert problem.tensors[2].open_gaps == (0,)
    assert [(t.size_bytes, t.uses) for t in problem.tensors] == [(100, (0, 1)), (20, (0, 1)), (5, (1, 2))]
    assert problem.budget_bytes == 130


def test_pages_that_a_session_takes_for_itself_cost_time():
    large = 3 * MAPPED_FROM_BYTES  # of the tensor that lives in the second session alone, and of workspace there
    ops = (*PROBLEM.ops[:3], msgspec.structs.replace(PROBLEM.ops[3], workspace_bytes=(MAPPED_FROM_BYTES,)))
    tensors = (*PROBLEM.tensors[:2], msgspec.structs.replace(PROBLEM.tensors[2], size_bytes=large), PROBLEM.tensors[3])
    problem = msgspec.structs.replace(PROBLEM, ops=ops, tensors=tensors)
    plan = baseline(problem)
    sizes = (100, 20, large, 5)
    found = paged_sessions(problem, plan, (0, 2), MEMORY.link, SessionCosts(sizes, fresh_page_ns=2))
    assert fresh_pages(problem, plan, found.cut) == [0, 64]
    assert found.problem.durations_ns == (20, 20 + 2 * 64, 1)
    # where it is handed on it has a buffer that is kept
    apart = paged_sessions(problem, plan, (0, 2, 3), MEMORY.link, SessionCosts(sizes, fresh_page_ns=2))
    assert apart.problem.durations_ns == (20, 10, 10 + 2 * 16, 1)


def test_sessions_are_of_about_equal_time_and_keep_in_place_ops_together():
    assert grouped(PROBLEM, baseline(PROBLEM), 20) == (0, 2)
    assert grouped(PROBLEM, baseline(PROBLEM), 0) == (0, 1, 2, 3)
    second = msgspec.structs.replace(PROBLEM.ops[2], in_place=((1, 2),))
    pair = msgspec.structs.replace(PROBLEM, ops=(*PROBLEM.ops[:2], second, PROBLEM.ops[3]))
    assert grouped(pair, baseline(pair), 20) == (0, 3)


def test_a_schedule_is_told_by_its_rules_and_judged():
    _, found = planned()
    paging = found.paging
    # The read waits for the third session, in which a is away, and the fourth for the read.
    assert (paging.time_ns, paging.stall_ns) == (46, 5)
    assert (paging.written_bytes, paging.read_bytes, paging.file_bytes) == (100, 100, 4096)
    assert found.held_bytes == (100, 127, 50, 135)
    assert paging.peak_bytes == 135
    assert file_offsets(found.sessions.problem, paging.rules) == {0: 0}


def test_a_file_that_says_it_is_read_back():
    plan, found = planned()
    roomy = PROBLEM.with_budget(150)
    assert read_paging(roomy, plan, found.paging, SIZES).run == found.run


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"time_ns": 45}, "paging.time_ns is 45, and the judge says 46"),
        ({"firsts": (1, 2)}, "sessions do not begin"),
        ({"firsts": (0, 9)}, "sessions do not begin"),
        ({"call_ns": -1}, "call_ns is -1"),
        ({"firsts": (0, 2)}, "speak of what is not there"),
    ],
)
def test_a_file_cannot_say_what_does_not_follow(change, reason):
    plan, found = planned()
    told = msgspec.structs.replace(found.paging, **change)
    with pytest.raises(ModelError, match=reason):
        read_paging(PROBLEM.with_budget(150), plan, told, SIZES)


def test_rules_that_wait_for_each_other_are_none():
    plan, found = planned()
    rules = found.paging.rules
    ((write, read),) = rules.lanes
    late = msgspec.structs.replace(write, after_step=3)
    for lanes, reason in (
        (((late, read),), "waits for itself"),
        (((msgspec.structs.replace(write, after_step=9), read),), "not there"),
        (((msgspec.structs.replace(read, after_step=0), write),), "not legal"),
    ):
        told = msgspec.structs.replace(found.paging, rules=msgspec.structs.replace(rules, lanes=lanes))
        with pytest.raises(ModelError, match=reason):
            read_paging(PROBLEM.with_budget(150), plan, told, SIZES)


def test_a_budget_that_does_not_hold_it_is_said():
    plan, found = planned()
    with pytest.raises(ModelError, match="more than its budget"):
        read_paging(PROBLEM, plan, found.paging, SIZES)
