from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remat_cli.base.errors import ConfigError
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.solver_run import SolverRun
from remat_cli.solvers import solve
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.milp.process import Reply, ask_highs_in_turn, proved_value
from remat_cli.solvers.published._staged import relaxed as relaxation
from remat_cli.solvers.published._staged.candidates import guesses
from remat_cli.solvers.published._staged.program import build_stage_model
from remat_cli.solvers.published._staged.relaxed import is_impossible, program_of, relax
from tests.solvers.brute_force import optimum
from tests.solvers.random_graphs import at_fraction, one_device, random_problem
from tests.solvers.test_rounding import assert_in_stages, rounder_for
from tests.solvers.vectors import INSTANCES, load_cases
from tests.strategies import fraction_of, problems


def limits(**changes) -> Limits:
    return Limits(**{"seconds": 60, "workers": 1, "order": "keep", **changes})


def run(problem: Problem, **options) -> SolverRun:
    return solve(problem, "checkmate-lp", limits(), options)


def needs_recomputing(problem: Problem) -> bool:
    """Whether the solver gets as far as a program: the baseline does not fit, though every single step may."""
    budget = problem.memories[0].budget_bytes
    return baseline(problem).peak > budget >= max(simulate_step(problem, op) for op in range(len(problem.ops)))


def simulate_step(problem: Problem, op: int) -> int:
    spec = problem.ops[op]
    touched = sum(problem.tensors[x].size_bytes for x in {*spec.inputs, *spec.outputs})
    return problem.memories[0].fixed_bytes + touched + spec.workspace_bytes[0]


def vectors() -> list[tuple[Problem, int | None]]:
    """The budgets of all cases for which a program is needed, with the optimum of the space."""
    found = [(problem, case.optimum["staged"][i]) for case in load_cases() for i, problem in enumerate(case.problems)]
    return [(problem, best) for problem, best in found if needs_recomputing(problem)]


@pytest.mark.slow
def test_bounds_and_roundings_of_all_vectors():
    """Through one process: bounds never above the optimum, no candidate within the budget below it."""
    cases = vectors()
    models = [build_stage_model(problem, problem.memories[0].budget_bytes, lambda: False) for problem, _ in cases]
    reached = rounded = 0
    for (problem, best), model, relaxed in zip(cases, models, relax(models, limits()), strict=True):
        assert relaxed.status == "optimal" or best is None
        if relaxed.shares is None:
            continue
        bound = problem.baseline_time_ns + relaxed.bound * model.cost_unit
        assert best is None or bound <= best
        reached += bound == best
        rounder = rounder_for(problem)
        candidates = [rounder.better(rounder.round(held)) for _, held in guesses(relaxed.shares, "both", 20, 40, 0)]
        fitting = [candidate for candidate in candidates if candidate.peak_bytes <= rounder.free_bytes]
        for candidate in fitting:
            assert best is not None
            assert candidate.time_ns >= best
            assert_in_stages(problem, candidate)
        rounded += any(candidate.time_ns == best for candidate in fitting)
    assert len(cases) > 60
    assert reached > 10
    assert rounded > 40, (reached, rounded)


def test_any_prices_prove_a_bound():
    """None of them more than the optimum; those of the solver nearly as much as it claims."""
    rng = random.Random(3)
    cases = [(problem, best) for problem, best in vectors()[::4] if best is not None]
    models = [build_stage_model(problem, problem.memories[0].budget_bytes, lambda: False) for problem, _ in cases]
    programs = [program_of(model) for model in models]
    replies = [item for item in ask_highs_in_turn(programs, limits()) if isinstance(item, Reply)]
    for (problem, best), model, program, reply in zip(cases, models, programs, replies, strict=True):
        extra = (best - problem.baseline_time_ns) / model.cost_unit
        assert proved_value(program, reply.duals) == pytest.approx(reply.bound, abs=1e-4)
        for _ in range(20):
            prices = [price * rng.uniform(0.9, 1.1) + rng.uniform(-0.01, 0.01) for price in reply.duals]
            assert proved_value(program, prices) <= extra + 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ({"rounding": "randomised"}, {"rounding": "deterministic", "prune": False})
        ),
    ],
)
def test_a_sample_of_the_vectors_as_a_whole(options):
    for problem, best in vectors()[2::12]:
        check_against(run(problem, **options), best)


