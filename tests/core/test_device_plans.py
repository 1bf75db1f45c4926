"""Schedules on several devices: the judge against the definition, the timeline, plain placements, and cut plans."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.graph import Graph, Op, Tensor, Weight
from remat_cli.core.schedule.placing import best_device, fastest_schedule, one_device_schedule
from remat_cli.core.schedule.plan import Compute, Copy, Schedule
from remat_cli.core.schedule.problem import (
    Device,
    Memory,
    OpSpec,
    Problem,
    TensorSpec,
    device_tensor_ids,
    input_ops,
    make_device_problem,
)
from remat_cli.core.schedule.segments import Segment, Transfer, cut_plan
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.timeline import time_of, timeline
from remat_cli.core.values.profile import LinkCost, OpCost, Profile, Provenance, Unsupported
from tests.core.naive_judge import judge
from tests.strategies import device_problems, device_schedules

SLOW_START = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def op(inputs, outputs, times, **rest):
    return OpSpec(tuple(inputs), tuple(outputs), tuple(times), (0,) * len(times), **rest)


def two_memories(ops, sizes, copy=3, **rest):
    """CPU and GPU with memories of their own; each copy takes `copy`."""
    tensors = tuple(TensorSpec(size, i) for i, size in enumerate(sizes))
    row = (copy,) * len(sizes)
    return Problem(
        ops=tuple(ops),
        tensors=tensors,
        memories=(Memory("cpu", 2**40), Memory("gpu", 2**40)),
        devices=(Device("cpu", 0), Device("gpu", 1)),
        copy_ns=((row, row), (row, row)),
        **rest,
    )


CHAIN = [op([], [0], [2, 9]), op([0], [1], [9, 2]), op([1], [2], [2, 9])]
OVER_AND_BACK = Schedule((Compute(0, 0), Copy(0, 0, 1), Compute(1, 1), Copy(1, 1, 0), Compute(2, 0)))


@SLOW_START
@given(st.data())
def test_a_plan_follows_the_definition(data):
    problem = data.draw(device_problems())
    plan = simulate(problem, data.draw(device_schedules(problem)))
    assert plan == judge(problem, plan.schedule)
    assert plan.time_ns == time_of(problem, plan.schedule)
    floor = working_set_floor(problem)
    assert all(peak >= least for peak, least in zip(plan.peak_bytes, floor.bytes, strict=True))


@SLOW_START
@given(st.data())
def test_overlap_never_takes_longer_and_never_needs_less(data):
    problem = replace(data.draw(device_problems()), overlap=False)
    schedule = data.draw(device_schedules(problem))
    serial, beside = simulate(problem, schedule), simulate(replace(problem, overlap=True), schedule)
    assert beside.time_ns <= serial.time_ns
    assert all(b >= s for b, s in zip(beside.peak_bytes, serial.peak_bytes, strict=True))


def test_both_ends_of_a_copy_are_held_during_it():
    plan = simulate(two_memories(CHAIN, [5, 7, 1]), OVER_AND_BACK)
    assert plan.memory_bytes == ((5, 5, 0, 7, 8), (0, 5, 12, 7, 0))
    assert plan.time_ns == 2 + 3 + 2 + 3 + 2


def test_a_copy_beside_computes_ends_late_and_holds_its_source_until_it_is_over():
    ops = [op([], [0], [2, None]), op([], [1], [4, None]), op([0], [2], [None, 1])]
    problem = two_memories(ops, [5, 1, 1], copy=3, overlap=True)
    schedule = Schedule((Compute(0, 0), Copy(0, 0, 1), Compute(1, 0), Compute(2, 1)))
    assert timeline(problem, schedule) == ((0, 2), (2, 5), (2, 6), (6, 7))
    plan = simulate(problem, schedule)
    assert plan.memory_bytes == ((5, 5, 6, 0), (0, 5, 5, 6))  # the last compute waits for the copy, then 0 is gone
    assert (plan.time_ns, simulate(replace(problem, overlap=False), schedule).time_ns) == (7, 10)


def test_what_is_copied_out_beside_computes_is_gone_once_the_copy_is_over():
    ops = [op([], [0], [9, 1]), op([], [1], [9, 4]), op([], [2], [9, 4]), op([0, 1, 2], [3], [9, 1])]
    problem = two_memories(ops, [5, 1, 1, 1], copy=3, overlap=True)
    steps = (Compute(0, 1), Copy(0, 1, 0), Compute(1, 1), Compute(2, 1), Copy(0, 0, 1), Compute(3, 1))
    plan = simulate(problem, Schedule(steps))
    assert plan.memory_bytes[1] == (5, 5, 6, 2, 7, 8)  # copied from 1 to 4, while 1 is computed until 5
    assert plan.time_ns == 1 + 4 + 4 + 3 + 1


def test_a_link_takes_one_copy_at_a_time():
    ops = [op([], [0], [1, None]), op([], [1], [1, None]), op([0, 1], [2], [None, 1])]
    schedule = Schedule((Compute(0), Compute(1), Copy(0, 0, 1), Copy(1, 0, 1), Compute(2, 1)))
    assert timeline(two_memories(ops, [1, 1, 1], overlap=True), schedule)[2:] == ((2, 5), (5, 8), (8, 9))


def test_handing_over_to_another_device_costs_its_call():
    problem = two_memories(CHAIN, [5, 7, 1])
    called = replace(problem, devices=(Device("cpu", 0, 10), Device("gpu", 1, 100)))
    assert simulate(called, OVER_AND_BACK).time_ns == simulate(problem, OVER_AND_BACK).time_ns + 110


def test_each_memory_holds_the_weights_of_what_is_computed_there():
    ops = [op([], [0], [2, 9], weights=(0,)), op([0], [1], [9, 2], weights=(0, 1)), op([1], [2], [2, 9])]
    problem = two_memories(ops, [5, 7, 1], weight_bytes=(100, 1000))
    assert simulate(problem, OVER_AND_BACK).peak_bytes == (108, 1112)
    assert simulate(problem, one_device_schedule(problem, 0)).peak_bytes == (1112, 0)


def test_weights_of_ops_that_can_run_nowhere_else_are_in_the_floor():
    ops = [op([], [0], [2, None], weights=(0,)), op([0], [1], [9, 2], weights=(1,))]
    assert working_set_floor(two_memories(ops, [5, 7], weight_bytes=(100, 1000))).bytes == (105, 0)


def test_the_baseline_is_the_best_single_device_and_copies_for_what_that_cannot_run():
    problem = two_memories(CHAIN, [5, 7, 1])
    assert best_device(problem) == 0
    assert baseline(problem).time_ns == 13
    stuck = replace(problem, ops=(op([], [0], [9, 1]), op([0], [1], [1, None]), op([1], [2], [9, 1])))
    assert one_device_schedule(stuck, 1).steps == (
        Compute(0, 1),
        Copy(0, 1, 0),
        Compute(1),
        Copy(1, 0, 1),
        Compute(2, 1),
    )
    assert best_device(stuck) == 0  # the only one that can run them all


def test_fastest_each_copies_once_to_every_memory_that_reads():
    ops = [op([], [0], [1, 9]), op([0], [1], [9, 1]), op([0], [2], [9, 1]), op([1, 2], [3], [9, 1])]
    schedule = fastest_schedule(two_memories(ops, [1] * 4))
    assert schedule.steps == (Compute(0), Copy(0, 0, 1), Compute(1, 1), Compute(2, 1), Compute(3, 1))


def test_what_cannot_be_copied_directly_goes_by_way_of_a_third_memory():
    devices = tuple(Device(name, i) for i, name in enumerate(("gpu0", "cpu", "gpu1")))
    copy = (((None,), (2,), (None,)), ((2,), (None,), (3,)), ((None,), (3,), (None,)))
    problem = Problem(
        ops=(op([], [0], [1, None, None]), op([0], [], [None, None, 1])),
        tensors=(TensorSpec(4, 0),),
        memories=tuple(Memory(d.name, 99) for d in devices),
        devices=devices,
        copy_ns=copy,
    )
    assert fastest_schedule(problem).steps == (Compute(0), Copy(0, 0, 1), Copy(0, 1, 2), Compute(1, 2))
    cut_off = replace(problem, copy_ns=(((None,), (2,), (None,)), ((2,), (None,), (None,)), ((None,), (3,), (None,))))
    with pytest.raises(ModelError, match="cannot be copied to gpu1"):
        fastest_schedule(cut_off)


@SLOW_START
@given(st.data())
def test_what_a_session_holds_is_never_less_than_the_schedule_needs_nor_more_than_all_it_touches(data):
    problem = data.draw(device_problems())
    plan = simulate(problem, data.draw(device_schedules(problem)))
    opaque = data.draw(st.sets(st.integers(0, len(problem.devices) - 1)))
    cut = cut_plan(problem, plan, opaque)
    nothing = replace(problem, tensors=tuple(replace(t, size_bytes=0) for t in problem.tensors))
    fixed = [curve[0] for curve in simulate(nothing, plan.schedule).live_bytes]
    for at, action in enumerate(cut.actions):
        steps = (action.step,) if isinstance(action, Transfer) else action.steps
        for memory, base in enumerate(fixed):
            touched = [i for i in plan.instances if i.memory == memory and i.birth <= steps[-1] and steps[0] <= i.death]
            most = sum(problem.tensors[i.tensor].size_bytes for i in touched)
            work = max(b - live for b, live in zip(plan.memory_bytes[memory], plan.live_bytes[memory], strict=True))
            assert base <= cut.memory_bytes[memory][at] <= base + most + work
    assert all(held >= peak for held, peak in zip(cut.peak_bytes, _without_sharing_less(problem, plan), strict=True))


def _without_sharing_less(problem, plan):
    """A lower limit of each memory's peak: of every step, what it reads and makes without views and in-place."""
    tensors = tuple(
        replace(t, view_of=None, size_bytes=0 if t.view_of is not None else t.size_bytes) for t in problem.tensors
    )
    in_place = {o for op in problem.ops for _, o in op.in_place}
    tensors = tuple(replace(t, size_bytes=0) if i in in_place else t for i, t in enumerate(tensors))
    bare = replace(problem, tensors=tensors, ops=tuple(replace(op, in_place=()) for op in problem.ops))
    return simulate(bare, plan.schedule).peak_bytes


