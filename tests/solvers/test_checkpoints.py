"""Sets of checkpoints, and the steps that they make: the shared vectors, chains by hand, and random training steps."""

from __future__ import annotations

import random
import time
from math import isqrt

import pytest

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.tidy import tidy
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.chains.checkpoints import (
    by_size,
    candidate_ops,
    every_root,
    nothing_to_checkpoint,
    passes_of,
    segment_sizes,
    steps_of,
)
from tests.seeds import few
from tests.solvers.chain_vectors import GRAPHS, chain_vectors, graph_problem
from tests.solvers.random_training import chain_training, keeping, random_training


def checkpoints_of(passes, method: str, size: int) -> tuple[int, ...]:
    if method == "store_all":
        return passes.forward
    kind, _, rule = method.partition("_")
    (candidates,) = candidate_ops(passes, "articulation" if kind == "ap" else "linearised")
    return every_root(candidates) if rule == "sqrtn" else by_size(passes, candidates, size)


def judged(problem: Problem, checkpoints):
    """The plan of these checkpoints without what is computed for nobody."""
    return tidy(problem, simulate(problem, Schedule.of_ops(steps_of(passes_of(problem), checkpoints))))


class Definition:
    """What checkpoints mean, word by word: nothing is remembered from one op to the next that can be asked anew."""

    def __init__(self, passes, checkpoints):
        self.passes, self.checkpoints = passes, set(checkpoints)
        self.free = set(passes.forward) - self.checkpoints - passes.held
        self.there, self.steps = set(), []

    def segment(self, op: int) -> int:
        return sum(checkpoint < op for checkpoint in self.checkpoints)

    def is_read_later(self, op: int, place: int) -> bool:
        return any(op in self.passes.reads[later] for later in self.passes.later[place:])

    def is_retained(self, op: int, place: int) -> bool:
        current = max((self.segment(v) for v in self.free if self.is_read_later(v, place)), default=-1)
        return self.segment(op) == current and self.is_read_later(op, place)

    def run(self, op: int) -> None:
        for source in self.passes.reads[op]:
            if source not in self.there:
                self.run(source)
        self.steps.append(op)
        self.there.add(op)

    def all_steps(self) -> list[int]:
        place = 0
        for op in range(len(self.passes.reads)):
            self.run(op)
            place += op in self.passes.later
            to_come = [v for v in self.passes.forward if v > op]
            for value in sorted(self.there & self.free):
                is_read = any(value in self.passes.reads[v] for v in to_come)
                if not is_read and not self.is_retained(value, place):
                    self.there.remove(value)
        return self.steps


@pytest.mark.parametrize("seed", few(range(40), 5))
def test_steps_are_those_of_the_definition(seed):
    passes = passes_of(condense(random_training(seed)).problem)
    rng = random.Random(seed)
    for _ in range(4):
        checkpoints = sorted(rng.sample(passes.forward, rng.randint(0, len(passes.forward))))
        assert steps_of(passes, checkpoints) == Definition(passes, checkpoints).all_steps()


@pytest.mark.parametrize("number", GRAPHS)
def test_the_vectors_are_met_exactly(number):
    graph = chain_vectors()["dags"][number]
    read = {source for node in graph["nodes"] for source in node["deps"]}
    problem = keeping(graph_problem(graph), *(node["id"] for node in graph["nodes"] if node["id"] not in read))
    passes = passes_of(problem)
    assert candidate_ops(passes, "articulation") == (tuple(graph["articulation_points"]),)
    assert len(graph["heuristics"]) > 10
    for known in graph["heuristics"]:
        checkpoints = checkpoints_of(passes, known["method"], known.get("b", 0))
        plan = judged(problem, checkpoints)
        assert [known["method"], list(checkpoints), plan.time_ns, plan.peak] == [
            known["method"],
            known["checkpoints"],
            known["cost"],
            known["peak"],
        ]


@pytest.mark.parametrize("stages", [1, 2, 7, 30])
def test_on_a_chain_both_kinds_of_candidates_are_all_ops(stages):
    passes = passes_of(chain_training(stages))
    assert candidate_ops(passes, "both") == (tuple(range(stages + 1)),) * 2


@pytest.mark.parametrize(("count", "chosen"), [(0, ()), (1, (0,)), (3, (0, 1, 2)), (4, (1, 3)), (10, (2, 5, 8))])
def test_every_root_takes_each_kth(count, chosen):
    assert every_root(range(count)) == chosen


def test_by_size_counts_from_the_last_checkpoint_and_only_above_the_size():
    passes = passes_of(chain_training(9, size=4))
    everything = passes.forward
    assert by_size(passes, everything, 0) == everything
    assert by_size(passes, everything, 8) == (2, 5, 8)
    assert by_size(passes, (1, 3, 4), 8) == (3,)
    assert by_size(passes, everything, 40) == ()


