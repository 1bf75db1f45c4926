"""Kernels that keep a schedule's memory profile exact while steps come, go and shift, and can take it all back."""

import numpy as np

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.slots import (
    add,
    bytes_at,
    clear,
    clear_slots,
    collect,
    measure_block,
    open_slot,
    put,
    set_bytes,
    slot_of,
)
from remat_cli.solvers.search.state import Ints, fragment, kernel


@kernel
def uniform(s: Ints) -> float:
    """Next random number in [0, 1): splitmix64, the same on every machine."""
    z = np.uint64(s[rows.NUM, rows.RANDOM]) + np.uint64(0x9E3779B97F4A7C15)
    s[rows.NUM, rows.RANDOM] = np.int64(z)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@kernel
def build(net: Ints, s: Ints, ops: Ints, length: int) -> None:
    """Make the state the schedule `ops[:length]` (end op included, legal), with an empty log; linear time.

    Steps are numbered in their order.
    """
    _reset(net, s, length)
    clear_slots(s, length)
    cost = 0
    for step in range(length):
        v, p = ops[step], slot_of(s, step, length)
        s[rows.SEQ, p], s[rows.OP, step], s[rows.POS, step], s[rows.NXT, step], s[rows.BLOCKER, step] = (
            step,
            v,
            p,
            -1,
            -1,
        )
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            x = net[rows.INPUTS, k]
            s[rows.LAST + net[rows.RANK, x], s[rows.MARK, net[rows.PRODUCER, x]]] = step
        for k in range(net[rows.OUT_PTR, v + 1] - net[rows.OUT_PTR, v]):
            s[rows.LAST + k, step] = step
        if s[rows.HEAD, v] >= 0:
            s[rows.NXT, s[rows.MARK, v]] = step
            _list_op(s, v)
        else:
            s[rows.HEAD, v] = step
        s[rows.MARK, v] = step
        cost += net[rows.TIME, v]
    s[rows.NUM, rows.LENGTH], s[rows.NUM, rows.COST] = length, cost
    _fill_memory(net, s)
    for k in range(s.shape[1]):
        s[rows.MARK, k], s[rows.USE, k], s[rows.FATE, k] = 0, 0, 0


@fragment
def _reset(net: Ints, s: Ints, length: int) -> None:
    for v in range(net[rows.OPS, 0]):
        s[rows.HEAD, v], s[rows.PLACE, v] = -1, -1
    most = 3 * net[rows.OPS, 0] + 256
    s[rows.NUM, rows.FREE] = most - length
    for k in range(s[rows.NUM, rows.FREE]):
        s[rows.SPARE, k] = most - 1 - k
    (
        s[rows.NUM, rows.STAMP],
        s[rows.NUM, rows.CHANGES],
        s[rows.NUM, rows.LOGGED],
        s[rows.NUM, rows.REPEATED],
        s[rows.NUM, rows.OVER],
    ) = 1, 0, 0, 0, 0
    s[rows.NUM, rows.ROUNDS], s[rows.NUM, rows.REPAIRING] = 0, 0


@fragment
def _fill_memory(net: Ints, s: Ints) -> None:
    """MEM of all slots; USE serves for the differences from one step to the next, all zero before."""
    length = s[rows.NUM, rows.LENGTH]
    for k in range(length + 1):
        s[rows.USE, k] = 0
    for step in range(length):
        v = s[rows.OP, step]
        for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
            s[rows.USE, step] += net[rows.SIZE, x]
            s[rows.USE, s[rows.LAST + net[rows.RANK, x], step] + 1] -= net[rows.SIZE, x]
    held = 0
    for step in range(length):
        held += s[rows.USE, step]
        s[rows.CREDIT, step] = _saving(net, s, step)
        s[rows.MEM, s[rows.POS, step]] = held + net[rows.WORKSPACE, s[rows.OP, step]] - s[rows.CREDIT, step]
    for block in range(((s[rows.NUM, rows.SLOTS] - 1) >> s[rows.NUM, rows.SHIFT]) + 1):
        measure_block(s, block)


@kernel
def _list_op(s: Ints, v: int) -> None:
    """Put an op that has more than one step on the list of those."""
    if s[rows.PLACE, v] < 0:
        s[rows.PLACE, v] = s[rows.NUM, rows.REPEATED]
        s[rows.REPEATS, s[rows.NUM, rows.REPEATED]] = v
        s[rows.NUM, rows.REPEATED] += 1


