"""Kernels that look for orders with less memory: greedy list scheduling, and moves of whole branches in time."""

from __future__ import annotations

import math

from remat_cli.solvers._search_moves import earliest, latest, shift, shift_change
from remat_cli.solvers._search_profile import build, excess, newest, uniform
from remat_cli.solvers._search_records import load, pick_over, save
from remat_cli.solvers._search_state import (
    BUNDLE,
    IN_PTR,
    INPUTS,
    LAST,
    LENGTH,
    MARK,
    NUM,
    OP,
    OPS,
    OUT_PTR,
    OWN,
    POS,
    PRODUCER,
    READ_PTR,
    READERS,
    SEQ,
    SIZE,
    STAMP,
    USE,
    WORK,
    Ints,
    fragment,
    kernel,
)


@kernel
def greedy_order(net: Ints, s: Ints, ops: Ints, noise: float, recency: float) -> None:
    """Write a memory-aware topological order of all ops to `ops`, the end op last.

    Always runs the ready op that adds the fewest bytes (outputs somebody reads, less inputs read for the last time),
    times noise. `recency` in [0, 1] prefers ops whose inputs are young, which makes the order depth-first. Uses the
    scratch rows MARK (inputs still missing, per op), USE (readers left, per tensor) and BUNDLE (ready ops).
    """
    count = net[OPS, 0]
    ready = 0
    for v in range(count - 1):
        s[MARK, v] = net[IN_PTR, v + 1] - net[IN_PTR, v]
        if s[MARK, v] == 0:
            s[BUNDLE, ready] = v
            ready += 1
    for x in range(net[OUT_PTR, count]):
        s[USE, x] = net[READ_PTR, x + 1] - net[READ_PTR, x]
    for p in range(count - 1):
        best, chosen = math.inf, 0
        for k in range(ready):
            age = recency * (ready - 1 - k) / ready
            score = _growth(net, s, s[BUNDLE, k]) * (1.0 + noise * (uniform(s) - 0.5)) + age * net[OWN, s[BUNDLE, k]]
            if score < best:
                best, chosen = score, k
        ops[p] = s[BUNDLE, chosen]
        ready -= 1
        for k in range(chosen, ready):
            s[BUNDLE, k] = s[BUNDLE, k + 1]
        ready = _run(net, s, ops[p], ready)
    ops[count - 1] = count - 1


@fragment
def _growth(net: Ints, s: Ints, v: int) -> int:
    """Bytes that stay because op v runs now, less bytes that go."""
    growth = 0
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[USE, x] > 0:
            growth += net[SIZE, x]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        if s[USE, net[INPUTS, k]] == 1:
            growth -= net[SIZE, net[INPUTS, k]]
    return growth


@fragment
def _run(net: Ints, s: Ints, v: int, ready: int) -> int:
    """Count op v as run; readers that miss nothing any more become ready. Returns how many are."""
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        s[USE, net[INPUTS, k]] -= 1
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        for k in range(net[READ_PTR, x], net[READ_PTR, x + 1]):
            reader = net[READERS, k]
            s[MARK, reader] -= 1
            if s[MARK, reader] == 0 and reader < net[OPS, 0] - 1:
                s[BUNDLE, ready] = reader
                ready += 1
    return ready


@kernel
def move_branch(net: Ints, s: Ints, current: Ints, over: int, slack: float) -> int:
    """Move one step with all that depends on it past an over-budget step, or one with all it needs before it.

    `current` must be the record of the state, whose excess is `over`. Kept if the excess does not grow by more than
    `slack`. Returns the excess.
    """
    s[NUM, WORK] += 1
    t = pick_over(s)
    length = s[NUM, LENGTH]
    if t <= 0 or t >= length - 2:
        return over
    goes_later = uniform(s) < 0.5
    a, b = t, t + 1 + int(uniform(s) * uniform(s) * (length - 2 - t))
    if goes_later:
        a, b = _live_producer(net, s, t), min(length - 2, t + int(uniform(s) * 6))
        _mark_dependants(net, s, a, b)
    else:
        _mark_needs(net, s, a, b)
    _draft(s, a, b, goes_later)
    build(net, s, s[BUNDLE], length)
    after = excess(s)
    if after <= over + slack:
        save(s, current)
        return after
    load(net, s, current)
    return over


