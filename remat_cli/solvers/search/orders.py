"""Kernels that look for orders with less memory: greedy list scheduling, and moves of whole branches in time."""

import math

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.changes import move, undo
from remat_cli.solvers.search.profile import log_is_full, newest, uniform
from remat_cli.solvers.search.records import pick_over, save
from remat_cli.solvers.search.shifts import earliest, latest, random_place, shift_change
from remat_cli.solvers.search.slots import excess, occupied
from remat_cli.solvers.search.state import Ints, fragment, kernel

WIDEST_BRANCH = 64  # steps that move together at most


@kernel
def greedy_order(net: Ints, s: Ints, ops: Ints, noise: float, recency: float) -> None:
    """Write a memory-aware topological order of all ops to `ops`, the end op last.

    Always runs the ready op that adds the fewest bytes (outputs somebody reads, less inputs read for the last time),
    times noise. `recency` in [0, 1] prefers ops whose inputs are young, which makes the order depth-first. Uses the
    scratch rows MARK (inputs still missing, per op), USE (readers left, per tensor) and BUNDLE (ready ops).
    """
    count = net[rows.OPS, 0]
    ready = 0
    for v in range(count - 1):
        s[rows.MARK, v] = net[rows.IN_PTR, v + 1] - net[rows.IN_PTR, v]
        if s[rows.MARK, v] == 0:
            s[rows.BUNDLE, ready] = v
            ready += 1
    for x in range(net[rows.OUT_PTR, count]):
        s[rows.USE, x] = net[rows.READ_PTR, x + 1] - net[rows.READ_PTR, x]
    for p in range(count - 1):
        best, chosen = math.inf, 0
        for k in range(ready):
            age = recency * (ready - 1 - k) / ready
            score = (
                _growth(net, s, s[rows.BUNDLE, k]) * (1.0 + noise * (uniform(s) - 0.5))
                + age * net[rows.OWN, s[rows.BUNDLE, k]]
            )
            if score < best:
                best, chosen = score, k
        ops[p] = s[rows.BUNDLE, chosen]
        ready -= 1
        for k in range(chosen, ready):
            s[rows.BUNDLE, k] = s[rows.BUNDLE, k + 1]
        ready = _run(net, s, ops[p], ready)
    ops[count - 1] = count - 1


@fragment
def _growth(net: Ints, s: Ints, v: int) -> int:
    """Bytes that stay because op v runs now, less bytes that go."""
    growth = 0
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        if s[rows.USE, x] > 0:
            growth += net[rows.SIZE, x]
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        if s[rows.USE, net[rows.INPUTS, k]] == 1:
            growth -= net[rows.SIZE, net[rows.INPUTS, k]]
    return growth


@fragment
def _run(net: Ints, s: Ints, v: int, ready: int) -> int:
    """Count op v as run; readers that miss nothing any more become ready. Returns how many are."""
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        s[rows.USE, net[rows.INPUTS, k]] -= 1
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        for k in range(net[rows.READ_PTR, x], net[rows.READ_PTR, x + 1]):
            reader = net[rows.READERS, k]
            s[rows.MARK, reader] -= 1
            if s[rows.MARK, reader] == 0 and reader < net[rows.OPS, 0] - 1:
                s[rows.BUNDLE, ready] = reader
                ready += 1
    return ready


@kernel
def move_branch(net: Ints, s: Ints, over: int, slack: float) -> int:
    """Move one step with all that depends on it past an over-budget step, or one with all it needs before it.

    `over` is the excess now. Taken back if the excess grows by more than `slack`. Returns the excess.
    """
    s[rows.NUM, rows.WORK] += 1
    t, mark = pick_over(s), s[rows.NUM, rows.LOGGED]
    last = s[rows.NUM, rows.SLOTS] - 1
    if t <= 0 or t >= last:
        return over
    if uniform(s) < 0.5:
        end = occupied(s, min(last, t + 1 + int(uniform(s) * 12)))
        count = _list_dependants(net, s, _live_producer(net, s, t), end)
        is_done = _move_later(net, s, count, s[rows.SEQ, end])
    else:
        begin = occupied(s, t + 1 + int(uniform(s) * uniform(s) * min(last - t - 1, 8 * WIDEST_BRANCH)))
        # Write to BUNDLE, last first, the step in slot b and those after slot t that it reads from, directly or not.
        s[rows.NUM, rows.STAMP] += 1
        stamp = s[rows.NUM, rows.STAMP]
        s[rows.MARK, s[rows.SEQ, begin]] = stamp
        count = 0
        for p in range(begin, t - 1, -1):
            step = s[rows.SEQ, p]
            if step < 0 or s[rows.MARK, step] != stamp or count > WIDEST_BRANCH:
                continue
            s[rows.BUNDLE, count] = step
            count += 1
            v = s[rows.OP, step]
            for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
                s[rows.MARK, newest(s, net[rows.PRODUCER, net[rows.INPUTS, k]], p)] = stamp
        is_done = begin < last and _move_earlier(net, s, count, s[rows.SEQ, t])
    if not is_done:
        undo(net, s, mark)
        return over
    after = excess(s)
    if after <= over + slack:
        return after
    undo(net, s, mark)
    return over


