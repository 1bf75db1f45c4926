from __future__ import annotations

import random
from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.base import Limits
from remat_cli.solvers.windows.cut import Stretch, cut_open, make_lives
from remat_cli.solvers.windows.model import build_window, read_window
from remat_cli.solvers.windows.search import Windows
from tests.seeds import few
from tests.solvers.random_graphs import at_fraction, nested_unet, random_problem
from tests.solvers.vectors import load_cases

KINDS = ["recomputes", "moving", "permuted"]


def judged(problem, ops):
    return simulate(problem, Schedule.of_ops(ops))


def random_schedule(problem, rng):
    """The baseline order with recomputes anywhere: always legal."""
    ops = list(range(len(problem.ops)))
    for _ in range(6):
        place = rng.randrange(1, len(ops) + 1)
        ready = [op for op in set(ops[:place]) if problem.ops[op].repeatable]
        if ready:
            ops.insert(place, rng.choice(ready))
    return ops


def random_stretch(problem, ops, kind, rng):
    start = rng.randrange(len(ops))
    end = min(len(ops), start + rng.choice([5, 10, len(ops)]))
    free = frozenset(rng.sample(range(len(problem.ops)), rng.choice([3, 8, 14])))
    return Stretch(start, end, free, free if kind != "recomputes" else frozenset(), kind != "permuted")


def windows(problem, ops, found, **limits):
    options = {"seconds": 60.0, "order": "keep", "work": 100_000, **limits}
    return Windows(condense(problem), Limits(**options), ops, found), Limits(**options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", few(range(8), 2))
def test_a_cut_holds_the_present_schedule_and_claims_what_the_judge_says(kind, seed):
    rng = random.Random(seed)
    problem = random_problem(seed, 20)
    ops = random_schedule(problem, rng)
    now = judged(problem, ops)
    problem = problem.with_budget(now.peak)
    stretch = random_stretch(problem, ops, kind, rng)
    cut = cut_open(make_lives(problem, ops), stretch)
    model = build_window(cut, (now.peak - 11, now.peak - 11))  # 11 bytes are fixed
    assert model is not None
    model.cp.minimize(model.extra_time)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = 2.0
    status = solver.solve(model.cp)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    found = [*ops[: stretch.start], *read_window(model, solver.value), *ops[stretch.end :]]
    plan = judged(problem, found)
    must = [*cut.skeleton, *(made.run.op for made in model.computations if made.present is None)]
    outside = [*ops[: stretch.start], *ops[stretch.end :]]
    claimed = sum(problem.ops[op].time_ns[0] for op in (*must, *outside))
    claimed += round(solver.objective_value) * model.time_unit
    assert plan.time_ns == claimed
    assert plan.peak <= now.peak
    if status == cp_model.OPTIMAL:
        assert plan.time_ns <= now.time_ns


def test_the_whole_as_one_cut_gives_the_optimum_of_the_vectors():
    checked = 0
    for case in load_cases()[::6]:
        for i, problem in enumerate(case.problems):
            best = case.optimum["staged_c2"][i]
            if best is None or not condense(problem).exact:
                continue
            found = []
            search, limits = windows(problem, list(range(len(problem.ops))), found.append)
            if search.is_above_budget:
                assert search.solve_whole(limits, 0)
            assert search.solve_whole(limits, 0)
            plan = judged(problem, search.ops)
            assert plan.peak <= problem.memories[0].budget_bytes
            assert case.optimum["staged"][i] <= plan.time_ns <= best
            checked += 1
    assert checked > 10


def test_a_proved_bound_does_not_hide_a_plan_that_meets_it():
    case = next(
        c for c in load_cases() if any(t not in (None, c.problems[0].baseline_time_ns) for t in c.optimum["staged"])
    )
    i = next(i for i, t in enumerate(case.optimum["staged"]) if t not in (None, case.problems[i].baseline_time_ns))
    search, limits = windows(case.problems[i], list(range(len(case.problems[i].ops))), lambda ops: None)
    search.solve_whole(limits, 0)
    search.solve_whole(limits, case.optimum["staged"][i])
    assert case.optimum["staged"][i] <= search.time_ns <= (case.optimum["staged_c2"][i] or search.time_ns)


def test_windows_bring_a_schedule_into_the_budget():
    problem = at_fraction(nested_unet(), 0.95)
    found = []
    search, limits = windows(problem, list(range(len(problem.ops))), found.append, work=60_000)
    search.run(replace(limits, should_stop=lambda: not search.is_above_budget))
    plans = [judged(problem, ops) for ops in found]
    assert plans[-1].peak <= problem.memories[0].budget_bytes
    assert plans[-1].peak == search.peak_bytes + problem.memories[0].fixed_bytes
    firsts = list(dict.fromkeys(search.ops))
    assert firsts == sorted(firsts)


@pytest.mark.parametrize("order", ["keep", "free"])
def test_windows_take_out_what_is_not_needed(order):
    problem = random_problem(5, 30)
    ops = random_schedule(problem, random.Random(2))
    problem = problem.with_budget(judged(problem, ops).peak)
    found = []
    search, limits = windows(problem, ops, found.append, order=order, work=20_000)
    search.run(replace(limits, should_stop=lambda: search.time_ns == problem.baseline_time_ns))
    times = [judged(problem, now).time_ns for now in found]
    assert times == sorted(set(times), reverse=True)
    assert times[-1] == search.time_ns < judged(problem, ops).time_ns
    assert all(judged(problem, now).peak <= problem.memories[0].budget_bytes for now in found)


def test_same_work_and_seed_give_the_same_schedule():
    problem = at_fraction(nested_unet(3), 0.9)
    ends = []
    for _ in range(2):
        search, limits = windows(problem, list(range(len(problem.ops))), lambda ops: None, work=5_000, seed=4)
        search.run(limits)
        ends.append(search.ops)
    assert ends[0] == ends[1]
    assert baseline(problem).peak > problem.memories[0].budget_bytes
