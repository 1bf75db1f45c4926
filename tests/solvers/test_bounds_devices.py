from __future__ import annotations

import random

import msgspec
import pytest

from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.base import Limits, Order
from remat_cli.solvers.bounds.devices import cut_bound, improving_device_bounds
from remat_cli.solvers.bounds.improving import Bound
from tests.seeds import few
from tests.solvers.brute_force_devices import optimum
from tests.solvers.single_bounds import device_frontier
from tests.solvers.vectors import load_cases

PLENTY = 2**40
SPACE: dict[Order, str] = {"free": "free", "keep": "first_in_order"}


def best_bound(problem: Problem, order: Order = "free", counts: tuple[int, ...] = (8,)) -> int | None:
    """The best frontier bound with these numbers of boundaries; None: there is no schedule."""
    limits = Limits(seconds=60, order=order)
    times = [device_frontier(problem, limits, count).time_ns for count in counts]
    return None if None in times else max(time for time in times if time is not None)


def is_within(bound: int | None, time_ns: int) -> bool:
    return bound is not None and bound <= time_ns


def improved(problem: Problem, order: Order = "free") -> list[Bound]:
    return list(improving_device_bounds(problem, Limits(seconds=60, order=order)))


@pytest.mark.parametrize("order", ["free", "keep"])
def test_bounds_hold_on_the_vectors_and_nearly_all_are_exact(order):
    exact = feasible = 0
    for case in load_cases(None):
        for problem, best in zip(case.problems, case.optimum[SPACE[order]], strict=True):
            bound = best_bound(problem, order)
            if best is not None:
                assert is_within(bound, best), case.name
                exact, feasible = exact + (bound == best), feasible + 1
    assert exact >= 0.95 * feasible


def test_the_bounds_that_a_search_is_given_rise_and_hold_on_the_vectors():
    for case in load_cases(None)[::4]:
        for problem, best in zip(case.problems, case.optimum["free"], strict=True):
            bounds = improved(problem)
            if best is not None:
                times = [bound.time_ns for bound in bounds]
                assert None not in times
                assert times == sorted(set(times))
                assert times[-1] <= best


@pytest.mark.parametrize("seed", few(range(12), 2))
def test_the_cut_is_exact_where_no_memory_is_short(seed):
    problem = random_problem(seed, ops=5, memories=2)
    best = optimum(problem)
    assert cut_bound(problem).time_ns == (best[0] if best else None)


@pytest.mark.parametrize("seed", few(range(6), 1))
def test_the_program_without_boundaries_is_exact_on_three_memories_where_none_is_short(seed):
    problem = random_problem(seed, ops=4, memories=3)
    best = optimum(problem)
    assert device_frontier(problem, Limits(seconds=60), 0).time_ns == (best[0] if best else None)


def test_an_op_runs_in_both_memories_where_that_costs_less_than_a_copy():
    problem = machines([([], 1, 1), ([0], 1, 9), ([0], 9, 1)], copy=5)
    assert cut_bound(problem).time_ns == optimum(problem)[0] == 4
    once = msgspec.structs.replace(
        problem, ops=(msgspec.structs.replace(problem.ops[0], repeatable=False), *problem.ops[1:])
    )
    assert cut_bound(once).time_ns == optimum(once)[0] == 8


@pytest.mark.parametrize("order", ["free", "keep"])
@pytest.mark.parametrize("seed", few(range(8), 2))
def test_bounds_hold_and_rise_as_budgets_fall(seed, order):
    problem = random_problem(seed, ops=4, memories=2, weights=1)
    times: list[float] = []
    for budget in range(14, 4, -2):
        limited = problem.with_budget(budget, 0).with_budget(budget + 6 * (seed % 3), 1)
        best, bound = optimum(limited, SPACE[order]), best_bound(limited, order)
        assert best is None or is_within(bound, best[0])
        times.append(float("inf") if bound is None else bound)
        if best is None and bound is None:
            break
    assert times == sorted(times)


