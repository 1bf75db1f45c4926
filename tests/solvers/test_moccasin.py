from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from remat_cli.base.errors import ConfigError
from remat_cli.core.schedule.instance import instance_problem, load_instance
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers import make_solver, solve
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.milp.cp_sat import OutOfTime, make_units
from remat_cli.solvers.published._moccasin.clock import last_useful_stages, make_clock
from remat_cli.solvers.published._moccasin.model import add_hint, build_model, read_ops
from tests.solvers.brute_force import optimum
from tests.solvers.vectors import INSTANCES, load_cases
from tests.strategies import fraction_of, problems

STAGED = [("keep", copies, domain) for copies in (2, 9) for domain in ("uniform", "triangular")]
FORMS = [*STAGED, ("free", 2, "uniform")]
SPACES = {("keep", 2): "staged_c2", ("keep", 9): "staged", ("free", 2): "free_c2"}


def limits(**changes) -> Limits:
    return Limits(**{"seconds": 60, "workers": 1, "order": "keep", **changes})


def vector_problems() -> list[tuple[Problem, dict[str, int | None]]]:
    return [
        (problem, {space: times[i] for space, times in case.optimum.items()})
        for case in load_cases()
        for i, problem in enumerate(case.problems)
    ]


def check_form(found: list[tuple[Problem, dict[str, int | None]]], order: str, copies: int, options: dict) -> None:
    space = SPACES[order, copies]
    for problem, best in found:
        result = solve(problem, "moccasin", limits(order=order), {"max_copies": copies, **options})
        if best[space] is None:
            assert result.status is Status.INFEASIBLE
        else:
            assert result.status is Status.OPTIMAL
            assert result.plan is not None
            assert result.plan.time_ns == result.bound_ns == best[space]
        # a smaller claim is made where it says as much: the baseline fits, or no op can use the cap
        assert result.space in (space, "free", space.removesuffix("_c2"))


@pytest.mark.parametrize("precedence", ["pairing", "reservoir"])
@pytest.mark.parametrize(("order", "copies", "domain"), FORMS)
def test_optimal_equals_exhaustive_search_on_a_sample(order, copies, domain, precedence):
    slow = copies == 9 and precedence == "reservoir"
    sample = vector_problems()[3 :: 60 if slow else 30]
    check_form(sample, order, copies, {"domain": domain, "precedence": precedence})


