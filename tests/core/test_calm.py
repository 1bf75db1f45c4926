from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remat_cli.core.schedule.plan import Copy, Plan, Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.tidy import breaks, calm
from tests.strategies import problems, schedules


def _branches(lengths: list[int], size_bytes: int = 1) -> Problem:
    """Chains of ops side by side, none of which reads from another; the last op of each gives a model output."""
    ops, tensors = [], []
    for length in lengths:
        for place in range(length):
            op = len(ops)
            ops.append(OpSpec((op - 1,) if place else (), (op,), (1,), (0,)))
            tensors.append(TensorSpec(size_bytes, op, kept=place == length - 1))
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40),), (Device("cpu", 0),))


def _made_from(plan: Plan) -> list[tuple]:
    """By step, its op, which run of it this is, and the same of what it reads; sorted, as the order may differ."""
    runs: dict[int, int] = {}
    names = []
    for op in plan.schedule.op_ids():
        runs[op] = runs.get(op, -1) + 1
        names.append((op, runs[op]))
    births = [instance.birth for instance in plan.instances]
    return sorted((names[step], [names[births[i]] for i in reads]) for step, reads in enumerate(plan.reads))


def test_shuffled_chains_become_whole_again():
    problem = _branches([4, 4, 4])
    plan = simulate(problem, Schedule.of_ops([0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]))
    calmed = calm(problem, plan, "free")
    assert breaks(plan) == 11
    assert breaks(calmed) == 2
    assert calmed.peak <= plan.peak


def test_an_op_that_reads_nothing_waits_for_the_end_of_a_chain():
    # 0 -> 1 -> 3 and 2 -> 3: op 2 stands between 0 and 1, which tears the chain apart.
    ops = (OpSpec((), (0,), (1,), (0,)), OpSpec((0,), (1,), (1,), (0,)), OpSpec((), (2,), (1,), (0,)))
    ops = (*ops, OpSpec((1, 2), (3,), (1,), (0,)))
    tensors = tuple(TensorSpec(1, op) for op in range(4))
    problem = Problem(ops, tensors, (Memory("cpu", 99),), (Device("cpu", 0),))
    assert breaks(calm(problem, simulate(problem, Schedule.of_ops([0, 2, 1, 3])), "free")) == 1


@pytest.mark.parametrize(("budget_bytes", "breaks_left"), [(12, 3), (14, 3), (15, 1)])
def test_breaks_stay_where_memory_needs_them(budget_bytes, breaks_left):
    # Two chains, each of an op with 2 bytes and a workspace of 8 and one that makes an output of 5 from them. One
    # chain after the other needs 5 + 10 bytes, both large ops first 2 + 10.
    ops = tuple(OpSpec((op - 1,) if op % 2 else (), (op,), (1,), (0 if op % 2 else 8,)) for op in range(4))
    tensors = tuple(TensorSpec(5 if op % 2 else 2, op, kept=bool(op % 2)) for op in range(4))
    problem = Problem(ops, tensors, (Memory("cpu", budget_bytes),), (Device("cpu", 0),))
    plan = simulate(problem, Schedule.of_ops([0, 2, 1, 3]))
    assert plan.peak == 12
    calmed = calm(problem, plan, "free")
    assert breaks(calmed) == breaks_left
    assert calmed.peak <= budget_bytes


@given(st.data())
def test_the_same_is_computed_from_the_same_within_the_budget_and_never_with_more_breaks(data):
    problem = data.draw(problems(max_ops=14))
    plan = simulate(problem, data.draw(schedules(problem, max_repeats=10)))
    problem = problem.with_budget(plan.peak + data.draw(st.sampled_from([0, 0, 1, 5, 50])))
    calmed = calm(problem, plan, "free")
    assert _made_from(calmed) == _made_from(plan)
    assert calmed.time_ns == plan.time_ns
    assert calmed.peak <= problem.memories[0].budget_bytes
    assert breaks(calmed) <= breaks(plan)


@given(st.data())
def test_first_computations_keep_their_order_where_asked(data):
    problem = data.draw(problems(max_ops=10))
    plan = simulate(problem, data.draw(schedules(problem)))
    calmed = calm(problem, plan, "keep")
    assert list(dict.fromkeys(calmed.schedule.op_ids())) == list(dict.fromkeys(plan.schedule.op_ids()))
    assert _made_from(calmed) == _made_from(plan)


@given(st.data())
def test_the_newest_run_of_a_model_output_stays_the_newest(data):
    problem = data.draw(problems())
    plan = simulate(problem, data.draw(schedules(problem)))
    assume(any(tensor.kept for tensor in problem.tensors))
    calmed = calm(problem, plan, "free")
    for tensor in range(len(problem.tensors)):
        deaths = [[i.death for i in p.instances if i.tensor == tensor] for p in (plan, calmed)]
        assert len(deaths[0]) == len(deaths[1])
        if problem.tensors[tensor].kept:
            assert deaths[1][-1] == len(plan.reads) - 1


def test_a_budget_below_the_plan_changes_nothing_about_its_peak():
    problem = _branches([3, 3])
    plan = simulate(problem, Schedule.of_ops([0, 3, 1, 4, 2, 5]))
    assert calm(problem.with_budget(0), plan, "free").peak <= plan.peak


def test_a_plan_over_devices_is_returned_as_it_is():
    ops = tuple(OpSpec((op - 1,) if op else (), (op,), (1, 1), (0, 0)) for op in range(2))
    problem = Problem(
        ops,
        (TensorSpec(1, 0), TensorSpec(1, 1)),
        (Memory("cpu", 99), Memory("gpu", 99)),
        (Device("cpu", 0), Device("gpu", 1)),
        copy_ns=(((None, None), (1, 1)), ((1, 1), (None, None))),
    )
    steps = (*Schedule.of_ops([0]).steps, Copy(0, 0, 1), *Schedule.of_ops([1]).steps)
    plan = simulate(problem, Schedule(steps))
    assert calm(problem, plan, "free") is plan


def test_the_baseline_of_a_chain_is_calm_already():
    problem = _branches([6])
    assert calm(problem, baseline(problem), "free").schedule == baseline(problem).schedule
