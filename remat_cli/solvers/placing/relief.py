"""Kernels that bring a schedule within the budgets: recompute later, copy back from elsewhere, or copy out and back."""

import math

from remat_cli.solvers.placing.judge import evaluate
from remat_cli.solvers.placing.moves import add_item, gather, nearest_memory, put_items, uniform
from remat_cli.solvers.placing.state import (
    BIRTH,
    DIMS,
    EVALUATIONS,
    HOT_AT,
    HOT_BY,
    HOT_MEMORY,
    HOT_STEP,
    HOTS,
    INSTANCES,
    ITEMS,
    LAST,
    LENGTHS,
    MEM,
    MEMORIES,
    MEMORY,
    NUM,
    OVER,
    PICK,
    PICKS,
    PREVIOUS,
    PRODUCER,
    READS,
    READS_PTR,
    REPEATABLE,
    ROOM,
    SCALE,
    SCORE,
    SIZE,
    TENSOR,
    TIME,
    TRIAL,
    UPCOMING,
    fastest,
    fastest_time,
    via,
)
from remat_cli.solvers.search.state import Ints, kernel

TRIES = 3  # candidates that are followed exactly in each step of the repair, in rows 1 to 3
NEVER = -(2**62)  # the score of a candidate that has been taken
RECOMPUTE, FETCH, OFFLOAD = 0, 1, 2  # kinds of relief


@kernel
def copy_row(w: Ints, source: int, target: int) -> None:
    """Copy one row and its length over another."""
    w[LENGTHS, target] = w[LENGTHS, source]
    for p in range(w[LENGTHS, source]):
        w[TRIAL + target, p] = w[TRIAL + source, p]


@kernel
def _find_hot(net: Ints, w: Ints) -> None:
    """Choose a step over budget, the worst as often as any, and list all steps over budget in its memory."""
    worst, seen, most = uniform(w) < 0.5, 0, 0
    for m in range(net[DIMS, MEMORIES]):
        for p in range(w[LENGTHS, 0]):
            over = w[MEM + 5 * m, p] - net[ROOM, m]
            if over <= 0:
                continue
            seen += 1
            if (worst and over > most) or (not worst and uniform(w) * seen < 1.0):
                w[NUM, HOT_MEMORY], w[NUM, HOT_STEP], most = m, p, over
    m, count = w[NUM, HOT_MEMORY], 0
    for p in range(w[LENGTHS, 0]):
        over = w[MEM + 5 * m, p] - net[ROOM, m]
        if over > 0:
            w[HOT_AT, count], w[HOT_BY, count] = p, over
            count += 1
    w[NUM, HOTS] = count


@kernel
def _find_uses(w: Ints, hot: int) -> None:
    """The last use of each instance before the hot step, and the next from it on."""
    for i in range(w[NUM, INSTANCES]):
        w[UPCOMING, i], w[PREVIOUS, i] = -1, w[BIRTH, i]
    for p in range(hot):
        for r in range(w[READS_PTR, p], w[READS_PTR, p + 1]):
            w[PREVIOUS, w[READS, r]] = p
    for p in range(w[LENGTHS, 0] - 1, hot - 1, -1):
        for r in range(w[READS_PTR, p], w[READS_PTR, p + 1]):
            w[UPCOMING, w[READS, r]] = p


@kernel
def _list_picks(net: Ints, w: Ints, noise: float) -> None:
    """Note every way to have an instance that is only passing the hot step out of memory there, with its score."""
    m, hot, length = w[NUM, HOT_MEMORY], w[NUM, HOT_STEP], w[LENGTHS, 0]
    w[NUM, PICKS] = 0
    _find_uses(w, hot)
    for i in range(w[NUM, INSTANCES]):
        if w[MEMORY, i] != m or w[BIRTH, i] >= hot or w[LAST, i] <= hot or w[UPCOMING, i] == hot:
            continue
        q = w[UPCOMING, i] if w[UPCOMING, i] >= 0 else length
        if q < length or w[LAST, i] >= length:
            _score_picks(net, w, i, q, noise)


@kernel
def _relief(w: Ints, size: int, start: int, end: int) -> float:
    """Bytes above budget that go when so many are not there between two steps."""
    total = 0.0
    for k in range(w[NUM, HOTS]):
        if start < w[HOT_AT, k] < end:
            total += min(w[HOT_BY, k], size)
    return total


