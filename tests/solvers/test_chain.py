"""Training steps as chains of blocks: the shared vectors, plans spelled out, odd graphs, and the reasons given."""

from __future__ import annotations

import random

import pytest

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Reason
from remat_cli.solvers.chains.actions import Action
from remat_cli.solvers.chains.blocks import (
    Blocks,
    backward_ops,
    cut_ops,
    find_blocks,
    forward_ops,
    marks_missing,
    spell_out,
)
from remat_cli.solvers.chains.candidates import cleaned
from tests.seeds import few
from tests.solvers.chain_vectors import GRAPHS, chain_vectors, graph_problem
from tests.solvers.chain_walk import follow
from tests.solvers.random_training import chain_training, keeping, random_chain_step, random_training, step_of

SEEDS = range(60)
ORDERS = ("free", "keep")


def every_op_once(blocks: Blocks) -> bool:
    ops = [op for part in (*blocks.forward, *blocks.backward) for op in part]
    return sorted(ops) == list(range(len(blocks.problem.ops)))


def store_all(blocks: Blocks) -> list[Action]:
    stages = range(1, blocks.chain.stages + 1)
    return [Action("all", s) for s in stages] + [Action("back", s) for s in reversed(stages)]


def store_nothing(blocks: Blocks) -> list[Action]:
    """Every stage from the input of the chain again."""
    count = blocks.chain.stages
    actions: list[Action] = []
    for stage in range(count, 0, -1):
        actions += [Action("keep" if s == 1 else "move", s) for s in range(1, stage)]
        actions += [Action("all", stage), Action("back", stage)]
    return actions


def random_plan(blocks: Blocks, rng: random.Random) -> list[Action]:
    """Checkpoints at random; from them each stage again, now and then with its input dropped."""
    count = blocks.chain.stages
    return _reverse(1, count, rng)


def _reverse(first: int, last: int, rng: random.Random) -> list[Action]:
    if first == last:
        return [Action("all", first), Action("back", first)]
    if rng.random() < 0.4:
        return [Action("all", first), *_reverse(first + 1, last, rng), Action("back", first)]
    middle = rng.randint(first, last - 1)
    forward = [Action("keep", first), *(Action("move", s) for s in range(first + 1, middle + 1))]
    return [*forward, *_reverse(middle + 1, last, rng), *_reverse(first, middle, rng)]


def check_spelled(blocks: Blocks, actions: list[Action]) -> None:
    """Judged, no plan takes more than it does on the chain and what is resident."""
    plan = simulate(blocks.problem, cleaned(blocks.problem, spell_out(blocks, actions), "free"))
    run = follow(blocks.chain, actions)
    assert plan.peak <= run.peak_bytes + blocks.resident_bytes + blocks.problem.memories[0].fixed_bytes
    assert plan.time_ns <= run.time_ns


def check_blocks(problem: Problem, order: str = "free") -> Blocks:
    blocks = find_blocks(problem, order)
    assert isinstance(blocks, Blocks), blocks
    assert every_op_once(blocks)
    assert min(blocks.chain.forward_extra_bytes + blocks.chain.backward_extra_bytes) >= 0
    for actions in (store_all(blocks), store_nothing(blocks), *(random_plan(blocks, random.Random(s)) for s in "abc")):
        check_spelled(blocks, actions)
    assert follow(blocks.chain, store_all(blocks)).time_ns == problem.baseline_time_ns
    return blocks


@pytest.mark.parametrize("number", GRAPHS)
def test_vectors_as_chains(number):
    graph = chain_vectors()["dags"][number]
    problem, expected = graph_problem(graph), graph["chain"]
    blocks = check_blocks(problem)
    chain = blocks.chain
    assert list(backward_ops(problem, "free")) == expected["backward_order"]
    assert [list(boundary) for boundary in blocks.boundaries] == expected["boundaries"]
    assert [list(chain.value_bytes), list(chain.gradient_bytes)] == [expected["a"], expected["delta"]]
    rows = (chain.forward_ns, chain.backward_ns, chain.saved_bytes)
    assert [list(row[1:]) for row in rows] == [expected["uF"], expected["uB"], expected["abar"]]
    extra = (chain.forward_extra_bytes, chain.saving_extra_bytes, chain.backward_extra_bytes)
    assert [list(row[1:]) for row in extra] == [expected["oF"], expected["oFall"], expected["oB"]]
    assert blocks.resident_bytes == 0
    assert follow(chain, store_all(blocks)).peak_bytes >= expected["store_all_peak"]


