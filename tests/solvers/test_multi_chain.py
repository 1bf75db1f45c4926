"""Multi-chain: optimal sequences in the unit-slot model, and the solver on steps whose branches meet in a loss."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.chains.branches import Join, one_branch, several_branches, spell_out
from remat_cli.solvers.chains.multi_chain import fewest_slots, join_table, ordered_table, table_work
from remat_cli.solvers.chains.revolve import forward_table
from remat_cli.solvers.published.multi_chain import MOST_WORK
from tests.solvers.chain_vectors import chain_vectors
from tests.solvers.random_training import chain_training, random_training
from tests.solvers.slot_oracle import fewest_forwards
from tests.solvers.slot_walk import SlotCosts, follow_join


def table_of(lengths, wanted=0):
    (table,) = join_table(lengths, [wanted])
    return table


def mask_of(wanted: tuple[int, ...]) -> int:
    return sum(bit << branch for branch, bit in enumerate(wanted))


def makespan(lengths, wanted, slots: int, costs: SlotCosts) -> int | None:
    """By the table; its sequence is run, and must take what the table says."""
    table = table_of(lengths, mask_of(wanted))
    forwards = table.forwards(slots)
    if forwards is None:
        return None
    run = follow_join(lengths, table.actions(slots), costs)
    assert run.peak_slots <= slots
    assert run.gradients == {branch for branch, bit in enumerate(wanted) if bit}
    assert run.time == forwards * costs.forward + sum(lengths) * costs.backward + costs.loss
    return run.time


def test_vectors():
    for case in chain_vectors()["multi_chain"]:
        costs = SlotCosts(case["uF"], case["uB"], case["uL"])
        assert makespan(case["L"], case["b"], case["m"], costs) == case["makespan"]
        assert fewest_slots(case["L"], mask_of(case["b"])) == case["m_min"]


def test_curves():
    for case in chain_vectors()["multi_chain_curves"]:
        table = table_of(case["L"])
        for slots, value in case["makespan_by_m"]:
            forwards = table.forwards(slots)
            assert (forwards and forwards + sum(case["L"]) + 1) == value


def test_the_worked_value():
    assert makespan((4, 10, 12), (0, 0, 0), 9, SlotCosts()) == 74
    assert makespan((4, 10, 3), (0, 0, 1), 8, SlotCosts()) == 48
    assert makespan((4, 3, 3), (0, 1, 1), 7, SlotCosts()) == 27


CASES = [
    *(
        (lengths, wanted)
        for lengths in itertools.product(range(4), repeat=2)
        for wanted in itertools.product((0, 1), repeat=2)
    ),
    ((4, 4), (0, 1)),
    ((1, 4), (0, 0)),
    *((lengths, (0, 0, 1)) for lengths in [(1, 1, 1), (0, 1, 2), (2, 1, 1), (0, 0, 2), (2, 0, 2)]),
    *(((2, 1, 1), wanted) for wanted in [(0, 0, 0), (1, 1, 1), (1, 0, 1)]),
    ((), ()),
    ((0,), (0,)),
    ((5,), (0,)),
    ((5,), (1,)),
]


@pytest.mark.parametrize(("lengths", "wanted"), CASES)
def test_no_sequence_is_better(lengths, wanted):
    """From one slot below the fewest to where no forward is repeated."""
    table = table_of(lengths, mask_of(wanted))
    least = fewest_slots(lengths, mask_of(wanted))
    assert table.forwards(least - 1) is None
    for slots in range(least, table.most_slots + 2):
        best = makespan(lengths, wanted, slots, SlotCosts(1, 0, 0))
        assert best == table.forwards(slots) == fewest_forwards(lengths, wanted, slots)
    assert table.forwards(table.most_slots) == sum(lengths)


@pytest.mark.parametrize("length", [2, 3, 8, 30, 64])
def test_one_branch_is_revolve(length):
    table, single = table_of((length,)), forward_table(length - 1, length + 1)
    for slots in range(3, length + 2):
        assert table.forwards(slots) == 1 + single[length - 1, slots]


@pytest.mark.parametrize("order", [(), (0,), (0, 0, 1, 1, 1), (1, 0, 1, 0, 0), (2, 1, 1, 0, 0, 0), (0, 1, 2, 0, 1, 2)])
def test_a_fixed_order_of_backwards(order):
    """Legal, in that order, never better than any order; the best of all orders is the optimum."""
    branches = 1 + max(order, default=0)
    table = ordered_table(order, branches, 0)
    free = table_of(table.lengths)
    for slots in range(table.most_slots + 1):
        count = table.forwards(slots)
        if count is None:
            continue
        actions = list(table.actions(slots))
        ran = follow_join(table.lengths, actions, SlotCosts(1, 0, 0))
        assert ran.time == count >= (free.forwards(slots) or 0)
        assert ran.peak_slots <= slots
        assert tuple(action.branch for action in actions if action.kind == "back") == order
    assert table.forwards(table.most_slots) == len(order)


@pytest.mark.parametrize("lengths", [(2, 2), (1, 4), (2, 1, 2)])
def test_the_best_order_is_the_optimum(lengths):
    backwards = [branch for branch, length in enumerate(lengths) for _ in range(length)]
    tables = [ordered_table(order, len(lengths), 0) for order in sorted(set(itertools.permutations(backwards)))]
    free = table_of(lengths)
    for slots in range(free.most_slots + 1):
        counts = [count for count in (table.forwards(slots) for table in tables) if count is not None]
        assert min(counts, default=None) == free.forwards(slots)


@pytest.mark.parametrize("length", [5, 10])
def test_published_figures(length):
    """Unit costs, 6L layers: the slots for least time, what half of them costs, and a ratio below two."""
    total = 6 * length
    for branches, lengths in enumerate([(6 * length,), (length, 5 * length), (2 * length,) * 3], 1):
        table = table_of(lengths)
        ratio = {m: ((table.forwards(m) or 0) + total + 1) / (2 * total + 1) for m in range(11, table.most_slots + 1)}
        enough = min(m for m in range(table.most_slots + 1) if table.forwards(m) == total)
        assert enough == total + branches
        assert ratio[enough // 2] == pytest.approx(1.26, abs=0.02)
        assert ratio[11] < 2
        assert fewest_slots(lengths) == 2 * branches + 1


def join_training(lengths: tuple[int, ...], size: int = 1, extras: str = "") -> Problem:
    """Branches of ops on inputs of their own, a loss that reads the ends, gradients back along each branch.

    `extras`: "w" weight gradients with updates, "s" weights shared by all branches, "g" input gradients kept,
    "m" a metric on the first branch, "o" backward ops that read their op's own result too.
    """
    ops: list[OpSpec] = []
    tensors: list[TensorSpec] = []

    def add(reads: list[int], phase: str, kept: bool = False, made: int = size) -> int:
        ops.append(OpSpec(tuple(dict.fromkeys(reads)), (len(ops),), (1,), (0,), phase=phase))
        tensors.append(TensorSpec(made, len(ops) - 1, kept=kept))
        return len(ops) - 1

    values: list[list[int]] = []
    for length in lengths:
        values.append([])
        for _ in range(length + 1):
            values[-1].append(add(values[-1][-1:], "forward"))
    loss = add([branch[-1] for branch in values], "forward")
    if "m" in extras:
        add([values[0][1]], "none", kept=True, made=0)
    weights: dict[int, list[int]] = {}
    seeds = [add([loss, *(other[-1] for other in values)], "backward") for _ in values]
    for k in reversed(range(len(lengths))):
        gradient = seeds[k]
        for layer in reversed(range(lengths[k])):
            reads = [gradient, values[k][layer]]
            if {"w", "s"} & set(extras):
                weights.setdefault(layer, []).append(add(reads, "backward"))
            is_wanted = "g" in extras and layer == 0
            gradient = add(reads + [values[k][layer + 1]] * ("o" in extras), "backward", kept=is_wanted)
    for gradients in weights.values():
        for read in [gradients] if "s" in extras else [[gradient] for gradient in gradients]:
            add(read, "update", kept=True, made=0)
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40),), (Device("cpu", 0),))


def run(problem: Problem, order: str = "free", **options):
    return solve(problem, "multi-chain", Limits(seconds=20.0, order=order), options)


EXTRAS = ["", "w", "s", "g", "m", "o", "wo", "sgm"]


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("lengths", [(3, 3), (2, 5), (2, 3, 2), (1, 1)])
def test_branches_are_found(lengths, extras):
    problem = join_training(lengths, extras=extras)
    join = several_branches(problem, "free")
    assert isinstance(join, Join)
    assert join.lengths == lengths
    placed = [*join.before, *join.loss, *join.aside]
    for branch in join.branches:
        placed += [op for blocks in (branch.forward, branch.backward) for ops in blocks for op in ops]
    assert sorted(placed) == list(range(len(problem.ops)))


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("lengths", [(3, 3), (2, 5), (2, 3, 2)])
def test_every_plan_is_legal_and_needs_what_the_slots_say(lengths, extras):
    """Besides the slots a backward holds what it reads of its own forward and what it makes."""
    problem = join_training(lengths, extras=extras)
    join = several_branches(problem, "free")
    assert isinstance(join, Join)
    table = table_of(lengths)
    for slots in range(fewest_slots(lengths), table.most_slots + 1):
        ops = spell_out(join, table.actions(slots))
        plan = simulate(problem, type(baseline(problem).schedule).of_ops(ops))
        held = sum(lengths) if "s" in extras else 0  # gradients that wait for those they are added to
        assert plan.peak <= slots + len(lengths) + 2 + held


@pytest.mark.parametrize("order", ["free", "keep"])
@pytest.mark.parametrize("extras", EXTRAS)
def test_plans_are_judged_and_times_fall_with_the_budget(extras, order):
    problem = join_training((3, 4), extras=extras)
    peak = baseline(problem).peak
    times = []
    for budget in range(4, peak):
        limited = problem.with_budget(budget)
        result = run(limited, order)
        if result.plan is not None:
            assert result.plan == simulate(limited, result.plan.schedule)
            assert result.plan.peak <= budget
            times.append(result.plan.time_ns)
    holds_all = order == "keep" and {"w", "s"} & set(extras)  # updates in baseline order: last
    assert len(times) >= (1 if holds_all else 3)
    assert times == sorted(times, reverse=True)


def test_both_branches_are_checkpointed():
    """With no more room than the fewest slots need, the peak is far below that of one branch kept whole."""
    problem = join_training((8, 8))
    plan = run(problem.with_budget(9)).plan
    assert plan is not None
    repeated = {op for op in plan.schedule.op_ids() if plan.schedule.op_ids().count(op) > 1}
    assert repeated & set(range(8))
    assert repeated & set(range(9, 17))


def test_a_slot_for_a_kept_gradient():
    problem = join_training((4, 4), extras="g")
    dropped, kept = table_of((4, 4)), table_of((4, 4), 3)
    for slots in range(fewest_slots((4, 4)), dropped.most_slots + 1):
        assert (kept.forwards(slots) or 0) >= (dropped.forwards(slots) or 0)
    plain, held = (run(problem.with_budget(9), input_gradients=choice).facts for choice in ("dropped", "kept"))
    assert plain["least_peak_bytes"] <= held["least_peak_bytes"]


@pytest.mark.parametrize("order", ["free", "keep"])
def test_a_chain_is_one_branch(order):
    problem = chain_training(10)
    join = one_branch(problem, "free")
    assert isinstance(join, Join)
    assert len(join.branches) == 1
    multi, single = (
        solve(problem.with_budget(6), name, Limits(seconds=20.0, order=order)).plan
        for name in ("multi-chain", "revolve")
    )
    assert multi is not None
    assert single is not None
    assert multi.time_ns <= single.time_ns


def test_the_first_op_that_breaks_a_branch_is_named():
    """Two results of the first branch go on side by side, and its last backward op reads both."""
    problem = join_training((3, 3))
    ops = list(problem.ops)
    for op, inputs in {2: (0, 1), 3: (0, 1), 8: (2, 3, 7), 16: (2, 3, 15)}.items():
        ops[op] = msgspec.structs.replace(ops[op], inputs=inputs)
    broken = msgspec.structs.replace(problem, ops=tuple(ops))
    reason = several_branches(broken, "free")
    chain = "it is no chain: op 0 is still read by op 3, past the ops between them"
    assert str(reason) == f"the branch that begins with op 0: {chain}"


def test_branches_that_share_an_op_are_no_branches():
    ops = join_training((3, 3)).ops
    shared = msgspec.structs.replace(
        join_training((3, 3)), ops=(*ops[:4], msgspec.structs.replace(ops[4], inputs=(0,)), *ops[5:])
    )
    assert str(several_branches(shared, "free")) == "no separate branches meet in a loss"


def test_what_never_meets_is_planned_as_a_chain():
    problem = join_training((3, 3))
    apart = msgspec.structs.replace(problem.ops[8], inputs=(3,))
    problem = msgspec.structs.replace(problem, ops=(*problem.ops[:8], apart, *problem.ops[9:]))
    assert str(several_branches(problem, "free")) == "no separate branches meet in a loss"
    assert make_solver("multi-chain").supports(problem) is None
    limited = problem.with_budget(baseline(problem).peak - 1)
    result = run(limited)
    assert result.plan is not None
    assert result.plan == simulate(limited, result.plan.schedule)


def test_too_long_branches_are_refused_before_any_table():
    assert table_work((33, 33, 33)) < MOST_WORK < table_work((60, 60, 60))
    reason = make_solver("multi-chain").supports(join_training((60, 60, 60)))
    assert str(reason) == "its branches are too long for this algorithm: 60 and 60 and 60 blocks"


@pytest.mark.parametrize("order", ["free", "keep"])
def test_random_steps_are_refused_or_judged(order):
    taken = 0
    for seed in range(60):
        problem = random_training(seed)
        limited = problem.with_budget(baseline(problem).peak - 1)
        if make_solver("multi-chain").supports(limited) is None:
            result = run(limited, order)
            taken += result.plan is not None
            if result.plan is not None:
                assert result.plan == simulate(limited, result.plan.schedule)
    assert taken > 5


def test_a_fitting_baseline_is_optimal():
    problem = join_training((2, 2))
    assert run(problem.with_budget(baseline(problem).peak)).status is Status.OPTIMAL
