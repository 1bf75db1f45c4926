"""Kernels that look at one move: a bundle of recomputes, or a step shifted in time.

A *bundle* is an op recomputed at some position together with the dead ancestors it needs there, in topological order.
Single recomputes are bundles of one; their dead inputs stay alive longer instead.
"""

from __future__ import annotations

from remat_cli.solvers._search_profile import (
    collect,
    excess_change,
    gained,
    held_before,
    insert,
    lost,
    most_in,
    newest,
    next_read,
    previous_read,
    refresh,
)
from remat_cli.solvers._search_state import (
    BUDGET,
    BUNDLE,
    CREDIT,
    DIFF,
    FATE,
    HIGH,
    IN_PTR,
    INPUTS,
    LAST,
    LENGTH,
    LOW,
    MARK,
    MEM,
    NUM,
    NXT,
    OP,
    OUT_PTR,
    OWN,
    PAIR_PTR,
    PAIRS,
    POS,
    PRODUCER,
    RANGES,
    RANK,
    REPEATABLE,
    SEQ,
    SIZE,
    STAMP,
    TIME,
    USE,
    Ints,
    fragment,
    kernel,
)

EXTENDED, INTERNAL, HANDED = 1, 2, 3


@kernel
def gather(net: Ints, s: Ints, v: int, p: int, limit: int, least_bytes: float) -> int:
    """Fill `bundle` with v and the ancestors to recompute with it before position p; returns how many.

    An ancestor joins when its tensor is dead at p, larger than `least_bytes`, and cannot be held until p within the
    budget; at most `limit` ops.
    """
    s[NUM, STAMP] += 1
    stamp = s[NUM, STAMP]
    s[BUNDLE, 0], s[MARK, v] = v, stamp
    count, done = 1, 0
    while done < count:
        op = s[BUNDLE, done]
        done += 1
        for k in range(net[IN_PTR, op], net[IN_PTR, op + 1]):
            u = net[PRODUCER, net[INPUTS, k]]
            if count < limit and s[MARK, u] != stamp and _must_join(net, s, net[INPUTS, k], p, least_bytes):
                s[BUNDLE, count], s[MARK, u] = u, stamp
                count += 1
    _sort_bundle(s, count)
    return count


@fragment
def _must_join(net: Ints, s: Ints, x: int, p: int, least_bytes: float) -> bool:
    u = net[PRODUCER, x]
    if net[REPEATABLE, u] == 0 or net[SIZE, x] <= least_bytes:
        return False
    end = s[POS, s[LAST + net[RANK, x], newest(s, u, p)]]
    return bool(end < p and most_in(s, end + 1, p - 1) + net[SIZE, x] > s[NUM, BUDGET])


@fragment
def _sort_bundle(s: Ints, count: int) -> None:
    for i in range(1, count):
        op, j = s[BUNDLE, i], i
        while j > 0 and s[BUNDLE, j - 1] > op:
            s[BUNDLE, j] = s[BUNDLE, j - 1]
            j -= 1
        s[BUNDLE, j] = op


@kernel
def bundle_change(net: Ints, s: Ints, p: int, count: int) -> int:
    """Change of the excess if the gathered bundle were inserted before position p."""
    held = held_before(net, s, p)
    for j in range(count):
        held += _outputs_fate(net, s, p, j)
        held += _inputs_fate(net, s, p, j)
    over = 0
    for j in range(count):
        v = s[BUNDLE, j]
        over += max(0, held + net[OWN, v] - _saved_in_bundle(net, s, j) - s[NUM, BUDGET])
        held += _held_after(net, s, j)
    return over + excess_change(s)


@fragment
def _outputs_fate(net: Ints, s: Ints, p: int, j: int) -> int:
    """Outputs of the j-th op either take over later reads (the old instance ends earlier) or die in the bundle."""
    v, held = s[BUNDLE, j], 0
    before = newest(s, v, p)
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        s[USE, x] = j
        s[FATE, x] = 4 * s[NUM, STAMP] + INTERNAL
        if before >= 0 and s[POS, s[LAST + net[RANK, x], before]] >= p:
            s[FATE, x] = 4 * s[NUM, STAMP] + HANDED
            reader = previous_read(net, s, x, before, p)
            collect(s, s[POS, reader] + 1, p - 1, -net[SIZE, x])
            collect(s, s[POS, reader], s[POS, reader], -gained(net, s, reader, x))
            held -= net[SIZE, x]
    return held


