"""Kernels that bring a schedule under its budget by inserting recomputes."""

import math

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.changes import insert_bundle
from remat_cli.solvers.search.moves import bundle_change, bundle_time, gather
from remat_cli.solvers.search.profile import log_is_full, newest, next_read, uniform
from remat_cli.solvers.search.records import pick_over
from remat_cli.solvers.search.slots import bytes_at, excess
from remat_cli.solvers.search.state import Ints, fragment, kernel

WIDEST_BUNDLE = 24  # ops; longer chains of ancestors hardly ever pay
MOST_LIVES = 512  # tensors to look at in one scan; a random part of them where there are more
MANY_LIVES = 400  # from so many on, a first repair inserts many bundles per scan
NEARLY = 0.1  # logarithm of how much worse than the best these may be


@fragment
def _reads(net: Ints, v: int, x: int) -> bool:
    found = False
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        found = found or net[rows.INPUTS, k] == x
    return found


@kernel
def _try_bundle(net: Ints, s: Ints, v: int, anchor: int, least: float, bonus: float) -> None:
    """Score op v before step `anchor` with the ancestors that join it; remember the best so far."""
    drop_per_time = 0.0 if s[rows.NUM, rows.BEST_OP] < 0 else math.exp(s[rows.NUM, rows.BEST] / rows.SCALE - bonus)
    most_time = s[rows.NUM, rows.WHOLE] / drop_per_time if drop_per_time > 0.0 else 2.0**62
    if net[rows.TIME, v] + 1.0 > most_time:
        return
    count = gather(net, s, v, anchor, least, most_time)
    if count == 0 or (count == 1 and s[rows.NUM, rows.WIDTH] > 1):
        return
    time = bundle_time(net, s, count) + 1.0
    change = bundle_change(net, s, anchor, count, -int(time * drop_per_time))
    if change >= 0:
        return
    score = int(rows.SCALE * (math.log(-change / time) + bonus))
    if s[rows.NUM, rows.BEST_OP] < 0 or score > s[rows.NUM, rows.BEST]:
        s[rows.NUM, rows.BEST], s[rows.NUM, rows.BEST_OP], s[rows.NUM, rows.BEST_AT] = score, v, anchor
        s[rows.NUM, rows.BEST_LIMIT], s[rows.NUM, rows.BEST_LEAST] = s[rows.NUM, rows.WIDTH], int(least)


@fragment
def _try_lives(net: Ints, s: Ints, t: int) -> None:
    """Score bundles for each tensor that lives across slot t unused by the op there."""
    user, noise, share = (
        s[rows.OP, s[rows.SEQ, t]],
        s[rows.NUM, rows.NOISE] / rows.SCALE,
        s[rows.NUM, rows.SHARE] / rows.SCALE,
    )
    chance, lives = MOST_LIVES / max(MOST_LIVES, s[rows.NUM, rows.LIVES]), 0
    for q in range(t):
        step = s[rows.SEQ, q]
        if step < 0:
            continue
        v = s[rows.OP, step]
        if net[rows.REPEATABLE, v] == 0:
            continue
        for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
            if (
                s[rows.POS, s[rows.LAST + net[rows.RANK, x], step]] <= t
                or net[rows.SIZE, x] == 0
                or _reads(net, user, x)
            ):
                continue
            lives += 1
            bonus = uniform(s)
            if chance < 1.0 and bonus >= chance:
                continue
            bonus = noise * (bonus / chance - 0.5)
            # The first slot after t at which an input of op v that lives across t is read for the last time.
            first = s[rows.NUM, rows.SLOTS]
            for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
                read = net[rows.INPUTS, k]
                u = net[rows.PRODUCER, read]
                end = s[rows.POS, s[rows.LAST + net[rows.RANK, read], newest(s, u, t + 1)]]
                if end > t:
                    first = min(first, end)
            anchor, other = next_read(net, s, x, t), int(first)
            for turn in range(2 if other < s[rows.POS, anchor] else 1):
                _try_bundle(net, s, v, anchor if turn == 0 else s[rows.SEQ, other], share * net[rows.SIZE, x], bonus)
    s[rows.NUM, rows.LIVES] = lives


