"""Every kind of layers, targets and starts of the frontier bound against exhaustive search."""

from __future__ import annotations

import random

import msgspec
import pytest

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers.base import Limits
from remat_cli.solvers.bounds.frontier import Frontier, make_frontier, rounded_schedule
from remat_cli.solvers.bounds.improving import improving_bounds
from remat_cli.solvers.bounds.pressure import make_pressure
from remat_cli.solvers.milp.process import ask_highs, safe_units
from remat_cli.solvers.milp.program import Milp, rising_answers, solve_milp
from tests.solvers.brute_force import optimum
from tests.solvers.random_graphs import at_fraction, one_device, random_problem
from tests.solvers.single_bounds import gap_cover, relaxed_frontier


def small_problem(rng: random.Random) -> Problem:
    """4 to 6 ops: several outputs, kept tensors, workspace, unrepeatable ops; in half of them views, in-place pairs."""
    ops: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    kinds = rng.choice([["plain"], ["plain", "plain", "view", "in place"]])
    for op in range(rng.randint(4, 6)):
        inputs = sorted(rng.sample(range(len(tensors)), min(len(tensors), rng.choice([0, 1, 2, 2, 3]))))
        kind = rng.choice(kinds) if inputs else "plain"
        outputs = range(len(tensors), len(tensors) + (rng.choice([1, 1, 1, 2]) if kind == "plain" else 1))
        for _ in outputs:
            size = rng.randint(0, 9) if kind == "plain" else tensors[inputs[0]].size_bytes
            base = inputs[0] if kind == "view" else None
            tensors.append(TensorSpec(size, op, view_of=base, kept=rng.random() < 0.12))
        pairs = ((inputs[0], outputs[0]),) if kind == "in place" else ()
        workspace = rng.choice([0, 0, 0, 3])
        ops.append(
            OpSpec(tuple(inputs), tuple(outputs), (rng.randint(0, 9),), (workspace,), rng.random() < 0.88, pairs)
        )
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40, rng.choice([0, 7])),), (Device("cpu", 0),))


def tight_problem(rng: random.Random) -> Problem:
    """One whose baseline does not fit, though every single step may."""
    while True:
        problem = small_problem(rng)
        pressure, fixed = make_pressure(problem), problem.memories[0].fixed_bytes
        least, peak = fixed + max(pressure.working) * pressure.byte_unit, baseline(problem).peak
        if least < peak:
            problem = problem.with_budget(rng.randint(least, peak - 1))
            if not make_pressure(problem).is_surely_too_much():
                return problem


def random_layers(rng: random.Random, count: int) -> list[list[int]]:
    return [sorted({*rng.sample(range(count), rng.randint(0, 3)), count - 1}) for _ in range(rng.choice([1, 2, 3]))]


def check(seed: int) -> tuple[bool, bool]:
    """Check one problem; says whether recomputing is needed, and whether the bound is the optimum then."""
    rng = random.Random(seed)
    problem = tight_problem(rng)
    pressure, best = make_pressure(problem), optimum(problem, "first_in_order")
    frontier = make_frontier(pressure, random_layers(rng, len(problem.ops)))
    answer = solve_milp(frontier.milp, "cp-sat", Limits())
    if answer.bound is None:
        assert best is None
        return False, False
    bound = problem.baseline_time_ns + answer.bound * pressure.time_unit
    assert best is None or bound <= best[0]
    assert answer.values is not None
    check_start(problem, frontier, answer.values, best[0] if best else None)
    needed = best is not None and best[0] > problem.baseline_time_ns
    return needed, needed and best is not None and bound == best[0]


def check_start(problem: Problem, frontier: Frontier, values: tuple[int, ...], best: int | None) -> None:
    """Legal and first computations in order; within the budget it takes no less than the optimum."""
    schedule = rounded_schedule(problem, frontier, values)
    plan = simulate(problem, schedule)
    ops = schedule.op_ids()
    first = [ops.index(op) for op in range(len(problem.ops))]
    assert first == sorted(first)
    if plan.peak <= problem.memories[0].budget_bytes:
        assert best is not None
        assert plan.time_ns >= best


