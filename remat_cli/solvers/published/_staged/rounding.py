"""Kernels that make a schedule of what is held between stages, measure it, and take idle recomputes out of it.

A schedule of the space `staged` is a rising list of *events*: event t*n + v says that op v, of n, runs in stage t;
v*n + v is its first run. Where events come and go, the order stays that of the space.

As in `search.rows`, a net is a table of the problem, and a state `s` a table whose rows are named below.
"""

import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.state import Ints, kernel

# Rows of a state.
(
    EVENTS,  # the schedule
    TRIAL,  # a change of it
    TRIES,  # recomputes to be tried, in this order
    NEEDED,  # scratch per tensor: 1 if a later step reads it, 2 if the step looked at is the last one
    RUNS,  # scratch per op: its runs, from the first on, up to the step looked at
    NUM,  # the single numbers below; the first three are the lengths of the first three rows
) = range(6)

# Further entries of row NUM: the budget, and the figures of the schedule measured last.
(
    BUDGET,  # bytes, without what is fixed
    COST,  # total time
    PEAK,  # bytes, without what is fixed
    EXCESS,  # bytes above the budget, summed over the steps
    AREA,  # bytes, summed over the steps
) = range(3, 8)

Flags = NDArray[np.uint8]
"""`held[t, x]`: whether tensor x, in the numbers of the net, is in memory when stage t begins; a row for the end."""