@SLOW_START
@given(st.data())
def test_every_instance_is_there_when_it_is_read_and_dropped_once(data):
    problem = data.draw(device_problems())
    plan = simulate(problem, data.draw(device_schedules(problem)))
    actions = cut_plan(problem, plan).actions
    assert [s for a in actions for s in ((a.step,) if isinstance(a, Transfer) else a.steps)] == list(
        range(len(plan.schedule.steps))
    )
    held: set[int] = set()
    for action in actions:
        reads = {action.source} if isinstance(action, Transfer) else set(action.imports)
        makes = {action.target} if isinstance(action, Transfer) else set(action.exports)
        assert reads <= held
        assert not makes & held
        held |= makes
        assert set(action.drops) <= held
        held -= set(action.drops)
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    assert held == {number for tensor, number in newest.items() if problem.tensors[tensor].kept}


def test_one_device_is_one_segment_and_needs_what_the_judge_says():
    problem = two_memories(CHAIN, [5, 7, 1])
    plan = simulate(problem, one_device_schedule(problem, 1))
    cut = cut_plan(problem, plan)
    assert cut.actions == (Segment(1, (0, 1, 2)),)
    assert cut.peak_bytes == plan.peak_bytes == (0, 12)


def test_a_session_holds_what_it_is_given_so_an_overfull_one_is_cut_again():
    ops = [op([], [0], [1, 9]), op([0], [1], [9, 1]), op([1], [2], [9, 1]), op([2], [3], [9, 1])]
    tensors = tuple(TensorSpec(size, i, kept=i == 3) for i, size in enumerate([8, 4, 4, 4]))
    roomy = Problem(tuple(ops), tensors, (Memory("cpu", 20),), (Device("one", 0), Device("two", 0)))
    plan = simulate(roomy, fastest_schedule(roomy))
    assert plan.peak_bytes == (12,)
    assert cut_plan(roomy, plan).peak_bytes == (16,)  # 8 is held to the end of the second session
    tight = cut_plan(roomy.with_budget(12), plan)
    assert tight.peak_bytes == (12,)
    assert [a.steps for a in tight.actions] == [(0,), (1,), (2, 3)]


