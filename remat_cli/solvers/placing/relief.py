"""Kernels that bring a schedule within the budgets: recompute later, copy back from elsewhere, or copy out and back."""

import math

from remat_cli.solvers.placing import rows
from remat_cli.solvers.placing.judge import evaluate
from remat_cli.solvers.placing.moves import add_item, gather, nearest_memory, put_items, uniform
from remat_cli.solvers.placing.state import fastest, fastest_time, via
from remat_cli.solvers.search.state import Ints, kernel

TRIES = 3  # candidates that are followed exactly in each step of the repair, in rows 1 to 3
NEVER = -(2**62)  # the score of a candidate that has been taken
RECOMPUTE, FETCH, OFFLOAD = 0, 1, 2  # kinds of relief


@kernel
def copy_row(w: Ints, source: int, target: int) -> None:
    """Copy one row and its length over another."""
    w[rows.LENGTHS, target] = w[rows.LENGTHS, source]
    for p in range(w[rows.LENGTHS, source]):
        w[rows.TRIAL + target, p] = w[rows.TRIAL + source, p]


@kernel
def _find_hot(net: Ints, w: Ints) -> None:
    """Choose a step over budget, the worst as often as any, and list all steps over budget in its memory."""
    worst, seen, most = uniform(w) < 0.5, 0, 0
    for m in range(net[rows.DIMS, rows.MEMORIES]):
        for p in range(w[rows.LENGTHS, 0]):
            over = w[rows.MEM + 5 * m, p] - net[rows.ROOM, m]
            if over <= 0:
                continue
            seen += 1
            if (worst and over > most) or (not worst and uniform(w) * seen < 1.0):
                w[rows.NUM, rows.HOT_MEMORY], w[rows.NUM, rows.HOT_STEP], most = m, p, over
    m, count = w[rows.NUM, rows.HOT_MEMORY], 0
    for p in range(w[rows.LENGTHS, 0]):
        over = w[rows.MEM + 5 * m, p] - net[rows.ROOM, m]
        if over > 0:
            w[rows.HOT_AT, count], w[rows.HOT_BY, count] = p, over
            count += 1
    w[rows.NUM, rows.HOTS] = count


@kernel
def _list_picks(net: Ints, w: Ints, noise: float) -> None:
    """Note every way to have an instance that is only passing the hot step out of memory there, with its score."""
    m, hot, length = w[rows.NUM, rows.HOT_MEMORY], w[rows.NUM, rows.HOT_STEP], w[rows.LENGTHS, 0]
    w[rows.NUM, rows.PICKS] = 0
    # The last use of each instance before the hot step, and the next from it on.
    for i in range(w[rows.NUM, rows.INSTANCES]):
        w[rows.UPCOMING, i], w[rows.PREVIOUS, i] = -1, w[rows.BIRTH, i]
    for p in range(hot):
        for r in range(w[rows.READS_PTR, p], w[rows.READS_PTR, p + 1]):
            w[rows.PREVIOUS, w[rows.READS, r]] = p
    for p in range(w[rows.LENGTHS, 0] - 1, hot - 1, -1):
        for r in range(w[rows.READS_PTR, p], w[rows.READS_PTR, p + 1]):
            w[rows.UPCOMING, w[rows.READS, r]] = p
    for i in range(w[rows.NUM, rows.INSTANCES]):
        if w[rows.MEMORY, i] != m or w[rows.BIRTH, i] >= hot or w[rows.LAST, i] <= hot or w[rows.UPCOMING, i] == hot:
            continue
        q = w[rows.UPCOMING, i] if w[rows.UPCOMING, i] >= 0 else length
        if q < length or w[rows.LAST, i] >= length:
            _score_picks(net, w, i, q, noise)


