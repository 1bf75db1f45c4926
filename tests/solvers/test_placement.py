"""Placement: kernels against the judge, plans against vectors and exhaustive search, and its one-device views."""

from __future__ import annotations

import random

import msgspec
import pytest

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.placing import one_device_schedule, placed_schedule
from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.timeline import time_of
from remat_cli.solvers import solve
from remat_cli.solvers.base import Limits, Status
from remat_cli.solvers.placing import rows
from remat_cli.solvers.placing.judge import evaluate
from remat_cli.solvers.placing.starts import cut_labels, lift, make_home, relaxed_problem
from remat_cli.solvers.placing.state import capacity, decode, encode, make_net, make_work
from remat_cli.solvers.placing.tracks import make_track
from tests.seeds import few
from tests.solvers.brute_force import optimum
from tests.solvers.brute_force_devices import optimum as devices_optimum
from tests.solvers.vectors import load_cases


def random_devices(rng: random.Random, ops: int = 12) -> Problem:
    """Everything the judge knows: views, in place, weights, workspace, calls, overlap, devices that share a memory."""
    count = rng.choice([2, 3])
    memories = rng.choice([1, 2, count])
    memory_of = [0] + [rng.randrange(memories) for _ in range(count - 1)]
    specs: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    for op in range(ops):
        near = list(range(max(0, len(tensors) - 6), len(tensors)))
        inputs = tuple(rng.sample(near, min(len(near), rng.choice([0, 1, 2, 2]))))
        outputs = tuple(range(len(tensors), len(tensors) + rng.choice([1, 1, 2])))
        is_view = bool(inputs) and rng.random() < 0.25
        for _ in outputs:
            size = tensors[inputs[0]].size_bytes if is_view else rng.choice([1, 4, 9])
            tensors.append(TensorSpec(size, op, inputs[0] if is_view else None, rng.random() < 0.15))
        pairs = ((inputs[0], outputs[0]),) if inputs and not is_view and rng.random() < 0.4 else ()
        times = [rng.randint(0, 20) if rng.random() < 0.85 else None for _ in range(count)]
        times[0] = 5 if all(time is None for time in times) else times[0]
        workspace = tuple(rng.choice([0, 3]) for _ in range(count))
        weights = tuple(rng.sample(range(4), rng.choice([0, 1, 2])))
        specs.append(OpSpec(inputs, outputs, tuple(times), workspace, rng.random() < 0.9, pairs, weights))
    copies = tuple(
        tuple(tuple(rng.randint(0, 9) if rng.random() < 0.9 else None for _ in tensors) for _ in range(count))
        for _ in range(count)
    )
    return Problem(
        tuple(specs),
        tuple(tensors),
        tuple(Memory(f"m{m}", rng.randint(10, 40), rng.choice([0, 2])) for m in range(memories)),
        tuple(Device(f"d{d}", m, rng.choice([0, 0, 4])) for d, m in enumerate(memory_of)),
        copies,
        tuple(rng.randint(1, 9) for _ in range(4)),
        overlap=rng.random() < 0.5,
    )


def random_schedule(rng: random.Random, problem: Problem) -> Schedule:
    """Legal steps at random until every op has run; now and then one of them is missing."""
    steps: list[Step] = []
    held: list[set[int]] = [set() for _ in problem.memories]
    ran: set[int] = set()
    for _ in range(300):
        choices = computes(problem, held, ran) if rng.random() < 0.6 else copies_of(problem, held)
        fresh = [step for step in choices if isinstance(step, Compute) and step.op not in ran]
        if choices:
            step = rng.choice(fresh if fresh and rng.random() < 0.8 else choices)
            steps.append(step)
            if isinstance(step, Compute):
                ran.add(step.op)
                held[problem.devices[step.device].memory].update(problem.ops[step.op].outputs)
            else:
                held[problem.devices[step.target].memory].add(step.tensor)
        if len(ran) == len(problem.ops) and rng.random() < 0.2:
            break
    if rng.random() < 0.2:
        steps.pop(rng.randrange(len(steps)))
    return Schedule(tuple(steps))


def computes(problem: Problem, held: list[set[int]], ran: set[int]) -> list[Step]:
    return [
        Compute(op, d)
        for op, spec in enumerate(problem.ops)
        for d, device in enumerate(problem.devices)
        if spec.time_ns[d] is not None and held[device.memory].issuperset(spec.inputs)
        if spec.repeatable or op not in ran
    ]