def test_inside_what_a_device_compiles_nothing_counts_as_freed_so_its_sessions_are_as_long_as_the_budget_allows():
    problem = two_memories(CHAIN, [5, 7, 1])
    plan = simulate(problem, one_device_schedule(problem, 1))
    assert cut_plan(problem, plan, opaque={1}).memory_bytes == ((0,), (13,))
    tight = cut_plan(problem.with_budget(12, 1), plan, opaque={1})
    assert tight.peak_bytes == (0, 12)
    assert [action.steps for action in tight.actions] in ([(0,), (1, 2)], [(0, 1), (2,)])


NOWHERE = Provenance("", "", "", "", "", 1, "all", 0, 0, measured=False)


def profile(device, memory, times, unsupported=()):
    ops = tuple(OpCost(name, time, 4) for name, time in times.items())
    lacks = tuple(Unsupported(name, "no kernel") for name in unsupported)
    return Profile(device, "", NOWHERE, ops, 100, 16, unsupported=lacks, memory=memory, call_ns=7, power_watts=2.0)


def graph():
    """x -> a (a view of x) -> b (with a weight) -> c, a model output."""
    tensors = (
        Tensor("x", "float", (4,), 16),
        Tensor("a", "float", (2, 2), 16, producer=0, view_of=0),
        Tensor("b", "float", (2, 2), 16, producer=1),
        Tensor("c", "float", (2, 2), 16, producer=2, kept=True),
    )
    ops = (
        Op("reshape", "Reshape", (0,), (1,)),
        Op("mul", "Mul", (1,), (2,), weights=(0,)),
        Op("add", "Add", (0, 2), (3,), in_place=((2, 3),)),
    )
    return Graph(ops, tensors, (Weight("w", 100),))


