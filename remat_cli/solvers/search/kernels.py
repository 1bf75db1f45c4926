"""Kernels of the search itself: repair, prune, and large-neighbourhood search over recomputes."""

import math

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.changes import INSERT, insert_bundle, move, take_out, undo
from remat_cli.solvers.search.destroy import destroy, random_repeat
from remat_cli.solvers.search.moves import gather
from remat_cli.solvers.search.orders import change_order, move_branch
from remat_cli.solvers.search.profile import (
    collect_removal,
    is_removable,
    log_is_full,
    uniform,
)
from remat_cli.solvers.search.records import save
from remat_cli.solvers.search.repair import WIDEST_BUNDLE, repair
from remat_cli.solvers.search.shifts import random_place, shift_change
from remat_cli.solvers.search.slots import bytes_at, excess, excess_change, is_blocked, occupied
from remat_cli.solvers.search.state import Ints, fragment, kernel

MOST_PRUNED = 256  # recomputes to look at when pruning


@fragment
def _is_still_blocked(s: Ints, step: int) -> bool:
    """Whether the step that kept this one from being removed before very likely does so still."""
    other = s[rows.BLOCKER, step]
    if other < 0 or s[rows.POS, other] >= s[rows.POS, step]:
        return False
    p = s[rows.POS, other]
    return bool(s[rows.SEQ, p] == other and bytes_at(s, p) + s[rows.BLOCK, step] > s[rows.NUM, rows.BUDGET])


@kernel
def _can_go(net: Ints, s: Ints, step: int, over: int) -> bool:
    """Whether a removable step can be removed without raising the excess, which is `over` now."""
    if over == 0 and uniform(s) < 0.9 and _is_still_blocked(s, step):
        s[rows.NUM, rows.WORK] += 1
        return False
    collect_removal(net, s, step)
    if over > 0:
        return bool(excess_change(s) - max(0, bytes_at(s, s[rows.POS, step]) - s[rows.NUM, rows.BUDGET]) <= 0)
    if not is_blocked(s):
        return True
    s[rows.BLOCKER, step], s[rows.BLOCK, step] = s[rows.SEQ, s[rows.NUM, rows.BLOCK_AT]], s[rows.NUM, rows.BLOCK_BY]
    return False


@fragment
def prune(net: Ints, s: Ints) -> None:
    """Remove recomputes that can go without raising the excess, expensive ones first."""
    over = excess(s)
    # Just inserted ones first, pinned ones left out.
    count, ops = 0, s[rows.NUM, rows.REPEATED]
    if ops > MOST_PRUNED // 2:
        for k in range(s[rows.NUM, rows.LOGGED]):
            found = s[rows.LOG_WHAT, k]
            if s[rows.LOG, k] == INSERT and count < MOST_PRUNED and s[rows.HEAD, s[rows.OP, found]] != found:
                s[rows.BUNDLE, count] = found
                count += 1
    start = int(uniform(s) * ops)
    for k in range(ops):
        v = s[rows.REPEATS, (start + k) % ops]
        found = s[rows.NXT, s[rows.HEAD, v]] if s[rows.NUM, rows.PINNED] == 1 else s[rows.HEAD, v]
        while found >= 0 and count < MOST_PRUNED:
            s[rows.BUNDLE, count] = found
            count += 1
            found = s[rows.NXT, found]
    # By time, the longest first.
    for i in range(1, count):
        prunable, j = s[rows.BUNDLE, i], i
        while j > 0 and net[rows.TIME, s[rows.OP, s[rows.BUNDLE, j - 1]]] < net[rows.TIME, s[rows.OP, prunable]]:
            s[rows.BUNDLE, j] = s[rows.BUNDLE, j - 1]
            j -= 1
        s[rows.BUNDLE, j] = prunable
    for i in range(count):
        step = s[rows.BUNDLE, i]
        is_there = s[rows.SEQ, s[rows.POS, step]] == step
        if is_there and not log_is_full(s) and is_removable(net, s, step) and _can_go(net, s, step, over):
            take_out(net, s, step)


@fragment
def kick(net: Ints, s: Ints) -> None:
    """Insert a recompute of a random op at a random later place, alone or with the ancestors it needs."""
    v = int(uniform(s) * (net[rows.OPS, 0] - 1))
    first = s[rows.POS, s[rows.HEAD, v]] + 1
    anchor = s[rows.SEQ, occupied(s, first + int(uniform(s) * (s[rows.NUM, rows.SLOTS] - first)))]
    if net[rows.REPEATABLE, v] == 0:
        return
    s[rows.NUM, rows.WIDTH] = 1 if uniform(s) < 0.5 else WIDEST_BUNDLE
    count = gather(net, s, v, anchor, 0.0, 2.0**62)
    if count <= s[rows.NUM, rows.FREE]:
        insert_bundle(net, s, anchor, count)


