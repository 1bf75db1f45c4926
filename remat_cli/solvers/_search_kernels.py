"""Kernels of the search itself: repair, prune, and large-neighbourhood search over recomputes."""

from __future__ import annotations

import math

from remat_cli.solvers._search_moves import (
    bundle_change,
    bundle_time,
    earliest,
    gather,
    insert_bundle,
    latest,
    shift,
    shift_change,
)
from remat_cli.solvers._search_orders import move_branch
from remat_cli.solvers._search_profile import (
    excess,
    is_removable,
    newest,
    next_read,
    removal_change,
    remove,
    uniform,
)
from remat_cli.solvers._search_records import load, pick_over, save
from remat_cli.solvers._search_state import (
    BEST,
    BEST_AT,
    BEST_LEAST,
    BEST_LIMIT,
    BEST_OP,
    BUNDLE,
    COST,
    FREE,
    HEAD,
    IN_PTR,
    INPUTS,
    LAST,
    LENGTH,
    NUM,
    NXT,
    OP,
    OPS,
    OUT_PTR,
    PINNED,
    POS,
    PRODUCER,
    RANK,
    REPEATABLE,
    SEQ,
    SIZE,
    TIME,
    WORK,
    Ints,
    fragment,
    kernel,
)

WIDEST_BUNDLE = 24  # ops; longer chains of ancestors hardly ever pay
SCALE = 2.0**40  # keeps logarithms apart when they are stored as integers


@fragment
def _reads(net: Ints, v: int, x: int) -> bool:
    found = False
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        found = found or net[INPUTS, k] == x
    return found


@fragment
def _inputs_end(net: Ints, s: Ints, v: int, t: int) -> int:
    """First position after t at which an input of op v that lives across t is read for the last time."""
    first = s[NUM, LENGTH]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        end = s[POS, s[LAST + net[RANK, x], newest(s, u, t + 1)]]
        if end > t:
            first = min(first, end)
    return int(first)


@kernel
def _try_bundles(net: Ints, s: Ints, v: int, p: int, least: float, bonus: float) -> None:
    """Score op v before position p, alone and with the ancestors it needs; remember the best so far."""
    for limit in (1, WIDEST_BUNDLE):
        count = gather(net, s, v, p, limit, least)
        if limit > 1 and count == 1:
            continue
        change = bundle_change(net, s, p, count)
        if change >= 0:
            continue
        score = int(SCALE * (math.log(-change / (bundle_time(net, s, count) + 1.0)) + bonus))
        if s[NUM, BEST_OP] < 0 or score > s[NUM, BEST]:
            s[NUM, BEST], s[NUM, BEST_OP], s[NUM, BEST_AT] = score, v, p
            s[NUM, BEST_LIMIT], s[NUM, BEST_LEAST] = limit, int(least)


@fragment
def _try_lives(net: Ints, s: Ints, t: int, noise: float, share: float) -> None:
    """Score bundles for each tensor that lives across position t unused by the op there."""
    user = s[OP, s[SEQ, t]]
    for q in range(t):
        step = s[SEQ, q]
        v = s[OP, step]
        if net[REPEATABLE, v] == 0:
            continue
        for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
            if s[POS, s[LAST + net[RANK, x], step]] <= t or net[SIZE, x] == 0 or _reads(net, user, x):
                continue
            bonus = noise * (uniform(s) - 0.5)
            p, other = next_read(net, s, x, t), _inputs_end(net, s, v, t)
            for turn in range(2 if other < p else 1):
                _try_bundles(net, s, v, p if turn == 0 else other, share * net[SIZE, x], bonus)


@kernel
def relieve(net: Ints, s: Ints, t: int, noise: float, share: float) -> bool:
    """Insert the best bundle that shortens a life across position t; False if none lowers the excess.

    Best is excess removed per time, times noise. Places tried: before the next read, and earlier, where an input of
    the op is read for the last time.
    """
    s[NUM, BEST_OP] = -1
    _try_lives(net, s, t, noise, share)
    if s[NUM, BEST_OP] < 0:
        return False
    count = gather(net, s, s[NUM, BEST_OP], s[NUM, BEST_AT], s[NUM, BEST_LIMIT], float(s[NUM, BEST_LEAST]))
    if count > s[NUM, FREE]:
        return False
    insert_bundle(net, s, s[NUM, BEST_AT], count)
    return True


@fragment
def repair(net: Ints, s: Ints, noise: float, share: float, most_time: int) -> None:
    """Insert bundles until the schedule fits, costs more than `most_time`, or nothing helps any more."""
    failures, over = 0, excess(s)
    while over > 0 and failures < 4 and s[NUM, COST] <= most_time:
        relieve(net, s, pick_over(s), noise, share)
        before, over = over, excess(s)
        failures = 0 if over < before else failures + 1