@pytest.mark.slow
def test_all_vectors_as_a_whole():
    for problem, best in vectors():
        check_against(run(problem), best)


def check_against(result: SolverRun, best: int | None) -> None:
    if best is None:
        assert result.status in (Status.INFEASIBLE, Status.NOT_FOUND)
        return
    assert result.bound_ns is not None
    assert result.bound_ns <= best
    if result.plan is not None:
        assert result.plan.time_ns >= best


def test_infeasible_in_stages_is_proved():
    impossible = [problem for problem, best in vectors() if best is None]
    assert impossible
    results = [run(problem, samples=10) for problem in impossible[::4]]
    assert all(result.plan is None for result in results)
    assert any(result.status is Status.INFEASIBLE and result.space == "staged" for result in results)


def test_what_cp_sat_cannot_hold_is_not_called_infeasible(monkeypatch):
    problem = next(problem for problem, best in vectors() if best is None)
    model = build_stage_model(problem, problem.memories[0].budget_bytes, lambda: False)
    assert is_impossible(model, limits())
    monkeypatch.setattr(relaxation, "MOST_FOR_CP_SAT", len(model.milp.upper) - 1)
    assert not is_impossible(model, limits())


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_claims_hold_on_random_problems(data):
    check_claims(data, max_ops=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_claims_hold_on_many_more_random_problems(data):
    check_claims(data, max_ops=6)


def check_claims(data: st.DataObject, max_ops: int) -> None:
    """Views, in-place results, kept tensors, workspace, several outputs, unrepeatable ops: nothing claimed too much."""
    problem = data.draw(problems(max_ops=max_ops))
    peak, fixed = baseline(problem).peak, problem.memories[0].fixed_bytes
    problem = problem.with_budget(data.draw(st.integers(min(peak, fixed + (peak - fixed) // 2), peak)))
    result = run(problem, samples=40)
    best = optimum(problem, result.space)
    if result.status is Status.INFEASIBLE:
        assert best is None
    if result.bound_ns is not None:
        assert best is None or result.bound_ns <= best[0]
    if result.plan is not None:
        firsts = list(dict.fromkeys(result.plan.schedule.op_ids()))
        assert firsts == sorted(firsts)
    if result.status is Status.OPTIMAL:
        assert result.plan is not None
        assert best is not None
        assert result.plan.time_ns == best[0]


def long_skips(count: int = 15) -> Problem:
    """A chain in which every third result is read again at the end: something to recompute under any budget."""
    ops = [([v - 1] if v else [], v % 4 + 1, v % 3 + 2) for v in range(count)]
    ops += [([count - 1, v, *([count + v // 3 - 1] if v else [])], 1, 1) for v in range(0, count, 3)]
    return one_device([(reads, time, size) for reads, time, size in ops])


def test_same_seed_same_plan():
    problem = at_fraction(long_skips(), 0.6)
    once, twice = (run(problem, samples=50) for _ in range(2))
    assert once.plan is not None
    assert once.plan == twice.plan
    assert once.facts == twice.facts
    assert once.bound_ns == twice.bound_ns


def test_pruning_and_draws_are_worth_something():
    problem = at_fraction(long_skips(), 0.6)
    plain = run(problem, rounding="deterministic", prune=False)
    full = run(problem, samples=100)
    assert full.plan is not None
    assert plain.plan is None or full.plan.time_ns <= plain.plan.time_ns
    assert full.bound_ns == plain.bound_ns
    assert full.facts["candidates"] > plain.facts["candidates"]
    assert full.facts["programs_solved"] == plain.facts["programs_solved"] > 3


@pytest.mark.parametrize("fraction", [0.9, 0.7, 0.5])
def test_linear16(fraction):
    if not INSTANCES.exists():
        pytest.skip("no instances beside the checkout")
    problem = instance_problem(load_instance(INSTANCES / "linear16_unit_train.json"))
    problem = problem.with_budget(fraction_of(baseline(problem).peak, fraction, 0))
    result = run(problem, samples=100)
    best = {0.9: 34, 0.7: 38, 0.5: 42}[fraction]
    assert result.plan is not None
    assert result.bound_ns is not None
    assert problem.baseline_time_ns < result.bound_ns <= best <= result.plan.time_ns <= 1.05 * best


def test_time_that_is_over_is_not_infeasibility():
    problem = at_fraction(random_problem(1, 150), 0.85)
    began = time.monotonic()
    result = solve(problem, "checkmate-lp", limits(seconds=0.2))
    assert time.monotonic() - began < 4
    assert result.status is Status.NOT_FOUND
    assert result.bound_ns is None
    assert "in the time given" in result.facts["unfinished"]


def test_being_told_to_stop_ends_the_worker():
    problem = at_fraction(random_problem(1, 150), 0.85)
    began = time.monotonic()
    result = solve(problem, "checkmate-lp", limits(should_stop=lambda: time.monotonic() - began > 1.5))
    assert time.monotonic() - began < 5
    assert result.plan is None


def test_bounds_and_plans_are_reported_as_they_come():
    heard: list[tuple[bool, int | None]] = []
    problem = at_fraction(long_skips(), 0.6)
    changed = limits(report=lambda schedule, bound: heard.append((schedule is not None, bound)))
    result = solve(problem, "checkmate-lp", changed, {"samples": 50})
    assert heard[0] == (False, result.bound_ns)
    assert heard[1] == (True, result.bound_ns)


def test_a_start_from_beyond_the_space_is_kept_where_the_order_is_free():
    """Op 1 before op 0 needs no recompute; in baseline order something has to be made again."""
    ops = [([], 5, 4), ([], 5, 6), ([1], 5, 1), ([0, 2], 5, 1)]
    problem = one_device(ops, budget=9)
    start = Schedule.of_ops([1, 2, 0, 3])
    assert simulate(problem, start).peak <= 9
    result = solve(problem, "checkmate-lp", limits(order="free"), start=start)
    assert result.plan is not None
    assert result.plan.schedule == start
    assert (result.status, result.space) == (Status.OPTIMAL, "free")
    kept = solve(problem, "checkmate-lp", limits(order="keep"), start=start)
    assert kept.plan is not None
    assert kept.plan.time_ns == kept.bound_ns == problem.baseline_time_ns + 5


def test_a_start_in_stages_is_kept_with_the_bound():
    problem = at_fraction(long_skips(), 0.6)
    first = run(problem, samples=50)
    assert first.plan is not None
    again = solve(problem, "checkmate-lp", limits(), {"samples": 0, "prune": False}, first.plan.schedule)
    assert again.plan is not None
    assert again.plan.time_ns <= first.plan.time_ns
    assert again.bound_ns == first.bound_ns


EXTREMES = {
    "no costs": one_device([([], 0, 4), ([0], 0, 4), ([1], 0, 4), ([2], 0, 4), ([3, 0], 0, 1)], budget=9),
    "no sizes": one_device([([], 3, 0), ([0], 2, 0), ([1, 0], 1, 0)], budget=0),
    "one op": one_device([([], 3, 5)], kept=(0,), budget=5),
    "nobody reads": one_device([([], 3, 5), ([], 2, 5), ([], 1, 5)], budget=5),
    "apart": one_device([([], 3, 4), ([0], 2, 4), ([1, 0], 2, 4), ([], 3, 4), ([3], 2, 4), ([4, 3], 2, 4)], budget=12),
    "apart, tight": one_device(
        [([], 3, 4), ([], 3, 4), ([0], 2, 4), ([2], 2, 4), ([3, 0], 2, 4), ([1], 1, 1)], budget=13
    ),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes(name):
    problem = EXTREMES[name]
    result = run(problem)
    best = optimum(problem, result.space)
    if best is None:
        assert result.plan is None
        return
    assert result.plan is not None
    assert result.bound_ns is not None
    assert result.bound_ns <= best[0] <= result.plan.time_ns


def test_several_devices_and_wrong_options_are_refused():
    op = OpSpec((), (0,), (1, 1), (0, 0))
    memories, devices = (Memory("a", 9), Memory("b", 9)), (Device("a", 0), Device("b", 1))
    copies = (((0,), (0,)), ((0,), (0,)))
    problem = Problem((op,), (TensorSpec(1, 0),), memories, devices, copies)
    with pytest.raises(ConfigError, match="one device"):
        solve(problem, "checkmate-lp", limits())
    for options in (
        {"allowances": "0,1"},
        {"allowances": "none"},
        {"thresholds": 0},
        {"rounding": "sometimes"},
        {"samples": -1},
    ):
        with pytest.raises(ConfigError):
            solve(one_device([([], 1, 1)]), "checkmate-lp", limits(), options)