@kernel
def newest(s: Ints, v: int, p: int) -> int:
    """Last step of op v before slot p, -1 if there is none."""
    found = -1
    step = s[rows.HEAD, v]
    while step >= 0 and s[rows.POS, step] < p:
        found = step
        step = s[rows.NXT, step]
    return found


@kernel
def previous_read(net: Ints, s: Ints, x: int, made: int, p: int) -> int:
    """Last step before slot p that reads tensor x of step `made` (its newest before p); `made` if none."""
    best, at = made, s[rows.POS, made]
    for k in range(net[rows.READ_PTR, x], net[rows.READ_PTR, x + 1]):
        step = newest(s, net[rows.READERS, k], p)
        if step >= 0 and s[rows.POS, step] > at:
            best, at = step, s[rows.POS, step]
    return best


@kernel
def next_read(net: Ints, s: Ints, x: int, p: int) -> int:
    """First step after slot p that reads tensor x; -1 if none."""
    best, at = -1, s[rows.NUM, rows.SLOTS]
    for k in range(net[rows.READ_PTR, x], net[rows.READ_PTR, x + 1]):
        step = s[rows.HEAD, net[rows.READERS, k]]
        while step >= 0 and s[rows.POS, step] <= p:
            step = s[rows.NXT, step]
        if step >= 0 and s[rows.POS, step] < at:
            best, at = step, s[rows.POS, step]
    return best


@kernel
def _saving(net: Ints, s: Ints, step: int) -> int:
    """Bytes a step saves because its output overwrites an input that it reads last."""
    v = s[rows.OP, step]
    for k in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
        x = net[rows.PAIRS, k]
        if s[rows.LAST + net[rows.RANK, x], newest(s, net[rows.PRODUCER, x], s[rows.POS, step])] == step:
            return int(net[rows.SIZE, x])
    return 0


@kernel
def refresh(net: Ints, s: Ints, step: int) -> None:
    """Set right what a step saves, after what it reads last has changed."""
    saved = _saving(net, s, step)
    if saved != s[rows.CREDIT, step]:
        p = s[rows.POS, step]
        set_bytes(s, p, bytes_at(s, p) + s[rows.CREDIT, step] - saved)
        s[rows.CREDIT, step] = saved


@kernel
def lost(net: Ints, s: Ints, step: int, x: int) -> int:
    """Bytes a step would save less if it no longer were the last reader of tensor x."""
    v, is_pair = s[rows.OP, step], False
    for k in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
        y = net[rows.PAIRS, k]
        is_pair = is_pair or y == x
        if y != x and s[rows.LAST + net[rows.RANK, y], newest(s, net[rows.PRODUCER, y], s[rows.POS, step])] == step:
            return 0
    return int(s[rows.CREDIT, step]) if is_pair else 0


@kernel
def gained(net: Ints, s: Ints, step: int, x: int) -> int:
    """Bytes a step would save more if it became the last reader of tensor x."""
    v = s[rows.OP, step]
    if s[rows.CREDIT, step] == 0:
        for k in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
            if net[rows.PAIRS, k] == x:
                return int(net[rows.SIZE, x])
    return 0


@kernel
def held_before(net: Ints, s: Ints, step: int) -> int:
    """Bytes alive both before a step and at it."""
    return int(bytes_at(s, s[rows.POS, step]) - net[rows.OWN, s[rows.OP, step]] + s[rows.CREDIT, step])


@fragment
def log_is_full(s: Ints) -> bool:
    """Whether the log has little room left; whoever changes a schedule must stop then."""
    return bool(s[rows.NUM, rows.LOGGED] > s.shape[1] - 128)


@fragment
def follower(s: Ints, step: int) -> int:
    """The step after a step."""
    p = s[rows.POS, step] + 1
    while s[rows.SEQ, p] < 0:
        p += 1
    return int(s[rows.SEQ, p])


@fragment
def insert(net: Ints, s: Ints, v: int, anchor: int) -> int:
    """Put a step of op v before step `anchor` (its inputs were made before, a step number is free); returns it."""
    s[rows.NUM, rows.FREE] -= 1
    step = s[rows.SPARE, s[rows.NUM, rows.FREE]]
    p = open_slot(s, anchor)
    held = held_before(net, s, anchor)
    s[rows.OP, step], s[rows.CREDIT, step], s[rows.BLOCKER, step] = v, 0, -1
    put(s, p, step, held + net[rows.OWN, v])
    s[rows.NUM, rows.LENGTH] += 1
    s[rows.NUM, rows.COST] += net[rows.TIME, v]
    # A new step reads its inputs: lives that ended before it grow up to it.
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        made = newest(s, net[rows.PRODUCER, x], p)
        reader = s[rows.LAST + net[rows.RANK, x], made]
        if s[rows.POS, reader] < p:
            add(s, s[rows.POS, reader] + 1, p, net[rows.SIZE, x])
            s[rows.LAST + net[rows.RANK, x], made] = step
            refresh(net, s, reader)
    before = newest(s, v, p)
    _take_readers(net, s, step, before)
    if s[rows.HEAD, v] >= 0:
        _list_op(s, v)
    if before >= 0:
        s[rows.NXT, step] = s[rows.NXT, before]
        s[rows.NXT, before] = step
    else:
        s[rows.NXT, step] = s[rows.HEAD, v]
        s[rows.HEAD, v] = step
    refresh(net, s, step)
    return int(step)


