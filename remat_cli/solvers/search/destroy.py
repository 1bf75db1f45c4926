"""Kernels that remove recomputes for a search to put in others."""

from remat_cli.solvers.search.changes import take_out
from remat_cli.solvers.search.profile import is_removable, newest, uniform
from remat_cli.solvers.search.state import (
    BUNDLE,
    HEAD,
    LAST,
    NUM,
    NXT,
    OP,
    OUT_PTR,
    PINNED,
    POS,
    REPEATED,
    REPEATS,
    SEQ,
    SLOTS,
    Ints,
    fragment,
    kernel,
)

MOST_DESTROYED = 100  # recomputes at once


@kernel
def random_repeat(net: Ints, s: Ints) -> int:
    """A random step of an op that has several, pinned ones left out; there must be one."""
    v = s[REPEATS, int(uniform(s) * s[NUM, REPEATED])]
    step, count, found = s[HEAD, v], 0, -1
    while step >= 0:
        if step != s[HEAD, v] or s[NUM, PINNED] == 0:
            count += 1
            if found < 0 or uniform(s) * count < 1.0:
                found = step
        step = s[NXT, step]
    return found


@fragment
def _destroy_near(net: Ints, s: Ints, wanted: int) -> None:
    """Remove recomputes that follow each other."""
    p, end = s[POS, random_repeat(net, s)], s[NUM, SLOTS] - 1
    while p < end and wanted > 0:
        step = s[SEQ, p]
        p += 1
        if step < 0:
            continue
        v = s[OP, step]
        is_repeat = s[HEAD, v] != step if s[NUM, PINNED] == 1 else s[NXT, s[HEAD, v]] >= 0
        if is_repeat and is_removable(net, s, step):
            take_out(net, s, step)
            wanted -= 1


@fragment
def _destroy_any(net: Ints, s: Ints, wanted: int) -> None:
    """Remove random recomputes."""
    while wanted > 0 and s[NUM, REPEATED] > 0:
        step = random_repeat(net, s)
        if is_removable(net, s, step):
            take_out(net, s, step)
        wanted -= 1


@fragment
def _destroy_across(net: Ints, s: Ints, wanted: int) -> None:
    """Remove recomputes that all relieve the same step."""
    first = random_repeat(net, s)
    begin = _gap_begin(net, s, first)
    t = begin + int(uniform(s) * (s[POS, first] - begin))
    start, ops = int(uniform(s) * s[NUM, REPEATED]), s[NUM, REPEATED]
    count = 0
    for k in range(ops):
        step = s[NXT, s[HEAD, s[REPEATS, (start + k) % ops]]]
        while step >= 0 and count < wanted:
            if s[POS, step] > t and _gap_begin(net, s, step) <= t:
                s[BUNDLE, count] = step
                count += 1
            step = s[NXT, step]
    for k in range(count):
        if is_removable(net, s, s[BUNDLE, k]):
            take_out(net, s, s[BUNDLE, k])


@kernel
def _gap_begin(net: Ints, s: Ints, step: int) -> int:
    """Slot of the last read of the step before of the same op, from which on a recompute saves its bytes."""
    v = s[OP, step]
    before = newest(s, v, s[POS, step])
    begin = 0
    if before >= 0:
        for k in range(net[OUT_PTR, v + 1] - net[OUT_PTR, v]):
            begin = max(begin, s[POS, s[LAST + k, before]])
    return int(begin)


@fragment
def destroy(net: Ints, s: Ints) -> None:
    """Remove 1 to 8 recomputes, rarely many: neighbours in the sequence, such as relieve the same step, or any."""
    wanted, kind = 1 + int(uniform(s) * 8), uniform(s)
    if s[NUM, REPEATED] == 0:
        return
    if uniform(s) < 0.03:
        wanted = 1 + int(uniform(s) * min(s[NUM, REPEATED], MOST_DESTROYED))
    if kind < 0.4:
        _destroy_near(net, s, wanted)
    elif kind < 0.7:
        _destroy_across(net, s, wanted)
    else:
        _destroy_any(net, s, wanted)
