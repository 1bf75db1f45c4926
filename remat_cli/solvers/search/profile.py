"""Kernels that keep a schedule's memory profile exact while steps come, go and shift, and can take it all back."""

import numpy as np

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
from remat_cli.solvers.search.state import (
    BLOCKER,
    CHANGES,
    COST,
    CREDIT,
    FATE,
    FREE,
    HEAD,
    IN_PTR,
    INPUTS,
    LAST,
    LENGTH,
    LOGGED,
    MARK,
    MEM,
    NUM,
    NXT,
    OP,
    OPS,
    OUT_PTR,
    OVER,
    OWN,
    PAIR_PTR,
    PAIRS,
    PLACE,
    POS,
    PRODUCER,
    RANDOM,
    RANK,
    READ_PTR,
    READERS,
    REPAIRING,
    REPEATED,
    REPEATS,
    ROUNDS,
    SEQ,
    SHIFT,
    SIZE,
    SLOTS,
    SPARE,
    STAMP,
    TIME,
    USE,
    WORKSPACE,
    Ints,
    fragment,
    kernel,
)


@kernel
def uniform(s: Ints) -> float:
    """Next random number in [0, 1): splitmix64, the same on every machine."""
    z = np.uint64(s[NUM, RANDOM]) + np.uint64(0x9E3779B97F4A7C15)
    s[NUM, RANDOM] = np.int64(z)
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
        s[SEQ, p], s[OP, step], s[POS, step], s[NXT, step], s[BLOCKER, step] = step, v, p, -1, -1
        for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
            x = net[INPUTS, k]
            s[LAST + net[RANK, x], s[MARK, net[PRODUCER, x]]] = step
        for k in range(net[OUT_PTR, v + 1] - net[OUT_PTR, v]):
            s[LAST + k, step] = step
        if s[HEAD, v] >= 0:
            s[NXT, s[MARK, v]] = step
            _list_op(s, v)
        else:
            s[HEAD, v] = step
        s[MARK, v] = step
        cost += net[TIME, v]
    s[NUM, LENGTH], s[NUM, COST] = length, cost
    _fill_memory(net, s)
    for k in range(s.shape[1]):
        s[MARK, k], s[USE, k], s[FATE, k] = 0, 0, 0


@fragment
def _reset(net: Ints, s: Ints, length: int) -> None:
    for v in range(net[OPS, 0]):
        s[HEAD, v], s[PLACE, v] = -1, -1
    most = 3 * net[OPS, 0] + 256
    s[NUM, FREE] = most - length
    for k in range(s[NUM, FREE]):
        s[SPARE, k] = most - 1 - k
    s[NUM, STAMP], s[NUM, CHANGES], s[NUM, LOGGED], s[NUM, REPEATED], s[NUM, OVER] = 1, 0, 0, 0, 0
    s[NUM, ROUNDS], s[NUM, REPAIRING] = 0, 0


@fragment
def _fill_memory(net: Ints, s: Ints) -> None:
    """MEM of all slots; USE serves for the differences from one step to the next, all zero before."""
    length = s[NUM, LENGTH]
    for k in range(length + 1):
        s[USE, k] = 0
    for step in range(length):
        v = s[OP, step]
        for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
            s[USE, step] += net[SIZE, x]
            s[USE, s[LAST + net[RANK, x], step] + 1] -= net[SIZE, x]
    held = 0
    for step in range(length):
        held += s[USE, step]
        s[CREDIT, step] = _saving(net, s, step)
        s[MEM, s[POS, step]] = held + net[WORKSPACE, s[OP, step]] - s[CREDIT, step]
    for block in range(((s[NUM, SLOTS] - 1) >> s[NUM, SHIFT]) + 1):
        measure_block(s, block)


@kernel
def _list_op(s: Ints, v: int) -> None:
    """Put an op that has more than one step on the list of those."""
    if s[PLACE, v] < 0:
        s[PLACE, v] = s[NUM, REPEATED]
        s[REPEATS, s[NUM, REPEATED]] = v
        s[NUM, REPEATED] += 1


@kernel
def newest(s: Ints, v: int, p: int) -> int:
    """Last step of op v before slot p, -1 if there is none."""
    found = -1
    step = s[HEAD, v]
    while step >= 0 and s[POS, step] < p:
        found = step
        step = s[NXT, step]
    return found


