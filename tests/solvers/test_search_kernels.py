from __future__ import annotations

import numpy as np
import pytest

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import condense
from remat_cli.solvers.search import changes, kernels, moves, orders, profile, rows, shifts, slots
from remat_cli.solvers.search import destroy as destroying
from remat_cli.solvers.search import repair as repairing
from remat_cli.solvers.search.records import load, pick_over, save
from remat_cli.solvers.search.state import make_net
from remat_cli.solvers.search.tracks import CURRENT, make_track
from remat_cli.solvers.search.warmup import warm_up
from tests.seeds import few
from tests.solvers.random_graphs import in_place_problem, random_problem


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


def taken_slots(state):
    return [p for p in range(state[rows.NUM, rows.SLOTS]) if state[rows.SEQ, p] >= 0]


def current_steps(state):
    return [int(state[rows.SEQ, p]) for p in taken_slots(state)]


def current_ops(state):
    return [int(state[rows.OP, step]) for step in current_steps(state)][:-1]


def current_bytes(state):
    return [int(slots.bytes_at(state, p)) for p in taken_slots(state)]


def check_against_judge(problem, track):
    state = track.state
    plan = simulate(problem, Schedule.of_ops(current_ops(state)))
    fixed = problem.memories[0].fixed_bytes
    assert [held + fixed for held in current_bytes(state)[:-1]] == list(plan.memory_bytes[0])
    assert state[rows.NUM, rows.COST] == plan.time_ns
    budget = problem.memories[0].budget_bytes
    assert slots.excess(state) == sum(max(0, held - budget) for held in plan.memory_bytes[0])
    check_blocks(state)
    check_repeats(state)


def check_blocks(state):
    """Blocks know their highest slot, steps their slots."""
    steps, size = current_steps(state), 1 << state[rows.NUM, rows.SHIFT]
    assert len(steps) == state[rows.NUM, rows.LENGTH]
    assert [int(state[rows.POS, step]) for step in steps] == taken_slots(state)
    for begin in range(0, state[rows.NUM, rows.SLOTS], size):
        block = begin // size
        assert state[rows.MOST, block] == state[rows.MEM, begin : begin + size].max() + state[rows.PENDING, block]


def check_repeats(state):
    """The list of repeated ops is that."""
    ops = [*current_ops(state)]
    repeated = {op for op in ops if ops.count(op) > 1}
    listed = [int(op) for op in state[rows.REPEATS, : state[rows.NUM, rows.REPEATED]]]
    assert sorted(listed) == sorted(repeated)


def make(seed, pinned, fraction=0.7, count=40):
    problem = random_problem(seed, count)
    plan = baseline(problem)
    problem = problem.with_budget(int(plan.peak * fraction))
    net = make_net(problem)
    return problem, make_track(net, problem.memories[0].free_bytes, seed, pinned)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_memory_profile_equals_the_judge_after_thousands_of_random_moves(seed, pinned):
    problem, track = make(seed, pinned, count=40 + 60 * (seed % 2))
    net, state = track.net, track.state
    for round_number in range(80):
        state[rows.NUM, rows.LOGGED] = 0
        kernels.kick(net, state)
        destroying.destroy(net, state)
        kernels.jiggle(net, state, 5)
        check_against_judge(problem, track)
        if not pinned:
            after = orders.move_branch(net, state, slots.excess(state), 1e18)
            assert after == slots.excess(state)
            check_against_judge(problem, track)
        repair(net, state)
        check_against_judge(problem, track)
        if round_number % 3 == 0:
            kernels.prune(net, state)
            check_against_judge(problem, track)
        firsts = list(dict.fromkeys(current_ops(state)))
        assert not pinned or firsts == sorted(firsts)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_all_changes_since_the_log_began_can_be_taken_back(seed, pinned):
    problem, track = make(seed, pinned)
    net, state = track.net, track.state
    for _ in range(60):
        before = current_ops(state), current_bytes(state)
        state[rows.NUM, rows.LOGGED] = 0
        shake(track)
        changes.undo(net, state, 0)
        assert (current_ops(state), current_bytes(state)) == before
        check_against_judge(problem, track)
        shake(track)


@pytest.mark.parametrize("seed", range(3))
def test_predicted_changes_of_excess_are_what_the_moves_do(seed):
    problem, track = make(seed, pinned=False)
    net, state = track.net, track.state
    rng = np.random.default_rng(seed)
    for _ in range(300):
        state[rows.NUM, rows.LOGGED] = 0
        before = slots.excess(state)
        change = make_move(net, state, rng)
        if change is not None:
            assert slots.excess(state) - before == change
        check_against_judge(problem, track)


def make_move(net, state, rng):
    """A random insertion, shift or removal; its predicted change of the excess, None if it was not possible."""
    v = int(rng.integers(net[rows.OPS, 0] - 1))
    kind = rng.integers(4)
    if kind <= 1 and net[rows.REPEATABLE, v] == 1 and state[rows.NUM, rows.LENGTH] < 80:
        p = slots.occupied(state, rng.integers(state[rows.POS, state[rows.HEAD, v]] + 1, state[rows.NUM, rows.SLOTS]))
        state[rows.NUM, rows.WIDTH] = 1 if kind == 0 else 24
        count = moves.gather(net, state, v, state[rows.SEQ, p], 0.0, 2.0**62)
        change = moves.bundle_change(net, state, state[rows.SEQ, p], count, 2**60)
        changes.insert_bundle(net, state, state[rows.SEQ, p], count)
        return change
    if kind == 2:
        return make_shift(net, state, rng)
    if state[rows.NUM, rows.REPEATED] == 0:
        return None
    step = destroying.random_repeat(net, state)
    if not profile.is_removable(net, state, step):
        return None
    profile.collect_removal(net, state, step)
    own = slots.bytes_at(state, state[rows.POS, step]) - state[rows.NUM, rows.BUDGET]
    change = slots.excess_change(state) - max(0, own)
    changes.take_out(net, state, step)
    return change


