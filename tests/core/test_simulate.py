"""Schedules worked out by hand. M = memory during each step, in bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.plan import Compute, Copy, Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.timeline import time_of
from tests.core.naive_judge import judge
from tests.strategies import problems, schedules


def op(inputs, outputs, time=1, workspace=0, **rest):
    return OpSpec(tuple(inputs), tuple(outputs), (time,), (workspace,), **rest)


def one_device(ops, tensors, fixed=0):
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40, fixed),), (Device("cpu", 0),))


def chain(sizes, **rest):
    ops = [op([i - 1] if i else [], [i], time=i + 1) for i in range(len(sizes))]
    return one_device(ops, [TensorSpec(size, i) for i, size in enumerate(sizes)], **rest)


def test_chain_frees_after_the_last_read():
    # M: 5 | 5+7 | 7+2
    plan = baseline(chain([5, 7, 2]))
    assert plan.memory_bytes == ((5, 12, 9),)
    assert (plan.peak, plan.time_ns, plan.recomputed_ops) == (12, 6, 0)


def test_fixed_part_is_in_every_step():
    assert baseline(chain([5, 7], fixed=100)).memory_bytes == ((105, 112),)


def test_skip_connection_recomputed_instead_of_kept():
    # a(6) -> b(5) -> c(4) -> d reads c and a.  Kept: 6 | 11 | 6+5+4=15 | 6+4+1=11.
    problem = one_device(
        [op([], [0], 9), op([0], [1]), op([1], [2]), op([0, 2], [3])],
        [TensorSpec(6, 0), TensorSpec(5, 1), TensorSpec(4, 2), TensorSpec(1, 3)],
    )
    assert baseline(problem).memory_bytes == ((6, 11, 15, 11),)
    # Recomputed before d: 6 | 11 | 5+4 | 4+6 | 11
    plan = simulate(problem, Schedule.of_ops([0, 1, 2, 0, 3]))
    assert plan.memory_bytes == ((6, 11, 9, 10, 11),)
    assert (plan.time_ns, plan.recomputed_ops) == (21, 1)
    assert plan.reads[4] == (3, 2)  # d reads the second instance of a


def test_kept_output_stays_and_unread_output_dies_at_its_own_step():
    problem = one_device(
        [op([], [0, 1]), op([0], [2])], [TensorSpec(4, 0, kept=True), TensorSpec(3, 0), TensorSpec(2, 1)]
    )
    # 4+3 | 4+2; then the kept tensor alone, which no step shows
    assert baseline(problem).memory_bytes == ((7, 6),)
    assert baseline(problem).instances[0].death == 1


def test_only_the_newest_instance_of_a_kept_tensor_is_kept():
    problem = one_device([op([], [0]), op([], [1])], [TensorSpec(4, 0, kept=True), TensorSpec(3, 1)])
    assert simulate(problem, Schedule.of_ops([0, 1, 0])).memory_bytes == ((4, 3, 4),)
    assert simulate(problem, Schedule.of_ops([0, 1])).memory_bytes == ((4, 7),)


def test_workspace_is_held_during_its_step_only():
    problem = one_device([op([], [0], workspace=10), op([0], [1])], [TensorSpec(4, 0), TensorSpec(3, 1)])
    plan = baseline(problem)
    assert plan.memory_bytes == ((14, 7),)
    assert plan.live_bytes == ((4, 7),)


def test_view_shares_storage_and_keeps_it_alive():
    # x(8) -> view v -> w reads v: 8 | 8 | 8+2
    problem = one_device(
        [op([], [0]), op([0], [1]), op([1], [2])], [TensorSpec(8, 0), TensorSpec(8, 1, view_of=0), TensorSpec(2, 2)]
    )
    assert baseline(problem).memory_bytes == ((8, 8, 10),)


def test_recomputed_base_is_new_storage_while_the_view_holds_the_old():
    # x, v=view(x), x again, then a reader of v and x: both storages live: 8 | 8 | 16 | 16+1
    problem = one_device(
        [op([], [0]), op([0], [1]), op([0, 1], [2])], [TensorSpec(8, 0), TensorSpec(8, 1, view_of=0), TensorSpec(1, 2)]
    )
    assert simulate(problem, Schedule.of_ops([0, 1, 0, 2])).memory_bytes == ((8, 8, 16, 17),)


def test_view_that_is_a_model_output_gets_its_own_storage():
    problem = one_device([op([], [0]), op([0], [1])], [TensorSpec(8, 0), TensorSpec(8, 1, view_of=0, kept=True)])
    assert baseline(problem).memory_bytes == ((8, 16),)


def in_place_problem(**second):
    ops = [op([], [0]), op([0], [1], in_place=((0, 1),)), op([1], [2])]
    return one_device(ops, [TensorSpec(8, 0, **second), TensorSpec(8, 1), TensorSpec(1, 2)])


def test_in_place_costs_nothing_for_the_last_reader():
    assert baseline(in_place_problem()).memory_bytes == ((8, 8, 9),)


def test_in_place_needs_a_buffer_when_the_source_is_kept():
    assert baseline(in_place_problem(kept=True)).memory_bytes == ((8, 16, 17),)


def test_in_place_needs_a_buffer_when_another_reader_comes():
    ops = [op([], [0]), op([0], [1], in_place=((0, 1),)), op([0, 1], [2])]
    problem = one_device(ops, [TensorSpec(8, 0), TensorSpec(8, 1), TensorSpec(1, 2)])
    assert baseline(problem).memory_bytes == ((8, 16, 17),)


def test_in_place_needs_a_buffer_when_a_view_of_the_source_is_read_later():
    ops = [op([], [0]), op([0], [1]), op([0], [2], in_place=((0, 2),)), op([1, 2], [3])]
    tensors = [TensorSpec(8, 0), TensorSpec(8, 1, view_of=0), TensorSpec(8, 2), TensorSpec(1, 3)]
    assert baseline(one_device(ops, tensors)).memory_bytes == ((8, 8, 16, 17),)


def test_in_place_needs_a_buffer_when_the_op_reads_the_storage_twice():
    ops = [op([], [0]), op([0], [1]), op([0, 1], [2], in_place=((0, 2),))]
    tensors = [TensorSpec(8, 0), TensorSpec(8, 1, view_of=0), TensorSpec(8, 2)]
    assert baseline(one_device(ops, tensors)).memory_bytes == ((8, 8, 16),)


def test_in_place_needs_a_buffer_when_the_same_op_gives_out_a_view_of_the_source():
    # 8 | the view in x, the other result of its own: 16
    ops = [op([], [0]), op([0], [1, 2], in_place=((0, 2),))]
    tensors = [TensorSpec(8, 0), TensorSpec(8, 1, view_of=0), TensorSpec(8, 1)]
    assert baseline(one_device(ops, tensors)).memory_bytes == ((8, 16),)


def test_of_two_results_that_could_be_in_place_the_first_is():
    # 8 | x becomes the first result, the second needs 8 more, although nobody reads either
    ops = [op([], [0]), op([0], [1, 2], in_place=((0, 1), (0, 2)))]
    plan = baseline(one_device(ops, [TensorSpec(8, 0), TensorSpec(8, 1), TensorSpec(8, 1)]))
    assert plan.memory_bytes == ((8, 16),)
    assert [instance.storage for instance in plan.instances] == [0, 0, 1]


def test_a_memory_in_which_nothing_happens_holds_its_fixed_part():
    problem = Problem((), (), (Memory("cpu", 99, fixed_bytes=7),), (Device("cpu", 0),))
    assert simulate(problem, Schedule(())).peak_bytes == (7,)


def overlapping(copied):
    """On the CPU j makes a (4 bytes), k takes long, m ends; on the way a and b go to a GPU, where g reads both."""
    none, there = (None,) * 5, (1,) * 5
    times = ((1, None), (10, None), (1, None), (None, 1), (1, None))
    reads, makes = ((), (), (1,), (0, 1), (2,)), ((0,), (1,), (2,), (3,), (4,))
    return Problem(
        ops=tuple(OpSpec(*each, (0, 0)) for each in zip(reads, makes, times, strict=True)),
        tensors=tuple(TensorSpec(size, producer) for producer, size in enumerate(copied)),
        memories=(Memory("cpu", 99), Memory("gpu", 99)),
        devices=(Device("cpu", 0), Device("gpu", 1)),
        copy_ns=((none, there), (there, none)),
        overlap=True,
    )


def test_what_is_copied_waits_for_the_first_compute_behind_it_that_begins_after_it():
    # Compute k was planned to begin after the copy of a would be over, but stands before it: it cannot tell.
    steps = (Compute(0, 0), Compute(1, 0), Compute(2, 0), Copy(0, 0, 1), Copy(1, 0, 1), Compute(3, 1), Compute(4, 0))
    plan = simulate(overlapping((4, 8, 16, 1, 1)), Schedule(steps))
    assert plan.memory_bytes[0] == (4, 12, 28, 28, 28, 16, 17)
    assert plan == judge(overlapping((4, 8, 16, 1, 1)), Schedule(steps))


def test_copies_hold_both_ends_and_devices_may_share_a_memory():
    ops = (
        OpSpec((), (0,), (3, 5, None), (0, 0, 0)),
        OpSpec((0,), (1,), (None, 2, None), (0, 0, 0)),
    )
    none = (None, None)
    problem = Problem(
        ops=ops,
        tensors=(TensorSpec(4, 0), TensorSpec(2, 1)),
        memories=(Memory("cpu", 99), Memory("gpu", 99, fixed_bytes=10)),
        devices=(Device("cpu", 0), Device("gpu", 1), Device("cpu2", 0)),
        copy_ns=((none, (7, 7), none), ((7, 7), none, (7, 7)), (none, (7, 7), none)),
    )
    plan = simulate(problem, Schedule((Compute(0, 0), Copy(0, 0, 1), Compute(1, 1))))
    assert plan.memory_bytes == ((4, 4, 0), (10, 14, 16))
    assert (plan.peak_bytes, plan.time_ns) == ((4, 16), 12)
    with pytest.raises(InvalidSchedule, match="cannot be copied"):
        simulate(problem, Schedule((Compute(0, 0), Copy(0, 0, 2), Compute(1, 1))))
    with pytest.raises(InvalidSchedule, match=r"step 1 \(op 1\) reads tensor 0, which is not there"):
        simulate(problem, Schedule((Compute(0, 0), Compute(1, 1))))
    with pytest.raises(InvalidSchedule, match=r"step 0 \(copy of 0\) reads tensor 0, which is not there"):
        simulate(problem, Schedule((Copy(0, 0, 1), Compute(0, 0), Compute(1, 1))))
    near = replace(problem, copy_ns=((none, (7, 7), (7, 7)), ((7, 7), none, (7, 7)), ((7, 7), (7, 7), none)))
    with pytest.raises(InvalidSchedule, match="tensor 0 cannot be copied 0->2"):  # they share a memory
        simulate(near, Schedule((Compute(0, 0), Copy(0, 0, 2), Compute(1, 1))))
    with pytest.raises(InvalidSchedule, match="device 0 cannot run op 1"):
        simulate(problem, Schedule((Compute(0, 0), Compute(1, 0))))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([0, 2, 1], "reads tensor 1, which is not there"),
        ([0, 1], "op 2 never runs"),
        ([0, 1, 2, 7], "no op 7"),
        ([0, 1, 2, 3], "no op 3"),
        ([0, 1, 2, -1], "no op -1"),
        ([], "op 0 never runs"),
    ],
)
def test_illegal_schedules_are_refused(steps, message):
    with pytest.raises(InvalidSchedule, match=message):
        simulate(chain([1, 1, 1]), Schedule.of_ops(steps))


@pytest.mark.parametrize("device", [-1, 1, 2])
def test_a_step_on_no_device_is_refused(device):
    with pytest.raises(InvalidSchedule, match=f"step 1: no op 1 or no device {device}"):
        simulate(chain([1, 1, 1]), Schedule((Compute(0, 0), Compute(1, device), Compute(2, 0))))


def test_repeating_an_unrepeatable_op_is_refused():
    problem = one_device([op([], [0], repeatable=False)], [TensorSpec(1, 0)])
    with pytest.raises(InvalidSchedule, match="must not be repeated"):
        simulate(problem, Schedule.of_ops([0, 0]))


@given(st.data())
def test_a_plan_follows_the_definition_and_never_goes_below_the_floor(data):
    problem = data.draw(problems())
    plan = simulate(problem, data.draw(schedules(problem)))
    assert plan == judge(problem, plan.schedule)
    assert plan.time_ns == time_of(problem, plan.schedule)
    assert plan.peak >= working_set_floor(problem).bytes[0]
    assert plan.time_ns >= problem.baseline_time_ns


@given(st.data())
def test_without_sharing_memory_is_the_sum_of_live_tensors(data):
    problem = data.draw(problems(sharing=False))
    plan = simulate(problem, data.draw(schedules(problem)))
    for number, total in enumerate(plan.live_bytes[0]):
        alive = [i for i in plan.instances if i.birth <= number <= i.death]
        assert total == problem.memories[0].fixed_bytes + sum(problem.tensors[i.tensor].size_bytes for i in alive)
