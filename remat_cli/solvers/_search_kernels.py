"""Kernels of the search itself: repair, prune, and large-neighbourhood search over recomputes."""

from __future__ import annotations

import math

from remat_cli.solvers._search_changes import INSERT, insert_bundle, move, take_out, undo
from remat_cli.solvers._search_destroy import destroy, random_repeat
from remat_cli.solvers._search_moves import bundle_change, bundle_time, gather
from remat_cli.solvers._search_orders import change_order, move_branch
from remat_cli.solvers._search_profile import (
    collect_removal,
    is_removable,
    log_is_full,
    newest,
    next_read,
    uniform,
)
from remat_cli.solvers._search_records import pick_over, save
from remat_cli.solvers._search_shifts import random_place, shift_change
from remat_cli.solvers._search_slots import bytes_at, excess, excess_change, is_blocked, occupied
from remat_cli.solvers._search_state import (
    BEST,
    BEST_AT,
    BEST_LEAST,
    BEST_LIMIT,
    BEST_OP,
    BLOCK,
    BLOCK_AT,
    BLOCK_BY,
    BLOCKER,
    BUDGET,
    BUNDLE,
    COST,
    FREE,
    HEAD,
    IN_PTR,
    INPUTS,
    LAST,
    LIVES,
    LOG,
    LOG_WHAT,
    LOGGED,
    NUM,
    NXT,
    OP,
    OPS,
    ORDERING,
    OUT_PTR,
    OVER,
    PINNED,
    POS,
    PRODUCER,
    RANK,
    REPEATABLE,
    REPEATED,
    REPEATS,
    ROUNDS,
    SEQ,
    SIZE,
    SLOTS,
    TIME,
    WHOLE,
    WIDTH,
    WORK,
    Ints,
    fragment,
    kernel,
)

WIDEST_BUNDLE = 24  # ops; longer chains of ancestors hardly ever pay
MOST_LIVES = 512  # tensors to look at in one scan; a random part of them where there are more
MOST_PRUNED = 256  # recomputes to look at when pruning
SCALE = 2.0**40  # keeps logarithms apart when they are stored as integers


@fragment
def _reads(net: Ints, v: int, x: int) -> bool:
    found = False
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        found = found or net[INPUTS, k] == x
    return found


@fragment
def _inputs_end(net: Ints, s: Ints, v: int, t: int) -> int:
    """First slot after t at which an input of op v that lives across t is read for the last time."""
    first = s[NUM, SLOTS]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        end = s[POS, s[LAST + net[RANK, x], newest(s, u, t + 1)]]
        if end > t:
            first = min(first, end)
    return int(first)


@fragment
def _try_bundle(net: Ints, s: Ints, v: int, anchor: int, least: float, bonus: float) -> None:
    """Score op v before step `anchor` with the ancestors that join it; remember the best so far."""
    drop_per_time = 0.0 if s[NUM, BEST_OP] < 0 else math.exp(s[NUM, BEST] / SCALE - bonus)
    most_time = s[NUM, WHOLE] / drop_per_time if drop_per_time > 0.0 else 2.0**62
    if net[TIME, v] + 1.0 > most_time:
        return
    count = gather(net, s, v, anchor, least, most_time)
    if count == 0 or (count == 1 and s[NUM, WIDTH] > 1):
        return
    time = bundle_time(net, s, count) + 1.0
    change = bundle_change(net, s, anchor, count, -int(time * drop_per_time))
    if change >= 0:
        return
    score = int(SCALE * (math.log(-change / time) + bonus))
    if s[NUM, BEST_OP] < 0 or score > s[NUM, BEST]:
        s[NUM, BEST], s[NUM, BEST_OP], s[NUM, BEST_AT] = score, v, anchor
        s[NUM, BEST_LIMIT], s[NUM, BEST_LEAST] = s[NUM, WIDTH], int(least)


@fragment
def _try_lives(net: Ints, s: Ints, t: int, noise: float, share: float) -> None:
    """Score bundles for each tensor that lives across slot t unused by the op there."""
    user = s[OP, s[SEQ, t]]
    chance, lives = MOST_LIVES / max(MOST_LIVES, s[NUM, LIVES]), 0
    for q in range(t):
        step = s[SEQ, q]
        if step < 0:
            continue
        v = s[OP, step]
        if net[REPEATABLE, v] == 0:
            continue
        for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
            if s[POS, s[LAST + net[RANK, x], step]] <= t or net[SIZE, x] == 0 or _reads(net, user, x):
                continue
            lives += 1
            bonus = uniform(s)
            if chance < 1.0 and bonus >= chance:
                continue
            bonus = noise * (bonus / chance - 0.5)
            anchor, other = next_read(net, s, x, t), _inputs_end(net, s, v, t)
            for turn in range(2 if other < s[POS, anchor] else 1):
                _try_bundle(net, s, v, anchor if turn == 0 else s[SEQ, other], share * net[SIZE, x], bonus)
    s[NUM, LIVES] = lives


