from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.tidy import tidy
from tests.strategies import problems, schedules


def test_a_first_computation_that_nobody_reads_goes_too():
    problem = Problem(
        ops=(OpSpec((), (0,), (3,), (0,)), OpSpec((), (1,), (2,), (0,)), OpSpec((0, 1), (2,), (1,), (0,))),
        tensors=(TensorSpec(4, 0), TensorSpec(4, 1), TensorSpec(1, 2)),
        memories=(Memory("cpu", 99),),
        devices=(Device("cpu", 0),),
    )
    plan = tidy(problem, simulate(problem, Schedule.of_ops([0, 1, 0, 2])))
    assert plan.schedule.op_ids() == [1, 0, 2]


@given(st.data())
def test_what_is_left_is_read_and_costs_no_more(data):
    problem = data.draw(problems())
    before = simulate(problem, data.draw(schedules(problem)))
    after = tidy(problem, before)
    assert after.time_ns <= before.time_ns
    assert set(after.schedule.op_ids()) == set(range(len(problem.ops)))
    read = {instance for reads in after.reads for instance in reads}
    runs = after.schedule.op_ids()
    newest = {instance.tensor: number for number, instance in enumerate(after.instances)}
    for op, made in zip(runs, after.makes, strict=True):
        kept = any(problem.tensors[after.instances[i].tensor].kept for i in made if i in newest.values())
        assert runs.count(op) == 1 or kept or read.intersection(made)