@kernel
def relieve(net: Ints, s: Ints, t: int) -> None:
    """Insert the best bundle that shortens a life across slot t, if one lowers the excess.

    Best is excess removed per time, times noise. Places tried: before the next read, and earlier, where an input of
    the op is read for the last time. Single ops first: what they reach lets most wider bundles be passed over. In a
    long first repair all bundles that are nearly as good as the best follow at once.
    """
    s[rows.NUM, rows.BEST_OP], s[rows.NUM, rows.WHOLE] = -1, excess(s)
    for turn in range(2):
        s[rows.NUM, rows.WIDTH] = 1 if turn == 0 else WIDEST_BUNDLE
        _try_lives(net, s, t)
    if s[rows.NUM, rows.BEST_OP] < 0:
        return
    step = s[rows.SEQ, t]
    _insert_best(net, s)
    if s[rows.NUM, rows.ROUNDS] == 1 and s[rows.NUM, rows.LIVES] >= MANY_LIVES:
        # Insert more bundles like the best while step `step` is over budget, each nearly as good as that was. Slots may
        # shift meanwhile: a tensor may be missed or met twice, but each bundle is looked at as things then stand.
        share, budget = s[rows.NUM, rows.SHARE] / rows.SCALE, s[rows.NUM, rows.BUDGET]
        least_score = s[rows.NUM, rows.BEST] - int(rows.SCALE * NEARLY)
        q = 0
        while (
            q < s[rows.POS, step]
            and bytes_at(s, s[rows.POS, step]) > budget
            and s[rows.NUM, rows.FREE] > WIDEST_BUNDLE
            and not log_is_full(s)
        ):
            other, q = s[rows.SEQ, q], q + 1
            if other < 0 or net[rows.REPEATABLE, s[rows.OP, other]] == 0:
                continue
            v, t = s[rows.OP, other], s[rows.POS, step]
            for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
                is_live = s[rows.POS, s[rows.LAST + net[rows.RANK, x], other]] > t and net[rows.SIZE, x] > 0
                if is_live and not _reads(net, s[rows.OP, step], x):
                    s[rows.NUM, rows.BEST], s[rows.NUM, rows.BEST_OP], s[rows.NUM, rows.BEST_AT] = least_score, v, -1
                    _try_bundle(net, s, v, next_read(net, s, x, t), share * net[rows.SIZE, x], 0.0)
                    if s[rows.NUM, rows.BEST_AT] >= 0:
                        _insert_best(net, s)


@fragment
def _insert_best(net: Ints, s: Ints) -> None:
    s[rows.NUM, rows.WIDTH] = s[rows.NUM, rows.BEST_LIMIT]
    count = gather(
        net, s, s[rows.NUM, rows.BEST_OP], s[rows.NUM, rows.BEST_AT], float(s[rows.NUM, rows.BEST_LEAST]), 2.0**62
    )
    if count <= s[rows.NUM, rows.FREE] and not log_is_full(s):
        insert_bundle(net, s, s[rows.NUM, rows.BEST_AT], count)


@fragment
def repair(net: Ints, s: Ints, work: int) -> bool:
    """Insert bundles until the schedule fits, costs more than is allowed, or nothing helps any more.

    False if `work` moves were reached before that.
    """
    over = excess(s)
    while (
        over > 0
        and s[rows.NUM, rows.FAILURES] < 4
        and s[rows.NUM, rows.COST] <= s[rows.NUM, rows.MOST_COST]
        and not log_is_full(s)
    ):
        if s[rows.NUM, rows.WORK] >= work:
            return False
        relieve(net, s, pick_over(s))
        before, over = over, excess(s)
        s[rows.NUM, rows.FAILURES] = 0 if over < before else s[rows.NUM, rows.FAILURES] + 1
    return True