@kernel
def previous_read(net: Ints, s: Ints, x: int, made: int, p: int) -> int:
    """Last step before slot p that reads tensor x of step `made` (its newest before p); `made` if none."""
    best, at = made, s[POS, made]
    for k in range(net[READ_PTR, x], net[READ_PTR, x + 1]):
        step = newest(s, net[READERS, k], p)
        if step >= 0 and s[POS, step] > at:
            best, at = step, s[POS, step]
    return best


@kernel
def next_read(net: Ints, s: Ints, x: int, p: int) -> int:
    """First step after slot p that reads tensor x; -1 if none."""
    best, at = -1, s[NUM, SLOTS]
    for k in range(net[READ_PTR, x], net[READ_PTR, x + 1]):
        step = s[HEAD, net[READERS, k]]
        while step >= 0 and s[POS, step] <= p:
            step = s[NXT, step]
        if step >= 0 and s[POS, step] < at:
            best, at = step, s[POS, step]
    return best


@kernel
def _saving(net: Ints, s: Ints, step: int) -> int:
    """Bytes a step saves because its output overwrites an input that it reads last."""
    v = s[OP, step]
    for k in range(net[PAIR_PTR, v], net[PAIR_PTR, v + 1]):
        x = net[PAIRS, k]
        if s[LAST + net[RANK, x], newest(s, net[PRODUCER, x], s[POS, step])] == step:
            return int(net[SIZE, x])
    return 0


@kernel
def refresh(net: Ints, s: Ints, step: int) -> None:
    """Set right what a step saves, after what it reads last has changed."""
    saved = _saving(net, s, step)
    if saved != s[CREDIT, step]:
        p = s[POS, step]
        set_bytes(s, p, bytes_at(s, p) + s[CREDIT, step] - saved)
        s[CREDIT, step] = saved


@kernel
def lost(net: Ints, s: Ints, step: int, x: int) -> int:
    """Bytes a step would save less if it no longer were the last reader of tensor x."""
    v, is_pair = s[OP, step], False
    for k in range(net[PAIR_PTR, v], net[PAIR_PTR, v + 1]):
        y = net[PAIRS, k]
        is_pair = is_pair or y == x
        if y != x and s[LAST + net[RANK, y], newest(s, net[PRODUCER, y], s[POS, step])] == step:
            return 0
    return int(s[CREDIT, step]) if is_pair else 0


@kernel
def gained(net: Ints, s: Ints, step: int, x: int) -> int:
    """Bytes a step would save more if it became the last reader of tensor x."""
    v = s[OP, step]
    if s[CREDIT, step] == 0:
        for k in range(net[PAIR_PTR, v], net[PAIR_PTR, v + 1]):
            if net[PAIRS, k] == x:
                return int(net[SIZE, x])
    return 0


@kernel
def held_before(net: Ints, s: Ints, step: int) -> int:
    """Bytes alive both before a step and at it."""
    return int(bytes_at(s, s[POS, step]) - net[OWN, s[OP, step]] + s[CREDIT, step])


@fragment
def log_is_full(s: Ints) -> bool:
    """Whether the log has little room left; whoever changes a schedule must stop then."""
    return bool(s[NUM, LOGGED] > s.shape[1] - 128)


@fragment
def follower(s: Ints, step: int) -> int:
    """The step after a step."""
    p = s[POS, step] + 1
    while s[SEQ, p] < 0:
        p += 1
    return int(s[SEQ, p])


@fragment
def insert(net: Ints, s: Ints, v: int, anchor: int) -> int:
    """Put a step of op v before step `anchor` (its inputs were made before, a step number is free); returns it."""
    s[NUM, FREE] -= 1
    step = s[SPARE, s[NUM, FREE]]
    p = open_slot(s, anchor)
    held = held_before(net, s, anchor)
    s[OP, step], s[CREDIT, step], s[BLOCKER, step] = v, 0, -1
    put(s, p, step, held + net[OWN, v])
    s[NUM, LENGTH] += 1
    s[NUM, COST] += net[TIME, v]
    _take_inputs(net, s, step)
    before = newest(s, v, p)
    _take_readers(net, s, step, before)
    if s[HEAD, v] >= 0:
        _list_op(s, v)
    if before >= 0:
        s[NXT, step] = s[NXT, before]
        s[NXT, before] = step
    else:
        s[NXT, step] = s[HEAD, v]
        s[HEAD, v] = step
    refresh(net, s, step)
    return int(step)


