"""Compiled loops over memory slots: tables of the persistent schedules of a chain, stage by stage.

A row belongs to a pair of stages s <= t and holds, for every number of slots m, the least time for the backwards of t
down to s, from the input of s and the gradient of t; m leaves out that input. Layer 0 is that (Shilova 2021, Algorithm
3). Layer 1 is the same where all that the backward of t needs is stored already, which m leaves out too. `first` has,
for every row, the fewest slots with a finite time. The last row of layer 0 is zero.
"""

from typing import NamedTuple

from remat_cli.solvers.chains.rotor_slots import (
    BACKWARD,
    BACKWARD_EXTRA,
    FORWARD_UNTIL,
    GRADIENT,
    SAVED,
    SAVED_SLOTS,
    SAVING_EXTRA,
    VALUE,
    VALUE_SLOTS,
    Ints,
)
from remat_cli.solvers.search.state import kernel

NEVER = 2**60  # a time; two of them still add up
SAVE, CHECKPOINT, DROP = range(3)  # F-all s; F-ck s and on to j; the same, with all of j saved and its input dropped


class Net(NamedTuple):
    """What kernels read: the chain's figures, `forward_bytes` of it, slots per bytes, and which ways are allowed."""

    figures: Ints
    forward_bytes: Ints
    scale: Ints
    is_allowed: Ints


class Beginning(NamedTuple):
    """A way to begin a pair (s, t): the tail is what comes next, to t, and the head what then remains, from s.

    `taken` slots are missing in the tail, `held` in the head; less than none where what layer 1 leaves out is free
    again.
    """

    least: int
    time: int
    taken: int
    tail: int
    held: int
    head: int
    head_layer: int


@kernel
def row_of(stages: int, s: int, t: int) -> int:
    """The row of a pair; the pairs of one s are neighbours."""
    return (s - 1) * stages - (s - 1) * (s - 2) // 2 + t - s


@kernel
def needed(bytes_: int, scale: Ints) -> int:
    """The fewest slots that hold so many bytes."""
    slots: int = (bytes_ * scale[0] + scale[1] - 1) // scale[1]
    return slots


@kernel
def backward_slots(net: Net, s: int) -> int:
    """Slots that the backward of s takes, its input aside."""
    figures = net.figures
    gradients = figures[GRADIENT, s] + figures[GRADIENT, s - 1]
    return needed(figures[SAVED, s] + gradients + figures[BACKWARD_EXTRA, s], net.scale)


@kernel
def saving_slots(net: Net, s: int, t: int) -> int:
    """Slots that F-all of s takes while the gradient of t is there, its input aside."""
    figures = net.figures
    return needed(figures[GRADIENT, t] + figures[SAVED, s] + figures[SAVING_EXTRA, s], net.scale)


@kernel
def way(begin: int, layer: int, pair: tuple[int, int, int], net: Net, first: Ints) -> Beginning:
    """What it takes to begin (s, t) so, with a head that ends at stage j; for F-all, j is s and there is no head."""
    figures, (s, t, j) = net.figures, pair
    stages = figures.shape[1] - 1
    tail, head, last = row_of(stages, j + 1, t), row_of(stages, s, j), first.shape[1] - 1
    won = figures[SAVED_SLOTS, t] if layer == 1 else 0
    time = figures[FORWARD_UNTIL, j] - figures[FORWARD_UNTIL, s - 1]
    taken = figures[VALUE_SLOTS, j] if begin == CHECKPOINT else figures[SAVED_SLOTS, j]
    least = first[layer, tail] + taken
    if begin == SAVE:
        least = max(least, saving_slots(net, s, t), backward_slots(net, s) - won)
        return Beginning(least, time + figures[BACKWARD, s], taken, tail, 0, last, 0)
    if begin == CHECKPOINT:
        least = max(least, needed(figures[GRADIENT, t] + net.forward_bytes[s, j], net.scale), first[0, head] - won)
        return Beginning(least, time, taken, tail, -won, head, 0)
    saving = figures[VALUE, j - 1] + figures[SAVED, j] + figures[SAVING_EXTRA, j]
    most = figures[GRADIENT, t] + max(net.forward_bytes[s, j - 1], saving)
    least = max(least, needed(most, net.scale), first[1, head] + taken - won)
    return Beginning(least, time, taken, tail, taken - won, head, 1)