def test_devices_that_share_a_memory_make_a_problem_without_copies():
    times = {"reshape": 1, "mul": 5, "add": 6}
    profiles = [profile("cpu:1threads", "cpu", times), profile("cpu:2threads", "cpu", times | {"mul": 3})]
    problem = make_device_problem(graph(), profiles, [], {"cpu": 500})
    assert problem.memories == (Memory("cpu", 500, 116),)
    assert problem.devices == (Device("cpu:1threads", 0, 7), Device("cpu:2threads", 0, 7))
    assert [spec.time_ns for spec in problem.ops] == [(1, 1), (5, 3), (6, 6)]
    assert [spec.energy_nj for spec in problem.ops] == [(2, 2), (10, 6), (12, 12)]
    assert input_ops(graph(), problem) == 0


def test_several_memories_need_inputs_copied_and_weights_where_they_are_read():
    times = {"reshape": 1, "mul": 5, "add": 6}
    profiles = [profile("cpu", "cpu", times), profile("cuda:0", "cuda:0", {"mul": 1, "add": 1}, ["reshape"])]
    links = [LinkCost("cpu", "cuda:0", 10, 1e9), LinkCost("cuda:0", "cpu", 20, 1e9)]
    problem = make_device_problem(graph(), profiles, links, {"cpu": 500, "cuda:0": 400})
    assert problem.memories == (Memory("cpu", 500, 0), Memory("cuda:0", 400, 0))
    assert problem.ops[0] == OpSpec((), (0,), (0, None), (0, 0), repeatable=False, energy_nj=(0, 0))
    assert [spec.time_ns for spec in problem.ops[1:]] == [(1, None), (5, 1), (6, 1)]
    assert [spec.inputs for spec in problem.ops] == [(), (0,), (1,), (0, 2)]
    assert problem.tensors[1] == TensorSpec(16, 1, view_of=0)
    assert problem.copy_ns[0][1] == (26, 26, 26, 26)
    assert problem.copy_ns[1][0] == (36, 36, 36, 36)
    assert input_ops(graph(), problem) == 1
    assert device_tensor_ids(graph(), problem) == (0, 1, 2, 3)
    plan = simulate(problem, fastest_schedule(problem))
    assert plan.peak_bytes[1] == 100 + 16 + 16 + 16 + 4
    assert plan.memory_bytes[0] == (16, 16 + 4, 16, 16, 16, 0)  # the view of x shares what the caller holds
    # Sessions give each other buffers of their own, and the caller holds x to the end.
    assert cut_plan(problem, plan, given_ops=1).memory_bytes[0] == (16 + 16 + 4, 16 + 16, 16, 16, 16)


def test_what_no_device_can_run_is_named():
    lacking = profile("openvino", "cpu", {"reshape": 1, "add": 1}, ["mul"])
    with pytest.raises(ModelError, match=r"no device can run op 'mul' \(Mul\): no kernel; add --device cpu"):
        make_device_problem(graph(), [lacking], [], {"cpu": 500})
    with pytest.raises(ModelError, match="memory 'cpu' has no budget"):
        make_device_problem(graph(), [lacking], [], {})