@kernel
def list_repeated(s: Ints) -> int:
    """Fill `bundle` with the steps of ops that run more than once, pinned ones left out; returns how many."""
    count = 0
    for p in range(s[NUM, LENGTH]):
        step = s[SEQ, p]
        is_first = s[HEAD, s[OP, step]] == step
        if not is_first or (s[NUM, PINNED] == 0 and s[NXT, step] >= 0):
            s[BUNDLE, count] = step
            count += 1
    return count


@fragment
def prune(net: Ints, s: Ints) -> None:
    """Remove recomputes that can go without raising the excess, expensive ones first."""
    count = list_repeated(s)
    for i in range(1, count):
        step, j = s[BUNDLE, i], i
        while j > 0 and net[TIME, s[OP, s[BUNDLE, j - 1]]] < net[TIME, s[OP, step]]:
            s[BUNDLE, j] = s[BUNDLE, j - 1]
            j -= 1
        s[BUNDLE, j] = step
    for i in range(count):
        if is_removable(net, s, s[BUNDLE, i]) and removal_change(net, s, s[BUNDLE, i]) <= 0:
            remove(net, s, s[BUNDLE, i])


@fragment
def destroy(net: Ints, s: Ints) -> None:
    """Remove 1 to 8 recomputes: half the time neighbours in the sequence, half the time any."""
    count = list_repeated(s)
    if count == 0:
        return
    wanted = min(count, 1 + int(uniform(s) * 8))
    are_neighbours = uniform(s) < 0.5
    start = int(uniform(s) * (count - wanted + 1))
    for k in range(wanted):
        i = start + k if are_neighbours else int(uniform(s) * count)
        step = s[BUNDLE, i]
        if not are_neighbours:
            count -= 1
            s[BUNDLE, i] = s[BUNDLE, count]
        if is_removable(net, s, step):
            remove(net, s, step)


@fragment
def kick(net: Ints, s: Ints) -> None:
    """Insert a recompute of a random op at a random later position, alone or with the ancestors it needs."""
    v = int(uniform(s) * (net[OPS, 0] - 1))
    first = s[POS, s[HEAD, v]] + 1
    p = first + int(uniform(s) * (s[NUM, LENGTH] - first))
    if net[REPEATABLE, v] == 0:
        return
    count = gather(net, s, v, p, 1 if uniform(s) < 0.5 else WIDEST_BUNDLE, 0.0)
    if count <= s[NUM, FREE]:
        insert_bundle(net, s, p, count)


@fragment
def jiggle(net: Ints, s: Ints, moves: int) -> None:
    """Shift random steps in time where that does not raise the excess; pinned first computations stay."""
    for _ in range(moves):
        step = s[SEQ, int(uniform(s) * (s[NUM, LENGTH] - 1))]
        if s[NUM, PINNED] == 1 and s[HEAD, s[OP, step]] == step:
            continue
        low = earliest(net, s, step)
        q = low + int(uniform(s) * (latest(net, s, step) - low + 1))
        if q != s[POS, step] and shift_change(net, s, step, q) <= 0:
            shift(net, s, step, q)


@fragment
def _is_accepted(s: Ints, current: Ints, heat: float) -> bool:
    over = excess(s)
    if over > 0 or current[2] > 0:
        return bool(over <= current[2])
    return bool(s[NUM, COST] <= current[1] - heat * math.log(1.0 - uniform(s)))


@fragment
def _is_better(current: Ints, best: Ints) -> bool:
    return bool(current[2] < best[2] or (current[2] == best[2] and current[1] < best[1]))


@kernel
def improve(net: Ints, s: Ints, records: Ints, heat: float, work: int) -> None:
    """Large-neighbourhood search from `current` until `work` moves have been looked at; the best goes to `best`.

    Destroy, repair with noise, prune, accept if not worse by more than about `heat` time units. The state must be
    that of `current`. Where it stops does not change what it does, so chunks of any length give the same search.
    """
    current, best, trial = records[0], records[1], records[2]
    while s[NUM, WORK] < work:
        destroy(net, s)
        while uniform(s) < (0.1 if current[2] == 0 else 0.6):
            kick(net, s)
        if s[NUM, PINNED] == 0 and uniform(s) < 0.5:
            save(s, trial)
            move_branch(net, s, trial, trial[2], 0.0)
        jiggle(net, s, 4 if s[NUM, PINNED] == 1 else 16)
        repair(net, s, 1.5 * uniform(s), uniform(s), current[1] + int(8 * heat) + (2**62 if current[2] > 0 else 0))
        prune(net, s)
        s[NUM, WORK] += 1
        if _is_accepted(s, current, heat):
            save(s, current)
            if _is_better(current, best):
                for p in range(3 + current[0]):
                    best[p] = current[p]
        else:
            load(net, s, current)