@pytest.mark.slow
@pytest.mark.parametrize("precedence", ["pairing", "reservoir"])
@pytest.mark.parametrize(("order", "copies", "domain"), FORMS)
def test_optimal_equals_exhaustive_search_everywhere(order, copies, domain, precedence):
    check_form(vector_problems(), order, copies, {"domain": domain, "precedence": precedence})


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_claims_hold_on_random_problems(data):
    check_claims(data, max_ops=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_claims_hold_on_many_more_random_problems(data):
    check_claims(data, max_ops=6)


def check_claims(data: st.DataObject, max_ops: int) -> None:
    """Views, in-place results, kept tensors, workspace, several outputs, unrepeatable ops: nothing claimed too much."""
    problem = data.draw(problems(max_ops=max_ops))
    peak, fixed = baseline(problem).peak, problem.memories[0].fixed_bytes
    problem = problem.with_budget(data.draw(st.integers(min(peak, fixed + (peak - fixed) // 2), peak)))
    order = data.draw(st.sampled_from(["keep", "free"]))
    options = data.draw(st.sampled_from([{}, {"domain": "triangular"}, {"max_copies": 6}, {"two_phase": False}]))
    result = solve(problem, "moccasin", limits(order=order), options)
    best = optimum(problem, result.space)
    if result.status is Status.INFEASIBLE:
        assert best is None
    if result.bound_ns is not None:
        assert best is None or result.bound_ns <= best[0]
    if result.status is Status.OPTIMAL:
        assert result.plan is not None
        # more than two computations were allowed in `c2` where max_copies is larger: then the plan may be better
        assert best is None or result.plan.time_ns <= best[0]
        assert result.plan.time_ns == (best or [result.plan.time_ns])[0] or options.get("max_copies")
    if result.plan is not None and order == "keep":
        firsts = list(dict.fromkeys(result.plan.schedule.op_ids()))
        assert firsts == sorted(firsts)


def ladder(rungs: int, budget: int, repeatable: bool = True) -> Problem:
    """A chain whose outputs are read again in reverse order: recomputing saves memory, one op after the other."""
    count = 2 * rungs
    ops = [OpSpec((v - 1,) if v else (), (v,), (v % 3 + 1,), (0,), repeatable=repeatable) for v in range(rungs)]
    ops += [OpSpec((v - 1, count - 1 - v), (v,), (4,), (0,)) for v in range(rungs, count)]
    ops[rungs] = OpSpec((rungs - 1,), (rungs,), (4,), (0,))
    return Problem(
        tuple(ops), tuple(TensorSpec(4, v) for v in range(count)), (Memory("cpu", budget),), (Device("cpu", 0),)
    )


def test_space_is_named_after_what_was_searched():
    problem = ladder(4, 16)
    assert solve(problem, "moccasin", limits()).space == "staged_c2"
    assert solve(problem, "moccasin", limits(), {"max_copies": 8}).space == "staged"
    assert solve(problem, "moccasin", limits(order="free")).space == "free_c2"
    assert solve(ladder(4, 16, repeatable=False), "moccasin", limits()).space in ("staged_c2", "staged")


def test_fitting_baseline_is_optimal_without_a_search():
    result = solve(ladder(4, 99), "moccasin", limits())
    assert (result.status, result.space) == (Status.OPTIMAL, "free")
    assert "intervals" not in result.facts


def test_same_work_and_seed_give_the_same_plan():
    problem = ladder(7, 20)
    once, twice = (solve(problem, "moccasin", limits(seed=3, work=5_000)) for _ in range(2))
    assert once.plan is not None
    assert once.plan == twice.plan
    assert once.bound_ns == twice.bound_ns


def test_stops_when_told_to():
    began = time.monotonic()
    asked = itertools.count()
    result = solve(
        ladder(30, 44), "moccasin", limits(seconds=300, should_stop=lambda: next(asked) > 8), {"max_copies": 6}
    )
    assert time.monotonic() - began < 20
    assert result.status in (Status.NOT_FOUND, Status.FEASIBLE, Status.OPTIMAL)


def test_keeps_to_its_time():
    result = solve(ladder(30, 44), "moccasin", limits(seconds=2, order="free"), {"max_copies": 4})
    assert result.seconds < 8


def test_errors_of_a_listener_are_not_lost():
    def fail(schedule: Schedule | None, bound_ns: int | None) -> None:
        raise ValueError("listener")

    with pytest.raises(ValueError, match="listener"):
        solve(ladder(6, 20), "moccasin", limits(report=fail))


def test_gap_stops_early_and_claims_no_more_than_it_proved():
    problem = ladder(7, 20)
    exact = solve(problem, "moccasin", limits())
    rough = solve(problem, "moccasin", limits(gap=0.5))
    assert exact.status is Status.OPTIMAL
    assert rough.plan is not None
    assert rough.bound_ns is not None
    assert rough.bound_ns <= exact.plan.time_ns <= rough.plan.time_ns
    assert rough.status is Status.FEASIBLE or rough.plan.time_ns == exact.plan.time_ns


@pytest.mark.parametrize("order", ["keep", "free"])
def test_a_start_within_budget_is_the_first_incumbent(order):
    problem = ladder(6, 20)
    start = solve(problem, "moccasin", limits()).plan.schedule
    seen: list[Schedule] = []
    watching = limits(order=order, report=lambda schedule, bound: seen.append(schedule))
    result = solve(problem, "moccasin", watching, start=start)
    assert simulate(problem, seen[0]).time_ns <= simulate(problem, start).time_ns
    assert "peak_seconds" not in result.facts  # no phase 1


def test_a_start_with_more_computations_than_the_cap_is_not_lost():
    problem = ladder(6, 12)
    start = solve(problem, "moccasin", limits(), {"max_copies": 6}).plan.schedule
    assert max(Counter(start.op_ids()).values()) > 2
    result = solve(problem, "moccasin", limits(), start=start)
    assert result.plan.time_ns <= simulate(problem, start).time_ns


def test_a_useless_start_does_no_harm():
    problem = ladder(5, 20)
    late = Schedule.of_ops([0, 1, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9])
    plain = solve(problem, "moccasin", limits())
    assert solve(problem, "moccasin", limits(), start=late).plan.time_ns == plain.plan.time_ns


def test_without_phase_one_the_answer_is_the_same():
    problem = ladder(6, 20)
    times = {solve(problem, "moccasin", limits(), {"two_phase": flag}).plan.time_ns for flag in (True, False)}
    assert len(times) == 1


@pytest.mark.parametrize("every", [36, pytest.param(9, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precedence", ["pairing", "reservoir"])
@pytest.mark.parametrize(("order", "copies", "domain"), FORMS)
def test_a_hint_is_complete_and_feasible(order, copies, domain, precedence, every):
    for problem, best in vector_problems()[5::every]:
        space = "staged_c2" if order == "keep" else "free_c2"
        if best[space] is None:
            continue
        ops = optimum(problem, space)[1]
        clock = make_clock(problem, order, domain, [copies] * len(problem.ops))
        units = make_units(problem, clock.horizon)
        (capacity,) = units.capacities
        events = clock.events(ops)
        assert events is not None
        model = build_model(problem, clock, units, precedence, (capacity, capacity), lambda: False)
        with pytest.raises(OutOfTime):
            build_model(problem, clock, units, precedence, (capacity, capacity), lambda: True)
        add_hint(model, ops, events, units.capacities[0])
        hinted = list(model.cp.proto.solution_hint.vars)
        open_variables = [i for i, v in enumerate(model.cp.proto.variables) if len(set(v.domain)) > 1]
        assert len(hinted) == len(set(hinted))
        assert set(open_variables) <= set(hinted)
        solver = cp_model.CpSolver()
        solver.parameters.fix_variables_to_their_hinted_value = True
        assert solver.solve(model.cp) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        assert read_ops(model, solver.value) == ops


def test_events_of_staged_domains():
    problem = ladder(2, 99)
    for domain, base in (("uniform", [0, 4, 8, 12]), ("triangular", [0, 1, 3, 6])):
        clock = make_clock(problem, "keep", domain, [2] * 4)
        assert clock.events([0, 1, 2, 0, 3]) == [base[0], base[1] + 1, base[2] + 2, base[3], base[3] + 3]
        assert clock.events([0, 1, 0, 0, 2, 3]) is None  # three computations
        assert clock.events([1, 0, 2, 3]) is None  # not in baseline order
        assert clock.events([0, 1, 2, 3, 0]) is None  # after the last op


def test_last_useful_stage_is_the_last_descendant():
    problem = ladder(3, 99)
    assert last_useful_stages(problem) == [5, 5, 5, 5, 5, 5]
    fork = Problem(
        ops=(OpSpec((), (0,), (1,), (0,)), OpSpec((0,), (1,), (1,), (0,)), OpSpec((), (2,), (1,), (0,))),
        tensors=(TensorSpec(1, 0), TensorSpec(1, 1), TensorSpec(1, 2)),
        memories=(Memory("cpu", 9),),
        devices=(Device("cpu", 0),),
    )
    assert last_useful_stages(fork) == [1, 1, 2]
    kept = replace_tensor(fork, 0, kept=True)
    assert last_useful_stages(kept) == [2, 1, 2]


def replace_tensor(problem: Problem, tensor: int, kept: bool) -> Problem:
    spec = problem.tensors[tensor]
    changed = TensorSpec(spec.size_bytes, spec.producer, spec.view_of, kept)
    tensors = (*problem.tensors[:tensor], changed, *problem.tensors[tensor + 1 :])
    return Problem(problem.ops, tensors, problem.memories, problem.devices)


def test_units_never_let_a_schedule_exceed_the_budget():
    tensors = (TensorSpec(2**61 + 12, 0), TensorSpec(2**60 + 4, 1))
    ops = (OpSpec((), (0,), (6,), (8,)), OpSpec((0,), (1,), (4,), (0,)))
    problem = Problem(ops, tensors, (Memory("cpu", 2**62 + 3, 1),), (Device("cpu", 0),))
    units = make_units(problem, 1000)
    assert not units.is_exact
    assert units.byte_units[0] % 4 == 0
    assert units.time_unit == 2
    assert all(
        size * units.byte_units[0] >= spec.size_bytes for size, spec in zip(units.sizes[0], tensors, strict=True)
    )
    assert units.capacities[0] * units.byte_units[0] <= problem.memories[0].free_bytes


def test_huge_sizes_give_schedules_but_no_proofs():
    small = ladder(5, 20)
    tensors = tuple(TensorSpec(spec.size_bytes * 2**56 + spec.producer, spec.producer) for spec in small.tensors)
    problem = Problem(small.ops, tensors, (Memory("cpu", 22 * 2**56),), small.devices)
    result = solve(problem, "moccasin", limits())
    assert not result.facts["is_exact"]
    assert result.plan is not None
    assert result.status is Status.FEASIBLE
    assert result.bound_ns is None


@pytest.mark.parametrize("options", [{"max_copies": 1}, {"domain": "weekly"}, {"nonsense": 1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ConfigError):
        make_solver("moccasin", options)


def test_text_options_are_converted():
    assert make_solver("moccasin", {"max_copies": "3", "two_phase": "false"}).max_copies == 3


def test_several_devices_are_refused_with_a_reason():
    problem = ladder(2, 9)
    ops = tuple(OpSpec(op.inputs, op.outputs, op.time_ns * 2, op.workspace_bytes * 2) for op in problem.ops)
    several = Problem(ops, problem.tensors, problem.memories, problem.devices * 2)
    with pytest.raises(ConfigError, match="one device"):
        solve(several, "moccasin", limits())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"domain": "triangular"}, {"precedence": "reservoir"}], ids=str)
@pytest.mark.parametrize(("fraction", "extra"), [(0.9, 377), (0.8, 1097)])
def test_published_optimum_of_g1_is_proved(fraction, extra, options):
    path = INSTANCES / "rl_g1.json"
    if not path.exists():
        pytest.skip("no benchmark instance rl_g1 beside the checkout")
    problem = instance_problem(load_instance(path))
    problem = problem.with_budget(fraction_of(baseline(problem).peak, fraction))
    result = solve(problem, "moccasin", replace(limits(), seconds=120, workers=2), options)
    assert (result.status, result.space) == (Status.OPTIMAL, "staged_c2")
    assert result.plan.time_ns - problem.baseline_time_ns == extra