def test_results_of_an_op_count_together_and_zero_bytes_are_no_reason():
    problem = Problem(
        ops=(
            OpSpec((), (0, 1), (1,), (0,), phase="forward"),
            OpSpec((0,), (2,), (1,), (0,), phase="forward"),
            OpSpec((1, 2), (3,), (1,), (0,), phase="backward"),
        ),
        tensors=(TensorSpec(3, 0), TensorSpec(2, 0), TensorSpec(0, 1), TensorSpec(1, 2)),
        memories=(Memory("cpu", 100),),
        devices=(Device("cpu", 0),),
    )
    passes = passes_of(problem)
    assert passes.sizes[0] == 5
    assert by_size(passes, passes.forward, 0) == (0,)
    assert by_size(passes, passes.forward, 4) == (0,)
    assert by_size(passes, passes.forward, 5) == ()


def test_sizes_reach_three_peaks_and_hold_the_range_around_the_geometric_mean():
    passes = passes_of(chain_training(99, size=100))
    sizes = list(segment_sizes(passes, passes.forward, 2000, 300))
    assert sizes[0] == 0
    assert max(sizes) == 6000
    assert sizes[:300] == sorted(sizes[:300])
    # Checkpoint total by largest segment: 10000 * 100, so b = 1000; 9 * 100 by 1100, so 994; 1000 by 1000, so 1000.
    assert sizes[300:] == [int(1000 * 2 ** (step / 6 - 0.5)) for step in range(7)]


def test_a_single_size_is_zero():
    passes = passes_of(chain_training(9))
    assert next(segment_sizes(passes, passes.forward, 20, 1)) == 0


@pytest.mark.parametrize("stages", [15, 24, 99, 399])
def test_square_root_checkpoints_take_square_root_memory_for_one_more_forward_pass(stages):
    problem = chain_training(stages)
    passes = passes_of(problem)
    plan = judged(problem, every_root(passes.forward))
    root = isqrt(stages + 1)
    assert plan.peak <= 2 * root + 2
    assert plan.time_ns <= problem.baseline_time_ns + stages


def test_a_short_chain_by_hand():
    # Checkpoints 1 and 3 of ops 0..4: the backward of stage 2 has op 2 recomputed, that of stage 1 op 0.
    problem = chain_training(4)
    assert steps_of(passes_of(problem), (1, 3)) == [0, 1, 2, 3, 4, 5, 2, 6, 7, 0, 8]


def test_without_checkpoints_the_only_segment_is_kept():
    problem = chain_training(6)
    assert steps_of(passes_of(problem), ()) == list(range(len(problem.ops)))


def test_a_long_segment_needs_no_deep_recursion():
    problem = chain_training(4000)
    assert len(judged(problem, (3990,)).schedule.steps) == len(problem.ops) + 3990


@pytest.mark.parametrize("seed", few(range(60), 8))
def test_any_set_of_checkpoints_gives_a_legal_schedule_in_baseline_order(seed):
    condensed = condense(random_training(seed))
    passes = passes_of(condensed.problem)
    rng = random.Random(seed)
    count = len(passes.forward)
    chosen = {passes.forward, *(tuple(sorted(rng.sample(passes.forward, rng.randint(0, count)))) for _ in range(5))}
    for checkpoints in chosen:
        steps = steps_of(passes, checkpoints)
        firsts = list(dict.fromkeys(steps))
        assert firsts == sorted(firsts)
        assert simulate(condensed.problem, Schedule.of_ops(steps)).time_ns >= condensed.problem.baseline_time_ns
        expanded = condensed.expand(Schedule.of_ops(steps))
        assert set(expanded.op_ids()) == set(range(len(condensed.original.ops)))
        simulate(condensed.original, expanded)


def test_what_is_checkpointed_is_never_recomputed():
    for seed in range(30):
        problem = condense(random_training(seed)).problem
        passes = passes_of(problem)
        assert steps_of(passes, passes.forward) == list(range(len(problem.ops)))


def test_one_op_per_phase_and_a_forward_op_without_readers():
    ops = (
        OpSpec((), (0,), (1,), (0,), phase="forward"),
        OpSpec((), (1,), (1,), (0,), phase="forward"),
        OpSpec((0,), (2,), (1,), (0,), phase="backward"),
    )
    problem = Problem(ops, tuple(TensorSpec(1, op) for op in range(3)), (Memory("cpu", 9),), (Device("cpu", 0),))
    passes = passes_of(problem)
    assert passes.forward == (0, 1)
    for ops in candidate_ops(passes, "both"):
        assert steps_of(passes, every_root(ops)) == [0, 1, 2]


def test_what_cannot_be_checkpointed_is_said():
    chain = chain_training(3)
    assert nothing_to_checkpoint(chain) is None
    backward_only = Problem(
        (OpSpec((), (0,), (1,), (0,), phase="backward"),), (TensorSpec(1, 0),), chain.memories, chain.devices
    )
    assert "nothing to checkpoint" in str(nothing_to_checkpoint(backward_only))


def test_many_sets_on_a_large_graph_take_seconds():
    passes = passes_of(chain_training(500, size=1000))
    begin = time.process_time()
    sets = {by_size(passes, passes.forward, size) for size in segment_sizes(passes, passes.forward, 60_000, 300)}
    for checkpoints in sets:
        steps_of(passes, checkpoints)
    assert len(sets) > 50
    assert time.process_time() - begin < 5
