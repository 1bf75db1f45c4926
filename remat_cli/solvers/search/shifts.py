"""Kernels that move a step in time without changing who reads from whom."""

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.profile import (
    gained,
    held_before,
    lost,
    newest,
    next_read,
    previous_read,
    refresh,
    uniform,
)
from remat_cli.solvers.search.slots import add, bytes_at, clear, collect, excess_change, occupied, open_slot, put
from remat_cli.solvers.search.state import Ints, fragment, kernel


@kernel
def random_place(net: Ints, s: Ints, step: int) -> int:
    """A step before which `step` can stand, drawn from all of its range; itself if it stands there already."""
    low = earliest(net, s, step)
    q = occupied(s, low + int(uniform(s) * (latest(net, s, step) - low + 1)))
    return int(step if q == occupied(s, s[rows.POS, step] + 1) else s[rows.SEQ, q])


@kernel
def earliest(net: Ints, s: Ints, step: int) -> int:
    """First slot to which a step can shift."""
    v, p = s[rows.OP, step], s[rows.POS, step]
    low = 0
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        low = max(low, s[rows.POS, newest(s, net[rows.PRODUCER, net[rows.INPUTS, k]], p)] + 1)
    before = newest(s, v, p)
    if before >= 0:
        low = max(low, s[rows.POS, before] + 1)
        for k in range(net[rows.OUT_PTR, v + 1] - net[rows.OUT_PTR, v]):
            low = max(low, s[rows.POS, s[rows.LAST + k, before]] + 1)
    return low


@kernel
def latest(net: Ints, s: Ints, step: int) -> int:
    """Slot of the step before which a step can stand at the latest."""
    v, p = s[rows.OP, step], s[rows.POS, step]
    high = s[rows.NUM, rows.SLOTS] - 1
    if s[rows.NXT, step] >= 0:
        high = min(high, s[rows.POS, s[rows.NXT, step]])
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        if s[rows.LAST + net[rows.RANK, x], step] != step:
            high = min(high, s[rows.POS, next_read(net, s, x, p)])
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        after = s[rows.NXT, newest(s, net[rows.PRODUCER, net[rows.INPUTS, k]], p)]
        if after >= 0:
            high = min(high, s[rows.POS, after])
    return int(high)


@fragment
def _collect_savings(net: Ints, s: Ints, step: int, anchor: int) -> int:
    """Collect what other steps save more or less by a shift; returns what the shifted step will save."""
    v, p, at, saved = s[rows.OP, step], s[rows.POS, step], s[rows.POS, anchor], 0
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        made = newest(s, net[rows.PRODUCER, x], p)
        reader = s[rows.LAST + net[rows.RANK, x], made]
        is_last = at > p and s[rows.POS, reader] < at
        if is_last and reader != step:
            collect(s, s[rows.POS, reader], s[rows.POS, reader], lost(net, s, reader, x))
        if at < p and reader == step:
            other = previous_read(net, s, x, made, p)
            is_last = s[rows.POS, other] < at
            if not is_last:
                collect(s, s[rows.POS, other], s[rows.POS, other], -gained(net, s, other, x))
        if is_last:
            for j in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
                if net[rows.PAIRS, j] == x:
                    saved = net[rows.SIZE, x]
    return saved


@kernel
def shift_change(net: Ints, s: Ints, step: int, anchor: int) -> int:
    """Change of the excess if `step` stood directly before step `anchor`, between `earliest` and `latest`."""
    if s[rows.POS, anchor] > s[rows.POS, step]:
        v, p, end = s[rows.OP, step], s[rows.POS, step], s[rows.POS, anchor]
        own = held_before(net, s, anchor) + net[rows.OWN, v]
        for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
            if s[rows.LAST + net[rows.RANK, x], step] != step:
                collect(s, p + 1, end - 1, -net[rows.SIZE, x])
                own -= net[rows.SIZE, x]
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            x = net[rows.INPUTS, k]
            read = s[rows.POS, s[rows.LAST + net[rows.RANK, x], newest(s, net[rows.PRODUCER, x], p)]]
            if read < end:
                collect(s, max(read, p) + 1, end - 1, net[rows.SIZE, x])
                own += net[rows.SIZE, x]
    else:
        v, p, begin = s[rows.OP, step], s[rows.POS, step], s[rows.POS, anchor]
        for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
            if s[rows.LAST + net[rows.RANK, x], step] != step:
                collect(s, begin, p - 1, net[rows.SIZE, x])
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            x = net[rows.INPUTS, k]
            made = newest(s, net[rows.PRODUCER, x], p)
            if s[rows.LAST + net[rows.RANK, x], made] == step:
                read = s[rows.POS, previous_read(net, s, x, made, p)]
                collect(s, max(read + 1, begin), p - 1, -net[rows.SIZE, x])
        own = int(held_before(net, s, anchor) + net[rows.OWN, v])
    own -= _collect_savings(net, s, step, anchor)
    budget = s[rows.NUM, rows.BUDGET]
    return int(excess_change(s) + max(0, own - budget) - max(0, bytes_at(s, s[rows.POS, step]) - budget))


@fragment
def shift(net: Ints, s: Ints, step: int, anchor: int) -> None:
    """Make `step` stand directly before step `anchor`, between `earliest` and `latest`."""
    v, p = s[rows.OP, step], s[rows.POS, step]
    is_later = s[rows.POS, anchor] > p
    own = held_before(net, s, anchor) + net[rows.OWN, v]
    begin, end = (p + 1, s[rows.POS, anchor] - 1) if is_later else (s[rows.POS, anchor], p - 1)
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        if s[rows.LAST + net[rows.RANK, x], step] != step:
            add(s, begin, end, -net[rows.SIZE, x] if is_later else net[rows.SIZE, x])
            own -= net[rows.SIZE, x] if is_later else 0
    at = s[rows.POS, anchor]  # who reads each input last once `step` stands there; what is revived is its own
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        row, made = rows.LAST + net[rows.RANK, x], newest(s, net[rows.PRODUCER, x], p)
        reader = s[row, made]
        if at > p and s[rows.POS, reader] < at:
            add(s, max(s[rows.POS, reader], p) + 1, at - 1, net[rows.SIZE, x])
            own += net[rows.SIZE, x]
            s[row, made] = step
            if reader != step:
                refresh(net, s, reader)
        elif at < p and reader == step:
            other = previous_read(net, s, x, made, p)
            add(s, max(s[rows.POS, other] + 1, at), p - 1, -net[rows.SIZE, x])
            if s[rows.POS, other] >= at:
                s[row, made] = other
                refresh(net, s, other)
    clear(s, p)
    s[rows.CREDIT, step] = 0
    put(s, open_slot(s, anchor), step, own)
    refresh(net, s, step)
