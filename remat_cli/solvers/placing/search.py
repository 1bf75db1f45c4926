"""Kernels of large-neighbourhood search over placements: change, make legal, repair, accept."""

import math

from remat_cli.solvers.placing import rows
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
from remat_cli.solvers.placing.state import via
from remat_cli.solvers.search.state import Ints, kernel

# A record: length, time, excess, then codes.
HEADER = 3


@kernel
def load(w: Ints, record: Ints) -> None:
    """Make a saved schedule the one in row 0."""
    w[rows.LENGTHS, 0] = record[0]
    for p in range(record[0]):
        w[rows.TRIAL + 0, p] = record[HEADER + p]


@kernel
def save(w: Ints, record: Ints) -> None:
    """Write row 0, evaluated, to a record."""
    record[0], record[1], record[2] = w[rows.LENGTHS, 0], w[rows.NUM, rows.TIME], w[rows.NUM, rows.OVER]
    for p in range(w[rows.LENGTHS, 0]):
        record[HEADER + p] = w[rows.TRIAL + 0, p]


@kernel
def _is_extra(net: Ints, w: Ints, code: int) -> bool:
    """Whether a step may go without an op being left out."""
    return bool(code >= net[rows.DIMS, rows.COPIES] or w[rows.COUNT, code // net[rows.DIMS, rows.DEVICES]] > 1)


@kernel
def drop_dead(net: Ints, w: Ints) -> bool:
    """Leave out the extra steps of row 0, evaluated, whose results nobody reads; false if it is no longer legal."""
    for _ in range(20):
        at = 0
        for p in range(w[rows.LENGTHS, 0]):
            is_read = False
            for i in range(w[rows.MAKES_PTR, p], w[rows.MAKES_PTR, p + 1]):
                is_read |= w[rows.LAST, i] > p
            code = w[rows.TRIAL + 0, p]
            if not is_read and _is_extra(net, w, code):
                if code < net[rows.DIMS, rows.COPIES]:
                    w[rows.COUNT, code // net[rows.DIMS, rows.DEVICES]] -= 1
            else:
                w[rows.TRIAL + 0, at] = code
                at += 1
        if at == w[rows.LENGTHS, 0]:
            return True
        w[rows.LENGTHS, 0] = at
        if not evaluate(net, w, 0):
            return False
    return True


@kernel
def _remove_extras(net: Ints, w: Ints) -> None:
    """Take some extra steps out of row 0, neighbours in the schedule or from anywhere."""
    length, goal, near = w[rows.LENGTHS, 0], 1 + int(6 * uniform(w) * uniform(w)), uniform(w) < 0.6
    p, gone = int(uniform(w) * length), 0
    for _ in range(2 * length):
        p = (p + 1) % length
        code = w[rows.TRIAL + 0, p]
        if code >= 0 and _is_extra(net, w, code):
            if code < net[rows.DIMS, rows.COPIES]:
                w[rows.COUNT, code // net[rows.DIMS, rows.DEVICES]] -= 1
            w[rows.TRIAL + 0, p] = -1
            gone += 1
            if gone == goal:
                break
            p = p if near else int(uniform(w) * length)
    at = 0
    for place in range(w[rows.LENGTHS, 0]):
        if w[rows.TRIAL + 0, place] >= 0:
            w[rows.TRIAL + 0, at] = w[rows.TRIAL + 0, place]
            at += 1
    w[rows.LENGTHS, 0] = at


@kernel
def _move_ops(net: Ints, w: Ints) -> None:
    """Give a random compute, and some that follow it and share tensors with it, another device."""
    p, devices = int(uniform(w) * w[rows.LENGTHS, 0]), net[rows.DIMS, rows.DEVICES]
    d = int(uniform(w) * devices)
    goal = 1 + int(12 * uniform(w) * uniform(w) * uniform(w))
    w[rows.NUM, rows.STAMP] += 1
    moved = 0
    for q in range(p, min(p + 60, w[rows.LENGTHS, 0])):
        code = w[rows.TRIAL + 0, q]
        if code >= net[rows.DIMS, rows.COPIES] or code % devices == d or net[rows.TIMES + 2 * d, code // devices] < 0:
            continue
        v = code // devices
        is_near = moved == 0
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            is_near = is_near or w[rows.MARK, net[rows.INS, k]] == w[rows.NUM, rows.STAMP]
        if is_near:
            w[rows.TRIAL + 0, q] = v * devices + d
            for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
                w[rows.MARK, net[rows.INS, k]] = w[rows.NUM, rows.STAMP]
            for k in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
                w[rows.MARK, net[rows.OUTS, k]] = w[rows.NUM, rows.STAMP]
            moved += 1
            if moved == goal:
                break


@kernel
def _bring_early(net: Ints, w: Ints) -> None:
    """Put a copy or a recompute of something that an op reads before it, needed or not."""
    p = int(uniform(w) * w[rows.LENGTHS, 0])
    code = w[rows.TRIAL + 0, p]
    if code >= net[rows.DIMS, rows.COPIES]:
        return
    v, m = code // net[rows.DIMS, rows.DEVICES], net[rows.MEMORY_OF, code % net[rows.DIMS, rows.DEVICES]]
    if net[rows.IN_PTR, v] == net[rows.IN_PTR, v + 1]:
        return
    x = net[rows.INS, net[rows.IN_PTR, v] + int(uniform(w) * (net[rows.IN_PTR, v + 1] - net[rows.IN_PTR, v]))]
    w[rows.NUM, rows.ITEMS] = 0
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
        count = w[rows.LENGTHS, 0]
        place = int(uniform(w) * count)
        if net[rows.DIMS, rows.OVERLAP] == 1 and uniform(w) < 0.7:
            for _ in range(count):
                if w[rows.TRIAL + 0, place] >= net[rows.DIMS, rows.COPIES]:
                    break
                place = (place + 1) % count
        reach = count if uniform(w) < 0.2 else 30
        q = min(count - 1, max(0, place + int((2.0 * uniform(w) - 1.0) * reach)))
        moved = w[rows.TRIAL + 0, place]
        step = 1 if q > place else -1
        while place != q:
            w[rows.TRIAL + 0, place] = w[rows.TRIAL + 0, place + step]
            place += step
        w[rows.TRIAL + 0, q] = moved
        if uniform(w) < 0.8:
            return evaluate(net, w, 0)
    else:
        _bring_early(net, w)
    return legalise(net, w, 0.3) and evaluate(net, w, 0)


@kernel
def _is_accepted(w: Ints, current: Ints, heat: float) -> bool:
    if w[rows.NUM, rows.OVER] > 0 or current[2] > 0:
        return bool(w[rows.NUM, rows.OVER] <= current[2])
    return bool(w[rows.NUM, rows.TIME] <= current[1] - heat * math.log(1.0 - uniform(w)))


@kernel
def search(net: Ints, w: Ints, records: Ints, heat: float, evaluations: int) -> None:
    """Rounds of large-neighbourhood search from `records[0]`, the schedule the search stands at.

    A better one goes to `records[1]`. Ends when so many schedules more have been followed.
    """
    current, best = records[0], records[1]
    most = w[rows.NUM, rows.EVALUATIONS] + evaluations
    while w[rows.NUM, rows.EVALUATIONS] < most:
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
