"""Kernels that look at bundles of recomputes.

A *bundle* is an op recomputed directly before some step together with the dead ancestors it needs there, in
topological order. Single recomputes are bundles of one; their dead inputs stay alive longer instead.
"""

from remat_cli.solvers.search.profile import gained, held_before, lost, newest, previous_read
from remat_cli.solvers.search.slots import collect, excess_change_below, is_tight
from remat_cli.solvers.search.state import (
    BUDGET,
    BUNDLE,
    FATE,
    IN_PTR,
    INPUTS,
    LAST,
    MARK,
    NUM,
    OUT_PTR,
    OWN,
    PAIR_PTR,
    PAIRS,
    POS,
    PRODUCER,
    RANK,
    REPEATABLE,
    SIZE,
    STAMP,
    TIME,
    USE,
    WIDTH,
    Ints,
    fragment,
    kernel,
)

EXTENDED, INTERNAL, HANDED = 1, 2, 3


@kernel
def gather(net: Ints, s: Ints, v: int, anchor: int, least_bytes: float, most_time: float) -> int:
    """Fill `bundle` with v and the ancestors to recompute with it before step `anchor`; returns how many.

    An ancestor joins when its tensor is dead there, larger than `least_bytes`, and cannot be held until then within
    the budget; at most s[NUM, WIDTH] ops. 0 if they take more than `most_time`.
    """
    limit, p = s[NUM, WIDTH], s[POS, anchor]
    s[NUM, STAMP] += 1
    stamp = s[NUM, STAMP]
    s[BUNDLE, 0], s[MARK, v] = v, stamp
    count, done, left = 1, 0, most_time - net[TIME, v]
    while done < count < limit:
        op = s[BUNDLE, done]
        done += 1
        for k in range(net[IN_PTR, op], net[IN_PTR, op + 1]):
            u = net[PRODUCER, net[INPUTS, k]]
            if count < limit and s[MARK, u] != stamp and _must_join(net, s, net[INPUTS, k], p, least_bytes):
                s[BUNDLE, count], s[MARK, u] = u, stamp
                count += 1
                left -= net[TIME, u]
        if left < 0:
            return 0
    _sort_bundle(s, count)
    return count


@fragment
def _must_join(net: Ints, s: Ints, x: int, p: int, least_bytes: float) -> bool:
    u = net[PRODUCER, x]
    if net[REPEATABLE, u] == 0 or net[SIZE, x] <= least_bytes:
        return False
    end = s[POS, s[LAST + net[RANK, x], newest(s, u, p)]]
    return bool(end < p and is_tight(s, end + 1, p - 1, net[SIZE, x]))


@fragment
def _sort_bundle(s: Ints, count: int) -> None:
    for i in range(1, count):
        op, j = s[BUNDLE, i], i
        while j > 0 and s[BUNDLE, j - 1] > op:
            s[BUNDLE, j] = s[BUNDLE, j - 1]
            j -= 1
        s[BUNDLE, j] = op


@kernel
def bundle_change(net: Ints, s: Ints, anchor: int, count: int, most: int) -> int:
    """Change of the excess if the gathered bundle were inserted before step `anchor`, where it is below `most`.

    Else some number that is not below it.
    """
    held, p = held_before(net, s, anchor), s[POS, anchor]
    for j in range(count):
        held += _outputs_fate(net, s, p, j)
        held += _inputs_fate(net, s, p, j)
    over = 0
    for j in range(count):
        v = s[BUNDLE, j]
        over += max(0, held + net[OWN, v] - _saved_in_bundle(net, s, j) - s[NUM, BUDGET])
        held += _held_after(net, s, j)
    return over + excess_change_below(s, most - over)


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


@fragment
def bundle_time(net: Ints, s: Ints, count: int) -> int:
    """Time of all ops of the gathered bundle."""
    total = 0
    for j in range(count):
        total += net[TIME, s[BUNDLE, j]]
    return total