@kernel
def relieve(net: Ints, s: Ints, t: int, noise: float, share: float) -> bool:
    """Insert the best bundle that shortens a life across slot t; False if none lowers the excess.

    Best is excess removed per time, times noise. Places tried: before the next read, and earlier, where an input of
    the op is read for the last time. Single ops first: what they reach lets most wider bundles be passed over.
    """
    s[NUM, BEST_OP], s[NUM, WHOLE] = -1, excess(s)
    for turn in range(2):
        s[NUM, WIDTH] = 1 if turn == 0 else WIDEST_BUNDLE
        _try_lives(net, s, t, noise, share)
    if s[NUM, BEST_OP] < 0:
        return False
    s[NUM, WIDTH] = s[NUM, BEST_LIMIT]
    count = gather(net, s, s[NUM, BEST_OP], s[NUM, BEST_AT], float(s[NUM, BEST_LEAST]), 2.0**62)
    if count > s[NUM, FREE]:
        return False
    insert_bundle(net, s, s[NUM, BEST_AT], count)
    return True


@fragment
def repair(net: Ints, s: Ints, noise: float, share: float, most_time: int) -> None:
    """Insert bundles until the schedule fits, costs more than `most_time`, or nothing helps any more."""
    failures, over = 0, excess(s)
    while over > 0 and failures < 4 and s[NUM, COST] <= most_time and not log_is_full(s):
        relieve(net, s, pick_over(s), noise, share)
        before, over = over, excess(s)
        failures = 0 if over < before else failures + 1


@fragment
def _list_prunable(net: Ints, s: Ints) -> int:
    """Write to BUNDLE steps to try removing, just inserted ones first, pinned ones left out; returns how many."""
    count, ops = 0, s[NUM, REPEATED]
    if ops > MOST_PRUNED // 2:
        for k in range(s[NUM, LOGGED]):
            step = s[LOG_WHAT, k]
            if s[LOG, k] == INSERT and count < MOST_PRUNED and s[HEAD, s[OP, step]] != step:
                s[BUNDLE, count] = step
                count += 1
    start = int(uniform(s) * ops)
    for k in range(ops):
        v = s[REPEATS, (start + k) % ops]
        step = s[NXT, s[HEAD, v]] if s[NUM, PINNED] == 1 else s[HEAD, v]
        while step >= 0 and count < MOST_PRUNED:
            s[BUNDLE, count] = step
            count += 1
            step = s[NXT, step]
    return count


@fragment
def _sort_by_time(net: Ints, s: Ints, count: int) -> None:
    for i in range(1, count):
        step, j = s[BUNDLE, i], i
        while j > 0 and net[TIME, s[OP, s[BUNDLE, j - 1]]] < net[TIME, s[OP, step]]:
            s[BUNDLE, j] = s[BUNDLE, j - 1]
            j -= 1
        s[BUNDLE, j] = step


@fragment
def _is_still_blocked(s: Ints, step: int) -> bool:
    """Whether the step that kept this one from being removed before very likely does so still."""
    other = s[BLOCKER, step]
    if other < 0 or s[POS, other] >= s[POS, step]:
        return False
    p = s[POS, other]
    return bool(s[SEQ, p] == other and bytes_at(s, p) + s[BLOCK, step] > s[NUM, BUDGET])


@kernel
def _can_go(net: Ints, s: Ints, step: int, over: int) -> bool:
    """Whether a removable step can be removed without raising the excess, which is `over` now."""
    if over == 0 and uniform(s) < 0.9 and _is_still_blocked(s, step):
        s[NUM, WORK] += 1
        return False
    collect_removal(net, s, step)
    if over > 0:
        return bool(excess_change(s) - max(0, bytes_at(s, s[POS, step]) - s[NUM, BUDGET]) <= 0)
    if not is_blocked(s):
        return True
    s[BLOCKER, step], s[BLOCK, step] = s[SEQ, s[NUM, BLOCK_AT]], s[NUM, BLOCK_BY]
    return False