def test_what_a_call_costs_is_left_out():
    problem = machines([([], 1, 9), ([0], 9, 1)], copy=1)
    devices = tuple(msgspec.structs.replace(device, call_ns=2) for device in problem.devices)
    called = msgspec.structs.replace(problem, devices=devices)
    assert best_bound(called) == 3 < optimum(called)[0]


def test_weights_take_room_where_they_are_read():
    ops = [([], 1, 9), ([0], 1, 9)]
    problem = msgspec.structs.replace(machines(ops, copy=1).with_budget(6, 0), weight_bytes=(3, 3))
    weighty = tuple(msgspec.structs.replace(op, weights=(v,)) for v, op in enumerate(problem.ops))
    problem = msgspec.structs.replace(problem, ops=weighty)
    best = optimum(problem)
    assert best is not None
    assert cut_bound(problem).time_ns == 2
    assert best_bound(problem) == best[0] > 2


@pytest.mark.parametrize("seed", few(range(40), 5))
def test_no_schedule_beats_a_bound_whatever_shares_storage_or_overlaps(seed):
    """Budgets are the peaks of a random legal schedule, which therefore is within them."""
    problem = random_problem(seed, ops=4, memories=2 + seed % 2, weights=seed % 2, shares=True, overlap=seed % 4 == 0)
    rng = random.Random(seed)
    plans = [simulate(problem, schedule) for schedule in (random_schedule(problem, rng) for _ in range(40)) if schedule]
    for plan in sorted(plans, key=lambda plan: plan.time_ns)[:3]:
        limited = problem
        for memory, peak in enumerate(plan.peak_bytes):
            limited = limited.with_budget(peak, memory)
        for bound in improved(limited):
            assert is_within(bound.time_ns, plan.time_ns)


def test_a_small_view_that_is_copied_by_itself_does_not_count_its_base():
    # On the host only the view is kept across the wide op, not its base of 8 bytes.
    ops = (
        OpSpec((), (0,), (1, None), (0, 0)),
        OpSpec((0,), (1,), (1, None), (0, 0)),
        OpSpec((1,), (2,), (1, None), (0, 0), repeatable=False),
        OpSpec((2,), (3,), (1, None), (0, 0)),
        OpSpec((3, 1), (4,), (1, None), (0, 0)),
    )
    tensors = (TensorSpec(8, 0), TensorSpec(2, 1, view_of=0), TensorSpec(1, 2), TensorSpec(8, 3), TensorSpec(1, 4))
    table = tuple(tuple(None if s == d else (1,) * 5 for d in range(2)) for s in range(2))
    copies = tuple(tuple(entry or (None,) * 5 for entry in row) for row in table)
    memories = (Memory("gpu", 11), Memory("host", 2))
    problem = Problem(ops, tensors, memories, (Device("gpu", 0), Device("host", 1)), copies)
    steps = (Compute(0), Compute(1), Copy(1, 0, 1), Compute(2), Compute(3), Copy(1, 1, 0), Compute(4))
    plan = simulate(problem, Schedule(steps))
    assert plan.peak_bytes == (11, 2)
    assert all(is_within(bound.time_ns, plan.time_ns) for bound in improved(problem))


def test_an_output_may_end_elsewhere_than_where_it_shared_storage():
    ops = (OpSpec((), (0,), (1, None), (0, 0)), OpSpec((0,), (1,), (1, None), (0, 0), repeatable=False))
    tensors = (TensorSpec(4, 0), TensorSpec(4, 1, view_of=0, kept=True))
    table = (((None,) * 2, (1, 1)), ((1, 1), (None,) * 2))
    memories = (Memory("gpu", 4), Memory("host", 4))
    problem = Problem(ops, tensors, memories, (Device("gpu", 0), Device("host", 1)), table)
    plan = simulate(problem, Schedule((Compute(0), Compute(1), Copy(1, 0, 1))))
    assert plan.peak_bytes == (4, 4)
    assert all(is_within(bound.time_ns, plan.time_ns) for bound in improved(problem))


