from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import condense, drop_dead
from tests.strategies import problems, schedules


@settings(max_examples=400)
@given(st.data())
def test_expanding_never_costs_more_memory_or_time(data):
    problem = data.draw(problems(max_ops=7))
    condensed = condense(problem)
    in_order = Schedule.of_ops(range(len(condensed.problem.ops)))
    schedule = data.draw(schedules(condensed.problem)) if data.draw(st.booleans()) else in_order
    inner = simulate(condensed.problem, schedule)
    outer = simulate(problem, condensed.expand(schedule))
    assert outer.peak <= inner.peak
    assert outer.time_ns <= inner.time_ns


@given(problems(max_ops=9))
def test_baseline_survives_condensing(problem):
    condensed = condense(problem)
    order = condensed.expand(Schedule.of_ops(range(len(condensed.problem.ops))))
    assert sorted(order.op_ids()) == list(range(len(problem.ops)))
    assert all(not op.in_place for op in condensed.problem.ops)
    assert all(tensor.view_of is None for tensor in condensed.problem.tensors)


@given(problems(max_ops=9, sharing=False))
def test_a_problem_without_sharing_is_left_as_it_is(problem):
    condensed = condense(problem)
    assert condensed.exact
    assert condensed.problem == problem


def test_conv_relu_reshape_become_one_op_with_one_storage():
    problem = Problem(
        ops=(
            OpSpec((), (0,), (5,), (0,)),
            OpSpec((0,), (1,), (7,), (3,)),
            OpSpec((1,), (2,), (1,), (0,), in_place=((1, 2),)),
            OpSpec((2,), (3,), (1,), (0,)),
            OpSpec((3,), (4,), (2,), (0,)),
        ),
        tensors=(
            TensorSpec(6, 0),
            TensorSpec(8, 1),
            TensorSpec(8, 2),
            TensorSpec(8, 3, view_of=2),
            TensorSpec(1, 4, kept=True),
        ),
        memories=(Memory("cpu", 99),),
        devices=(Device("cpu", 0),),
    )
    condensed = condense(problem)
    assert condensed.groups == ((0,), (1, 2, 3), (4,))
    assert baseline(condensed.problem).memory_bytes[0] == (6, 17, 9)
    assert condensed.expand(Schedule.of_ops([0, 1, 2])).op_ids() == [0, 1, 2, 3, 4]


@given(st.data())
def test_dropping_dead_recomputes_leaves_none_that_nobody_reads(data):
    problem = data.draw(problems())
    plan = simulate(problem, drop_dead(problem, data.draw(schedules(problem))))
    read = {instance for reads in plan.reads for instance in reads}
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    read |= {number for tensor, number in newest.items() if problem.tensors[tensor].kept}
    ops = plan.schedule.op_ids()
    assert all(op not in ops[:place] or read.intersection(plan.makes[place]) for place, op in enumerate(ops))


@given(st.data())
def test_views_leave_their_place_only_where_the_limit_asks_for_it(data):
    problem = data.draw(problems(max_ops=9))
    condensed = condense(problem)
    schedule = data.draw(schedules(condensed.problem))
    in_place = condensed.expand(schedule, 2**60)
    tight = simulate(problem, condensed.expand(schedule, 0))
    assert tight.peak <= simulate(condensed.problem, schedule).peak
    assert condensed.expand(schedule, simulate(problem, in_place).peak) == in_place


@given(st.data())
def test_dropping_dead_recomputes_keeps_the_schedule_legal_and_no_dearer(data):
    problem = data.draw(problems())
    schedule = data.draw(schedules(problem))
    before, after = simulate(problem, schedule), simulate(problem, drop_dead(problem, schedule))
    assert after.time_ns <= before.time_ns
    assert set(after.schedule.op_ids()) == set(range(len(problem.ops)))


@settings(max_examples=150)
@given(st.data())
def test_contracting_any_schedule_gives_a_legal_one(data):
    problem = data.draw(problems())
    condensed = condense(problem)
    simulate(condensed.problem, condensed.contract(data.draw(schedules(problem))))


def test_a_group_does_not_run_before_what_its_later_members_read():
    one = (1,), (0,)
    ops = (
        OpSpec((), (0,), *one),
        OpSpec((), (1,), *one),
        OpSpec((1, 0), (2,), *one, in_place=((1, 2),)),
        OpSpec((2,), (3,), *one),
    )
    tensors = tuple(TensorSpec(8, producer, kept=producer == 3) for producer in range(4))
    problem = Problem(ops, tensors, (Memory("cpu", 100),), (Device("cpu", 0),))
    condensed = condense(problem)
    assert (1, 2) in condensed.groups
    contracted = condensed.contract(Schedule.of_ops([1, 0, 2, 3]))
    simulate(condensed.problem, contracted)
    assert condensed.expand(contracted).op_ids() == [0, 1, 2, 3]


def test_a_group_belongs_to_the_phase_that_it_is_there_for():
    """A forward result that only a backward op reads, and overwrites; with a second result it stays forward."""
    one = (1,), (0,)
    backward = OpSpec((1,), (2,), *one, in_place=((1, 2),), phase="backward")
    alone = (OpSpec((), (0,), *one, phase="forward"), OpSpec((0,), (1,), *one, phase="forward"), backward)
    tensors = tuple(TensorSpec(8, producer) for producer in range(3))
    problem = Problem(alone, tensors, (Memory("cpu", 100),), (Device("cpu", 0),))
    assert [op.phase for op in condense(problem).problem.ops] == ["forward", "backward"]
    two = (alone[0], OpSpec((0,), (1, 3), *one, phase="forward"), backward)
    problem = Problem(two, (*tensors, TensorSpec(8, 1)), problem.memories, problem.devices)
    assert [op.phase for op in condense(problem).problem.ops] == ["forward", "forward"]