@kernel
def _score_picks(net: Ints, w: Ints, i: int, q: int, noise: float) -> None:
    m, x, before = w[MEMORY, i], w[TENSOR, i], w[PREVIOUS, i]
    relief = _relief(w, net[SIZE, x], before, q)
    v = net[PRODUCER, x]
    if net[REPEATABLE, v] == 1 and fastest(net, m, v) >= 0:
        _note_pick(
            w,
            (i, q, before, RECOMPUTE, m),
            relief / (fastest_time(net, m, v) + 1.0),
            noise,
        )
    other = nearest_memory(net, w, m, x, q)
    if other >= 0:
        _note_pick(w, (i, q, before, FETCH, other), relief / (net[via(net, other, m) + 1, x] + 1.0), noise)
    for other in range(net[DIMS, MEMORIES]):
        if other == m or net[via(net, m, other), x] < 0 or (q < w[LENGTHS, 0] and net[via(net, other, m), x] < 0):
            continue
        cost = net[via(net, m, other) + 1, x] + (net[via(net, other, m) + 1, x] if q < w[LENGTHS, 0] else 0) + 1.0
        _note_pick(w, (i, q, before, OFFLOAD, other), relief / cost, noise)


@kernel
def _note_pick(w: Ints, pick: tuple[int, int, int, int, int], score: float, noise: float) -> None:
    k = w[NUM, PICKS]
    if k < w.shape[1] and score > 0:
        for row in range(5):
            w[PICK + row, k] = pick[row]
        w[SCORE, k] = int(SCALE * (math.log(score) + noise * (uniform(w) - 0.5)))
        w[NUM, PICKS] = k + 1


@kernel
def _build_pick(net: Ints, w: Ints, k: int, row: int) -> bool:
    """Write row 0 with a candidate applied to another row."""
    i, q, before, kind, other = w[PICK + 0, k], w[PICK + 1, k], w[PICK + 2, k], w[PICK + 3, k], w[PICK + 4, k]
    m, x = w[MEMORY, i], w[TENSOR, i]
    w[NUM, ITEMS] = 0
    if kind == RECOMPUTE:
        share = uniform(w)
        if not gather(net, w, m, x, q, share * share):
            return False
    elif kind == FETCH:
        add_item(w, q, net[via(net, other, m), x])
    else:
        add_item(w, before + 1, net[via(net, m, other), x])
        if q < w[LENGTHS, 0]:
            add_item(w, q, net[via(net, other, m), x])
    return put_items(net, w, row)


@kernel
def _relieve(net: Ints, w: Ints, noise: float) -> bool:
    """Apply the best of a few candidates for one hot step; row 0 stays evaluated. Whether there was one."""
    _find_hot(net, w)
    _list_picks(net, w, noise)
    over, time, built = w[NUM, OVER], w[NUM, TIME], 0
    for _ in range(2 * TRIES):
        best = -1
        for k in range(w[NUM, PICKS]):
            if w[SCORE, k] > NEVER and (best < 0 or w[SCORE, k] > w[SCORE, best]):
                best = k
        if best < 0 or built == TRIES:
            break
        w[SCORE, best] = NEVER
        if _build_pick(net, w, best, built + 1):
            built += 1
    found = _best_built(net, w, built, over, time)
    if found > 0:
        copy_row(w, found, 0)
    evaluate(net, w, 0)
    return found > 0


@kernel
def _best_built(net: Ints, w: Ints, built: int, over: int, time: int) -> int:
    """The row that relieves most for its time, or 0."""
    found, most = 0, 0.0
    for row in range(1, built + 1):
        if evaluate(net, w, row) and w[NUM, OVER] < over:
            score = (over - w[NUM, OVER]) / (max(0, w[NUM, TIME] - time) + 1.0)
            if score > most:
                found, most = row, score
    return found


@kernel
def repair(net: Ints, w: Ints, noise: float, most_time: int, most_evaluations: int) -> None:
    """Relieve row 0, evaluated, until it fits, takes too much time, or nothing more is found."""
    failures = 0
    while w[NUM, OVER] > 0 and failures < 4 and w[NUM, TIME] <= most_time and w[NUM, EVALUATIONS] < most_evaluations:
        failures = 0 if _relieve(net, w, noise) else failures + 1