def make_shift(net, state, rng):
    step = current_steps(state)[rng.integers(state[rows.NUM, rows.LENGTH] - 1)]
    low, high = shifts.earliest(net, state, step), shifts.latest(net, state, step)
    assert low <= state[rows.POS, step] < high
    p = slots.occupied(state, rng.integers(low, high + 1))
    anchor = state[rows.SEQ, p]
    if anchor in (step, profile.follower(state, step)):
        return None
    change = shifts.shift_change(net, state, step, anchor)
    changes.move(net, state, step, anchor)
    return change


def test_what_blocks_a_move_is_over_budget_with_it():
    _, track = make(2, pinned=True, fraction=0.9)
    net, state = track.net, track.state
    repair(net, state)
    assert slots.excess(state) == 0
    seen = set()
    for step in current_steps(state):
        if state[rows.HEAD, state[rows.OP, step]] == step:
            continue
        profile.collect_removal(net, state, step)
        change = slots.excess_change(state)
        profile.collect_removal(net, state, step)
        blocked = slots.is_blocked(state)
        seen.add(bool(blocked))
        assert blocked == (change > 0)
    assert seen


def test_steps_find_room_however_many_crowd_in_one_place():
    problem, track = make(4, pinned=True, count=60)
    net, state = track.net, track.state
    v = next(v for v in range(int(net[rows.OPS, 0])) if net[rows.REPEATABLE, v] == 1)
    anchor = profile.follower(state, state[rows.HEAD, v])
    state[rows.BUNDLE, 0] = v
    for _ in range(150):
        changes.insert_bundle(net, state, anchor, 1)
    check_against_judge(problem, track)
    record = track.records[CURRENT]
    save(state, record)
    load(net, state, record)
    check_against_judge(problem, track)


def test_picked_steps_are_over_budget_and_vary():
    _, track = make(7, pinned=True, fraction=0.5)
    found = {int(pick_over(track.state)) for _ in range(60)}
    assert len(found) > 1
    assert all(slots.bytes_at(track.state, p) > track.state[rows.NUM, rows.BUDGET] for p in found)
    track.set_budget(2**40)
    assert pick_over(track.state) == -1


def test_greedy_orders_are_legal_and_differ():
    problem, track = make(5, pinned=False)
    found = set()
    for noise in (0.0, 0.5, 1.0):
        track.begin_greedy(noise, noise)
        simulate(problem, Schedule.of_ops(track.ops))
        found.add(tuple(track.ops))
    assert len(found) > 1


@pytest.mark.parametrize("pinned", [True, False])
def test_search_does_not_depend_on_where_chunks_end(pinned):
    results = []
    for chunks in (1, 7):
        _, track = make(9, pinned, 0.6)
        track.heat = 3.0
        target = track.work + 21_000
        for chunk in range(1, chunks + 1):
            track.improve(21_000 * chunk // chunks - (track.work - (target - 21_000)))
        results.append((track.rank, track.ops, int(track.state[rows.NUM, rows.WORK])))
    assert results[0] == results[1]


def test_reordering_never_adds_or_drops_a_step():
    problem, track = make(3, pinned=False, fraction=0.5)
    before = track.excess
    track.reorder(20_000, 0.01)
    assert sorted(track.ops) == list(range(len(problem.ops)))
    assert track.excess <= before
    assert track.state[rows.NUM, rows.BUDGET] == problem.memories[0].free_bytes


def repair(net, state):
    """Bring the schedule under its budget if that can be done, with noise and bundles."""
    state[rows.NUM, [rows.NOISE, rows.SHARE]] = rows.SCALE, 0.3 * rows.SCALE
    state[rows.NUM, [rows.FAILURES, rows.MOST_COST]] = 0, 2**40
    repairing.repair(net, state, 2**60)


def shake(track):
    """One round of every kind of move."""
    state = track.state
    kernels.kick(track.net, state)
    destroying.destroy(track.net, state)
    kernels.jiggle(track.net, state, 9)
    if state[rows.NUM, rows.PINNED] == 0:
        orders.move_branch(track.net, state, slots.excess(state), 1e18)
    repair(track.net, state)
    kernels.prune(track.net, state)


@pytest.mark.parametrize("seed", few(range(12), 2))
def test_in_place_savings_follow_who_reads_last(seed):
    problem = in_place_problem(seed)
    problem = problem.with_budget(int(baseline(problem).peak * 0.8))
    condensed = condense(problem)
    track = make_track(make_net(condensed.problem, condensed.in_place), problem.memories[0].free_bytes, seed, False)
    nothing_merged = all(len(group) == 1 for group in condensed.groups)
    for _ in range(60):
        track.state[rows.NUM, rows.LOGGED] = 0
        shake(track)
        ops = current_ops(track.state)
        again = make_track(track.net, problem.memories[0].free_bytes, 0, False)
        again.begin(ops)
        assert current_bytes(again.state) == current_bytes(track.state)
        plan = simulate(problem, condensed.expand(Schedule.of_ops(ops)))
        assert plan.peak <= slots.peak(track.state)
        if nothing_merged:
            judged = simulate(problem, Schedule.of_ops(ops))
            assert list(judged.memory_bytes[0]) == current_bytes(track.state)[:-1]
