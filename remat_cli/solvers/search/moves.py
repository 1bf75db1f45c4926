"""Kernels that look at bundles of recomputes.

A *bundle* is an op recomputed directly before some step together with the dead ancestors it needs there, in
topological order. Single recomputes are bundles of one; their dead inputs stay alive longer instead.
"""

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.profile import gained, held_before, lost, newest, previous_read
from remat_cli.solvers.search.slots import collect, excess_change_below, is_tight
from remat_cli.solvers.search.state import Ints, fragment, kernel

EXTENDED, INTERNAL, HANDED = 1, 2, 3


@kernel
def gather(net: Ints, s: Ints, v: int, anchor: int, least_bytes: float, most_time: float) -> int:
    """Fill `bundle` with v and the ancestors to recompute with it before step `anchor`; returns how many.

    An ancestor joins when its tensor is dead there, larger than `least_bytes`, and cannot be held until then within
    the budget; at most s[NUM, WIDTH] ops. 0 if they take more than `most_time`.
    """
    limit, p = s[rows.NUM, rows.WIDTH], s[rows.POS, anchor]
    s[rows.NUM, rows.STAMP] += 1
    stamp = s[rows.NUM, rows.STAMP]
    s[rows.BUNDLE, 0], s[rows.MARK, v] = v, stamp
    count, done, left = 1, 0, most_time - net[rows.TIME, v]
    while done < count < limit:
        op = s[rows.BUNDLE, done]
        done += 1
        for k in range(net[rows.IN_PTR, op], net[rows.IN_PTR, op + 1]):
            u = net[rows.PRODUCER, net[rows.INPUTS, k]]
            if count < limit and s[rows.MARK, u] != stamp and _must_join(net, s, net[rows.INPUTS, k], p, least_bytes):
                s[rows.BUNDLE, count], s[rows.MARK, u] = u, stamp
                count += 1
                left -= net[rows.TIME, u]
        if left < 0:
            return 0
    for i in range(1, count):
        op, j = s[rows.BUNDLE, i], i
        while j > 0 and s[rows.BUNDLE, j - 1] > op:
            s[rows.BUNDLE, j] = s[rows.BUNDLE, j - 1]
            j -= 1
        s[rows.BUNDLE, j] = op
    return count


@fragment
def _must_join(net: Ints, s: Ints, x: int, p: int, least_bytes: float) -> bool:
    u = net[rows.PRODUCER, x]
    if net[rows.REPEATABLE, u] == 0 or net[rows.SIZE, x] <= least_bytes:
        return False
    end = s[rows.POS, s[rows.LAST + net[rows.RANK, x], newest(s, u, p)]]
    return bool(end < p and is_tight(s, end + 1, p - 1, net[rows.SIZE, x]))


@kernel
def bundle_change(net: Ints, s: Ints, anchor: int, count: int, most: int) -> int:
    """Change of the excess if the gathered bundle were inserted before step `anchor`, where it is below `most`.

    Else some number that is not below it.
    """
    held, p = held_before(net, s, anchor), s[rows.POS, anchor]
    for j in range(count):
        held += _outputs_fate(net, s, p, j)
        held += _inputs_fate(net, s, p, j)
    over = 0
    for j in range(count):
        v = s[rows.BUNDLE, j]
        over += max(0, held + net[rows.OWN, v] - _saved_in_bundle(net, s, j) - s[rows.NUM, rows.BUDGET])
        # Its outputs come, what nobody reads later goes.
        stamp = 4 * s[rows.NUM, rows.STAMP]
        for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
            if s[rows.USE, x] != j or s[rows.FATE, x] == stamp + HANDED:
                held += net[rows.SIZE, x]
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            x = net[rows.INPUTS, k]
            if s[rows.USE, x] == j and (s[rows.FATE, x] == stamp + EXTENDED or s[rows.FATE, x] == stamp + INTERNAL):
                held -= net[rows.SIZE, x]
    return over + excess_change_below(s, most - over)


@fragment
def _outputs_fate(net: Ints, s: Ints, p: int, j: int) -> int:
    """Outputs of the j-th op either take over later reads (the old instance ends earlier) or die in the bundle."""
    v, held = s[rows.BUNDLE, j], 0
    before = newest(s, v, p)
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        s[rows.USE, x] = j
        s[rows.FATE, x] = 4 * s[rows.NUM, rows.STAMP] + INTERNAL
        if before >= 0 and s[rows.POS, s[rows.LAST + net[rows.RANK, x], before]] >= p:
            s[rows.FATE, x] = 4 * s[rows.NUM, rows.STAMP] + HANDED
            reader = previous_read(net, s, x, before, p)
            collect(s, s[rows.POS, reader] + 1, p - 1, -net[rows.SIZE, x])
            collect(s, s[rows.POS, reader], s[rows.POS, reader], -gained(net, s, reader, x))
            held -= net[rows.SIZE, x]
    return held


@fragment
def _inputs_fate(net: Ints, s: Ints, p: int, j: int) -> int:
    """Dead inputs that are not recomputed stay alive until the bundle has read them."""
    v, held, stamp = s[rows.BUNDLE, j], 0, s[rows.NUM, rows.STAMP]
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        u = net[rows.PRODUCER, x]
        s[rows.USE, x] = j
        if s[rows.MARK, u] == stamp or s[rows.FATE, x] == 4 * stamp + EXTENDED:
            continue
        reader = s[rows.LAST + net[rows.RANK, x], newest(s, u, p)]
        if s[rows.POS, reader] < p:
            s[rows.FATE, x] = 4 * stamp + EXTENDED
            collect(s, s[rows.POS, reader] + 1, p - 1, net[rows.SIZE, x])
            collect(s, s[rows.POS, reader], s[rows.POS, reader], lost(net, s, reader, x))
            held += net[rows.SIZE, x]
    return held


@fragment
def _saved_in_bundle(net: Ints, s: Ints, j: int) -> int:
    """Bytes the j-th op of the bundle saves by overwriting an input that ends with it."""
    v, stamp = s[rows.BUNDLE, j], 4 * s[rows.NUM, rows.STAMP]
    for k in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
        x = net[rows.PAIRS, k]
        if s[rows.USE, x] == j and (s[rows.FATE, x] == stamp + EXTENDED or s[rows.FATE, x] == stamp + INTERNAL):
            return int(net[rows.SIZE, x])
    return 0


@fragment
def bundle_time(net: Ints, s: Ints, count: int) -> int:
    """Time of all ops of the gathered bundle."""
    total = 0
    for j in range(count):
        total += net[rows.TIME, s[rows.BUNDLE, j]]
    return total