@fragment
def jiggle(net: Ints, s: Ints, moves: int) -> None:
    """Shift random steps in time where that does not raise the excess; pinned first computations stay."""
    for _ in range(moves):
        if s[rows.NUM, rows.PINNED] == 1:
            step = random_repeat(net, s) if s[rows.NUM, rows.REPEATED] > 0 else -1
        else:
            step = s[rows.SEQ, occupied(s, int(uniform(s) * (s[rows.NUM, rows.SLOTS] - 1)))]
        if step < 0 or s[rows.OP, step] == net[rows.OPS, 0] - 1 or log_is_full(s):
            continue
        anchor = random_place(net, s, step)
        if anchor != step and shift_change(net, s, step, anchor) <= 0:
            move(net, s, step, anchor)


@fragment
def _is_accepted(s: Ints, over: int, cost: int, heat: float) -> bool:
    """Whether to go on from here: `over` is the excess now, `cost` the time before."""
    if over > 0 or s[rows.NUM, rows.OVER] > 0:
        return bool(over <= s[rows.NUM, rows.OVER])
    return bool(s[rows.NUM, rows.COST] <= cost - heat * math.log(1.0 - uniform(s)))


@fragment
def change_recomputes(net: Ints, s: Ints, best: Ints, heat: float, work: int) -> None:
    """One round of large-neighbourhood search: destroy, repair with noise, prune; a better schedule goes to `best`.

    The first round is one without noise, so that the first plan is a good one; if none comes of it, it does not count.
    The search goes on from there if it is not worse by more than about `heat` time units, else all is taken back. A
    repair that reaches `work` moves goes on in the next round.
    """
    if s[rows.NUM, rows.REPAIRING] == 0:
        is_first, over = s[rows.NUM, rows.ROUNDS] == 0, s[rows.NUM, rows.OVER]
        s[rows.NUM, rows.WORK] += 1
        s[rows.NUM, rows.LOGGED], s[rows.NUM, rows.COST_BEFORE] = 0, s[rows.NUM, rows.COST]
        s[rows.NUM, rows.ROUNDS] += 1
        s[rows.NUM, rows.NOISE] = 0 if is_first else 1 + int(rows.SCALE * 1.5 * uniform(s))
        destroy(net, s)
        while not is_first and uniform(s) < (0.1 if over == 0 else 0.6):
            kick(net, s)
        if s[rows.NUM, rows.PINNED] == 0 and uniform(s) < 0.5:
            move_branch(net, s, excess(s), 0.0)
        jiggle(net, s, 4 if s[rows.NUM, rows.PINNED] == 1 else 16)
        s[rows.NUM, rows.FAILURES], s[rows.NUM, rows.SHARE] = 0, int(rows.SCALE * uniform(s))
        s[rows.NUM, rows.MOST_COST] = 2**62 if over > 0 else s[rows.NUM, rows.COST_BEFORE] + int(8 * heat)
    s[rows.NUM, rows.REPAIRING] = 0 if repair(net, s, work) else 1
    if s[rows.NUM, rows.REPAIRING] == 1:
        return
    prune(net, s)
    after = excess(s)
    if (s[rows.NUM, rows.NOISE] > 0 or after == 0) and _is_accepted(s, after, s[rows.NUM, rows.COST_BEFORE], heat):
        s[rows.NUM, rows.OVER] = after
        if after < best[2] or (after == best[2] and s[rows.NUM, rows.COST] < best[1]):
            save(s, best)
    else:
        undo(net, s, 0)


@kernel
def search(net: Ints, s: Ints, best: Ints, heat: float, work: int) -> None:
    """Change recomputes (or only the order) until `work` moves have been looked at; the best schedule goes to `best`.

    Where it stops does not change what it does, so chunks of any length give the same search.
    """
    if s[rows.NUM, rows.REPAIRING] == 0:
        s[rows.NUM, rows.OVER] = excess(s)
    while s[rows.NUM, rows.WORK] < work and (s[rows.NUM, rows.ORDERING] == 0 or s[rows.NUM, rows.OVER] > 0):
        if s[rows.NUM, rows.ORDERING] == 1:
            s[rows.NUM, rows.LOGGED], s[rows.NUM, rows.WORK] = 0, s[rows.NUM, rows.WORK] + 1
            change_order(net, s, best, heat)
        else:
            change_recomputes(net, s, best, heat, work)
    if s[rows.NUM, rows.ORDERING] == 1 and s[rows.NUM, rows.OVER] < best[2]:
        save(s, best)
