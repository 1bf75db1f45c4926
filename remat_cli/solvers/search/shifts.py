"""Kernels that move a step in time without changing who reads from whom."""

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
from remat_cli.solvers.search.state import (
    BUDGET,
    CREDIT,
    IN_PTR,
    INPUTS,
    LAST,
    NUM,
    NXT,
    OP,
    OUT_PTR,
    OWN,
    PAIR_PTR,
    PAIRS,
    POS,
    PRODUCER,
    RANK,
    SEQ,
    SIZE,
    SLOTS,
    Ints,
    fragment,
    kernel,
)


@kernel
def random_place(net: Ints, s: Ints, step: int) -> int:
    """A step before which `step` can stand, drawn from all of its range; itself if it stands there already."""
    low = earliest(net, s, step)
    q = occupied(s, low + int(uniform(s) * (latest(net, s, step) - low + 1)))
    return int(step if q == occupied(s, s[POS, step] + 1) else s[SEQ, q])


@kernel
def earliest(net: Ints, s: Ints, step: int) -> int:
    """First slot to which a step can shift."""
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
    """Slot of the step before which a step can stand at the latest."""
    v, p = s[OP, step], s[POS, step]
    high = s[NUM, SLOTS] - 1
    if s[NXT, step] >= 0:
        high = min(high, s[POS, s[NXT, step]])
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            high = min(high, s[POS, next_read(net, s, x, p)])
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        after = s[NXT, newest(s, net[PRODUCER, net[INPUTS, k]], p)]
        if after >= 0:
            high = min(high, s[POS, after])
    return int(high)


@fragment
def _collect_later(net: Ints, s: Ints, step: int, anchor: int) -> int:
    v, p, end = s[OP, step], s[POS, step], s[POS, anchor]
    own = held_before(net, s, anchor) + net[OWN, v]
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            collect(s, p + 1, end - 1, -net[SIZE, x])
            own -= net[SIZE, x]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        read = s[POS, s[LAST + net[RANK, x], newest(s, net[PRODUCER, x], p)]]
        if read < end:
            collect(s, max(read, p) + 1, end - 1, net[SIZE, x])
            own += net[SIZE, x]
    return int(own)


@fragment
def _collect_earlier(net: Ints, s: Ints, step: int, anchor: int) -> int:
    v, p, begin = s[OP, step], s[POS, step], s[POS, anchor]
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            collect(s, begin, p - 1, net[SIZE, x])
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        made = newest(s, net[PRODUCER, x], p)
        if s[LAST + net[RANK, x], made] == step:
            read = s[POS, previous_read(net, s, x, made, p)]
            collect(s, max(read + 1, begin), p - 1, -net[SIZE, x])
    return int(held_before(net, s, anchor) + net[OWN, v])


@fragment
def _collect_savings(net: Ints, s: Ints, step: int, anchor: int) -> int:
    """Collect what other steps save more or less by a shift; returns what the shifted step will save."""
    v, p, at, saved = s[OP, step], s[POS, step], s[POS, anchor], 0
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        made = newest(s, net[PRODUCER, x], p)
        reader = s[LAST + net[RANK, x], made]
        is_last = at > p and s[POS, reader] < at
        if is_last and reader != step:
            collect(s, s[POS, reader], s[POS, reader], lost(net, s, reader, x))
        if at < p and reader == step:
            other = previous_read(net, s, x, made, p)
            is_last = s[POS, other] < at
            if not is_last:
                collect(s, s[POS, other], s[POS, other], -gained(net, s, other, x))
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
def shift_change(net: Ints, s: Ints, step: int, anchor: int) -> int:
    """Change of the excess if `step` stood directly before step `anchor`, between `earliest` and `latest`."""
    if s[POS, anchor] > s[POS, step]:
        own = _collect_later(net, s, step, anchor)
    else:
        own = _collect_earlier(net, s, step, anchor)
    own -= _collect_savings(net, s, step, anchor)
    budget = s[NUM, BUDGET]
    return int(excess_change(s) + max(0, own - budget) - max(0, bytes_at(s, s[POS, step]) - budget))


@fragment
def shift(net: Ints, s: Ints, step: int, anchor: int) -> None:
    """Make `step` stand directly before step `anchor`, between `earliest` and `latest`."""
    v, p = s[OP, step], s[POS, step]
    is_later = s[POS, anchor] > p
    own = held_before(net, s, anchor) + net[OWN, v]
    begin, end = (p + 1, s[POS, anchor] - 1) if is_later else (s[POS, anchor], p - 1)
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            add(s, begin, end, -net[SIZE, x] if is_later else net[SIZE, x])
            own -= net[SIZE, x] if is_later else 0
    own += _shift_ends(net, s, step, anchor)
    clear(s, p)
    s[CREDIT, step] = 0
    put(s, open_slot(s, anchor), step, own)
    refresh(net, s, step)


@fragment
def _shift_ends(net: Ints, s: Ints, step: int, anchor: int) -> int:
    """Set who reads each input last once `step` stands before `anchor`; returns the bytes of inputs revived there."""
    v, p, at, revived = s[OP, step], s[POS, step], s[POS, anchor], 0
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        row, made = LAST + net[RANK, x], newest(s, net[PRODUCER, x], p)
        reader = s[row, made]
        if at > p and s[POS, reader] < at:
            add(s, max(s[POS, reader], p) + 1, at - 1, net[SIZE, x])
            revived += net[SIZE, x]
            s[row, made] = step
            if reader != step:
                refresh(net, s, reader)
        elif at < p and reader == step:
            other = previous_read(net, s, x, made, p)
            add(s, max(s[POS, other] + 1, at), p - 1, -net[SIZE, x])
            if s[POS, other] >= at:
                s[row, made] = other
                refresh(net, s, other)
    return revived
