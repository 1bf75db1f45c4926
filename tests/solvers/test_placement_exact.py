from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from ortools.sat.python import cp_model

from remat_cli.core.schedule.placing import placed_schedule
from remat_cli.core.schedule.plan import Compute, Copy, Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.base import Limits, Solution, Status
from remat_cli.solvers.milp.cp_sat import make_units
from remat_cli.solvers.placing import exact as exact_module
from remat_cli.solvers.placing.exact import solve_exact
from remat_cli.solvers.placing.exact_hints import add_hint, counts_of, expressible
from remat_cli.solvers.placing.exact_model import build_model
from remat_cli.solvers.placing.exact_parts import Caps, Question, make_choices, make_costs
from tests.solvers.brute_force_devices import optimum
from tests.solvers.vectors import load_cases

SPACES = {"free": "free", "keep": "first_in_order"}
# Infeasible in truth: that nothing is within the caps is proved in moments, that nothing is beyond them is not.
UNPROVED = {("pub_host_00", i) for i in (0, 1, 3, 4)} | {("pub_host_02", i) for i in (0, 3, 6)}
LINK_NS = 2


def exact(problem: Problem, start: Schedule | None = None, **limits) -> Solution:
    return solve_exact(problem, Limits(**{"seconds": 20, "workers": 1, **limits}), start)


def random_problem(seed: int, ops: int = 4, homes: tuple[int, ...] = (0, 1), nature: str = "plain") -> Problem:
    """A random graph; device d uses memory homes[d]. With nature `sharing` there are views and in-place results."""
    rng = random.Random(seed)
    specs: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    for op in range(ops):
        near = [len(tensors) - 1] if tensors and rng.random() < 0.8 else []
        inputs = tuple(
            dict.fromkeys(near + [rng.randrange(len(tensors)) for _ in range(rng.choice([0, 1])) if tensors])
        )
        kind = rng.choice(["plain", "plain", "view", "in_place"]) if inputs and nature == "sharing" else "plain"
        count = rng.choice([1, 1, 1, 2]) if kind == "plain" else 1
        outputs = tuple(range(len(tensors), len(tensors) + count))
        for _ in outputs:
            size = rng.randint(1, 6) if kind == "plain" else tensors[inputs[0]].size_bytes
            kept = op == ops - 1 or rng.random() < 0.1
            tensors.append(TensorSpec(size, op, inputs[0] if kind == "view" else None, kept))
        times = [rng.randint(1, 9) if rng.random() < 0.85 else None for _ in homes]
        if all(time is None for time in times):
            times[rng.randrange(len(homes))] = 5
        weights = tuple(w for w in range(2) if rng.random() < 0.3)
        pairs = ((inputs[0], outputs[0]),) if kind == "in_place" else ()
        space = tuple(rng.choice([0, 0, 1, 2]) for _ in homes)
        specs.append(OpSpec(inputs, outputs, tuple(times), space, rng.random() < 0.85, pairs, weights))
    return assembled(specs, tensors, homes, rng)


def assembled(specs: list[OpSpec], tensors: list[TensorSpec], homes: tuple[int, ...], rng: random.Random) -> Problem:
    several = len(set(homes)) > 1
    copies = tuple(tuple(tuple(rng.randint(1, 6) for _ in tensors) for _ in homes) for _ in homes) if several else ()
    memories = tuple(Memory(f"memory{m}", 10**6, rng.choice([0, 3])) for m in sorted(set(homes)))
    devices = tuple(Device(f"device{d}", home) for d, home in enumerate(homes))
    return Problem(tuple(specs), tuple(tensors), memories, devices, copies, (2, 3))


def tightened(problem: Problem, fraction: float) -> Problem:
    """Budgets at a fraction of what every op once on its fastest device takes, in each memory."""
    total = sum(tensor.size_bytes for tensor in problem.tensors)
    for number, memory in enumerate(problem.memories):
        problem = problem.with_budget(memory.fixed_bytes + int(fraction * total) + 4, number)
    return problem


def check_against_brute_force(problem: Problem, order: str = "free") -> str:
    best = optimum(problem, SPACES[order])
    outcome = exact(problem, order=order)
    if best is None:
        assert outcome.schedule is None
        return "nothing"
    assert outcome.bound_ns is not None
    assert outcome.bound_ns <= best[0]
    assert outcome.schedule is not None
    plan = simulate(problem, outcome.schedule)
    assert plan.time_ns == best[0]
    assert all(peak <= m.budget_bytes for peak, m in zip(plan.peak_bytes, problem.memories, strict=True))
    assert outcome.status is (Status.OPTIMAL if outcome.bound_ns == best[0] else Status.FEASIBLE)
    return outcome.status.value


def check_vector(name: str, index: int, problem: Problem, best: int | None, order: str) -> None:
    outcome = exact(problem, order=order, seconds=1 if (name, index) in UNPROVED else 60)
    assert outcome.space == SPACES[order] or outcome.status is Status.INFEASIBLE
    if best is None:
        assert outcome.status is (Status.NOT_FOUND if (name, index) in UNPROVED else Status.INFEASIBLE)
    else:
        assert outcome.status is Status.OPTIMAL
        assert outcome.schedule is not None
        assert simulate(problem, outcome.schedule).time_ns == outcome.bound_ns == best