@pytest.mark.parametrize("copy", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_recomputes_of_a_training_chain_are_weighed_against_copies_and_the_slow_device(copy):
    problem = training_chain(4, copy).with_budget(3, 0)
    best = optimum(problem)
    assert best is not None
    assert cut_bound(problem).time_ns < best[0]
    assert best_bound(problem) == best[0]


def test_both_memories_short_is_seen_with_the_memories_merged():
    problem = training_chain(4, 1, slow=2).with_budget(3, 0).with_budget(1, 1)
    merged = [b for b in improved(problem) if b.facts.get("memories") == "merged"]
    best = optimum(problem)
    assert best is not None
    assert merged[-1].time_ns > cut_bound(problem).time_ns
    assert merged[-1].time_ns <= best[0]


@pytest.mark.parametrize("seed", few(range(4), 1))
def test_devices_that_share_their_memory_are_one_device_with_a_choice(seed):
    problem = random_problem(seed, ops=5, memories=1)
    for budget in (6, 8, 11):
        limited = problem.with_budget(budget)
        best, bounds = optimum(limited), improved(limited)
        if best is not None:
            assert is_within(bounds[-1].time_ns, best[0])


def test_an_op_that_fits_nowhere_is_found_at_once():
    problem = machines([([], 1, 1), ([0], 1, 1)], copy=1).with_budget(1, 0).with_budget(1, 1)
    assert [bound.time_ns for bound in improved(problem)] == [None]


def test_nothing_more_is_proved_than_is_known_or_asked_for():
    problem = training_chain(4, 2).with_budget(3, 0)
    cut = cut_bound(problem).time_ns
    bounds = list(improving_device_bounds(problem, Limits(seconds=60), lambda: cut))
    assert [bound.time_ns for bound in bounds] == [cut]
    stopped = Limits(seconds=60, should_stop=lambda: True)
    assert all(bound.method == "cut" for bound in improving_device_bounds(problem, stopped))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 300))
def test_bounds_hold_on_many_more_problems(seed):
    test_no_schedule_beats_a_bound_whatever_shares_storage_or_overlaps(seed)
    test_bounds_hold_and_rise_as_budgets_fall(seed, ("free", "keep")[seed % 2])


def machines(ops: list[tuple[list[int], int | None, int | None]], copy: int, sizes: tuple[int, ...] = ()) -> Problem:
    """Two devices with a memory each, ops as (inputs, time on the first, on the second), outputs of a byte."""
    count = len(ops)
    none, times = (None,) * count, (copy,) * count
    return Problem(
        ops=tuple(OpSpec(tuple(reads), (v,), (fast, slow), (0, 0)) for v, (reads, fast, slow) in enumerate(ops)),
        tensors=tuple(TensorSpec(size, v) for v, size in enumerate(sizes or (1,) * count)),
        memories=(Memory("gpu", PLENTY), Memory("cpu", PLENTY)),
        devices=(Device("gpu", 0), Device("cpu", 1)),
        copy_ns=((none, times), (times, none)),
    )


def training_chain(length: int, copy: int, slow: int = 7) -> Problem:
    """A forward chain and its reverse, which reads the forward results; the second device is slower."""
    forward: list[tuple[list[int], int | None, int | None]] = [
        ([v - 1] if v else [], 2, 2 * slow) for v in range(length)
    ]
    backward = [([length + v - 1, length - 1 - v] if v else [length - 1], 3, 3 * slow) for v in range(length)]
    return machines(forward + backward, copy)