def copies_of(problem: Problem, held: list[set[int]]) -> list[Step]:
    return [
        Copy(tensor, s, t)
        for s, source in enumerate(problem.devices)
        for t, target in enumerate(problem.devices)
        if source.memory != target.memory
        for tensor in sorted(held[source.memory])
        if problem.copy_ns[s][t][tensor] is not None
    ]


def fits(problem: Problem, schedule: Schedule) -> bool:
    peaks = simulate(problem, schedule).peak_bytes
    return all(peak <= memory.budget_bytes for peak, memory in zip(peaks, problem.memories, strict=True))


def offloading(budget: int = 12) -> Problem:
    """A long skip that is dear to make and cheap to copy; the other memory computes nothing."""
    ops = (
        OpSpec((), (0,), (100, None), (0, 0)),
        OpSpec((0,), (1,), (10, None), (0, 0)),
        OpSpec((1,), (2,), (10, None), (0, 0)),
        OpSpec((2, 0), (3,), (10, None), (0, 0)),
    )
    tensors = tuple(TensorSpec(size, i) for i, size in enumerate((4, 6, 6, 1)))
    copies = (3, 3, 3, 3)
    none = (None,) * 4
    memories = (Memory("fast", budget), Memory("host", 100))
    return Problem(ops, tensors, memories, (Device("gpu", 0), Device("host", 1)), ((none, copies), (copies, none)))


@pytest.mark.parametrize("seed", few(range(40), 5))
def test_kernels_count_as_the_judge_does(seed):
    rng = random.Random(seed)
    for _ in range(4):
        problem = random_devices(rng)
        schedule = random_schedule(rng, problem)
        net = make_net(problem)
        work, codes = make_work(net, 0), encode(problem, schedule)
        assert decode(problem, codes) == schedule
        work[rows.TRIAL, : len(codes)], work[rows.LENGTHS, 0] = codes, len(codes)
        is_legal = evaluate(net, work, 0)
        try:
            plan = simulate(problem, schedule)
        except InvalidSchedule:
            assert not is_legal
            continue
        assert is_legal
        assert work[rows.NUM, rows.TIME] == plan.time_ns
        over = 0
        for m, memory in enumerate(problem.memories):
            counted = work[rows.MEM + 5 * m, : len(codes)] + memory.fixed_bytes
            assert tuple(counted.tolist()) == plan.memory_bytes[m]
            over += sum(max(0, held - memory.budget_bytes) for held in plan.memory_bytes[m])
        assert work[rows.NUM, rows.OVER] == over


@pytest.mark.parametrize("seed", few(range(12), 2))
def test_a_track_never_claims_what_the_judge_denies(seed):
    rng = random.Random(seed)
    problem = random_devices(rng)
    while not problem.copy_ns or any(None in entry for row in problem.copy_ns for entry in row):
        full = tuple(tuple(tuple(t or 1 for t in entry) for entry in row) for row in problem.copy_ns)
        problem = msgspec.structs.replace(problem, copy_ns=full)
    track = make_track(problem, make_net(problem), seed)
    start = one_device_schedule(problem, 0)
    assert track.begin(start)
    excess_before = track.cost
    track.improve(400, 0.2)
    assert track.cost <= excess_before
    plan = simulate(problem, track.schedule)
    assert plan.time_ns == track.cost[1]
    assert fits(problem, track.schedule) == (track.cost[0] == 0)


@pytest.mark.slow
def test_vectors_with_several_devices():
    cases = [(case, i) for case in load_cases(None) for i in range(len(case.problems))]
    for case, i in cases[::3]:
        best = case.optimum["free"][i]
        result = solve(case.problems[i], "placement", Limits(seconds=10, workers=1, work=4_000))
        found = None if result.plan is None else result.plan.time_ns
        assert found == best, (case.name, i)
        assert result.bound_ns is None or best is None or result.bound_ns <= best


def small_devices(seed: int) -> Problem:
    """Like `random_devices`, without what exhaustive search leaves out, on two memories."""
    rng = random.Random(seed)
    problem = random_devices(rng, 4)
    while len(problem.memories) != 2:
        problem = random_devices(rng, 4)
    return msgspec.structs.replace(
        problem,
        ops=tuple(msgspec.structs.replace(op, in_place=()) for op in problem.ops),
        tensors=tuple(msgspec.structs.replace(tensor, view_of=None) for tensor in problem.tensors),
        overlap=False,
    )