def make_room(net: Ints, free_bytes: int) -> Ints:
    """A state for the most events there can be: each op once in each stage from its own on."""
    ops = int(net[rows.OPS, 0]) - 1
    state = np.zeros((NUM + 1, max(ops * (ops + 1) // 2, int(net[rows.OUT_PTR, ops]), AREA) + 1), np.int64)
    state[NUM, BUDGET] = free_bytes
    return state


@kernel
def complete(net: Ints, held: Flags, s: Ints) -> None:
    """The events that make what is held: all others follow from it, and nothing less would do."""
    ops, count = net[rows.OPS, 0] - 1, 0
    for t in range(ops):
        _run_stage(net, held, s, t)
        for v in range(t + 1):
            if s[RUNS, v] != 0:
                s[EVENTS, count] = t * ops + v
                count += 1
    s[NUM, EVENTS] = count


@kernel
def _run_stage(net: Ints, held: Flags, s: Ints, t: int) -> None:
    """Mark the ops of a stage: those whose results begin to be held, and those that a step reads and that are not.

    One pass down suffices, for inputs have smaller numbers.
    """
    for v in range(t):
        s[RUNS, v] = 0
    s[RUNS, t] = 1
    for x in range(net[rows.OUT_PTR, t]):
        if held[t + 1, x] != 0 and held[t, x] == 0:
            s[RUNS, net[rows.PRODUCER, x]] = 1
    for back in range(t + 1):
        v = t - back
        if s[RUNS, v] != 0:
            for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
                if held[t, net[rows.INPUTS, k]] == 0:
                    s[RUNS, net[rows.PRODUCER, net[rows.INPUTS, k]]] = 1


@kernel
def settle(net: Ints, s: Ints, row: int) -> None:
    """Leave out of a row of events the recomputes that nobody reads, and measure the rest.

    One pass from the end: what a later step that stays reads is needed before it.
    """
    ops, length, live = net[rows.OPS, 0] - 1, s[NUM, row], 0
    # Count the runs of each op, and mark as needed what is kept.
    for op in range(ops):
        s[RUNS, op] = 0
    for k in range(s[NUM, row]):
        s[RUNS, s[row, k] % ops] += 1
    for x in range(net[rows.OUT_PTR, ops]):
        s[NEEDED, x] = 0
    for k in range(net[rows.IN_PTR, ops], net[rows.IN_PTR, ops + 1]):
        s[NEEDED, net[rows.INPUTS, k]] = 1
        live += net[rows.SIZE, net[rows.INPUTS, k]]
    place = length
    s[NUM, COST], s[NUM, PEAK], s[NUM, EXCESS], s[NUM, AREA] = 0, 0, 0, 0
    for back in range(length):
        event = s[row, length - 1 - back]
        v = event % ops
        s[RUNS, v] -= 1
        is_needed = s[RUNS, v] == 0
        for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
            is_needed = is_needed or s[NEEDED, x] != 0
        if is_needed:
            place -= 1
            s[row, place] = event
            live = _step(net, s, v, live)
    for k in range(length - place):
        s[row, k] = s[row, place + k]
    s[NUM, row] = length - place


@kernel
def _step(net: Ints, s: Ints, v: int, live: int) -> int:
    """Add a step to the figures; from the bytes needed after it to those before it.

    A step that overwrites an input which it is the last to read saves its result's bytes.
    """
    reused = 0
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INPUTS, k]
        if s[NEEDED, x] == 0:
            s[NEEDED, x] = 2
            live += net[rows.SIZE, x]
    for k in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
        if s[NEEDED, net[rows.PAIRS, k]] == 2:
            reused = net[rows.SIZE, net[rows.OUT_PTR, v]]
    here = live + net[rows.WORKSPACE, v] - reused
    for x in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        if s[NEEDED, x] != 0:
            s[NEEDED, x] = 0
            live -= net[rows.SIZE, x]
        else:
            here += net[rows.SIZE, x]
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        s[NEEDED, net[rows.INPUTS, k]] = 1
    s[NUM, COST] += net[rows.TIME, v]
    s[NUM, PEAK] = max(s[NUM, PEAK], here)
    s[NUM, EXCESS] += max(0, here - s[NUM, BUDGET])
    s[NUM, AREA] += here
    return live


@kernel
def prune(net: Ints, s: Ints) -> None:
    """Take out each recompute to be tried whose loss leaves the schedule within the budget."""
    ops = net[rows.OPS, 0] - 1
    for k in range(s[NUM, TRIES]):
        event = s[TRIES, k]
        if event % (ops + 1) == 0:
            continue
        _copy_moved(s, event, event)
        if s[NUM, TRIAL] < s[NUM, EVENTS]:
            settle(net, s, TRIAL)
            if s[NUM, PEAK] <= s[NUM, BUDGET]:
                _take_trial(s)
    settle(net, s, EVENTS)


@kernel
def delay(net: Ints, s: Ints) -> None:
    """Put off recomputes to the stages in which they are first read, where that lowers the excess, or else the area."""
    ops = net[rows.OPS, 0] - 1
    settle(net, s, EVENTS)
    excess, area, place = s[NUM, EXCESS], s[NUM, AREA], s[NUM, EVENTS] - 1
    while place >= 0:
        event = s[EVENTS, place]
        later = _first_read(net, s, place)
        if event % (ops + 1) != 0 and later // ops > event // ops:
            _copy_moved(s, event, (later // ops) * ops + event % ops)
            settle(net, s, TRIAL)
            if s[NUM, EXCESS] < excess or (s[NUM, EXCESS] == excess and s[NUM, AREA] < area):
                excess, area = s[NUM, EXCESS], s[NUM, AREA]
                _take_trial(s)
        place = min(place, s[NUM, EVENTS]) - 1
    settle(net, s, EVENTS)


@kernel
def _first_read(net: Ints, s: Ints, place: int) -> int:
    """The first event that reads a result of the one at a place; that one itself if none does."""
    ops, found = net[rows.OPS, 0] - 1, int(s[EVENTS, place])
    first, last = net[rows.OUT_PTR, found % ops], net[rows.OUT_PTR, found % ops + 1]
    for k in range(place + 1, s[NUM, EVENTS]):
        reader = s[EVENTS, k] % ops
        for j in range(net[rows.IN_PTR, reader], net[rows.IN_PTR, reader + 1]):
            if first <= net[rows.INPUTS, j] < last:
                return int(s[EVENTS, k])
    return found


@kernel
def _copy_moved(s: Ints, event: int, moved: int) -> None:
    """The trial becomes the schedule with one event later, or without it if it would stay."""
    count, waits = 0, moved != event
    for k in range(s[NUM, EVENTS]):
        here = s[EVENTS, k]
        if waits and here >= moved:
            waits = False
            if here > moved:
                s[TRIAL, count] = moved
                count += 1
        if here != event:
            s[TRIAL, count] = here
            count += 1
    s[NUM, TRIAL] = count


@kernel
def _take_trial(s: Ints) -> None:
    s[NUM, EVENTS] = s[NUM, TRIAL]
    for k in range(s[NUM, TRIAL]):
        s[EVENTS, k] = s[TRIAL, k]