def test_frontier_with_any_layers_is_valid_and_its_starts_are_legal():
    found = [check(seed) for seed in range(90)]
    needed = [is_best for is_needed, is_best in found if is_needed]
    assert len(needed) > 15
    assert sum(needed) > 0.6 * len(needed)


@pytest.mark.slow
def test_frontier_is_valid_on_many_more_problems():
    assert sum(is_best for _, is_best in map(check, range(1000, 4000))) > 500


def test_starts_of_larger_problems_are_legal():
    for seed in range(4):
        problem = at_fraction(random_problem(seed), 0.8)
        pressure = make_pressure(problem)
        frontier = make_frontier(pressure, [[10, 20, 30, 39], [20, 39]])
        answer = solve_milp(frontier.milp, "cp-sat", Limits(seconds=5))
        if answer.values is not None:
            check_start(problem, frontier, answer.values, 0)


def test_coarse_layers_say_more_without_integers():
    problem = at_fraction(random_problem(3, count=60), 0.75)
    pressure = make_pressure(problem)
    fine, coarse = list(range(4, 60, 5)), [29, 59]
    bounds = [
        solve_milp(make_frontier(pressure, layers).milp, "relaxed", Limits()).bound or 0
        for layers in ([fine], [coarse], [fine, coarse])
    ]
    assert max(bounds[:2]) <= bounds[2]
    assert bounds[2] > 0


def cover(rng: random.Random) -> Milp:
    milp = Milp()
    variables = [milp.add(cost=rng.randint(20, 90)) for _ in range(20)]
    for _ in range(12):
        milp.at_least([(rng.randint(1, 30), variable) for variable in variables], 120)
    return milp


@pytest.mark.parametrize("distance", [None, 0, 40])
def test_bounds_in_steps_rise_to_the_optimum_or_to_what_is_known(distance):
    """A target fixes variables; what it proves must never pass the optimum."""
    for seed in range(2):
        milp = cover(random.Random(seed))
        best = solve_milp(milp, "cp-sat", Limits()).bound
        assert best is not None
        known = None if distance is None else best + distance
        bounds = [answer.bound for answer in rising_answers(milp, "highs", Limits(), lambda known=known: known)]
        assert bounds == sorted(bounds)
        assert bounds[-1] == best


def test_bounds_stop_at_what_is_known_though_the_optimum_is_higher():
    milp = cover(random.Random(7))
    best = solve_milp(milp, "cp-sat", Limits()).bound
    assert best is not None
    *_, last = rising_answers(milp, "highs", Limits(), lambda: best - 5)
    assert best - 5 <= last.bound <= best


def test_bounds_are_heard_while_the_solver_works():
    program = msgspec.to_builtins(cover(random.Random(1))) | {"lower": [0] * 20}
    *heard, reply = ask_highs(program, Limits())
    assert heard
    assert max(heard) <= reply.bound + 1e-6
    assert safe_units(max(heard)) <= safe_units(reply.bound)


def long_problem(count: int) -> Problem:
    """Each op reads the one before and one of the last hundred."""
    rng = random.Random(4)
    reads = [sorted({max(0, op - 1), rng.randrange(max(0, op - 100), op)} if op else set()) for op in range(count)]
    return one_device([(inputs, rng.randint(1, 50), rng.randint(1, 20)) for inputs in reads])


@pytest.mark.slow
def test_the_relaxed_frontier_of_a_problem_of_thousands_of_ops_says_more_than_the_gap_cover():
    problem = at_fraction(long_problem(3_100), 0.95)
    quick, strong = gap_cover(problem, Limits()), relaxed_frontier(problem, Limits(), 2)
    assert strong.time_ns > quick.time_ns > problem.baseline_time_ns
    methods = [bound.method for bound in improving_bounds(problem, Limits(seconds=3, order="keep"))]
    assert methods[0] == "gap cover"
    assert set(methods) <= {"gap cover", "frontier"}


def test_improving_bounds_bring_starts():
    problem = at_fraction(random_problem(5, count=60), 0.75)
    found = []
    for bound in improving_bounds(problem, Limits(seconds=60, order="keep")):
        found.append(bound)
        if bound.start is not None:
            break
    times = [bound.time_ns for bound in found]
    assert times == sorted(times)
    start = found[-1].start
    assert start is not None
    assert simulate(problem, start).time_ns >= problem.baseline_time_ns
