"""Weights that page, in plans of random graphs: within budget, read before their use, gone after it, never written."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_cli.base.errors import InvalidSchedule, ModelError
from remat_cli.core.paging.paged_plan import PagedPlan, image_bytes, paged_plan, read_paging
from remat_cli.core.paging.paged_sessions import SessionCosts, groups_of, paged_sessions
from remat_cli.core.paging.paging import PagedSchedule, PageTransfer
from remat_cli.core.paging.paging_judge import follow_paging
from remat_cli.core.paging.weight_loads import weights_read
from remat_cli.core.paging.weight_paging import NO_WEIGHTS, HostedWeight, LoadCosts, WeightPaging
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.spill import SpillMemory
from remat_cli.solvers.paging.hot import is_possible
from remat_cli.solvers.paging.lists import list_schedules
from remat_cli.solvers.paging.spare import without_idle_moves

MEMORY = SpillMemory(folder="/x", write_bytes_per_second=1e9, read_bytes_per_second=2e9)
OPEN = LoadCosts(open_ns=7, pack_ns_per_mib=2**20)


def random_problem(rng: random.Random) -> tuple[Problem, tuple[HostedWeight, ...]]:
    """Ops that read what earlier ones made and weights, some of them shared; every other weight is packed."""
    count = rng.randint(2, 7)
    weights = tuple(rng.randint(5, 60) for _ in range(rng.randint(1, count + 1)))
    tensors, ops = [], []
    for number in range(count):
        reads = tuple(sorted(rng.sample(range(number), min(number, rng.randint(0, 2)))))
        mine = tuple(sorted(rng.sample(range(len(weights)), rng.randint(0, min(2, len(weights))))))
        ops.append(OpSpec(reads, (number,), (rng.randint(1, 40),), (rng.choice([0, 3]),), weights=mine))
        tensors.append(TensorSpec(rng.randint(1, 20), number, kept=number == count - 1))
    fixed = sum(weights) + 5
    memories = (Memory("cpu", 10**6, fixed),)
    problem = Problem(tuple(ops), tuple(tensors), memories, (Device("cpu", 0),), weight_bytes=weights)
    hosted = tuple(
        HostedWeight(number, size + rng.randint(0, 4), (size + rng.randint(0, 3)) * rng.randint(0, 1))
        for number, size in enumerate(weights)
        if rng.random() < 0.8
    )
    return problem, hosted


def drawn(seed: int) -> tuple[Problem, Plan, PagedPlan, SessionCosts] | None:
    """A plan whose weights page, some or all of them; None where there is nothing to page."""
    rng = random.Random(seed)
    problem, hosted = random_problem(rng)
    plan = baseline(problem)
    steps = len(plan.schedule.steps)
    firsts = (0, *sorted(rng.sample(range(1, steps), rng.randint(0, steps - 1))))
    read = weights_read(problem, plan, groups_of(plan, firsts))
    wanted = [session for session in range(len(firsts)) if rng.random() < 0.8]
    weights = WeightPaging(weights=hosted, costs=OPEN).of_sessions(wanted, read)
    if weights is None:
        return None
    costs = SessionCosts(tuple(tensor.size_bytes for tensor in problem.tensors), call_ns=2, weights=weights)
    free = paged_sessions(problem, plan, firsts, MEMORY.link, costs)
    least = max(free.problem.working_bytes()[1:]) - free.released_bytes + problem.memories[0].fixed_bytes
    problem = problem.with_budget(least + rng.randint(0, 60))
    sessions = paged_sessions(problem, plan, firsts, MEMORY.link, costs)
    assert is_possible(sessions.problem)
    schedules = list(list_schedules(sessions.problem))
    schedule = without_idle_moves(sessions.problem, rng.choice(schedules))
    return problem, plan, paged_plan(sessions, firsts, costs, MEMORY, schedule), costs


def held_at(paged: PagedPlan, tick: int) -> int:
    """What is there at an instant, counted by hand: values from where they are made, weights from their reads."""
    problem, starts = paged.sessions.problem, paged.schedule.starts
    ends = [start + duration for start, duration in zip(starts, problem.durations, strict=True)]
    total = sum(w for w, a, b in zip(problem.workspace_bytes, starts, ends, strict=True) if a <= tick < b)
    moves = defaultdict(list)
    for move in paged.schedule.transfers:
        moves[move.tensor].append(move)
    for number, tensor in enumerate(problem.tensors):
        there = [(starts[tensor.uses[0]] if tensor.uses[0] >= 0 else 0, ends[tensor.uses[-1]])]
        written = [m.start + problem.transfer_ticks(number, "write") for m in moves[number] if m.direction == "write"]
        there = [(there[0][0], max(there[0][1], *written, 0))]
        for read in sorted((m for m in moves[number] if m.direction == "read"), key=lambda m: m.gap):
            used = ends[tensor.uses[read.gap]] if tensor.uses[read.gap] >= 0 else 0
            begin, end = there.pop()
            there += [(begin, max(used, *written, 0)), (read.start, end)]
        total += tensor.size_bytes * any(a <= tick < b for a, b in there)
    return total


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_weights_are_there_in_their_turn_only_and_never_is_more_held_than_the_budget(seed):
    found = drawn(seed)
    if found is None:
        return
    problem, plan, paged, costs = found
    sessions, judged = paged.sessions, paged.sessions.problem
    ticks = sorted({tick for tick, _ in paged.run.curve} | set(paged.schedule.starts))
    begun = paged.schedule.starts[1]
    assert all(held_at(paged, tick) <= judged.budget_bytes for tick in ticks)
    assert max((held_at(paged, tick) for tick in ticks if tick >= begun), default=0) == paged.paging.peak_bytes
    reads = {move.tensor: move for move in paged.schedule.transfers if move.direction == "read"}
    images = range(len(sessions.instances), len(sessions.instances) + len(sessions.images))
    assert not [move for move in paged.schedule.transfers if move.direction == "write" and move.tensor in images]
    ends = [a + b for a, b in zip(paged.schedule.starts, judged.durations, strict=True)]
    for number, image in zip(images, sessions.images, strict=True):
        opened = judged.tensors[number].uses[1]
        assert sessions.steps[opened].kind == "load"
        assert sessions.steps[opened].session == image.session
        assert reads[number].start >= ends[0]
        assert reads[number].start + judged.transfer_ticks(number, "read") <= paged.schedule.starts[opened]
    # every session whose weights page is opened over all of them, and nothing else is
    read = weights_read(problem, plan, groups_of(plan, paged.paging.firsts))
    may = {each.weight for each in costs.weights.weights}
    for session in costs.weights.sessions:
        mine = {weight for image in sessions.images if image.session == session for weight in image.weights}
        assert mine == may.intersection(read[session])
    stay = {w for session, mine in read.items() if session not in costs.weights.sessions for w in mine}
    assert sessions.released_bytes == sum(problem.weight_bytes[w] for w in may - stay)
    assert read_paging(problem, plan, paged.paging, costs.sizes).run == paged.run


def simple() -> tuple[Problem, Plan, tuple[int, ...], SessionCosts]:
    """Two products of 100 bytes, packed to 110, and one in place."""
    ops = tuple(OpSpec((n - 1,) if n else (), (n,), (10,), (0,), weights=(n,)) for n in range(3))
    tensors = (TensorSpec(4, 0), TensorSpec(4, 1), TensorSpec(4, 2, kept=True))
    problem = Problem(ops, tensors, (Memory("cpu", 235, 300),), (Device("cpu", 0),), weight_bytes=(100, 100, 100))
    hosted = (HostedWeight(0, 105, 110), HostedWeight(1, 105, 110), HostedWeight(2, 105))
    weights = WeightPaging(sessions=(0, 1, 2), weights=hosted, costs=LoadCosts(5, 0))
    return problem, baseline(problem), (0, 1, 2), SessionCosts((4, 4, 4), weights=weights)


def test_a_session_is_opened_over_its_weights_and_closed():
    problem, plan, firsts, costs = simple()
    sessions = paged_sessions(problem, plan, firsts, MEMORY.link, costs)
    kinds = [(step.kind, step.session) for step in sessions.steps]
    assert kinds == [("begin", -1), *((kind, n) for n in range(3) for kind in ("load", "run")), ("end", -1)]
    judged = sessions.problem
    assert judged.budget_bytes == 235
    assert sessions.released_bytes == 300
    assert judged.durations_ns == (1, 5, 10, 5, 10, 5, 10, 1)
    assert judged.workspace_bytes == (235, 0, 0, 0, 0, 0, 0, 0)
    assert [(t.size_bytes, t.uses, t.is_hosted) for t in judged.tensors[3:]] == [
        (105, (-1, 1), True),
        (105, (-1, 3), True),
        (105, (-1, 5, 6), True),
        (110, (1, 2), False),
        (110, (3, 4), False),
    ]


def test_the_next_weights_are_read_beside_a_session_as_far_as_there_is_room():
    problem, plan, firsts, costs = simple()
    sessions = paged_sessions(problem, plan, firsts, MEMORY.link, costs)
    best = min(
        (paged_plan(sessions, firsts, costs, MEMORY, s) for s in list_schedules(sessions.problem)),
        key=lambda each: each.paging.time_ns,
    )
    # a read takes 53 ns, of which the product before it (10) hides its time where there is room: 110 + 105 + 8
    assert best.paging.peak_bytes == 223
    assert best.paging.time_ns < 1 + 3 * (53 + 5 + 10) + 1
    assert best.paging.read_bytes == 315
    assert (best.paging.written_bytes, best.paging.file_bytes) == (0, 0)
    assert best.session_bytes == tuple(
        max(pair) for pair in zip(best.held_bytes[::2], best.held_bytes[1::2], strict=True)
    )


def test_weights_that_stay_are_not_read_and_stay_counted():
    problem, plan, firsts, costs = simple()
    some = msgspec.structs.replace(costs.weights, sessions=(1,), weights=costs.weights.weights[1:2])
    sessions = paged_sessions(problem, plan, firsts, MEMORY.link, msgspec.structs.replace(costs, weights=some))
    assert sessions.released_bytes == 100
    assert sessions.problem.budget_bytes == 35
    assert not is_possible(sessions.problem)


def test_weights_of_the_same_contents_that_were_counted_once_are_not_let_go_of_twice():
    problem, plan, firsts, costs = simple()
    once = msgspec.structs.replace(problem, memories=(Memory("cpu", 235, 104),))
    assert paged_sessions(once, plan, firsts, MEMORY.link, costs).released_bytes == 104
    some = msgspec.structs.replace(costs.weights, sessions=(1,))
    two = paged_sessions(once, plan, firsts, MEMORY.link, msgspec.structs.replace(costs, weights=some))
    assert two.released_bytes == 0


def test_a_run_begins_with_all_of_them_away():
    problem, plan, firsts, costs = simple()
    judged = paged_sessions(problem, plan, firsts, MEMORY.link, costs).problem
    starts = tuple(n * 10**6 for n in range(8))
    with pytest.raises(InvalidSchedule, match="too late for step 1"):
        follow_paging(judged, PagedSchedule(starts, (PageTransfer(3, "read", 10**6, 0),)))
    with pytest.raises(InvalidSchedule, match="lies in the larger memory already"):
        follow_paging(judged, PagedSchedule(starts, (PageTransfer(3, "write", 0),)))
    assert follow_paging(judged, PagedSchedule(starts)).peak_bytes > judged.budget_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"sessions": (0, 7)},
        {"sessions": (1, 0)},
        {"sessions": ()},
        {"weights": (HostedWeight(9, 200),)},
        {"weights": (HostedWeight(0, 99, 110), HostedWeight(1, 105, 110), HostedWeight(2, 105))},
        {"weights": (HostedWeight(0, 105, -1), HostedWeight(1, 105, 110), HostedWeight(2, 105))},
        {"weights": (HostedWeight(0, 105), HostedWeight(0, 105), HostedWeight(2, 105))},
        {"weights": (HostedWeight(0, 105), HostedWeight(1, 105))},
        {"costs": LoadCosts(-1, 0)},
    ],
)
def test_a_file_that_speaks_of_other_weights_is_refused(change):
    problem, plan, firsts, costs = simple()
    sessions = paged_sessions(problem, plan, firsts, MEMORY.link, costs)
    paging = paged_plan(sessions, firsts, costs, MEMORY, next(list_schedules(sessions.problem))).paging
    assert read_paging(problem, plan, paging, costs.sizes).paging == paging
    changed = msgspec.structs.replace(paging, weights=msgspec.structs.replace(paging.weights, **change))
    with pytest.raises(ModelError, match="weights or sessions that are not there"):
        read_paging(problem, plan, changed, costs.sizes)
    with pytest.raises(ModelError, match="compile again"):
        read_paging(problem, plan, msgspec.structs.replace(paging, weights=None), costs.sizes)


def test_only_sessions_that_read_some_can_have_them_away():
    weights = WeightPaging(weights=(HostedWeight(0, 8), HostedWeight(2, 8)), costs=OPEN)
    read = {0: (0, 1), 1: (1,), 2: (2,), 3: ()}
    found = weights.of_sessions([0, 1, 3], read)
    assert found == WeightPaging(sessions=(0,), weights=(HostedWeight(0, 8),), costs=OPEN)
    assert weights.of_sessions([1, 3], read) is None
    assert NO_WEIGHTS.of_sessions([0], read) is None


@given(st.integers(0, 10**7), st.integers(0, 10**6))
def test_an_image_has_room_for_a_weight_wherever_it_begins_in_a_page(size, offset):
    shift = offset % 4096
    assert image_bytes(size) % 4096 == 0
    assert -(-(shift + size) // 4096) * 4096 <= image_bytes(size)