@fragment
def _take_readers(net: Ints, s: Ints, step: int, before: int) -> None:
    """Reads after a new step take its outputs; the older instances end at their last read before it."""
    v, p = s[rows.OP, step], s[rows.POS, step]
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        row = rows.LAST + net[rows.RANK, x]
        s[row, step] = step
        if before >= 0 and s[rows.POS, s[row, before]] > p:
            s[row, step] = s[row, before]
            s[row, before] = previous_read(net, s, x, before, p)
            add(s, s[rows.POS, s[row, before]] + 1, p, -net[rows.SIZE, x])
            refresh(net, s, s[row, before])


@fragment
def remove(net: Ints, s: Ints, step: int) -> None:
    """Take out a step whose readers (if any) have an older step of the same op to read from."""
    v, p = s[rows.OP, step], s[rows.POS, step]
    before = newest(s, v, p)
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        row = rows.LAST + net[rows.RANK, x]
        if s[row, step] != step:
            reader = s[row, before]
            add(s, s[rows.POS, reader] + 1, p, net[rows.SIZE, x])
            s[row, before] = s[row, step]
            refresh(net, s, reader)
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        u = net[rows.PRODUCER, x]
        made = newest(s, u, p)
        if s[rows.LAST + net[rows.RANK, x], made] == step:
            reader = previous_read(net, s, x, made, p)
            s[rows.LAST + net[rows.RANK, x], made] = reader
            add(s, s[rows.POS, reader] + 1, p, -net[rows.SIZE, x])
            refresh(net, s, reader)
    clear(s, p)
    if before >= 0:
        s[rows.NXT, before] = s[rows.NXT, step]
    else:
        s[rows.HEAD, v] = s[rows.NXT, step]
    if s[rows.NXT, s[rows.HEAD, v]] < 0:
        place, other = s[rows.PLACE, v], s[rows.REPEATS, s[rows.NUM, rows.REPEATED] - 1]
        s[rows.REPEATS, place], s[rows.PLACE, other], s[rows.PLACE, v] = other, place, -1
        s[rows.NUM, rows.REPEATED] -= 1
    s[rows.NUM, rows.LENGTH] -= 1
    s[rows.NUM, rows.COST] -= net[rows.TIME, v]
    s[rows.SPARE, s[rows.NUM, rows.FREE]] = step
    s[rows.NUM, rows.FREE] += 1


@kernel
def is_removable(net: Ints, s: Ints, step: int) -> bool:
    """Whether an older step of the op can serve the readers, or a later one is there and nobody reads this one."""
    v = s[rows.OP, step]
    if s[rows.HEAD, v] != step:
        return True
    is_read = s[rows.NXT, step] < 0
    for k in range(net[rows.OUT_PTR, v + 1] - net[rows.OUT_PTR, v]):
        is_read = is_read or s[rows.LAST + k, step] != step
    return not is_read


@fragment
def collect_removal(net: Ints, s: Ints, step: int) -> None:
    """Collect what removing a removable step does to the others."""
    v, p = s[rows.OP, step], s[rows.POS, step]
    before = newest(s, v, p)
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        if s[rows.LAST + net[rows.RANK, x], step] != step:
            reader = s[rows.LAST + net[rows.RANK, x], before]
            collect(s, s[rows.POS, reader] + 1, p - 1, net[rows.SIZE, x])
            collect(s, s[rows.POS, reader], s[rows.POS, reader], lost(net, s, reader, x))
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        u = net[rows.PRODUCER, x]
        made = newest(s, u, p)
        if s[rows.LAST + net[rows.RANK, x], made] == step:
            reader = previous_read(net, s, x, made, p)
            collect(s, s[rows.POS, reader] + 1, p - 1, -net[rows.SIZE, x])
            collect(s, s[rows.POS, reader], s[rows.POS, reader], -gained(net, s, reader, x))