@pytest.mark.parametrize("number", GRAPHS)
def test_vectors_cut(number):
    graph = chain_vectors()["dags"][number]
    problem = graph_problem(graph)
    assert list(cut_ops(problem, forward_ops(problem))) == graph["articulation_points"]


@pytest.mark.parametrize("seed", few(SEEDS, 8))
def test_cuts_are_what_every_path_to_the_loss_goes_through(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 14)
    reads = [
        tuple(sorted({rng.randint(max(0, v - 3), v - 1) for _ in range(rng.randint(1, 2))})) for v in range(1, count)
    ]
    unread = set(range(count - 1)) - {source for inputs in reads for source in inputs}
    ops = [((), 1, "forward"), *((inputs, 1, "forward") for inputs in reads)]
    ops.append((tuple(sorted(unread | {count - 1})), 1, "forward"))
    problem = step_of(*ops, ((count,), 1, "backward"))
    assert list(cut_ops(problem, range(count + 1))) == [v for v in range(count + 1) if separates(problem, v, count)]


def separates(problem: Problem, removed: int, loss: int) -> bool:
    """Whether op 0 no longer reaches the loss without an op."""
    reached = {0} - {removed}
    for op in range(1, loss + 1):
        if op != removed and reached.intersection(problem.ops[op].inputs):
            reached.add(op)
    return loss not in reached


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", few(SEEDS, 8))
def test_plans_spelled_out_take_no_more_than_on_the_chain(seed, order):
    check_blocks(random_chain_step(seed), order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", few(SEEDS, 8))
def test_random_steps_are_chains_or_give_a_reason(seed, order):
    problem = condense(random_training(seed)).problem
    blocks = find_blocks(problem, order)
    if isinstance(blocks, Blocks):
        check_blocks(problem, order)
    else:
        assert "\n" not in str(blocks)
        assert str(blocks)


@pytest.mark.parametrize("order", ORDERS)
def test_a_plain_chain_has_a_stage_per_op(order):
    blocks = check_blocks(chain_training(10, size=3), order)
    assert blocks.chain.stages == 10
    assert set(blocks.chain.value_bytes[1:]) == {3}


FORWARD = (((), 4, "forward"), ((0,), 5, "forward"), ((1,), 6, "forward"), ((2,), 1, "forward"))
BACKWARD = (((2, 3), 6, "backward"), ((1, 4), 5, "backward"), ((0, 5), 4, "backward"))
PLAIN = (*FORWARD, *BACKWARD)


def test_kept_values_are_resident_and_count_once():
    blocks = check_blocks(keeping(step_of(*PLAIN), 1, 6))
    assert blocks.resident_bytes == 9
    assert blocks.chain.value_bytes[1] == 0


def test_what_must_not_be_repeated_is_resident_and_runs_once():
    blocks = check_blocks(step_of(*PLAIN, op1={"repeatable": False}))
    assert blocks.resident_bytes == 5
    assert spell_out(blocks, store_nothing(blocks)).count(1) == 1


def test_an_input_of_several_blocks_runs_once_before_everything():
    ops = [((), 4, "forward"), ((), 7, "forward"), ((0, 1), 5, "forward"), ((2, 1), 6, "forward")]
    ops += [((3, 2), 5, "backward"), ((4, 0), 4, "backward"), ((5,), 0, "backward")]
    blocks = check_blocks(step_of(*ops))
    assert blocks.forward[0] == (1,)
    assert blocks.resident_bytes == 7
    assert spell_out(blocks, store_nothing(blocks)).count(1) == 1


def test_an_input_of_one_block_belongs_to_it():
    ops = [((), 9, "forward"), ((), 4, "forward"), ((1,), 5, "forward"), ((2, 0), 6, "forward")]
    ops += [((3, 0), 6, "backward"), ((2, 4), 5, "backward"), ((1, 5), 4, "backward"), ((6,), 0, "backward")]
    blocks = check_blocks(step_of(*ops))
    assert 0 in blocks.forward[-1]
    assert blocks.resident_bytes == 0


def test_a_metric_belongs_to_its_block_and_runs_once():
    metric = (((1,), 3, "none"),)
    ops = (*FORWARD, *metric, ((2, 3), 6, "backward"), ((1, 5), 5, "backward"), ((0, 6), 4, "backward"))
    blocks = check_blocks(step_of(*ops))
    assert blocks.chain.stages == check_blocks(step_of(*PLAIN)).chain.stages
    assert spell_out(blocks, store_nothing(blocks)).count(4) == 1


def test_updates_that_wait_for_all_gradients_do_not_break_the_chain():
    weights = (((4,), 2, "backward"), ((5,), 2, "backward"), ((7, 8), 1, "update"))
    updates = (((7, 9), 2, "update"), ((8, 9), 2, "update"))
    blocks = check_blocks(step_of(*PLAIN, *weights, *updates))
    assert blocks.chain.stages == check_blocks(step_of(*PLAIN)).chain.stages
    assert blocks.resident_bytes >= 2


def test_several_outputs_count_where_they_are_read():
    problem = Problem(
        ops=(
            OpSpec((), (0,), (1,), (0,)),
            OpSpec((0,), (1, 2), (1,), (0,)),
            OpSpec((1,), (3,), (1,), (0,)),
            OpSpec((3, 1), (4,), (1,), (0,), phase="backward"),
            OpSpec((4, 2), (5,), (1,), (0,), phase="backward"),
            OpSpec((5, 0), (6,), (1,), (0,), phase="backward"),
        ),
        tensors=tuple(TensorSpec(s, op) for s, op in ((4, 0), (5, 1), (9, 1), (6, 2), (5, 3), (4, 4), (4, 5))),
        memories=(Memory("cpu", 2**40),),
        devices=(Device("cpu", 0),),
    )
    blocks = check_blocks(problem)
    stage = [value for value, _ in blocks.boundaries].index(1) + 1
    assert blocks.chain.value_bytes[stage] == 5
    assert blocks.chain.saved_bytes[stage] >= 14


def test_zero_times_and_sizes():
    ops = [(reads, 0, phase) for reads, _, phase in PLAIN]
    check_blocks(step_of(*ops, **{f"op{op}": {"time_ns": (0,)} for op in range(len(ops))}))


REFUSED = {
    "one op": ([((), 1, "forward")], "no op is marked"),
    "no marks, a chain": ([((), 1, "none"), ((0,), 1, "none")], "no op is marked"),
    "no marks, no chain": (
        [((), 1, "none"), ((0,), 1, "none"), ((1,), 1, "none"), ((0, 2), 1, "none")],
        "op 0 is still",
    ),
    "backward only": ([((), 1, "backward"), ((0,), 1, "update")], "every op is marked"),
    "one forward op": ([((), 1, "forward"), ((0,), 1, "backward")], "no forward op reads op 0"),
    "two pieces": (
        [((), 1, "forward"), ((), 1, "forward"), ((0,), 1, "backward"), ((1,), 1, "backward")],
        "no forward op reads op 0",
    ),
    "long skip": (
        [
            ((), 1, "forward"),
            ((0,), 1, "forward"),
            ((1,), 1, "forward"),
            ((2, 0), 1, "forward"),
            ((3, 0, 1), 1, "backward"),
            ((4, 2), 1, "backward"),
        ],
        "op 0 is still read by op 3",
    ),
    "gradients of two values go on": (
        [*FORWARD[:3], ((2, 0), 1, "backward"), ((2, 1), 1, "backward"), ((3, 4, 0), 1, "backward")],
        "op 3 reads from before op 1 while op 4 still reads from after it",
    ),
    "a gradient goes along": (
        [
            *FORWARD[:2],
            ((1,), 1, "forward"),
            ((2,), 1, "backward"),
            ((2, 3), 1, "backward"),
            ((1, 4), 1, "backward"),
            ((0, 3, 5), 1, "backward"),
        ],
        "the gradient of op 1 does not go on alone, op 3 does too",
    ),
    "no gradient": ([*FORWARD[:3], ((2,), 1, "backward")], "no backward op makes a gradient of op 1"),
    "short skip, long skip": (
        [
            *FORWARD[:2],
            ((1, 0), 1, "forward"),
            ((2, 1), 1, "forward"),
            ((3, 1, 0), 1, "forward"),
            ((4, 2), 1, "backward"),
            ((5, 1), 1, "backward"),
        ],
        "op 0 is still read by op 4",
    ),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", REFUSED)
def test_reasons_name_the_first_op_that_breaks_the_chain(name, order):
    ops, reason = REFUSED[name]
    problem = step_of(*ops)
    blocks = find_blocks(problem, order)
    assert isinstance(blocks, Reason)
    assert reason in str(blocks)
    assert "\n" not in str(blocks)
    assert (marks_missing(problem) is None) == ("no op is marked" not in str(blocks))


def test_cleaned_plans_in_baseline_order_stay_legal():
    problem = random_chain_step(3)
    blocks = find_blocks(problem, "keep")
    assert isinstance(blocks, Blocks)
    schedule = cleaned(problem, spell_out(blocks, store_nothing(blocks)), "keep")
    firsts = list(dict.fromkeys(schedule.op_ids()))
    assert firsts == sorted(firsts)
    assert simulate(problem, schedule).schedule == Schedule.of_ops(schedule.op_ids())