@pytest.mark.parametrize("order", ["free", "keep"])
@pytest.mark.parametrize("seed", few(range(12), 2))
def test_search_alone_finds_the_optimum_of_tiny_problems(seed, order):
    problem = small_devices(seed)
    best = devices_optimum(problem, "free" if order == "free" else "first_in_order")
    result = solve(problem, "placement", Limits(seconds=20, work=20_000, order=order), {"exact_ops": 0})
    found = None if result.plan is None else result.plan.time_ns
    assert found == (None if best is None else best[0])


@pytest.mark.parametrize("exact_ops", [0, 15])
def test_offloads_what_is_dear_to_make(exact_ops):
    limits = Limits(seconds=10, work=3_000)
    result = solve(offloading(), "placement", limits, {"exact_ops": exact_ops})
    assert result.plan is not None
    assert result.plan.time_ns == 136
    assert [step for step in result.plan.schedule.steps if isinstance(step, Copy)] == [Copy(0, 0, 1), Copy(0, 1, 0)]


@pytest.mark.parametrize(("overlap", "best"), [(True, 15), (False, 25)])
def test_a_copy_goes_early_where_it_runs_beside_computes(overlap, best):
    ops = (
        OpSpec((), (0,), (None, 0), (0, 0)),
        OpSpec((), (1,), (10, None), (0, 0)),
        OpSpec((0, 1), (2,), (5, None), (0, 0)),
    )
    table = ((10,) * 3,) * 2
    memories, devices = (Memory("gpu", 9), Memory("cpu", 9)), (Device("gpu", 0), Device("cpu", 1))
    problem = Problem(
        ops, (*(TensorSpec(3, op) for op in range(3)),), memories, devices, (table, table), (), (), overlap
    )
    result = solve(problem, "placement", Limits(seconds=10, work=2_000))
    assert result.plan is not None
    assert result.plan.time_ns == best


def test_keeps_the_order_when_asked():
    rng = random.Random(3)
    problem = offloading()
    result = solve(problem, "placement", Limits(seconds=10, work=2_000, order="keep", seed=rng.randrange(9)))
    assert result.plan is not None
    firsts = list(dict.fromkeys(result.plan.schedule.op_ids()))
    assert firsts == sorted(firsts)
    assert result.space == "first_in_order"


@pytest.mark.parametrize("exact_ops", [0, 15])
def test_same_seed_and_work_same_plan(exact_ops):
    problem = offloading()
    first, second = (
        solve(problem, "placement", Limits(seconds=60, work=2_000, seed=4), {"exact_ops": exact_ops}) for _ in range(2)
    )
    assert first.plan == second.plan
    assert first.status is second.status


def test_a_start_is_kept_or_bettered():
    problem = offloading()
    start = Schedule((Compute(0), Copy(0, 0, 1), Compute(1), Compute(2), Copy(0, 1, 0), Compute(3)))
    assert fits(problem, start)
    result = solve(problem, "placement", Limits(seconds=10, work=1), start=start)
    assert result.plan is not None
    assert result.plan.time_ns <= time_of(problem, start)


def shared_memory(seed: int, call_ns: int) -> Problem:
    """Two devices of one memory: one is fast and needs workspace."""
    rng = random.Random(seed)
    ops, tensors = [], []
    for op in range(6):
        inputs = tuple({rng.randrange(max(0, op - 3), op) for _ in range(2)}) if op else ()
        time = rng.randint(2, 9)
        ops.append(OpSpec(inputs, (op,), (time, rng.randint(1, 12)), (rng.choice([0, 3]), rng.choice([0, 2]))))
        tensors.append(TensorSpec(rng.randint(1, 6), op))
    memory = Memory("cpu", 2**40)
    return Problem(tuple(ops), tuple(tensors), (memory,), (Device("a", 0, call_ns), Device("b", 0, call_ns)))