@kernel
def begins(begin: int, s: int, t: int) -> tuple[int, int]:
    """The stages j, from and up to but without, that this way to begin (s, t) leaves a choice of."""
    if begin == SAVE:
        return s, s + 1
    return (s, t) if begin == CHECKPOINT else (s + 1, t)


@kernel
def last_stage(layer: int, s: int, net: Net) -> tuple[int, int]:
    """Fewest slots and time of (s, s): F-all and the backward, or that alone where all is saved."""
    figures = net.figures
    if layer == 1:
        gradients = figures[GRADIENT, s] + figures[GRADIENT, s - 1]
        return needed(gradients + figures[BACKWARD_EXTRA, s], net.scale), figures[BACKWARD, s]
    time = figures[FORWARD_UNTIL, s] - figures[FORWARD_UNTIL, s - 1] + figures[BACKWARD, s]
    return max(saving_slots(net, s, s), backward_slots(net, s)), time


@kernel
def relax(out: Ints, tail: Ints, head: Ints, time: int) -> None:
    """Take the sum of two rows and a time wherever it is less."""
    for m in range(out.shape[0]):
        value = tail[m] + head[m] + time
        out[m] = value if value < out[m] else out[m]


@kernel
def first_finite(row: Ints) -> int:
    """The first entry that is a time, or the length of the row."""
    m = 0
    while m < row.shape[0] and row[m] >= NEVER:
        m += 1
    return m


@kernel
def fill_row(layer: int, s: int, t: int, net: Net, tables: tuple[Ints, Ints]) -> None:
    """The row of a pair, from rows of shorter ones."""
    table, first = tables
    row = row_of(net.figures.shape[1] - 1, s, t)
    end = table.shape[2] - (net.figures[SAVED_SLOTS, t] if layer == 1 else 0)
    out = table[layer, row]
    out[:] = NEVER
    if s == t:
        least, time = last_stage(layer, s, net)
        out[min(least, max(end, 0)) : max(end, 0)] = time
    else:
        for begin in range(3):
            start, stop = begins(begin, s, t)
            for j in range(start, stop if net.is_allowed[begin] else start):
                w = way(begin, layer, (s, t, j), net, first)
                if w.least < end:
                    tail = table[layer, w.tail, w.least - w.taken : end - w.taken]
                    head = table[w.head_layer, w.head, w.least - w.held : end - w.held]
                    relax(out[w.least : end], tail, head, w.time)
    first[layer, row] = first_finite(out)


@kernel
def fill(low: int, high: int, net: Net, table: Ints, first: Ints) -> None:
    """The rows of all pairs that begin with low to high, given those that begin later.

    All for one t before the next: they read the same rows of later pairs, which then are in the processor's cache.
    """
    for t in range(low, net.figures.shape[1]):
        for s in range(min(high, t), low - 1, -1):
            for layer in range(table.shape[0]):
                fill_row(layer, s, t, net, (table, first))


@kernel
def choose(place: tuple[int, int, int, int], net: Net, table: Ints, first: Ints) -> tuple[int, int, Beginning]:
    """The way to begin that gave a finite entry (layer, s, t, m) of the table, s < t, and its stage j."""
    layer, s, t, m = place
    wanted = table[layer, row_of(net.figures.shape[1] - 1, s, t), m]
    for begin in range(3):
        start, stop = begins(begin, s, t)
        for j in range(start, stop if net.is_allowed[begin] else start):
            w = way(begin, layer, (s, t, j), net, first)
            if w.least <= m:
                head = table[w.head_layer, w.head, m - w.held]
                if table[layer, w.tail, m - w.taken] + head + w.time == wanted:
                    return begin, j, w
    raise ValueError("no way to begin gives this entry")