def vectors(order: str) -> list[tuple[str, int, Problem, int | None, str]]:
    return [
        (case.name, index, problem, case.optimum[SPACES[order]][index], order)
        for case in load_cases(None)
        for index, problem in enumerate(case.problems)
    ]


@pytest.mark.parametrize("order", ["free", "keep"])
def test_optimal_equals_the_vectors_on_a_sample(order):
    sample = [vector for vector in vectors(order) if vector[:2] not in UNPROVED][3::12]
    assert len(sample) > 8
    for vector in sample:
        check_vector(*vector)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["free", "keep"])
def test_optimal_equals_the_vectors_everywhere(order):
    for vector in vectors(order):
        check_vector(*vector)


@pytest.mark.parametrize("homes", [(0, 1), (0, 0), (0, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", ["free", "keep"])
def test_agrees_with_exhaustive_search(homes, order):
    found = Counter(
        check_against_brute_force(tightened(random_problem(seed, 3, homes), 0.5 + 0.1 * seed), order)
        for seed in range(5)
    )
    assert found["optimal"]


@pytest.mark.slow
@pytest.mark.parametrize("homes", [(0, 1), (0, 0), (0, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize("order", ["free", "keep"])
def test_agrees_with_exhaustive_search_often(homes, order):
    for seed in range(30):
        check_against_brute_force(tightened(random_problem(100 + seed, 4, homes), 0.4 + 0.02 * seed), order)


def test_a_call_of_a_device_is_paid_where_devices_change():
    for seed in range(8):
        problem = tightened(random_problem(40 + seed, 4), 0.8)
        devices = tuple(msgspec.structs.replace(device, call_ns=2) for device in problem.devices)
        problem = msgspec.structs.replace(problem, devices=devices)
        best, outcome = optimum(problem, "free"), exact(problem, seconds=2)
        if outcome.status is Status.OPTIMAL:
            assert best is not None
            assert simulate(problem, outcome.schedule).time_ns == best[0]
        elif best is not None:
            assert outcome.bound_ns <= best[0]


def host_problem(budget_bytes: int) -> Problem:
    """A chain there and back on devices 0 and 1, each with 6 bytes, where only device 2, which computes nothing, has
    room for what is read twice."""
    sizes, reads = (3, 3, 3, 1), ((), (0,), (1,), (0, 2))
    ops = tuple(OpSpec(r, (i,), (9, 9, None), (0, 0, 0)) for i, r in enumerate(reads))
    tensors = tuple(TensorSpec(size, i, kept=i == 3) for i, size in enumerate(sizes))
    memories = (Memory("a", budget_bytes), Memory("b", 0), Memory("host", 100))
    copies = tuple(tuple((LINK_NS,) * 4 for _ in range(3)) for _ in range(3))
    return Problem(ops, tensors, memories, tuple(Device(m.name, i) for i, m in enumerate(memories)), copies)


def test_a_host_that_computes_nothing_keeps_what_finds_no_room():
    outcome = exact(host_problem(7))
    assert outcome.status is Status.OPTIMAL
    assert outcome.schedule is not None
    assert simulate(host_problem(7), outcome.schedule).time_ns == 4 * 9 + 2 * LINK_NS
    assert {step.target for step in outcome.schedule.steps if isinstance(step, Copy)} == {0, 2}


def test_a_working_set_that_fits_nowhere_is_infeasible_at_once():
    outcome = exact(host_problem(6), seconds=0)
    assert (outcome.status, outcome.space) == (Status.INFEASIBLE, "free")


def test_weights_take_room_where_ops_are_computed():
    """Both ops would be faster on device 1, whose memory has room for one weight only."""
    ops = tuple(OpSpec((0,) * op, (op,), (10, 1), (0, 0), weights=(op,)) for op in range(2))
    tensors = (TensorSpec(1, 0), TensorSpec(1, 1, kept=True))
    memories = (Memory("a", 100), Memory("b", 22))
    copies = (((None, None), (3, 3)), ((3, 3), (None, None)))
    problem = Problem(ops, tensors, memories, (Device("a", 0), Device("b", 1)), copies, (20, 20))
    outcome = exact(problem)
    assert outcome.status is Status.OPTIMAL
    assert simulate(problem, outcome.schedule).time_ns == 10 + 3 + 1
    roomy = exact(problem.with_budget(42, 1))
    assert roomy.schedule == Schedule((Compute(0, 1), Compute(1, 1)))


def random_schedule(problem: Problem, rng: random.Random) -> Schedule:
    """Every op once on a random device of its, with recomputes and copies strewn in where they are legal."""
    places = [rng.choice([d for d, time in enumerate(op.time_ns) if time is not None]) for op in problem.ops]
    steps = list(placed_schedule(problem, places).steps)
    for _ in range(6):
        op = rng.randrange(len(problem.ops))
        extra = rng.choice([Compute(op, places[op]), Copy(rng.randrange(len(problem.tensors)), *rng.sample((0, 1), 2))])
        place = rng.randrange(len(steps) + 1)
        trial = Schedule((*steps[:place], extra, *steps[place:]))
        found = expressible(problem, make_choices(problem), trial)
        steps = steps if found is None else list(found.steps)
    return Schedule(tuple(steps))


@pytest.mark.parametrize("homes", [(0, 0), (0, 1), (0, 0, 1)])
@pytest.mark.parametrize("nature", ["plain", "sharing"])
def test_every_schedule_is_a_solution_of_the_model_at_its_own_peaks(homes, nature):
    """The complete hint, every variable fixed to it, is feasible: the model excludes nothing that the judge allows."""
    for seed in range(12):
        problem = random_problem(seed, 7, homes, nature)
        schedule = expressible(problem, make_choices(problem), random_schedule(problem, random.Random(seed)))
        assert schedule is not None
        plan = simulate(problem, schedule)
        for memory, peak in enumerate(plan.peak_bytes):
            problem = problem.with_budget(peak, memory)
        used = counts_of(problem, schedule)
        caps = Caps(used.computes, tuple(count + seed % 2 for count in used.copies) if len(homes) > 2 else used.copies)
        caps = Caps(caps.computes, tuple(c if f else 0 for c, f in zip(caps.copies, choices_of(problem), strict=True)))
        question = Question(problem, make_choices(problem), caps, make_units(problem, caps.total), False)
        model = build_model(question, lambda: False)
        add_hint(model, plan)
        assert len(model.cp.proto.solution_hint.vars) == len(model.cp.proto.variables)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.fix_variables_to_their_hinted_value = True
        assert solver.solve(model.cp) == cp_model.OPTIMAL
        assert solver.objective_value * question.units.time_unit == plan.time_ns


def choices_of(problem: Problem) -> tuple:
    return make_choices(problem).copies


def test_claims_hold_with_views_and_in_place_results():
    """Nothing tells the optimum here; the bound stays below every schedule found, also with three times the time."""
    for seed in range(6):
        problem = tightened(random_problem(seed, 6, (0, 1), "sharing"), 0.45)
        short, long = exact(problem, seconds=0.5), exact(problem, seconds=2.0, seed=1, workers=2)
        times = [simulate(problem, o.schedule).time_ns for o in (short, long) if o.schedule is not None]
        bounds = [o.bound_ns for o in (short, long) if o.bound_ns is not None]
        assert all(bound <= time for bound in bounds for time in times)
        if Status.INFEASIBLE in (short.status, long.status):
            assert not times


def test_reports_better_and_better_and_gives_the_same_again():
    problem = tightened(random_problem(6, 5), 0.5)
    heard: list[list] = [[], []]
    outcomes = [
        solve_exact(problem, Limits(seconds=60, workers=1, work=8_000, report=lambda s, b, h=h: h.append((s, b))), None)
        for h in heard
    ]
    times = [simulate(problem, s).time_ns for s, _ in heard[0] if s is not None]
    bounds = [bound for _, bound in heard[0] if bound is not None]
    assert times == sorted(set(times), reverse=True)
    assert bounds == sorted(set(bounds))
    assert outcomes[0].schedule == outcomes[1].schedule
    assert outcomes[0].bound_ns == outcomes[1].bound_ns


def test_a_start_is_never_lost_and_must_follow_the_order_that_is_asked_for():
    ops = (OpSpec((), (0,), (5, 5), (0, 0)), OpSpec((), (1,), (5, 5), (0, 0)))
    tensors = (TensorSpec(1, 0, kept=True), TensorSpec(1, 1, kept=True))
    copies = (((1, 1), (1, 1)),) * 2
    problem = Problem(ops, tensors, (Memory("a", 9), Memory("b", 9)), (Device("a", 0), Device("b", 1)), copies)
    start = Schedule((Compute(1, 1), Compute(0, 1)))
    assert exact(problem, start).schedule == start
    assert exact(problem, start, order="keep").schedule == Schedule((Compute(0), Compute(1)))


def test_too_large_and_overlapping_problems_are_refused_with_a_reason(monkeypatch):
    problem = tightened(random_problem(6, 5), 0.5)
    overlapping = exact(msgspec.structs.replace(problem, overlap=True))
    assert overlapping.status is Status.NOT_FOUND
    assert "beside computes" in overlapping.facts["refused"]
    monkeypatch.setattr(exact_module, "LARGEST_MODEL", 10)
    refused = exact(problem)
    assert "more than 10" in refused.facts["refused"]
    assert refused.status in (Status.NOT_FOUND, Status.FEASIBLE)


def test_what_lies_beyond_the_caps_is_bounded_from_below():
    problem = random_problem(3, 5)
    costs = make_costs(problem, make_choices(problem))
    caps = costs.caps(2, None)
    beyond = costs.beyond_ns(caps)
    assert beyond is not None
    for seed in range(200):
        schedule = random_schedule(problem, random.Random(seed))
        used = counts_of(problem, schedule)
        if any(a > b for a, b in zip(used.computes + used.copies, caps.computes + caps.copies, strict=True)):
            assert simulate(problem, schedule).time_ns >= beyond
