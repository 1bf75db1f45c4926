"""Kernels of large-neighbourhood search over placements: change, make legal, repair, accept."""

import math

from remat_cli.solvers.placing.judge import evaluate
from remat_cli.solvers.placing.moves import (
    add_item,
    gather,
    instance_at,
    legalise,
    nearest_memory,
    put_items,
    uniform,
)
from remat_cli.solvers.placing.relief import copy_row, repair
from remat_cli.solvers.placing.state import (
    COPIES,
    COUNT,
    DEVICES,
    DIMS,
    EVALUATIONS,
    IN_PTR,
    INS,
    ITEMS,
    LAST,
    LENGTHS,
    MAKES_PTR,
    MARK,
    MEMORY_OF,
    NUM,
    OUT_PTR,
    OUTS,
    OVER,
    OVERLAP,
    STAMP,
    TIME,
    TIMES,
    TRIAL,
    via,
)
from remat_cli.solvers.search.state import Ints, kernel

# A record: length, time, excess, then codes.
HEADER = 3


@kernel
def load(w: Ints, record: Ints) -> None:
    """Write a record to row 0."""
    w[LENGTHS, 0] = record[0]
    for p in range(record[0]):
        w[TRIAL + 0, p] = record[HEADER + p]


@kernel
def save(w: Ints, record: Ints) -> None:
    """Write row 0, evaluated, to a record."""
    record[0], record[1], record[2] = w[LENGTHS, 0], w[NUM, TIME], w[NUM, OVER]
    for p in range(w[LENGTHS, 0]):
        record[HEADER + p] = w[TRIAL + 0, p]