def random_problem(
    seed: int, ops: int, memories: int, weights: int = 0, shares: bool = False, overlap: bool = False
) -> Problem:
    """Several outputs, kept tensors, workspace, ops that run once or not everywhere; views and in-place results."""
    rng = random.Random(1000 * memories + seed)
    devices = tuple(Device(f"d{m}", m) for m in range(memories)) + ((Device("more", 0),) if memories == 1 else ())
    specs: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    for op in range(ops):
        near = range(max(0, len(tensors) - 4), len(tensors))
        inputs = tuple(rng.sample(near, min(len(near), rng.choice([0, 1, 1, 2]))))
        nature = rng.choice(["plain", "view", "in_place"]) if shares and inputs else "plain"
        outputs = tuple(range(len(tensors), len(tensors) + (rng.choice([1, 1, 2]) if nature == "plain" else 1)))
        for _ in outputs:
            base = inputs[0] if nature == "view" else None
            size = tensors[inputs[0]].size_bytes if nature != "plain" else rng.randint(0, 4)
            size = rng.randint(0, size) if nature == "view" else size
            tensors.append(TensorSpec(size, op, view_of=base, kept=rng.random() < 0.2))
        times = [rng.choice([None, 1, 2, 4, 7, 9]) for _ in devices]
        times[op % len(times)] = times[op % len(times)] or 3
        specs.append(
            OpSpec(
                inputs,
                outputs,
                tuple(times),
                tuple(rng.choice([0, 0, 2]) for _ in devices),
                repeatable=rng.random() < 0.85,
                in_place=((inputs[0], outputs[0]),) if nature == "in_place" else (),
                weights=(0,) if weights and rng.random() < 0.4 else (),
            )
        )
    return Problem(
        ops=tuple(specs),
        tensors=tuple(tensors),
        memories=tuple(Memory(f"m{m}", PLENTY, rng.choice([0, 1])) for m in range(memories)),
        devices=devices,
        copy_ns=tuple(tuple(random_copies(rng, s, d, len(tensors)) for d in devices) for s in devices),
        weight_bytes=(2,) * weights,
        overlap=overlap,
    )


def random_copies(rng: random.Random, source: Device, target: Device, count: int) -> tuple[int | None, ...]:
    if source.memory == target.memory or rng.random() < 0.1:
        return (None,) * count
    return tuple(rng.choice([0, 1, 2, 3, 6]) for _ in range(count))


def random_schedule(problem: Problem, rng: random.Random) -> Schedule | None:
    """Random legal steps, then what is still to be computed; None if that cannot be."""
    steps: list[Step] = []
    there: set[tuple[int, int]] = set()
    ran: set[int] = set()
    for _ in range(60):
        choices = [step for step in all_steps(problem) if is_legal(problem, step, there, ran)]
        useful = [step for step in choices if isinstance(step, Compute) and step.op not in ran]
        if not choices:
            return None
        step = rng.choice(useful if useful and rng.random() < 0.6 else choices)
        steps.append(step)
        if isinstance(step, Copy):
            there.add((problem.devices[step.target].memory, step.tensor))
        else:
            ran.add(step.op)
            there |= {(problem.devices[step.device].memory, tensor) for tensor in problem.ops[step.op].outputs}
        if len(ran) == len(problem.ops) and rng.random() < 0.5:
            return Schedule(tuple(steps))
    return None


def all_steps(problem: Problem) -> list[Step]:
    devices = range(len(problem.devices))
    computes: list[Step] = [Compute(op, device) for op in range(len(problem.ops)) for device in devices]
    return computes + [Copy(x, s, d) for x in range(len(problem.tensors)) for s in devices for d in devices]


def is_legal(problem: Problem, step: Step, there: set[tuple[int, int]], ran: set[int]) -> bool:
    if isinstance(step, Copy):
        source, target = problem.devices[step.source].memory, problem.devices[step.target].memory
        possible = source != target and problem.copy_ns[step.source][step.target][step.tensor] is not None
        return possible and (source, step.tensor) in there
    op, memory = problem.ops[step.op], problem.devices[step.device].memory
    may_run = op.time_ns[step.device] is not None and (op.repeatable or step.op not in ran)
    return may_run and all((memory, tensor) in there for tensor in op.inputs)
