"""What is held between stages, made into schedules: the kernels against the judge and against plain Python."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers._sharing import condense, drop_dead
from remat_cli.solvers._warmup import is_compiled
from remat_cli.solvers.published._staged.candidates import RoundedPlan, Rounder, guesses, number_tensors
from remat_cli.solvers.published._staged.rounding import Flags
from remat_cli.solvers.published._staged.rows import complete, schedule_of, stages_of
from remat_cli.solvers.published._staged.warmup import ENTRIES, warm_up
from tests.seeds import few
from tests.solvers.random_graphs import at_fraction, in_place_problem, nested_unet, one_device, random_problem


def random_held(problem: Problem, rng: random.Random) -> list[set[int]]:
    """What is in memory when each stage begins, and at the end, at random; what must not be made again always is."""
    count, share = len(problem.ops), rng.random()
    held: list[set[int]] = [set() for _ in range(count + 1)]
    for tensor, spec in enumerate(problem.tensors):
        pinned = not problem.ops[spec.producer].repeatable
        for stage in range(spec.producer + 1, count):
            if pinned or rng.random() < share:
                held[stage].add(tensor)
        if spec.kept:
            held[count].add(tensor)
    return held


def flags_of(problem: Problem, held: list[set[int]]) -> np.ndarray:
    numbers = number_tensors(problem)
    flags = np.zeros((len(held), len(problem.tensors)), np.uint8)
    for stage, tensors in enumerate(held):
        for tensor in tensors:
            flags[stage, numbers[tensor]] = 1
    return flags


def rounder_for(problem: Problem) -> Rounder:
    return Rounder(condense(problem), problem.memories[0].free_bytes)


def lacks(problem: Problem, held: list[set[int]], computed: list[set[int]]) -> bool:
    """Whether a step reads, or a stage hands on, what is neither held nor made."""
    for stage, ops in enumerate(computed):
        there = held[stage] | {tensor for op in ops for tensor in problem.ops[op].outputs}
        read = {tensor for op in ops for tensor in problem.ops[op].inputs}
        if stage not in ops or not read <= there or not held[stage + 1] <= there:
            return True
    return False


@pytest.mark.parametrize("seed", few(range(12), 2))
def test_what_is_held_is_made_with_the_least(seed):
    """No recompute of a completion can go, and the kernel finds the same one."""
    rng = random.Random(seed)
    problem = random_problem(seed, 14)
    held = random_held(problem, rng)
    computed = complete(problem, held)
    assert not lacks(problem, held, computed)
    for stage, ops in enumerate(computed):
        for op in ops:
            assert lacks(problem, held, [*computed[:stage], ops - {op}, *computed[stage + 1 :]])
    candidate = rounder_for(problem).round(flags_of(problem, held))
    assert candidate.schedule(14) == drop_dead(problem, schedule_of(computed))


@pytest.mark.parametrize("make", [random_problem, in_place_problem])
@pytest.mark.parametrize("seed", few(range(8), 2))
def test_figures_are_the_judges(make, seed):
    problem = make(seed)
    condensed = condense(problem)
    rounder, rng = Rounder(condensed, 2**40), random.Random(seed)
    for _ in range(10):
        candidate = rounder.round(flags_of(condensed.problem, random_held(condensed.problem, rng)))
        plan = simulate(problem, condensed.expand(candidate.schedule(rounder.ops)))
        assert candidate.time_ns == plan.time_ns
        assert candidate.peak_bytes == plan.peak - problem.memories[0].fixed_bytes


@pytest.mark.parametrize("seed", few(range(10), 2))
def test_bettered_candidates_stay_in_stages_and_within_the_budget(seed):
    problem = at_fraction(nested_unet(3) if seed % 2 else random_problem(seed), 0.8)
    rounder, rng = rounder_for(problem), random.Random(seed)
    improved = 0
    for _ in range(30):
        first = rounder.round(flags_of(problem, random_held(problem, rng)))
        second = rounder.better(first)
        assert rounder.rank(second) <= rounder.rank(first)
        improved += rounder.rank(second) < rounder.rank(first)
        assert_in_stages(problem, second)
        if second.peak_bytes <= rounder.free_bytes:
            assert_nothing_can_go(problem, second)
    assert improved


def assert_in_stages(problem: Problem, candidate: RoundedPlan) -> None:
    assert all(first < second for first, second in pairwise(candidate.events.tolist()))
    schedule = candidate.schedule(len(problem.ops))
    stages = stages_of(problem, schedule)
    assert stages is not None
    assert schedule_of(stages.computed) == schedule
    plan = simulate(problem, schedule)
    assert (plan.time_ns, plan.peak) == (candidate.time_ns, candidate.peak_bytes + problem.memories[0].fixed_bytes)


def assert_nothing_can_go(problem: Problem, candidate: RoundedPlan) -> None:
    """Of a pruned schedule no recompute that takes time can be left out: tried in one order, once, is enough here."""
    ops = candidate.schedule(len(problem.ops)).op_ids()
    again = [place for place, op in enumerate(ops) if op in ops[:place] and problem.ops[op].time_ns[0]]
    dearest = max(again, key=lambda place: problem.ops[ops[place]].time_ns[0] or 0, default=None)
    if dearest is not None:
        without = simulate(problem, Schedule.of_ops(ops[:dearest] + ops[dearest + 1 :]))
        assert without.peak > problem.memories[0].budget_bytes


def test_putting_off_frees_room():
    """Op 0, made again in stage 2, stands in the way of op 3, though it is read in stage 4 only."""
    problem = one_device([([], 1, 4), ([0], 1, 2), ([1], 1, 1), ([2], 1, 6), ([0], 1, 1)], budget=10)
    rounder = rounder_for(problem)
    early = rounder.measure([0, 6, 2 * 5 + 0, 12, 18, 24])
    assert early.peak_bytes == 4 + 1 + 6
    late = rounder.better(early)
    assert late.events.tolist() == [0, 6, 12, 18, 4 * 5 + 0, 24]
    assert late.peak_bytes == 1 + 6


def test_guesses_cover_thresholds_and_both_kinds_of_draws():
    shares = np.array([[0.0, 0.0], [1.0, 0.0], [0.25, 0.5]])
    fixed = list(guesses(shares, "deterministic", 60, 100, 0))
    assert [how for how, _ in fixed] == ["threshold 0.25", "threshold 0.5", "threshold 1"]
    assert [int(held.sum()) for _, held in fixed] == [3, 2, 1]
    drawn = list(guesses(shares, "randomised", 60, 100, 7))
    assert len(drawn) == 100
    assert {how for how, _ in drawn} == {"drawn for each tensor", "drawn for each stage"}
    assert all(held[1, 0] == 1 and held[0].sum() == 0 for _, held in drawn)
    assert 10 < sum(int(held[2, 1]) for _, held in drawn) < 90
    assert same(drawn, list(guesses(shares, "randomised", 60, 100, 7)))
    assert not same(drawn, list(guesses(shares, "randomised", 60, 100, 8)))
    assert len(list(guesses(np.linspace(0, 1, 500).reshape(50, 10), "both", 9, 4, 0))) == 9 + 4


def same(first: list[tuple[str, Flags]], second: list[tuple[str, Flags]]) -> bool:
    return all(np.array_equal(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


def test_warming_up_compiles_all_kernels():
    warm_up()
    assert is_compiled(ENTRIES)
