from __future__ import annotations

import numpy as np
import pytest

from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import baseline, simulate
from remat_cli.solvers import _search_kernels as kernels
from remat_cli.solvers import _search_moves as moves
from remat_cli.solvers import _search_orders as orders
from remat_cli.solvers import _search_profile as profile
from remat_cli.solvers._search_records import save
from remat_cli.solvers._search_state import (
    BUDGET,
    BUNDLE,
    COST,
    HEAD,
    LENGTH,
    MEM,
    NUM,
    OP,
    OPS,
    POS,
    REPEATABLE,
    SEQ,
    WORK,
    make_net,
)
from remat_cli.solvers._search_tracks import make_track
from remat_cli.solvers._search_warmup import warm_up
from remat_cli.solvers._sharing import condense
from tests.solvers.random_graphs import in_place_problem, random_problem


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    """Compiled before any test that has a time limit."""
    warm_up()


def current_ops(state):
    return [int(state[OP, state[SEQ, p]]) for p in range(state[NUM, LENGTH] - 1)]


def check_against_judge(problem, track):
    plan = simulate(problem, Schedule.of_ops(current_ops(track.state)))
    length = track.state[NUM, LENGTH]
    fixed = problem.memories[0].fixed_bytes
    assert [int(held) + fixed for held in track.state[MEM, : length - 1]] == list(plan.memory_bytes[0])
    assert track.state[NUM, COST] == plan.time_ns
    budget = problem.memories[0].budget_bytes
    assert profile.excess(track.state) == sum(max(0, held - budget) for held in plan.memory_bytes[0])


def make(seed, pinned, fraction=0.7):
    problem = random_problem(seed)
    plan = baseline(problem)
    problem = problem.with_budget(int(plan.peak * fraction))
    net = make_net(problem)
    return problem, make_track(net, problem.memories[0].free_bytes, seed, pinned)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_memory_profile_equals_the_judge_after_hundreds_of_random_moves(seed, pinned):
    problem, track = make(seed, pinned)
    net, state = track.net, track.state
    for round_number in range(80):
        kernels.kick(net, state)
        kernels.destroy(net, state)
        kernels.jiggle(net, state, 5)
        check_against_judge(problem, track)
        if not pinned:
            save(state, track.records[0])
            orders.move_branch(net, state, track.records[0], track.records[0][2], 1e18)
            check_against_judge(problem, track)
        kernels.repair(net, state, 1.0, 0.3, 2**40)
        check_against_judge(problem, track)
        if round_number % 3 == 0:
            kernels.prune(net, state)
            check_against_judge(problem, track)
        firsts = list(dict.fromkeys(current_ops(state)))
        assert not pinned or firsts == sorted(firsts)


@pytest.mark.parametrize("seed", range(3))
def test_predicted_changes_of_excess_are_what_the_moves_do(seed):
    problem, track = make(seed, pinned=False)
    net, state = track.net, track.state
    rng = np.random.default_rng(seed)
    for _ in range(300):
        before = profile.excess(state)
        v = int(rng.integers(net[OPS, 0] - 1))
        p = int(rng.integers(state[POS, state[HEAD, v]] + 1, state[NUM, LENGTH]))
        kind = rng.integers(4)
        if kind <= 1 and net[REPEATABLE, v] == 1 and state[NUM, LENGTH] < 80:
            count = moves.gather(net, state, v, p, 1 if kind == 0 else 24, 0.0)
            change = moves.bundle_change(net, state, p, count)
            moves.insert_bundle(net, state, p, count)
        elif kind == 2:
            step = state[SEQ, rng.integers(state[NUM, LENGTH] - 1)]
            low, high = moves.earliest(net, state, step), moves.latest(net, state, step)
            assert low <= state[POS, step] <= high
            q = int(rng.integers(low, high + 1))
            if q == state[POS, step]:
                continue
            change = moves.shift_change(net, state, step, q)
            moves.shift(net, state, step, q)
        else:
            count = kernels.list_repeated(state)
            if count == 0:
                continue
            step = state[BUNDLE, rng.integers(count)]
            if not profile.is_removable(net, state, step):
                continue
            change = profile.removal_change(net, state, step)
            profile.remove(net, state, step)
        assert profile.excess(state) - before == change
        check_against_judge(problem, track)


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
        results.append((track.rank, track.ops, int(track.state[NUM, WORK])))
    assert results[0] == results[1]


def test_reordering_never_adds_or_drops_a_step():
    problem, track = make(3, pinned=False, fraction=0.5)
    before = track.excess
    track.reorder(20_000, 0.01)
    assert sorted(track.ops) == list(range(len(problem.ops)))
    assert track.excess <= before
    assert track.state[NUM, BUDGET] == problem.memories[0].free_bytes


def shake(track):
    """One round of every kind of move."""
    kernels.kick(track.net, track.state)
    kernels.destroy(track.net, track.state)
    kernels.jiggle(track.net, track.state, 9)
    save(track.state, track.records[0])
    orders.move_branch(track.net, track.state, track.records[0], track.records[0][2], 1e18)
    kernels.repair(track.net, track.state, 1.0, 0.3, 2**40)
    kernels.prune(track.net, track.state)


@pytest.mark.parametrize("seed", range(12))
def test_in_place_savings_follow_who_reads_last(seed):
    problem = in_place_problem(seed)
    problem = problem.with_budget(int(baseline(problem).peak * 0.8))
    condensed = condense(problem)
    track = make_track(make_net(condensed.problem, condensed.in_place), problem.memories[0].free_bytes, seed, False)
    nothing_merged = all(len(group) == 1 for group in condensed.groups)
    for _ in range(60):
        shake(track)
        ops = current_ops(track.state)
        again = make_track(track.net, problem.memories[0].free_bytes, 0, False)
        again.begin(ops)
        length = track.state[NUM, LENGTH]
        assert (again.state[MEM, :length] == track.state[MEM, :length]).all()
        plan = simulate(problem, condensed.expand(Schedule.of_ops(ops)))
        assert plan.peak <= profile.peak(track.state)
        if nothing_merged:
            judged = simulate(problem, Schedule.of_ops(ops))
            assert list(judged.memory_bytes[0]) == [int(held) for held in track.state[MEM, : length - 1]]