@fragment
def prune(net: Ints, s: Ints) -> None:
    """Remove recomputes that can go without raising the excess, expensive ones first."""
    over, count = excess(s), _list_prunable(net, s)
    _sort_by_time(net, s, count)
    for i in range(count):
        step = s[BUNDLE, i]
        is_there = s[SEQ, s[POS, step]] == step
        if is_there and not log_is_full(s) and is_removable(net, s, step) and _can_go(net, s, step, over):
            take_out(net, s, step)


@fragment
def kick(net: Ints, s: Ints) -> None:
    """Insert a recompute of a random op at a random later place, alone or with the ancestors it needs."""
    v = int(uniform(s) * (net[OPS, 0] - 1))
    first = s[POS, s[HEAD, v]] + 1
    anchor = s[SEQ, occupied(s, first + int(uniform(s) * (s[NUM, SLOTS] - first)))]
    if net[REPEATABLE, v] == 0:
        return
    s[NUM, WIDTH] = 1 if uniform(s) < 0.5 else WIDEST_BUNDLE
    count = gather(net, s, v, anchor, 0.0, 2.0**62)
    if count <= s[NUM, FREE]:
        insert_bundle(net, s, anchor, count)


@fragment
def jiggle(net: Ints, s: Ints, moves: int) -> None:
    """Shift random steps in time where that does not raise the excess; pinned first computations stay."""
    for _ in range(moves):
        if s[NUM, PINNED] == 1:
            step = random_repeat(net, s) if s[NUM, REPEATED] > 0 else -1
        else:
            step = s[SEQ, occupied(s, int(uniform(s) * (s[NUM, SLOTS] - 1)))]
        if step < 0 or s[OP, step] == net[OPS, 0] - 1 or log_is_full(s):
            continue
        anchor = random_place(net, s, step)
        if anchor != step and shift_change(net, s, step, anchor) <= 0:
            move(net, s, step, anchor)


@fragment
def _is_accepted(s: Ints, over: int, cost: int, heat: float) -> bool:
    """Whether to go on from here: `over` is the excess now, `cost` the time before."""
    if over > 0 or s[NUM, OVER] > 0:
        return bool(over <= s[NUM, OVER])
    return bool(s[NUM, COST] <= cost - heat * math.log(1.0 - uniform(s)))


@fragment
def _is_better(s: Ints, best: Ints) -> bool:
    return bool(s[NUM, OVER] < best[2] or (s[NUM, OVER] == best[2] and s[NUM, COST] < best[1]))


@fragment
def change_recomputes(net: Ints, s: Ints, best: Ints, heat: float) -> None:
    """One round of large-neighbourhood search: destroy, repair with noise, prune; a better schedule goes to `best`.

    The first round is one without noise, so that the first plan is a good one; if none comes of it, it does not count.
    The search goes on from there if it is not worse by more than about `heat` time units, else all is taken back.
    """
    cost, over, begin = s[NUM, COST], s[NUM, OVER], s[NUM, LOGGED]
    noise = 0.0 if s[NUM, ROUNDS] == 0 else 1.5 * uniform(s)
    s[NUM, ROUNDS] += 1
    destroy(net, s)
    while noise > 0.0 and uniform(s) < (0.1 if over == 0 else 0.6):
        kick(net, s)
    if s[NUM, PINNED] == 0 and uniform(s) < 0.5:
        move_branch(net, s, excess(s), 0.0)
    jiggle(net, s, 4 if s[NUM, PINNED] == 1 else 16)
    repair(net, s, noise, uniform(s), cost + int(8 * heat) + (2**62 if over > 0 else 0))
    prune(net, s)
    after = excess(s)
    if (noise > 0.0 or after == 0) and _is_accepted(s, after, cost, heat):
        s[NUM, OVER] = after
        if _is_better(s, best):
            save(s, best)
    else:
        undo(net, s, begin)


@kernel
def search(net: Ints, s: Ints, best: Ints, heat: float, work: int) -> None:
    """Change recomputes (or only the order) until `work` moves have been looked at; the best schedule goes to `best`.

    Where it stops does not change what it does, so chunks of any length give the same search.
    """
    s[NUM, OVER] = excess(s)
    while s[NUM, WORK] < work and (s[NUM, ORDERING] == 0 or s[NUM, OVER] > 0):
        s[NUM, LOGGED], s[NUM, WORK] = 0, s[NUM, WORK] + 1
        if s[NUM, ORDERING] == 1:
            change_order(net, s, best, heat)
        else:
            change_recomputes(net, s, best, heat)
    if s[NUM, ORDERING] == 1 and s[NUM, OVER] < best[2]:
        save(s, best)