@fragment
def _inputs_fate(net: Ints, s: Ints, p: int, j: int) -> int:
    """Dead inputs that are not recomputed stay alive until the bundle has read them."""
    v, held, stamp = s[BUNDLE, j], 0, s[NUM, STAMP]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        s[USE, x] = j
        if s[MARK, u] == stamp or s[FATE, x] == 4 * stamp + EXTENDED:
            continue
        reader = s[LAST + net[RANK, x], newest(s, u, p)]
        if s[POS, reader] < p:
            s[FATE, x] = 4 * stamp + EXTENDED
            collect(s, s[POS, reader] + 1, p - 1, net[SIZE, x])
            collect(s, s[POS, reader], s[POS, reader], lost(net, s, reader, x))
            held += net[SIZE, x]
    return held


@fragment
def _saved_in_bundle(net: Ints, s: Ints, j: int) -> int:
    """Bytes the j-th op of the bundle saves by overwriting an input that ends with it."""
    v, stamp = s[BUNDLE, j], 4 * s[NUM, STAMP]
    for k in range(net[PAIR_PTR, v], net[PAIR_PTR, v + 1]):
        x = net[PAIRS, k]
        if s[USE, x] == j and (s[FATE, x] == stamp + EXTENDED or s[FATE, x] == stamp + INTERNAL):
            return int(net[SIZE, x])
    return 0


@fragment
def _held_after(net: Ints, s: Ints, j: int) -> int:
    """Bytes that stay after the j-th op of the bundle has run: its outputs come, what nobody reads later goes."""
    v, change, stamp = s[BUNDLE, j], 0, 4 * s[NUM, STAMP]
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[USE, x] != j or s[FATE, x] == stamp + HANDED:
            change += net[SIZE, x]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        if s[USE, x] == j and (s[FATE, x] == stamp + EXTENDED or s[FATE, x] == stamp + INTERNAL):
            change -= net[SIZE, x]
    return change


@kernel
def insert_bundle(net: Ints, s: Ints, p: int, count: int) -> None:
    """Insert the gathered bundle before position p."""
    for j in range(count):
        insert(net, s, s[BUNDLE, j], p + j)


@fragment
def bundle_time(net: Ints, s: Ints, count: int) -> int:
    """Time of all ops of the gathered bundle."""
    total = 0
    for j in range(count):
        total += net[TIME, s[BUNDLE, j]]
    return total


@kernel
def earliest(net: Ints, s: Ints, step: int) -> int:
    """First position to which a step can shift without changing who reads from whom."""
    v, p = s[OP, step], s[POS, step]
    low = 0
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        low = max(low, s[POS, newest(s, net[PRODUCER, net[INPUTS, k]], p)] + 1)
    before = newest(s, v, p)
    if before >= 0:
        low = max(low, s[POS, before] + 1)
        for k in range(net[OUT_PTR, v + 1] - net[OUT_PTR, v]):
            low = max(low, s[POS, s[LAST + k, before]] + 1)
    return low


@kernel
def latest(net: Ints, s: Ints, step: int) -> int:
    """Last position to which a step can shift without changing who reads from whom."""
    v, p = s[OP, step], s[POS, step]
    high = s[NUM, LENGTH] - 1
    if s[NXT, step] >= 0:
        high = min(high, s[POS, s[NXT, step]])
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            high = min(high, next_read(net, s, x, p))
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        after = s[NXT, newest(s, net[PRODUCER, net[INPUTS, k]], p)]
        if after >= 0:
            high = min(high, s[POS, after])
    return int(high - 1)


@kernel
def shift_change(net: Ints, s: Ints, step: int, q: int) -> int:
    """Change of the excess if `step` shifted to position q, between `earliest` and `latest`."""
    own = _collect_later(net, s, step, q) if q > s[POS, step] else _collect_earlier(net, s, step, q)
    own -= _collect_savings(net, s, step, q)
    budget = s[NUM, BUDGET]
    return int(excess_change(s) + max(0, own - budget) - max(0, s[MEM, s[POS, step]] - budget))