@kernel
def _score_picks(net: Ints, w: Ints, i: int, q: int, noise: float) -> None:
    m, x, before = w[rows.MEMORY, i], w[rows.TENSOR, i], w[rows.PREVIOUS, i]
    # Bytes above budget that go when so many are not there between two steps.
    relief = 0.0
    for k in range(w[rows.NUM, rows.HOTS]):
        if before < w[rows.HOT_AT, k] < q:
            relief += min(w[rows.HOT_BY, k], net[rows.SIZE, x])
    v = net[rows.PRODUCER, x]
    if net[rows.REPEATABLE, v] == 1 and fastest(net, m, v) >= 0:
        _note_pick(
            w,
            (i, q, before, RECOMPUTE, m),
            relief / (fastest_time(net, m, v) + 1.0),
            noise,
        )
    other = nearest_memory(net, w, m, x, q)
    if other >= 0:
        _note_pick(w, (i, q, before, FETCH, other), relief / (net[via(net, other, m) + 1, x] + 1.0), noise)
    for other in range(net[rows.DIMS, rows.MEMORIES]):
        if other == m or net[via(net, m, other), x] < 0 or (q < w[rows.LENGTHS, 0] and net[via(net, other, m), x] < 0):
            continue
        cost = net[via(net, m, other) + 1, x] + (net[via(net, other, m) + 1, x] if q < w[rows.LENGTHS, 0] else 0) + 1.0
        _note_pick(w, (i, q, before, OFFLOAD, other), relief / cost, noise)


@kernel
def _note_pick(w: Ints, pick: tuple[int, int, int, int, int], score: float, noise: float) -> None:
    k = w[rows.NUM, rows.PICKS]
    if k < w.shape[1] and score > 0:
        for row in range(5):
            w[rows.PICK + row, k] = pick[row]
        w[rows.SCORE, k] = int(rows.SCALE * (math.log(score) + noise * (uniform(w) - 0.5)))
        w[rows.NUM, rows.PICKS] = k + 1


@kernel
def _build_pick(net: Ints, w: Ints, k: int, row: int) -> bool:
    """Write row 0 with a candidate applied to another row."""
    i, q, before, kind, other = (
        w[rows.PICK + 0, k],
        w[rows.PICK + 1, k],
        w[rows.PICK + 2, k],
        w[rows.PICK + 3, k],
        w[rows.PICK + 4, k],
    )
    m, x = w[rows.MEMORY, i], w[rows.TENSOR, i]
    w[rows.NUM, rows.ITEMS] = 0
    if kind == RECOMPUTE:
        share = uniform(w)
        if not gather(net, w, m, x, q, share * share):
            return False
    elif kind == FETCH:
        add_item(w, q, net[via(net, other, m), x])
    else:
        add_item(w, before + 1, net[via(net, m, other), x])
        if q < w[rows.LENGTHS, 0]:
            add_item(w, q, net[via(net, other, m), x])
    return put_items(net, w, row)


@kernel
def _relieve(net: Ints, w: Ints, noise: float) -> bool:
    """Apply the best of a few candidates for one hot step; row 0 stays evaluated. Whether there was one."""
    _find_hot(net, w)
    _list_picks(net, w, noise)
    over, time, built = w[rows.NUM, rows.OVER], w[rows.NUM, rows.TIME], 0
    for _ in range(2 * TRIES):
        best = -1
        for k in range(w[rows.NUM, rows.PICKS]):
            if w[rows.SCORE, k] > NEVER and (best < 0 or w[rows.SCORE, k] > w[rows.SCORE, best]):
                best = k
        if best < 0 or built == TRIES:
            break
        w[rows.SCORE, best] = NEVER
        if _build_pick(net, w, best, built + 1):
            built += 1
    # The row that relieves most for its time, or 0.
    found, most = 0, 0.0
    for row in range(1, built + 1):
        if evaluate(net, w, row) and w[rows.NUM, rows.OVER] < over:
            score = (over - w[rows.NUM, rows.OVER]) / (max(0, w[rows.NUM, rows.TIME] - time) + 1.0)
            if score > most:
                found, most = row, score
    if found > 0:
        copy_row(w, found, 0)
    evaluate(net, w, 0)
    return found > 0


@kernel
def repair(net: Ints, w: Ints, noise: float, most_time: int, most_evaluations: int) -> None:
    """Relieve row 0, evaluated, until it fits, takes too much time, or nothing more is found."""
    failures = 0
    while (
        w[rows.NUM, rows.OVER] > 0
        and failures < 4
        and w[rows.NUM, rows.TIME] <= most_time
        and w[rows.NUM, rows.EVALUATIONS] < most_evaluations
    ):
        failures = 0 if _relieve(net, w, noise) else failures + 1