@pytest.mark.parametrize("call_ns", [0, 5])
@pytest.mark.parametrize("seed", few(range(4), 1))
def test_devices_of_one_memory(seed, call_ns):
    problem = shared_memory(seed, call_ns)
    problem = problem.with_budget(int(baseline(problem).peak * 0.9))
    result = solve(problem, "placement", Limits(seconds=5, work=4_000))
    relaxed = optimum(relaxed_problem(problem), "free")
    if relaxed is None:
        assert result.plan is None
        return
    if result.bound_ns is not None:
        assert result.plan is None or relaxed[0] <= result.plan.time_ns
        assert result.bound_ns <= relaxed[0] or result.status is Status.OPTIMAL
    for device in range(2):
        alone = solve_alone(problem, device)
        assert alone is None or (result.plan is not None and result.plan.time_ns <= alone)


def solve_alone(problem: Problem, device: int) -> int | None:
    ops = tuple(
        msgspec.structs.replace(op, time_ns=(op.time_ns[device],), workspace_bytes=(op.workspace_bytes[device],))
        for op in problem.ops
    )
    best = optimum(msgspec.structs.replace(problem, ops=ops, devices=problem.devices[:1]), "free")
    return None if best is None else best[0]


def test_lifting_counts_calls_and_workspace():
    times = [(1, 4), (9, 3), (1, 4)]
    ops = tuple(OpSpec((v - 1,) if v else (), (v,), time, (0, 5)) for v, time in enumerate(times))
    tensors = tuple(TensorSpec(2, v) for v in range(3))
    problem = Problem(ops, tensors, (Memory("cpu", 9),), (Device("a", 0, 2), Device("b", 0, 2)))
    relaxed = relaxed_problem(problem)
    order = Schedule.of_ops([0, 1, 2])
    placed = lift(problem, relaxed, order)
    assert placed is not None
    assert [step.device for step in placed.steps if isinstance(step, Compute)] == [0, 1, 0]
    assert time_of(problem, placed) == 1 + (3 + 2) + (1 + 2)
    tight = lift(problem.with_budget(8), relaxed, order)
    assert tight is not None
    assert time_of(problem, tight) == 11


def test_home_brings_foreign_ops_and_back():
    ops = (OpSpec((), (0,), (None, 0), (0, 0), repeatable=False), OpSpec((0,), (1,), (5, 9), (0, 0)))
    tensors = (TensorSpec(4, 0), TensorSpec(2, 1))
    copies = ((None, None), (7, 7))
    problem = Problem(
        ops,
        tensors,
        (Memory("gpu", 9), Memory("cpu", 9)),
        (Device("gpu", 0), Device("cpu", 1)),
        ((copies[0], copies[1]), (copies[1], copies[0])),
    )
    home = make_home(problem, 0)
    assert home is not None
    assert [op.time_ns for op in home.problem.ops] == [(7,), (5,)]
    lifted = home.lift(Schedule.of_ops([0, 1, 0]))
    assert lifted.steps == (Compute(0, 1), Copy(0, 1, 0), Compute(1, 0), Copy(0, 1, 0))
    assert simulate(problem, lifted).time_ns == 19


@pytest.mark.parametrize("seed", few(range(8), 2))
def test_the_cut_is_the_cheapest_placement(seed):
    rng = random.Random(seed)
    ops, tensors = [], []
    for op in range(7):
        inputs = tuple({rng.randrange(op) for _ in range(2)}) if op else ()
        times = (rng.randint(1, 20), rng.randint(1, 20))
        ops.append(OpSpec(inputs, (op,), times, (0, 0)))
        tensors.append(TensorSpec(1, op))
    copies = tuple(tuple(tuple(rng.randint(0, 8) for _ in ops) for _ in range(2)) for _ in range(2))
    memories = (Memory("a", 99), Memory("b", 99))
    problem = Problem(tuple(ops), tuple(tensors), memories, (Device("a", 0), Device("b", 1)), copies)
    times = [
        time_of(problem, placed_schedule(problem, [number >> op & 1 for op in range(7)])) for number in range(2**7)
    ]
    assert time_of(problem, placed_schedule(problem, cut_labels(problem))) == min(times)


def test_auto_hands_several_devices_over():
    result = solve(offloading(), "auto", Limits(seconds=10, work=3_000))
    assert result.plan is not None
    assert result.plan.time_ns == 136
    assert "followed" in result.facts


def test_no_room_for_more_steps_is_an_answer():
    problem = offloading()
    net = make_net(problem)
    track = make_track(problem, net, 0)
    many = Schedule((Compute(0),) * (int(capacity(net)) + 1))
    assert not track.begin(many)