@kernel
def _is_extra(net: Ints, w: Ints, code: int) -> bool:
    """Whether a step may go without an op being left out."""
    return bool(code >= net[DIMS, COPIES] or w[COUNT, code // net[DIMS, DEVICES]] > 1)


@kernel
def drop_dead(net: Ints, w: Ints) -> bool:
    """Leave out the extra steps of row 0, evaluated, whose results nobody reads; false if it is no longer legal."""
    for _ in range(20):
        at = 0
        for p in range(w[LENGTHS, 0]):
            is_read = False
            for i in range(w[MAKES_PTR, p], w[MAKES_PTR, p + 1]):
                is_read |= w[LAST, i] > p
            code = w[TRIAL + 0, p]
            if not is_read and _is_extra(net, w, code):
                if code < net[DIMS, COPIES]:
                    w[COUNT, code // net[DIMS, DEVICES]] -= 1
            else:
                w[TRIAL + 0, at] = code
                at += 1
        if at == w[LENGTHS, 0]:
            return True
        w[LENGTHS, 0] = at
        if not evaluate(net, w, 0):
            return False
    return True


@kernel
def _remove_extras(net: Ints, w: Ints) -> None:
    """Take some extra steps out of row 0, neighbours in the schedule or from anywhere."""
    length, goal, near = w[LENGTHS, 0], 1 + int(6 * uniform(w) * uniform(w)), uniform(w) < 0.6
    p, gone = int(uniform(w) * length), 0
    for _ in range(2 * length):
        p = (p + 1) % length
        code = w[TRIAL + 0, p]
        if code >= 0 and _is_extra(net, w, code):
            if code < net[DIMS, COPIES]:
                w[COUNT, code // net[DIMS, DEVICES]] -= 1
            w[TRIAL + 0, p] = -1
            gone += 1
            if gone == goal:
                break
            p = p if near else int(uniform(w) * length)
    _close_up(w)


@kernel
def _close_up(w: Ints) -> None:
    at = 0
    for p in range(w[LENGTHS, 0]):
        if w[TRIAL + 0, p] >= 0:
            w[TRIAL + 0, at] = w[TRIAL + 0, p]
            at += 1
    w[LENGTHS, 0] = at


@kernel
def _move_ops(net: Ints, w: Ints) -> None:
    """Give a random compute, and some that follow it and share tensors with it, another device."""
    p, devices = int(uniform(w) * w[LENGTHS, 0]), net[DIMS, DEVICES]
    d = int(uniform(w) * devices)
    goal = 1 + int(12 * uniform(w) * uniform(w) * uniform(w))
    w[NUM, STAMP] += 1
    moved = 0
    for q in range(p, min(p + 60, w[LENGTHS, 0])):
        code = w[TRIAL + 0, q]
        if code >= net[DIMS, COPIES] or code % devices == d or net[TIMES + 2 * d, code // devices] < 0:
            continue
        if moved == 0 or _touches(net, w, code // devices):
            w[TRIAL + 0, q] = code // devices * devices + d
            _touch(net, w, code // devices)
            moved += 1
            if moved == goal:
                break


@kernel
def _touches(net: Ints, w: Ints, v: int) -> bool:
    is_marked = False
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        is_marked |= w[MARK, net[INS, k]] == w[NUM, STAMP]
    return is_marked


@kernel
def _touch(net: Ints, w: Ints, v: int) -> None:
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        w[MARK, net[INS, k]] = w[NUM, STAMP]
    for k in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        w[MARK, net[OUTS, k]] = w[NUM, STAMP]


@kernel
def _shift(net: Ints, w: Ints) -> None:
    """Move a step of row 0 to another place: near, or anywhere."""
    length = w[LENGTHS, 0]
    p = int(uniform(w) * length)
    if net[DIMS, OVERLAP] == 1 and uniform(w) < 0.7:
        for _ in range(length):
            if w[TRIAL + 0, p] >= net[DIMS, COPIES]:
                break
            p = (p + 1) % length
    reach = length if uniform(w) < 0.2 else 30
    q = min(length - 1, max(0, p + int((2.0 * uniform(w) - 1.0) * reach)))
    code = w[TRIAL + 0, p]
    step = 1 if q > p else -1
    while p != q:
        w[TRIAL + 0, p] = w[TRIAL + 0, p + step]
        p += step
    w[TRIAL + 0, q] = code


@kernel
def _bring_early(net: Ints, w: Ints) -> None:
    """Put a copy or a recompute of something that an op reads before it, needed or not."""
    p = int(uniform(w) * w[LENGTHS, 0])
    code = w[TRIAL + 0, p]
    if code >= net[DIMS, COPIES]:
        return
    v, m = code // net[DIMS, DEVICES], net[MEMORY_OF, code % net[DIMS, DEVICES]]
    if net[IN_PTR, v] == net[IN_PTR, v + 1]:
        return
    x = net[INS, net[IN_PTR, v] + int(uniform(w) * (net[IN_PTR, v + 1] - net[IN_PTR, v]))]
    w[NUM, ITEMS] = 0
    other = nearest_memory(net, w, m, x, p)
    if other >= 0 and uniform(w) < 0.5:
        add_item(w, p, net[via(net, other, m), x])
    elif instance_at(w, m, x, p) < 0 or not gather(net, w, m, x, p, uniform(w)):
        return
    if put_items(net, w, 1):
        copy_row(w, 1, 0)


@kernel
def _change(net: Ints, w: Ints) -> bool:
    """Change row 0, evaluated, at random and evaluate it; false if nothing legal came of it."""
    kind = uniform(w)
    if kind < 0.35:
        _remove_extras(net, w)
    elif kind < 0.6:
        _move_ops(net, w)
    elif kind < 0.9:
        _shift(net, w)
        if uniform(w) < 0.8:
            return evaluate(net, w, 0)
    else:
        _bring_early(net, w)
    return legalise(net, w, 0.3) and evaluate(net, w, 0)


@kernel
def _is_accepted(w: Ints, current: Ints, heat: float) -> bool:
    if w[NUM, OVER] > 0 or current[2] > 0:
        return bool(w[NUM, OVER] <= current[2])
    return bool(w[NUM, TIME] <= current[1] - heat * math.log(1.0 - uniform(w)))


@kernel
def search(net: Ints, w: Ints, records: Ints, heat: float, evaluations: int) -> None:
    """Rounds of large-neighbourhood search from `records[0]`, the schedule the search stands at.

    A better one goes to `records[1]`. Ends when so many schedules more have been followed.
    """
    current, best = records[0], records[1]
    most = w[NUM, EVALUATIONS] + evaluations
    while w[NUM, EVALUATIONS] < most:
        load(w, current)
        evaluate(net, w, 0)
        if not _change(net, w):
            continue
        limit = 2**62 if current[2] > 0 else current[1] + int(8.0 * heat) + 1
        repair(net, w, 2.0 * uniform(w), limit, most + 200)
        if _is_accepted(w, current, heat) and drop_dead(net, w):
            save(w, current)
            if current[2] < best[2] or (current[2] == best[2] and current[1] < best[1]):
                for k in range(HEADER + current[0]):
                    best[k] = current[k]


@kernel
def begin(net: Ints, w: Ints, records: Ints, row: int) -> bool:
    """Evaluate a record, made legal if it is not, and note its time and excess; false if that cannot be done."""
    load(w, records[row])
    if not evaluate(net, w, 0) and not (legalise(net, w, 0.0) and evaluate(net, w, 0)):
        return False
    save(w, records[row])
    return True