@fragment
def _live_producer(net: Ints, s: Ints, t: int) -> int:
    """Position of a random step before t whose output lives across t (after a few tries: of any step)."""
    p = 0
    for _ in range(10):
        p = int(uniform(s) * t)
        step = s[SEQ, p]
        for k in range(net[OUT_PTR, s[OP, step] + 1] - net[OUT_PTR, s[OP, step]]):
            if s[POS, s[LAST + k, step]] > t:
                return p
    return p


@fragment
def _mark_dependants(net: Ints, s: Ints, a: int, b: int) -> None:
    """Stamp the step at a and the steps up to b that read from it, directly or not."""
    s[NUM, STAMP] += 1
    stamp = s[NUM, STAMP]
    s[MARK, s[SEQ, a]] = stamp
    for p in range(a + 1, b + 1):
        v = s[OP, s[SEQ, p]]
        for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
            if s[MARK, newest(s, net[PRODUCER, net[INPUTS, k]], p)] == stamp:
                s[MARK, s[SEQ, p]] = stamp


@fragment
def _mark_needs(net: Ints, s: Ints, a: int, b: int) -> None:
    """Stamp the step at b and the steps from a on that it reads from, directly or not."""
    s[NUM, STAMP] += 1
    stamp = s[NUM, STAMP]
    s[MARK, s[SEQ, b]] = stamp
    for p in range(b, a - 1, -1):
        if s[MARK, s[SEQ, p]] != stamp:
            continue
        v = s[OP, s[SEQ, p]]
        for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
            s[MARK, newest(s, net[PRODUCER, net[INPUTS, k]], p)] = stamp


@kernel
def _draft(s: Ints, a: int, b: int, marked_last: bool) -> None:
    """Write to BUNDLE the ops in order, those at a..b split: stamped ones after (or before) the others."""
    stamp = s[NUM, STAMP]
    for p in range(s[NUM, LENGTH]):
        s[BUNDLE, p] = s[OP, s[SEQ, p]]
    w = a
    for turn in range(2):
        for p in range(a, b + 1):
            marked = s[MARK, s[SEQ, p]] == stamp
            if marked == (marked_last == (turn == 1)):
                s[BUNDLE, w] = s[OP, s[SEQ, p]]
                w += 1


@kernel
def reorder(net: Ints, s: Ints, current: Ints, best: Ints, heat: float, work: int) -> None:
    """Search orders of `current` (no recompute is added or removed) for the least excess, until `work` or none.

    A threshold search: a move may raise the excess by about `heat` times itself. The state must be that of `current`;
    the best schedule goes to `best`.
    """
    over = current[2]
    while s[NUM, WORK] < work and over > 0:
        s[NUM, WORK] += 1
        slack = -heat * over * math.log(1.0 - uniform(s))
        if uniform(s) < 0.05:
            save(s, current)
            over = move_branch(net, s, current, over, slack)
        else:
            over += _try_shift(net, s, slack)
        if over < best[2]:
            save(s, best)
    save(s, current)


@fragment
def _try_shift(net: Ints, s: Ints, slack: float) -> int:
    """Shift a random step if that costs at most `slack`; returns the change of the excess."""
    step = s[SEQ, int(uniform(s) * (s[NUM, LENGTH] - 1))]
    low = earliest(net, s, step)
    q = low + int(uniform(s) * (latest(net, s, step) - low + 1))
    if q == s[POS, step]:
        return 0
    change = shift_change(net, s, step, q)
    if change > slack:
        return 0
    shift(net, s, step, q)
    return change