@kernel
def _collect_later(net: Ints, s: Ints, step: int, q: int) -> int:
    """Collect what shifting later does to the steps passed; returns the bytes of the shifted step at q."""
    v, p = s[OP, step], s[POS, step]
    own = held_before(net, s, q + 1) + net[OWN, v]
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            collect(s, p + 1, q, -net[SIZE, x])
            own -= net[SIZE, x]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        end = s[POS, s[LAST + net[RANK, x], newest(s, u, p)]]
        if end <= q:
            collect(s, max(end, p) + 1, q, net[SIZE, x])
            own += net[SIZE, x]
    return int(own)


@kernel
def _collect_earlier(net: Ints, s: Ints, step: int, q: int) -> int:
    """Collect what shifting earlier does to the steps passed; returns the bytes of the shifted step at q."""
    v, p = s[OP, step], s[POS, step]
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            collect(s, q, p - 1, net[SIZE, x])
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        made = newest(s, u, p)
        if s[LAST + net[RANK, x], made] == step:
            end = s[POS, previous_read(net, s, x, made, p)]
            collect(s, max(end, q - 1) + 1, p - 1, -net[SIZE, x])
    return int(held_before(net, s, q) + net[OWN, v])


@fragment
def _collect_savings(net: Ints, s: Ints, step: int, q: int) -> int:
    """Collect what other steps save more or less by a shift; returns what the shifted step will save."""
    v, p, saved = s[OP, step], s[POS, step], 0
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        made = newest(s, net[PRODUCER, x], p)
        reader = s[LAST + net[RANK, x], made]
        is_last = s[POS, reader] <= q
        if q > p and is_last and reader != step:
            collect(s, s[POS, reader], s[POS, reader], lost(net, s, reader, x))
        if q < p and reader == step:
            other = previous_read(net, s, x, made, p)
            is_last = s[POS, other] < q
            if not is_last:
                collect(s, s[POS, other], s[POS, other], -gained(net, s, other, x))
        elif q < p:
            is_last = False
        if is_last and _is_pair(net, v, x):
            saved = net[SIZE, x]
    return saved


@fragment
def _is_pair(net: Ints, v: int, x: int) -> bool:
    found = False
    for k in range(net[PAIR_PTR, v], net[PAIR_PTR, v + 1]):
        found = found or net[PAIRS, k] == x
    return found


@kernel
def shift(net: Ints, s: Ints, step: int, q: int) -> None:
    """Shift a step to position q, between `earliest` and `latest`."""
    p = s[POS, step]
    if q == p:
        return
    own = _collect_later(net, s, step, q) if q > p else _collect_earlier(net, s, step, q)
    _apply_ranges(s)
    _end_inputs(net, s, step, q)
    direction = 1 if q > p else -1
    for r in range(p, q, direction):
        s[SEQ, r] = s[SEQ, r + direction]
        s[POS, s[SEQ, r]] = r
        s[MEM, r] = s[MEM, r + direction]
    s[SEQ, q], s[POS, step], s[MEM, q], s[CREDIT, step] = step, q, own, 0
    refresh(net, s, step)


@fragment
def _apply_ranges(s: Ints) -> None:
    if s[NUM, RANGES] == 0:
        return
    run = 0
    for r in range(s[NUM, LOW], s[NUM, HIGH] + 1):
        run += s[DIFF, r]
        s[DIFF, r] = 0
        s[MEM, r] += run
    s[DIFF, s[NUM, HIGH] + 1] = 0
    s[NUM, RANGES] = 0


@fragment
def _end_inputs(net: Ints, s: Ints, step: int, q: int) -> None:
    """Who reads each input last once `step` stands at q."""
    v, p = s[OP, step], s[POS, step]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        made = newest(s, u, p)
        reader = s[LAST + net[RANK, x], made]
        if q > p and s[POS, reader] <= q:
            s[LAST + net[RANK, x], made] = step
            if reader != step:
                refresh(net, s, reader)
        elif q < p and s[LAST + net[RANK, x], made] == step:
            before = previous_read(net, s, x, made, p)
            if s[POS, before] >= q:
                s[LAST + net[RANK, x], made] = before
                refresh(net, s, before)
