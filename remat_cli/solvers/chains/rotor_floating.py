"""Compiled loops for schedules in which a checkpoint may move on before it is used (Shilova 2021, Algorithm 1).

As printed, the recurrence cannot move a checkpoint into the stages that it is used for; this one goes stage by stage
and can. A row of the table belongs to s <= l <= t and holds, for every number of slots m, the least time for the
backwards of t down to l from the input of s, which m leaves out and of which nothing is left at the end.
"""

from remat_cli.solvers.chains.rotor_kernels import (
    CHECKPOINT,
    NEVER,
    SAVE,
    Beginning,
    Net,
    backward_slots,
    first_finite,
    last_stage,
    needed,
    relax,
    saving_slots,
)
from remat_cli.solvers.chains.rotor_slots import (
    BACKWARD,
    FORWARD_EXTRA,
    FORWARD_UNTIL,
    GRADIENT,
    SAVED_SLOTS,
    VALUE,
    VALUE_SLOTS,
    Ints,
)
from remat_cli.solvers.search.state import kernel

MOVE = 3  # F-empty of s: the input of s moves on


@kernel
def row_of(stages: int, s: int, t: int, end: int) -> int:
    """The row of s <= end <= t; all with one s are neighbours."""
    after, span = stages - s + 1, t - s
    before = (stages * (stages + 1) * (stages + 2) - after * (after + 1) * (after + 2)) // 6
    return before + span * (span + 1) // 2 + end - s


@kernel
def way(begin: int, triple: tuple[int, int, int], cut: int, net: Net, first: Ints) -> Beginning:
    """What it takes to begin (s, t, end) so; a new checkpoint serves the backwards of t down to `cut`."""
    figures, (s, t, end) = net.figures, triple
    stages, last = figures.shape[1] - 1, first.shape[0] - 1
    time = figures[FORWARD_UNTIL, s] - figures[FORWARD_UNTIL, s - 1]
    if begin == SAVE:
        taken, tail = figures[SAVED_SLOTS, s], row_of(stages, s + 1, t, s + 1)
        least = max(saving_slots(net, s, t), backward_slots(net, s), first[tail] + taken)
        return Beginning(least, time + figures[BACKWARD, s], taken, tail, 0, last, 0)
    forward = needed(figures[GRADIENT, t] + figures[VALUE, s] + figures[FORWARD_EXTRA, s], net.scale)
    if begin == MOVE:
        taken, tail = figures[VALUE_SLOTS, s] - figures[VALUE_SLOTS, s - 1], row_of(stages, s + 1, t, end)
        return Beginning(max(forward, first[tail] + taken), time, taken, tail, 0, last, 0)
    taken, tail, head = figures[VALUE_SLOTS, s], row_of(stages, s + 1, t, cut), row_of(stages, s, cut - 1, end)
    return Beginning(max(forward, first[tail] + taken, first[head]), time, taken, tail, 0, head, 0)


@kernel
def begins(begin: int, s: int, t: int, end: int) -> tuple[int, int]:
    """The cuts, from and up to but without, that this way to begin leaves a choice of; empty where it is impossible."""
    if begin == CHECKPOINT:
        return end + 1, t + 1
    is_possible = s == end if begin == SAVE else s < end
    return t, t + (1 if is_possible else 0)


@kernel
def fill_row(s: int, t: int, end: int, net: Net, tables: tuple[Ints, Ints]) -> None:
    """The row of (s, t, end), from rows of later or shorter ones."""
    table, first = tables
    row = row_of(net.figures.shape[1] - 1, s, t, end)
    width = max(table.shape[1] - net.figures[VALUE_SLOTS, s - 1], 0)
    out = table[row]
    out[:] = NEVER
    if s == t:
        least, time = last_stage(0, s, net)
        out[min(least, width) : width] = time
    else:
        for begin in (SAVE, CHECKPOINT, MOVE):
            start, stop = begins(begin, s, t, end)
            for cut in range(start, stop):
                w = way(begin, (s, t, end), cut, net, first)
                if w.least < width:
                    tail = table[w.tail, w.least - w.taken : width - w.taken]
                    relax(out[w.least : width], tail, table[w.head, w.least : width], w.time)
    first[row] = first_finite(out)


@kernel
def fill(low: int, high: int, net: Net, table: Ints, first: Ints) -> None:
    """The rows of all that begin with low to high, given those that begin later."""
    for t in range(low, net.figures.shape[1]):
        for s in range(min(high, t), low - 1, -1):
            for end in range(s, t + 1):
                fill_row(s, t, end, net, (table, first))


@kernel
def choose(place: tuple[int, int, int, int], net: Net, table: Ints, first: Ints) -> tuple[int, int, Beginning]:
    """The way to begin that gave a finite entry (s, t, end, m) of the table, s < t, and its cut."""
    s, t, end, m = place
    wanted = table[row_of(net.figures.shape[1] - 1, s, t, end), m]
    for begin in (SAVE, CHECKPOINT, MOVE):
        start, stop = begins(begin, s, t, end)
        for cut in range(start, stop):
            w = way(begin, (s, t, end), cut, net, first)
            if w.least <= m and table[w.tail, m - w.taken] + table[w.head, m] + w.time == wanted:
                return begin, cut, w
    raise ValueError("no way to begin gives this entry")