@fragment
def _live_producer(net: Ints, s: Ints, t: int) -> int:
    """Slot of a random step before t whose output lives across t (after a few tries: of any step)."""
    p = t
    for _ in range(16):
        p = occupied(s, int(uniform(s) * t))
        step = s[rows.SEQ, p]
        for k in range(net[rows.OUT_PTR, s[rows.OP, step] + 1] - net[rows.OUT_PTR, s[rows.OP, step]]):
            if p < t and s[rows.POS, s[rows.LAST + k, step]] > t:
                return p
    return p


@fragment
def _list_dependants(net: Ints, s: Ints, a: int, end: int) -> int:
    """Write to BUNDLE the step in slot a and those before slot `end` that read from it, directly or not."""
    s[rows.NUM, rows.STAMP] += 1
    stamp = s[rows.NUM, rows.STAMP]
    s[rows.MARK, s[rows.SEQ, a]], s[rows.BUNDLE, 0] = stamp, s[rows.SEQ, a]
    count = 1
    for p in range(a + 1, end):
        step = s[rows.SEQ, p]
        if step < 0 or count > WIDEST_BRANCH:
            continue
        v = s[rows.OP, step]
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            if (
                s[rows.MARK, step] != stamp
                and s[rows.MARK, newest(s, net[rows.PRODUCER, net[rows.INPUTS, k]], p)] == stamp
            ):
                s[rows.MARK, step], s[rows.BUNDLE, count] = stamp, step
                count += 1
    return count


@fragment
def _move_later(net: Ints, s: Ints, count: int, anchor: int) -> bool:
    """Move the listed steps, the last one first, to directly before `anchor`; False if one cannot."""
    if count > WIDEST_BRANCH or log_is_full(s):
        return False
    for j in range(count - 1, -1, -1):
        step = s[rows.BUNDLE, j]
        if s[rows.POS, step] >= s[rows.POS, anchor] or latest(net, s, step) < s[rows.POS, anchor]:
            return False
        move(net, s, step, anchor)
        anchor = step
    return True


@fragment
def _move_earlier(net: Ints, s: Ints, count: int, anchor: int) -> bool:
    """Move the listed steps (they stand last first) to directly before `anchor`; False if one cannot."""
    if count > WIDEST_BRANCH or log_is_full(s):
        return False
    for j in range(count - 1, -1, -1):
        step = s[rows.BUNDLE, j]
        if step == anchor or earliest(net, s, step) > s[rows.POS, anchor]:
            return False
        move(net, s, step, anchor)
    return True


@fragment
def change_order(net: Ints, s: Ints, best: Ints, heat: float) -> None:
    """One move of a search for the order with the least excess; no recompute is added or removed.

    A threshold search: the move may raise the excess by about `heat` times itself. A better schedule goes to `best`.
    """
    over = s[rows.NUM, rows.OVER]
    slack = -heat * over * math.log(1.0 - uniform(s))
    if uniform(s) < 0.05:
        s[rows.NUM, rows.OVER] = move_branch(net, s, over, slack)
    else:
        s[rows.NUM, rows.OVER] += _try_shift(net, s, slack)
    over = s[rows.NUM, rows.OVER]
    if over < best[2] and (over == 0 or over < 0.998 * best[2]):
        save(s, best)


@fragment
def _try_shift(net: Ints, s: Ints, slack: float) -> int:
    """Shift a random step if that costs at most `slack`; returns the change of the excess."""
    step = s[rows.SEQ, occupied(s, int(uniform(s) * (s[rows.NUM, rows.SLOTS] - 1)))]
    if s[rows.OP, step] == net[rows.OPS, 0] - 1:
        return 0
    anchor = random_place(net, s, step)
    if anchor == step:
        return 0
    change = shift_change(net, s, step, anchor)
    if change > slack:
        return 0
    move(net, s, step, anchor)
    return change
