"""Kernels that keep a schedule's memory profile exact while steps come, go and shift.

All changes of memory are ranges of positions; `collect` gathers those of a move in a difference array, and
`excess_change` says what the move does to the *excess*, the bytes above the budget summed over all steps. A move
costs time linear in the positions it touches.
"""

from __future__ import annotations

import numpy as np

from remat_cli.solvers._search_state import (
    BUDGET,
    COST,
    CREDIT,
    DIFF,
    FATE,
    FREE,
    HEAD,
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
    OPS,
    OUT_PTR,
    OWN,
    PAIR_PTR,
    PAIRS,
    POS,
    PRODUCER,
    RANDOM,
    RANGES,
    RANK,
    READ_PTR,
    READERS,
    SEQ,
    SIZE,
    SPARE,
    STAMP,
    TIME,
    USE,
    WORK,
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
    """Make the state the schedule `ops[:length]` (end op included, legal); linear time."""
    for v in range(net[OPS, 0]):
        s[HEAD, v] = -1
    for p in range(length):
        s[DIFF, p] = 0
    s[DIFF, length] = 0
    cost = 0
    for p in range(length):
        v = ops[p]
        s[SEQ, p], s[OP, p], s[POS, p], s[NXT, p] = p, v, p, -1
        for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
            x = net[INPUTS, k]
            s[LAST + net[RANK, x], s[MARK, net[PRODUCER, x]]] = p
        for k in range(net[OUT_PTR, v + 1] - net[OUT_PTR, v]):
            s[LAST + k, p] = p
        if s[HEAD, v] >= 0:
            s[NXT, s[MARK, v]] = p
        else:
            s[HEAD, v] = p
        s[MARK, v] = p
        cost += net[TIME, v]
    s[NUM, LENGTH], s[NUM, COST], s[NUM, RANGES] = length, cost, 0
    _fill_memory(net, s)
    _reset_scratch(s)


@fragment
def _fill_memory(net: Ints, s: Ints) -> None:
    length = s[NUM, LENGTH]
    for p in range(length):
        v = s[OP, p]
        for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
            s[DIFF, p] += net[SIZE, x]
            s[DIFF, s[LAST + net[RANK, x], p] + 1] -= net[SIZE, x]
    held = 0
    for p in range(length):
        held += s[DIFF, p]
        s[DIFF, p] = 0
        s[CREDIT, p] = _saving(net, s, p)
        s[MEM, p] = held + net[WORKSPACE, s[OP, p]] - s[CREDIT, p]
    s[DIFF, length] = 0


@fragment
def _reset_scratch(s: Ints) -> None:
    length, room = s[NUM, LENGTH], s.shape[1]
    s[NUM, FREE] = room - 2 - length
    for k in range(s[NUM, FREE]):
        s[SPARE, k] = room - 3 - k
    for k in range(room):
        s[MARK, k], s[USE, k], s[FATE, k] = 0, 0, 0
    s[NUM, STAMP] = 1


@kernel
def excess(s: Ints) -> int:
    """Bytes above the budget, summed over all steps; 0 when the schedule fits."""
    total = 0
    for p in range(s[NUM, LENGTH]):
        total += max(0, s[MEM, p] - s[NUM, BUDGET])
    return total


@kernel
def peak(s: Ints) -> int:
    """Most bytes of any step."""
    most = 0
    for p in range(s[NUM, LENGTH]):
        most = max(most, s[MEM, p])
    return most


@kernel
def newest(s: Ints, v: int, p: int) -> int:
    """Last step of op v before position p, -1 if there is none."""
    found = -1
    step = s[HEAD, v]
    while step >= 0 and s[POS, step] < p:
        found = step
        step = s[NXT, step]
    return found


@kernel
def previous_read(net: Ints, s: Ints, x: int, made: int, p: int) -> int:
    """Last step before position p that reads tensor x of step `made` (its newest before p); `made` if none."""
    best, at = made, s[POS, made]
    for k in range(net[READ_PTR, x], net[READ_PTR, x + 1]):
        step = newest(s, net[READERS, k], p)
        if step >= 0 and s[POS, step] > at:
            best, at = step, s[POS, step]
    return best


@kernel
def next_read(net: Ints, s: Ints, x: int, p: int) -> int:
    """First position after p at which tensor x is read; the length if none."""
    best = s[NUM, LENGTH]
    for k in range(net[READ_PTR, x], net[READ_PTR, x + 1]):
        step = s[HEAD, net[READERS, k]]
        while step >= 0 and s[POS, step] <= p:
            step = s[NXT, step]
        if step >= 0 and s[POS, step] < best:
            best = s[POS, step]
    return int(best)


@kernel
def collect(s: Ints, low: int, high: int, size: int) -> None:
    """Note that a move adds `size` bytes at positions low..high (nothing if empty)."""
    if low > high:
        return
    s[DIFF, low] += size
    s[DIFF, high + 1] -= size
    if s[NUM, RANGES] == 0:
        s[NUM, LOW], s[NUM, HIGH] = low, high
    else:
        s[NUM, LOW], s[NUM, HIGH] = min(low, s[NUM, LOW]), max(high, s[NUM, HIGH])
    s[NUM, RANGES] += 1


@kernel
def excess_change(s: Ints) -> int:
    """Change of the excess by the collected ranges; forgets them."""
    s[NUM, WORK] += 1
    if s[NUM, RANGES] == 0:
        return 0
    budget = s[NUM, BUDGET]
    run, total = 0, 0
    for p in range(s[NUM, LOW], s[NUM, HIGH] + 1):
        run += s[DIFF, p]
        s[DIFF, p] = 0
        before = s[MEM, p] - budget
        total += max(0, before + run) - max(0, before)
    s[DIFF, s[NUM, HIGH] + 1] = 0
    s[NUM, RANGES] = 0
    return total


@kernel
def most_in(s: Ints, low: int, high: int) -> int:
    """Most bytes at positions low..high."""
    most = 0
    for p in range(low, high + 1):
        most = max(most, s[MEM, p])
    return most


@kernel
def _add(s: Ints, low: int, high: int, size: int) -> None:
    for p in range(low, high + 1):
        s[MEM, p] += size


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
    s[MEM, s[POS, step]] += s[CREDIT, step] - saved
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
def held_before(net: Ints, s: Ints, p: int) -> int:
    """Bytes alive both before and at position p."""
    step = s[SEQ, p]
    return int(s[MEM, p] - net[OWN, s[OP, step]] + s[CREDIT, step])


@kernel
def insert(net: Ints, s: Ints, v: int, p: int) -> int:
    """Put a step of op v before position p (its inputs were made before, a step number is free); returns it."""
    s[NUM, FREE] -= 1
    step = s[SPARE, s[NUM, FREE]]
    held = held_before(net, s, p)
    for q in range(s[NUM, LENGTH], p, -1):
        s[SEQ, q] = s[SEQ, q - 1]
        s[POS, s[SEQ, q]] = q
        s[MEM, q] = s[MEM, q - 1]
    s[NUM, LENGTH] += 1
    s[NUM, COST] += net[TIME, v]
    s[SEQ, p], s[OP, step], s[POS, step], s[MEM, p] = step, v, p, held + net[OWN, v]
    _take_inputs(net, s, step)
    before = newest(s, v, p)
    _take_readers(net, s, step, before)
    if before >= 0:
        s[NXT, step] = s[NXT, before]
        s[NXT, before] = step
    else:
        s[NXT, step] = s[HEAD, v]
        s[HEAD, v] = step
    s[CREDIT, step] = 0
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
            _add(s, s[POS, reader] + 1, p, net[SIZE, x])
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
            _add(s, s[POS, s[row, before]] + 1, p, -net[SIZE, x])
            refresh(net, s, s[row, before])


@kernel
def remove(net: Ints, s: Ints, step: int) -> None:
    """Take out a step whose readers (if any) have an older step of the same op to read from."""
    v, p = s[OP, step], s[POS, step]
    before = newest(s, v, p)
    for x in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        row = LAST + net[RANK, x]
        if s[row, step] != step:
            reader = s[row, before]
            _add(s, s[POS, reader] + 1, p, net[SIZE, x])
            s[row, before] = s[row, step]
            refresh(net, s, reader)
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INPUTS, k]
        u = net[PRODUCER, x]
        made = newest(s, u, p)
        if s[LAST + net[RANK, x], made] == step:
            reader = previous_read(net, s, x, made, p)
            s[LAST + net[RANK, x], made] = reader
            _add(s, s[POS, reader] + 1, p, -net[SIZE, x])
            refresh(net, s, reader)
    _unlink(net, s, step, before)


@fragment
def _unlink(net: Ints, s: Ints, step: int, before: int) -> None:
    v, p = s[OP, step], s[POS, step]
    if before >= 0:
        s[NXT, before] = s[NXT, step]
    else:
        s[HEAD, v] = s[NXT, step]
    s[NUM, LENGTH] -= 1
    s[NUM, COST] -= net[TIME, v]
    for q in range(p, s[NUM, LENGTH]):
        s[SEQ, q] = s[SEQ, q + 1]
        s[POS, s[SEQ, q]] = q
        s[MEM, q] = s[MEM, q + 1]
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
def removal_change(net: Ints, s: Ints, step: int) -> int:
    """Change of the excess if a removable step were removed."""
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
    return int(excess_change(s) - max(0, s[MEM, p] - s[NUM, BUDGET]))
