"""Kernels that remove recomputes for a search to put in others."""

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.changes import take_out
from remat_cli.solvers.search.profile import is_removable, newest, uniform
from remat_cli.solvers.search.state import Ints, fragment, kernel

MOST_DESTROYED = 100  # recomputes at once


@kernel
def random_repeat(net: Ints, s: Ints) -> int:
    """A random step of an op that has several, pinned ones left out; there must be one."""
    v = s[rows.REPEATS, int(uniform(s) * s[rows.NUM, rows.REPEATED])]
    step, count, found = s[rows.HEAD, v], 0, -1
    while step >= 0:
        if step != s[rows.HEAD, v] or s[rows.NUM, rows.PINNED] == 0:
            count += 1
            if found < 0 or uniform(s) * count < 1.0:
                found = step
        step = s[rows.NXT, step]
    return found


@fragment
def _destroy_near(net: Ints, s: Ints, wanted: int) -> None:
    """Remove recomputes that follow each other."""
    p, end = s[rows.POS, random_repeat(net, s)], s[rows.NUM, rows.SLOTS] - 1
    while p < end and wanted > 0:
        step = s[rows.SEQ, p]
        p += 1
        if step < 0:
            continue
        v = s[rows.OP, step]
        is_repeat = s[rows.HEAD, v] != step if s[rows.NUM, rows.PINNED] == 1 else s[rows.NXT, s[rows.HEAD, v]] >= 0
        if is_repeat and is_removable(net, s, step):
            take_out(net, s, step)
            wanted -= 1


@fragment
def _destroy_any(net: Ints, s: Ints, wanted: int) -> None:
    """Remove random recomputes."""
    while wanted > 0 and s[rows.NUM, rows.REPEATED] > 0:
        step = random_repeat(net, s)
        if is_removable(net, s, step):
            take_out(net, s, step)
        wanted -= 1


@kernel
def _gap_begin(net: Ints, s: Ints, step: int) -> int:
    """Slot of the last read of the step before of the same op, from which on a recompute saves its bytes."""
    v = s[rows.OP, step]
    before = newest(s, v, s[rows.POS, step])
    begin = 0
    if before >= 0:
        for k in range(net[rows.OUT_PTR, v + 1] - net[rows.OUT_PTR, v]):
            begin = max(begin, s[rows.POS, s[rows.LAST + k, before]])
    return int(begin)


@fragment
def destroy(net: Ints, s: Ints) -> None:
    """Remove 1 to 8 recomputes, rarely many: neighbours in the sequence, such as relieve the same step, or any."""
    wanted, kind = 1 + int(uniform(s) * 8), uniform(s)
    if s[rows.NUM, rows.REPEATED] == 0:
        return
    if uniform(s) < 0.03:
        wanted = 1 + int(uniform(s) * min(s[rows.NUM, rows.REPEATED], MOST_DESTROYED))
    if kind < 0.4:
        _destroy_near(net, s, wanted)
    elif kind < 0.7:
        # Remove recomputes that all relieve the same step.
        first = random_repeat(net, s)
        begin = _gap_begin(net, s, first)
        t = begin + int(uniform(s) * (s[rows.POS, first] - begin))
        start, ops = int(uniform(s) * s[rows.NUM, rows.REPEATED]), s[rows.NUM, rows.REPEATED]
        count = 0
        for k in range(ops):
            step = s[rows.NXT, s[rows.HEAD, s[rows.REPEATS, (start + k) % ops]]]
            while step >= 0 and count < wanted:
                if s[rows.POS, step] > t and _gap_begin(net, s, step) <= t:
                    s[rows.BUNDLE, count] = step
                    count += 1
                step = s[rows.NXT, step]
        for k in range(count):
            if is_removable(net, s, s[rows.BUNDLE, k]):
                take_out(net, s, s[rows.BUNDLE, k])
    else:
        _destroy_any(net, s, wanted)
