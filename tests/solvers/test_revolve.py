"""Revolve: its table, closed form and sequences in the unit-slot model, and the solver on chains of blocks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.chains.actions import Chain
from remat_cli.solvers.chains.blocks import Blocks, find_blocks
from remat_cli.solvers.chains.multi_chain import join_table
from remat_cli.solvers.chains.revolve import (
    LOSS,
    NEVER,
    SlotAction,
    chain_actions,
    fewest_forwards,
    forward_table,
    reverse,
)
from tests.solvers.chain_vectors import chain_vectors
from tests.solvers.chain_walk import follow
from tests.solvers.random_training import chain_training, random_training
from tests.solvers.slot_oracle import fewest_backward_forwards
from tests.solvers.slot_walk import SlotCosts, follow_backwards, follow_join

LAYERS, SLOTS = 120, 20


@pytest.fixture(scope="module")
def recurrence() -> np.ndarray:
    """The recurrence as printed (i may equal l), for all l < 120 and m < 20."""
    table = np.full((LAYERS, SLOTS), NEVER)
    table[0, 2:] = 0
    for rest in range(1, LAYERS):
        steps = np.arange(1, rest + 1)
        right, left = table[rest - steps, 2 : SLOTS - 1], table[steps - 1, 3:SLOTS]
        table[rest, 3:] = np.minimum(NEVER, (steps[:, None] + right + left).min(axis=0))
    return table


def test_the_table_is_the_recurrence(recurrence):
    assert (forward_table(LAYERS - 1, SLOTS - 1) == recurrence).all()


def test_the_closed_form_is_the_recurrence(recurrence):
    closed = [[fewest_forwards(rest + 1, m - 2) for m in range(3, SLOTS)] for rest in range(LAYERS)]
    assert (np.array(closed) == recurrence[:, 3:]).all()
    assert (recurrence[1:, :3] == NEVER).all()


def test_three_slots_start_over_for_every_backward(recurrence):
    assert recurrence[:, 3].tolist() == [rest * (rest + 1) // 2 for rest in range(LAYERS)]


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 12, 31])
def test_sequences_run_as_promised(layers):
    table = forward_table(layers - 1, 12)
    for slots in range(2, 13):
        if table[layers - 1, slots] < NEVER:
            run = follow_backwards(layers, reverse(table, layers, slots), SlotCosts(3, 2))
            assert run.time == 3 * table[layers - 1, slots] + 2 * layers
            assert run.peak_slots <= slots


@pytest.mark.parametrize("layers", range(1, 7))
def test_no_sequence_is_better(layers):
    table = forward_table(layers - 1, 8)
    for slots in range(1, 9):
        best = fewest_backward_forwards(layers, slots)
        assert best == (table[layers - 1, slots] if table[layers - 1, slots] < NEVER else None)


def test_vectors():
    for case in chain_vectors()["revolve_single"]:
        count = join_table([case["L"]])[0].forwards(case["m"])
        if count is None:
            assert case["makespan"] is None
            continue
        assert count * case["uF"] + case["L"] * case["uB"] + case["uL"] == case["makespan"]
        if case["L"] > 1:
            assert count == 1 + forward_table(case["L"] - 1, case["m"])[case["L"] - 1, case["m"]]


@pytest.mark.parametrize(
    "actions",
    [
        [SlotAction("advance", 0, 2)],
        [SlotAction("advance", 0, 1), SlotAction("copy", 0, 0)],
        [SlotAction("advance", 0, 1), SlotAction("advance", 0, 2), LOSS, SlotAction("back", 0, 2)],
        [LOSS],
        [SlotAction("drop", 0)],
        [SlotAction("advance", 0, 1), SlotAction("advance", 0, 2), LOSS],
        [SlotAction("advance", 0, 1), SlotAction("advance", 0, 2), SlotAction("advance", 0, 3)],
    ],
)
def test_the_executor_refuses_what_cannot_run(actions):
    with pytest.raises(InvalidSchedule):
        follow_join([2], actions)


def test_the_executor_counts_by_hand():
    copy, first, second = SlotAction("copy", 0, 0), SlotAction("advance", 0, 1), SlotAction("advance", 0, 2)
    back = [SlotAction("back", 0, layer) for layer in (2, 1)]
    keep_first = SlotAction("copy", 0, 1)
    run = follow_join([2], [copy, first, keep_first, second, LOSS, *back, SlotAction("drop", 0)], SlotCosts(2, 3, 5))
    assert (run.time, run.peak_slots, run.gradients) == (2 * 2 + 2 * 3 + 5, 3, frozenset())


def test_stage_actions_are_legal_on_a_chain():
    ones = (0, *(1,) * 9)
    chain = Chain(ones, ones, (1, *ones[1:]), ones, (1, *ones[1:]), (0,) * 10, (0,) * 10, (0,) * 10)
    table = forward_table(8, 10)
    for slots in range(3, 11):
        run = follow(chain, chain_actions(reverse(table, 9, slots)))
        assert run.time_ns == table[8, slots] + 9 + 9
        assert run.peak_bytes <= slots + 2  # what a backward reads and makes besides


def run(problem: Problem, order: str = "free", **options):
    return solve(problem, "revolve", Limits(seconds=20.0, order=order), options)


def test_time_falls_with_the_budget():
    problem = chain_training(12)
    peak = baseline(problem).peak
    times = []
    for budget in range(4, peak):
        result = run(problem.with_budget(budget))
        assert result.plan is not None
        assert result.plan.peak <= budget
        times.append(result.plan.time_ns)
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    assert run(problem.with_budget(peak)).status is Status.OPTIMAL


def test_a_plan_takes_no_more_than_on_the_chain():
    problem = chain_training(12)
    blocks = find_blocks(problem, "free")
    assert isinstance(blocks, Blocks)
    stages = blocks.chain.stages
    table = forward_table(stages - 1, stages + 1)
    tight = 0
    for count in range(1, stages):
        on_chain = follow(blocks.chain, chain_actions(reverse(table, stages, count + 2)))
        plan = run(problem.with_budget(baseline(problem).peak - 1), checkpoints=count).plan
        assert plan is not None
        assert plan.time_ns <= on_chain.time_ns
        assert plan.peak <= on_chain.peak_bytes + blocks.resident_bytes
        tight += plan.time_ns == on_chain.time_ns
    assert tight > 0


@pytest.mark.parametrize("order", ["free", "keep"])
def test_closing_gaps_is_never_slower(order):
    problem = chain_training(10)
    for budget in range(5, 12):
        plain, closed = (run(problem.with_budget(budget), order, close_gaps=close) for close in (False, True))
        assert plain.plan is not None
        assert closed.plan is not None
        assert closed.plan.time_ns <= plain.plan.time_ns


@pytest.mark.parametrize("order", ["free", "keep"])
def test_random_steps_are_refused_or_judged(order):
    taken = 0
    for seed in range(60):
        problem = random_training(seed)
        limited = problem.with_budget(baseline(problem).peak - 1)
        reason = make_solver("revolve").supports(limited)
        if reason is None:
            result = run(limited, order)
            taken += result.plan is not None
            if result.plan is not None:
                assert result.plan == simulate(limited, result.plan.schedule)
        else:
            assert "op " in str(reason)
    assert taken > 5


def single(inputs: list[tuple[int, ...]], phases: str, sizes: list[int] | None = None, cost: int = 1) -> Problem:
    """One output per op; phases by first letter."""
    names = {"f": "forward", "b": "backward", "u": "update", "n": "none"}
    ops = [
        OpSpec(reads, (op,), (cost,), (0,), phase=names[phase])
        for op, (reads, phase) in enumerate(zip(inputs, phases, strict=True))
    ]
    sizes = [1] * len(ops) if sizes is None else sizes
    tensors = [TensorSpec(size, op) for op, size in enumerate(sizes)]
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40),), (Device("cpu", 0),))


@pytest.mark.parametrize(
    ("problem", "part"),
    [
        (single([()], "n"), "marked backward"),
        (single([(), (0,), (1,)], "nnn"), "marked backward"),
        (single([(), (0,), (1, 0), (2, 1, 0)], "fffb"), "op 0"),
        (single([()], "b"), "marked backward"),
    ],
)
def test_what_is_no_chain_is_refused(problem, part):
    for name in ("revolve", "multi-chain"):
        reason = make_solver(name).supports(problem)
        assert reason is not None
        assert part in str(reason)


def test_reasons_name_ops_of_the_model_not_of_the_search():
    """Op 0 and its view are one op to the search; the op that breaks the chain is numbered 2 in the model."""
    problem = single([(), (0,), (1,), (2,), (3, 2), (4, 3, 2)], "fffffb")
    views = (problem.tensors[0], msgspec.structs.replace(problem.tensors[1], view_of=0), *problem.tensors[2:])
    problem = msgspec.structs.replace(problem, tensors=views)
    middle = single([(), (0,), (1,), (2,), (3, 2), (4, 3, 2)], "fffffb")
    reasons = {make_solver("revolve").supports(p) for p in (problem, middle)}
    assert None not in reasons
    assert len(reasons) == 1


def test_several_devices_are_refused():
    two = single([(), (0,)], "fb")
    two = msgspec.structs.replace(
        two,
        devices=(Device("cpu", 0), Device("cpu", 0)),
        ops=tuple(msgspec.structs.replace(op, time_ns=(1, 1), workspace_bytes=(0, 0)) for op in two.ops),
    )
    for name in ("revolve", "multi-chain"):
        assert str(make_solver(name).supports(two)) == "it plans for one device"


@pytest.mark.parametrize("solver", ["revolve", "multi-chain"])
def test_zero_sizes_and_zero_costs(solver):
    free = chain_training(5, size=0, forward_ns=0)
    result = solve(free.with_budget(0), solver, Limits(seconds=10.0))
    assert result.status is Status.OPTIMAL
    costless = chain_training(5, forward_ns=0)
    result = solve(costless.with_budget(5), solver, Limits(seconds=10.0))
    assert result.plan is not None
    assert result.plan.peak <= 5
    assert result.status is Status.OPTIMAL


@pytest.mark.parametrize("solver", ["revolve", "multi-chain"])
def test_absurd_budgets(solver):
    problem = chain_training(5)
    assert solve(problem.with_budget(0), solver, Limits(seconds=10.0)).plan is None
    assert solve(problem.with_budget(2**60), solver, Limits(seconds=10.0)).status is Status.OPTIMAL