@fragment
def _take_inputs(net: Ints, s: Ints, step: int) -> None:
    """A new step reads its inputs: lives that ended before it grow up to it."""
    v, p = s[OP, step], s[POS, step]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        made = newest(s, u, p)
        reader = s[LAST + net[RANK, x], made]
        if s[POS, reader] < p:
            add(s, s[POS, reader] + 1, p, net[SIZE, x])
            s[LAST + net[RANK, x], made] = step
            refresh(net, s, reader)


@fragment
def _take_readers(net: Ints, s: Ints, step: int, before: int) -> None:
    """Reads after a new step take its outputs; the older instances end at their last read before it."""
    v, p = s[OP, step], s[POS, step]
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        row = LAST + net[RANK, x]
        s[row, step] = step
        if before >= 0 and s[POS, s[row, before]] > p:
            s[row, step] = s[row, before]
            s[row, before] = previous_read(net, s, x, before, p)
            add(s, s[POS, s[row, before]] + 1, p, -net[SIZE, x])
            refresh(net, s, s[row, before])


@fragment
def remove(net: Ints, s: Ints, step: int) -> None:
    """Take out a step whose readers (if any) have an older step of the same op to read from."""
    v, p = s[OP, step], s[POS, step]
    before = newest(s, v, p)
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        row = LAST + net[RANK, x]
        if s[row, step] != step:
            reader = s[row, before]
            add(s, s[POS, reader] + 1, p, net[SIZE, x])
            s[row, before] = s[row, step]
            refresh(net, s, reader)
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        made = newest(s, u, p)
        if s[LAST + net[RANK, x], made] == step:
            reader = previous_read(net, s, x, made, p)
            s[LAST + net[RANK, x], made] = reader
            add(s, s[POS, reader] + 1, p, -net[SIZE, x])
            refresh(net, s, reader)
    clear(s, p)
    _unlink(net, s, step, before)


@fragment
def _unlink(net: Ints, s: Ints, step: int, before: int) -> None:
    v = s[OP, step]
    if before >= 0:
        s[NXT, before] = s[NXT, step]
    else:
        s[HEAD, v] = s[NXT, step]
    if s[NXT, s[HEAD, v]] < 0:
        place, other = s[PLACE, v], s[REPEATS, s[NUM, REPEATED] - 1]
        s[REPEATS, place], s[PLACE, other], s[PLACE, v] = other, place, -1
        s[NUM, REPEATED] -= 1
    s[NUM, LENGTH] -= 1
    s[NUM, COST] -= net[TIME, v]
    s[SPARE, s[NUM, FREE]] = step
    s[NUM, FREE] += 1


@kernel
def is_removable(net: Ints, s: Ints, step: int) -> bool:
    """Whether an older step of the op can serve the readers, or a later one is there and nobody reads this one."""
    v = s[OP, step]
    if s[HEAD, v] != step:
        return True
    is_read = s[NXT, step] < 0
    for k in range(net[OUT_PTR, v + 1] - net[OUT_PTR, v]):
        is_read = is_read or s[LAST + k, step] != step
    return not is_read


@fragment
def collect_removal(net: Ints, s: Ints, step: int) -> None:
    """Collect what removing a removable step does to the others."""
    v, p = s[OP, step], s[POS, step]
    before = newest(s, v, p)
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        if s[LAST + net[RANK, x], step] != step:
            reader = s[LAST + net[RANK, x], before]
            collect(s, s[POS, reader] + 1, p - 1, net[SIZE, x])
            collect(s, s[POS, reader], s[POS, reader], lost(net, s, reader, x))
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        made = newest(s, u, p)
        if s[LAST + net[RANK, x], made] == step:
            reader = previous_read(net, s, x, made, p)
            collect(s, s[POS, reader] + 1, p - 1, -net[SIZE, x])
            collect(s, s[POS, reader], s[POS, reader], -gained(net, s, reader, x))
