"""Compiled loops that fill POFO's tables where bytes come in quanta; the recurrences are told in `pofo`.

`blocks[row, kept, backlog]` is C, a row for each pair of stages s <= t; `forwards[whole, s, kept, out, back]` is OC.
Kept bytes and backlogs are counted in quanta, times in ticks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.solvers.search.state import kernel

Ints = NDArray[np.int64]

Place = tuple[int, int, int, int, int]
"""Of an entry of OC: whole or not, stage, bytes kept, backlogs of writes and reads."""

NEVER = 2**60


class PofoNet(NamedTuple):
    """What kernels read, bytes in quanta.

    Rows of `figures`: forward times summed up, backward times, A, a, d, W, R. Of a run from s to e: `most[s, e]` is the
    most that its forwards hold besides its input, `last[s, e]` what the last of them does; `late[s, e]` and
    `early[s, e]` are in ticks, the most of these needs less what the run reads after each, or writes before it. `units`
    are the ticks that a quantum takes on the link, out and back, and where the last run may end.
    """

    figures: Ints
    most: Ints
    last: Ints
    late: Ints
    early: Ints
    units: Ints


UNTIL, BACKWARD, WHOLE, VALUE, GRADIENT, BACK_NEED, SAVE_NEED = range(7)


@kernel
def row_of(stages: int, s: int, t: int) -> int:
    """The row of a pair; the pairs of one s are neighbours."""
    return (s - 1) * stages - (s - 1) * (s - 2) // 2 + t - s


@kernel
def quanta(ticks: int, unit: int) -> int:
    """A backlog that is left, rounded."""
    return (2 * ticks + unit) // (2 * unit) if ticks > 0 else 0


@kernel
def fill_blocks(net: PofoNet, blocks: Ints, s: int) -> None:
    """C of every block that begins with a stage, the shortest first; blocks of later stages are there."""
    stages, width = net.figures.shape[1] - 1, blocks.shape[1]
    for t in range(s, stages + 1):
        row = row_of(stages, s, t)
        for kept in range(width):
            for backlog in range(width):
                blocks[row, kept, backlog] = block_ticks(net, blocks, s, t, kept, backlog)


@kernel
def block_ticks(net: PofoNet, blocks: Ints, s: int, t: int, kept: int, backlog: int) -> int:
    """One entry of C, the durations of blocks."""
    figures = net.figures
    stages, read = figures.shape[1] - 1, net.units[1]
    room, waiting = blocks.shape[1] - 1 - kept, figures[GRADIENT, t]
    best, ticks = NEVER, backlog * read
    if waiting + figures[SAVE_NEED, s] <= room and figures[BACK_NEED, s] <= room:
        stay = max(0, (figures[BACK_NEED, s] - room) * read + ticks)
        after = quanta(ticks - figures[BACKWARD, s] - stay, read)
        inner = 0
        if s < t:
            inner = blocks[row_of(stages, s + 1, t), kept + figures[WHOLE, s], after]
        left = max(0, after * read - inner)
        wait = max(0, (waiting + figures[SAVE_NEED, s] - room) * read + left)
        best = min(best, figures[UNTIL, s] - figures[UNTIL, s - 1] + inner + figures[BACKWARD, s] + stay + wait)
    for end in range(s, t):
        if waiting + net.most[s, end] > room:
            break
        first = blocks[row_of(stages, s, end), kept, backlog]
        if first >= NEVER:
            continue
        after = quanta(ticks - first, read)
        second = blocks[row_of(stages, end + 1, t), kept + figures[VALUE, end], after]
        left = max(0, after * read - second)
        wait = max(0, net.late[s, end] + (waiting - room) * read + left)
        best = min(best, figures[UNTIL, end] - figures[UNTIL, s - 1] + first + second + wait)
    return min(best, NEVER)


@kernel
def fill_forwards(net: PofoNet, blocks: Ints, forwards: Ints, s: int, spare: Ints) -> None:
    """OC of a stage; that of later stages is there. `spare`: two rows as wide as the tables, for figures of a run."""
    width = blocks.shape[1]
    for whole in range(2):
        for kept in range(width):
            for out in range(width):
                for back in range(width):
                    forwards[whole, s, kept, out, back] = whole_ticks(net, forwards, (whole, s, kept, out, back))
            size = net.figures[WHOLE if whole else VALUE, s - 1]
            for end in range(s, net.units[2] + 1):
                if net.last[s, end] > width - 1 - kept - size + (size if end > s and net.units[3] else 0):
                    break
                add_run(net, blocks, forwards, (whole, s, kept, end), spare)


@kernel
def whole_ticks(net: PofoNet, forwards: Ints, place: Place) -> int:
    """One entry of OC, where the stage keeps all."""
    figures = net.figures
    whole, s, kept, out, back = place
    stages, write, read = figures.shape[1] - 1, net.units[0], net.units[1]
    size = figures[WHOLE if whole else VALUE, s - 1]
    room = forwards.shape[2] - 1 - kept - size
    if figures[SAVE_NEED, s] > room or figures[BACK_NEED, s] > room:
        return NEVER
    unwritten, unread = out * write, back * read
    forward = figures[UNTIL, s] - figures[UNTIL, s - 1]
    wait = max(0, (figures[SAVE_NEED, s] - room) * write + unwritten)
    stay = max(0, (figures[BACK_NEED, s] - room) * read + unread)
    left = unwritten - forward - wait
    after = quanta(unread - figures[BACKWARD, s] - stay, read)
    total = forward + figures[BACKWARD, s] + wait + stay
    if s == stages:
        return int(min(NEVER, total + max(0, left) + after * read))
    rest = forwards[1, s + 1, kept + size, quanta(left, write), after]
    if net.units[3] and size:
        rest = min(rest, forwards[1, s + 1, kept, quanta(left + size * write, write), after + size])
    return int(min(NEVER, total + rest))


@kernel
def add_run(net: PofoNet, blocks: Ints, forwards: Ints, where: tuple[int, int, int, int], spare: Ints) -> None:
    """Entries of OC that a run from a stage up to another makes less: (whole, the stage, bytes kept, the run's end).

    What is divided is divided once for each backlog of reads, and of writes, not for each pair.
    """
    figures, width = net.figures, blocks.shape[1]
    whole, s, kept, end = where
    stages, write, read = figures.shape[1] - 1, net.units[0], net.units[1]
    size = figures[WHOLE if whole else VALUE, s - 1]
    room, row = width - 1 - kept - size, row_of(stages, s, end)
    passed = figures[UNTIL, end] - figures[UNTIL, s - 1]
    may_keep, may_page = net.most[s, end] <= room, net.units[3] != 0 and size != 0
    for back in range(width):
        spare[0, back] = blocks[row, kept + size, back]
        spare[1, back] = quanta(back * read - spare[0, back], read)
    for out in range(width):
        wait = max(0, net.early[s, end] - room * write + out * write)
        left = out * write - passed - wait
        kept_out, paged_out = quanta(left, write), quanta(left + size * write, write)
        for back in range(width):
            block, after, rest = spare[0, back], spare[1, back], NEVER
            if block >= NEVER:
                continue
            if may_keep:
                rest = forwards[0, end + 1, kept + size, kept_out, after]
            if may_page:
                rest = min(rest, forwards[0, end + 1, kept, paged_out, after + size])
            ticks = passed + wait + block + rest
            forwards[whole, s, kept, out, back] = min(forwards[whole, s, kept, out, back], ticks)
