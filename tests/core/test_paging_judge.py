"""The judge of paged schedules: small ones worked out by hand, and each kind of illegal one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from remat_cli.base.errors import InvalidSchedule, ModelError
from remat_cli.core.paging.paging import Link, PagedProblem, PagedSchedule, PagedTensor, PageTransfer
from remat_cli.core.paging.paging_judge import follow_paging

# Step 0 makes x (4 bytes), which steps 1 and 3 read; step 1 makes y (2), which step 2 reads; step 2 needs 5 besides.
X, Y = 0, 1
PROBLEM = PagedProblem(
    durations_ns=(2, 3, 4, 1),
    workspace_bytes=(0, 0, 5, 0),
    tensors=(PagedTensor(4, (0, 1, 3)), PagedTensor(2, (1, 2))),
    budget_bytes=9,
    link=Link(1, 1),
)
PAGED = PagedSchedule((0, 2, 6, 14), (PageTransfer(X, "write", 2), PageTransfer(X, "read", 10, 1)))


def judge(schedule: PagedSchedule, **changes):
    return follow_paging(replace(PROBLEM, **changes), schedule)


def test_nothing_paged():
    run = judge(PagedSchedule((0, 2, 5, 9)))
    assert (run.makespan, run.stall, run.peak_bytes) == (10, 0, 11)
    assert run.curve == ((0, 4), (2, 6), (5, 11), (9, 4), (10, 0))


def test_bytes_leave_when_the_write_is_over_and_are_there_from_the_start_of_the_read():
    """Step 2 waits a nanosecond for the write, step 3 four for the read, which finds room when step 2 ends."""
    run = judge(PAGED)
    assert (run.makespan, run.stall, run.peak_bytes) == (15, 5, 7)
    assert run.curve == ((0, 4), (2, 6), (6, 7), (10, 4), (15, 0))


def test_a_step_before_the_write_is_over_has_its_bytes_too():
    assert judge(replace(PAGED, starts=(0, 2, 5, 14))).peak_bytes == 11


def test_a_read_takes_all_its_room_at_once():
    early = PagedSchedule((0, 2, 6, 13), (PageTransfer(X, "write", 2), PageTransfer(X, "read", 9, 1)))
    assert judge(early).peak_bytes == 11


def test_bytes_stay_while_a_step_reads_them_though_the_write_is_over():
    slow = replace(PROBLEM, durations_ns=(2, 9, 4, 1))
    run = follow_paging(
        slow, PagedSchedule((0, 2, 11, 19), (PageTransfer(X, "write", 2), PageTransfer(X, "read", 15, 1)))
    )
    assert run.curve == ((0, 4), (2, 6), (11, 7), (15, 4), (20, 0))


def test_both_directions_of_a_link_take_their_own_time():
    link = Link(write_bytes=2, read_bytes=3, per_ns=1)
    assert (link.ticks, link.write_ticks, link.read_ticks) == (6, 3, 2)
    # in sixths: x is out at 24, in time for step 2 at 30; back 8 later
    run = judge(
        PagedSchedule((0, 12, 30, 62), (PageTransfer(X, "write", 12), PageTransfer(X, "read", 54, 1))), link=link
    )
    assert (run.makespan, run.stall, run.peak_bytes) == (68, 8, 7)


def test_a_bandwidth_that_is_no_whole_number():
    link = Link.of(Fraction(3, 2))
    assert (link.ticks, link.write_ticks, link.read_ticks) == (3, 2, 2)
    assert Link.of(Fraction(1, 2), is_duplex=True) == Link(1, 1, 2, True)


def test_measured_bandwidths():
    assert Link.measured(12.2e9, 11.73e9) == Link(122, 117, 10)
    assert Link.measured(4.4e6, 4.6e6, is_duplex=True) == Link(440, 460, 100_000, True)
    assert Link.measured(5e8, 1.2e12) == Link(500, 1_200_000, 1000)
    assert Link.measured(3e11, 3e11) == Link(300, 300, 1)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ModelError, match="moves nothing"):
            Link.measured(1e9, rate)
        with pytest.raises(ModelError, match="moves nothing"):
            Link.measured(rate, 1e9)


def test_a_hosted_tensor_needs_no_write_and_may_come_late():
    problem = replace(PROBLEM, tensors=(PagedTensor(4, (-1, 3), is_hosted=True), PROBLEM.tensors[1]))
    there = follow_paging(problem, PagedSchedule((0, 2, 5, 9)))
    late = follow_paging(problem, PagedSchedule((0, 2, 5, 13), (PageTransfer(X, "read", 9, 0),)))
    assert there.peak_bytes == 11
    assert (late.peak_bytes, late.makespan) == (7, 14)


def test_one_write_serves_every_gap():
    problem = PagedProblem((1, 1, 1), (0, 0, 0), (PagedTensor(1, (0, 1, 2)),), 1, Link(1, 1))
    moves = (PageTransfer(0, "write", 1), PageTransfer(0, "read", 2, 0), PageTransfer(0, "read", 4, 1))
    run = follow_paging(problem, PagedSchedule((0, 3, 5), moves))
    assert run.curve == ((0, 1), (6, 0))
    gone = replace(problem, tensors=(PagedTensor(1, (0, 1, 2)), PagedTensor(3, (0,))))
    assert follow_paging(gone, PagedSchedule((0, 3, 5), moves)).peak_bytes == 4


def test_a_kept_tensor_stays_to_the_end():
    problem = replace(PROBLEM, tensors=(PagedTensor(4, (0, 1), is_kept=True), PROBLEM.tensors[1]))
    assert follow_paging(problem, PagedSchedule((0, 2, 5, 9))).curve[-2:] == ((9, 4), (10, 0))


def test_both_directions_at_once_on_a_duplex_link_only():
    tensors = (PagedTensor(4, (0, 3)), PagedTensor(2, (-1, 3), is_hosted=True))
    problem = replace(PROBLEM, tensors=tensors)
    moves = (PageTransfer(0, "write", 2), PageTransfer(1, "read", 3, 0), PageTransfer(0, "read", 9, 0))
    both = PagedSchedule((0, 2, 5, 13), moves)
    with pytest.raises(InvalidSchedule, match="two transfers at once: one starts at 3, another ends at 6"):
        follow_paging(problem, both)
    assert follow_paging(replace(problem, link=Link(1, 1, is_duplex=True)), both).makespan == 14


W, R = PageTransfer(X, "write", 2), PageTransfer(X, "read", 10, 1)
ILLEGAL = [
    ((0, 2, 5), (), "3 starts for 4 steps"),
    ((0, 1, 6, 14), (W, R), "step 1 starts at 1, before 2"),
    ((0, 2, 6, 14), (R,), "read at 10, but was never written"),
    ((0, 2, 6, 14), (W, W, R), "two transfers at once"),
    ((0, 2, 6, 14), (W, PageTransfer(X, "write", 6), R), "written twice"),
    ((0, 2, 6, 14), (PageTransfer(X, "write", 1), R), "written at 1, before it is made at 2"),
    ((0, 2, 6, 13), (W, R), "there at 14, too late for step 3"),
    ((0, 2, 6, 14), (PageTransfer(X, "write", 7), R), "two transfers at once"),
    ((0, 2, 6, 14), (W, PageTransfer(X, "read", 10, 2)), "may not be away in gap 2"),
    ((0, 2, 6, 18), (W, R, PageTransfer(X, "read", 14, 1)), "read twice in gap 1"),
]


@pytest.mark.parametrize(("starts", "transfers", "reason"), ILLEGAL)
def test_illegal_schedules(starts, transfers, reason):
    with pytest.raises(InvalidSchedule, match=reason):
        judge(PagedSchedule(starts, transfers))


def test_a_read_before_the_bytes_have_gone():
    slow = replace(PROBLEM, durations_ns=(2, 9, 4, 1))
    with pytest.raises(InvalidSchedule, match="tensor 0 is read at 10, before it has gone at 11"):
        follow_paging(slow, PagedSchedule((0, 2, 11, 15), (W, R)))


def test_a_hosted_tensor_is_not_written():
    problem = replace(PROBLEM, tensors=(PagedTensor(4, (-1, 3), is_hosted=True), PROBLEM.tensors[1]))
    with pytest.raises(InvalidSchedule, match="tensor 0 is written, but lies in the larger memory already"):
        follow_paging(problem, PagedSchedule((0, 2, 5, 9), (W,)))


def test_a_kept_tensor_is_never_away():
    problem = replace(PROBLEM, tensors=(PagedTensor(4, (0, 1, 3), is_kept=True), PROBLEM.tensors[1]))
    with pytest.raises(InvalidSchedule, match="tensor 0 may not be away in gap 1"):
        follow_paging(problem, PAGED)


def test_bytes_that_are_changed_in_place_are_written_afterwards():
    problem = replace(PROBLEM, tensors=(PagedTensor(4, (0, 1, 3), final=1), PROBLEM.tensors[1]))
    with pytest.raises(InvalidSchedule, match="tensor 0 is written at 2, before it is made at 5"):
        follow_paging(problem, PAGED)
    late = PagedSchedule((0, 2, 9, 17), (PageTransfer(X, "write", 5), PageTransfer(X, "read", 13, 1)))
    assert follow_paging(problem, late).curve == ((0, 4), (2, 6), (9, 7), (13, 4), (18, 0))


def test_gaps_may_be_closed():
    problem = replace(PROBLEM, tensors=(PagedTensor(4, (0, 1, 3), gaps=(0,)), PROBLEM.tensors[1]))
    with pytest.raises(InvalidSchedule, match="tensor 0 may not be away in gap 1"):
        follow_paging(problem, PAGED)


WRONG = [
    ({"durations_ns": (2, 0, 4, 1)}, "a step takes less than 1 ns"),
    ({"workspace_bytes": (0, 0, 5)}, "4 steps but 3 workspaces"),
    ({"workspace_bytes": (0, 0, -5, 0)}, "negative"),
    ({"tensors": (PagedTensor(-4, (0,)),)}, "negative"),
    ({"tensors": (PagedTensor(4, (3, 1)),)}, r"tensor 0 has uses \(3, 1\)"),
    ({"tensors": (PagedTensor(4, (0, 4)),)}, r"tensor 0 has uses \(0, 4\)"),
    ({"tensors": (PagedTensor(4, ()),)}, r"tensor 0 has uses \(\)"),
    ({"tensors": (PagedTensor(4, (0, 1), is_hosted=True),)}, "tensor 0 is hosted but made by step 0"),
    ({"tensors": (PagedTensor(4, (0, 1), gaps=(1,)),)}, "tensor 0 has gaps"),
    ({"tensors": (PagedTensor(4, (0, 1, 3), gaps=(0,), final=1),)}, "tensor 0 has gaps"),
    ({"tensors": (PagedTensor(4, (0, 1), final=2),)}, "tensor 0 cannot be final at use 2"),
    ({"tensors": (PagedTensor(4, (-1, 1), is_hosted=True, final=1),)}, "tensor 0 cannot be final at use 1"),
]


@pytest.mark.parametrize(("changes", "reason"), WRONG)
def test_what_is_no_problem(changes, reason):
    with pytest.raises(ModelError, match=reason):
        replace(PROBLEM, **changes)


def test_a_link_without_bandwidth():
    with pytest.raises(ModelError, match="none is 0"):
        Link(0, 1)
    with pytest.raises(ModelError, match="none is 0"):
        Link.of(Fraction(0))


def test_what_steps_hold():
    assert PROBLEM.held_bytes() == (4, 6, 11, 4)
    assert PROBLEM.working_bytes() == (4, 6, 7, 4)
    assert PROBLEM.compute_ticks == 10
