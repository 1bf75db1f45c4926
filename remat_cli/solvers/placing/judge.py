"""Kernels that follow a schedule and count its memory and time exactly as the judge does, some thousand times faster.

The rules are those of `core/schedule/simulate.py` and `core/schedule/timeline.py`, function by function; a test holds
the two together on random schedules, and the judge still decides about every schedule that is reported.
"""

from remat_cli.solvers.placing.state import (
    ANYWHERE,
    BASE,
    BEFORE,
    BIRTH,
    BORN,
    BYTES,
    CALL,
    CLOCK,
    COPIES,
    COPY_TIMES,
    COUNT,
    DEVICES,
    DIMS,
    DONE,
    ENDS,
    EVALUATIONS,
    HELD,
    IN_PTR,
    INS,
    INSTANCES,
    KEPT,
    LAST,
    LAST_FIRST,
    LENGTHS,
    LINK,
    MAKES_PTR,
    MEM,
    MEMORIES,
    MEMORY,
    MEMORY_OF,
    MOMENT,
    NEWBORN,
    NEWEST,
    NUM,
    OPS,
    OUT_PTR,
    OUTS,
    OVER,
    OVERLAP,
    PAIR_FROM,
    PAIR_PTR,
    PAIR_TO,
    PINNED,
    PRIOR,
    READ_COUNT,
    READS,
    READS_PTR,
    READY,
    REPEATABLE,
    ROOM,
    SIZE,
    STAMP,
    STORAGE,
    STORAGES,
    TENSOR,
    TENSORS,
    TIME,
    TIMES,
    TRIAL,
    WEIGHT_BYTES,
    WEIGHT_PTR,
    WEIGHTS,
    WHERE,
    WORKSPACES,
)
from remat_cli.solvers.search.state import Ints, kernel


@kernel
def evaluate(net: Ints, w: Ints, row: int) -> bool:
    """Follow the codes of a trial row: time, bytes above budget, instances, reads, memory over steps.

    False where a step is impossible, an op never runs, or there is no room for so many steps; then `w` holds nothing
    of use.
    """
    length = w[LENGTHS, row]
    w[NUM, EVALUATIONS] += 1
    w[NUM, STAMP] += 1
    _clear(net, w)
    for p in range(length):
        w[READS_PTR, p], w[MAKES_PTR, p] = w[NUM, READ_COUNT], w[NUM, INSTANCES]
        code = w[TRIAL + row, p]
        is_legal = _compute(net, w, code, p) if code < net[DIMS, COPIES] else _copy(net, w, code, p)
        if not is_legal:
            return False
    if w[NUM, DONE] < net[DIMS, OPS]:
        return False
    w[READS_PTR, length], w[MAKES_PTR, length] = w[NUM, READ_COUNT], w[NUM, INSTANCES]
    w[NUM, TIME] = w[NUM, CLOCK]
    if net[DIMS, OVERLAP] == 1:
        _end_of_copies(net, w, row)
    _keep(net, w, length)
    _assign_storage(net, w, row)
    _measure(net, w, row)
    return True


@kernel
def _clear(net: Ints, w: Ints) -> None:
    for m in range(net[DIMS, MEMORIES]):
        for x in range(net[DIMS, TENSORS]):
            w[NEWEST + 5 * m, x] = -1
    for v in range(net[DIMS, OPS]):
        w[COUNT, v] = 0
    for a in range(net[DIMS, MEMORIES]):
        for b in range(net[DIMS, MEMORIES]):
            w[LINK + 5 * a, b] = 0
    for i in (INSTANCES, STORAGES, CLOCK, READ_COUNT, DONE):
        w[NUM, i] = 0
    w[NUM, LAST_FIRST] = w[NUM, BEFORE] = -1


@kernel
def _read(w: Ints, m: int, x: int, p: int) -> int:
    """Read the newest instance of a tensor in a memory at a step; it, or -1."""
    i = w[NEWEST + 5 * m, x]
    if i >= 0:
        w[LAST, i] = p
        w[READS, w[NUM, READ_COUNT]] = i
        w[NUM, READ_COUNT] += 1
    return int(i)


@kernel
def _make(w: Ints, m: int, x: int, p: int) -> None:
    i = w[NUM, INSTANCES]
    w[NUM, INSTANCES] += 1
    w[TENSOR, i], w[MEMORY, i], w[BIRTH, i], w[LAST, i] = x, m, p, p
    w[PRIOR, i] = w[NEWEST + 5 * m, x]
    w[NEWEST + 5 * m, x] = w[ANYWHERE, x] = i


@kernel
def _may_run(net: Ints, w: Ints, v: int, d: int) -> bool:
    """Count a compute; whether the device can run the op, and may, again or in this order."""
    w[COUNT, v] += 1
    if w[COUNT, v] == 1:
        w[NUM, DONE] += 1
        if net[DIMS, PINNED] == 1 and v < w[NUM, LAST_FIRST]:
            return False
        w[NUM, LAST_FIRST] = v
    return bool(net[TIMES + 2 * d, v] >= 0 and (w[COUNT, v] == 1 or net[REPEATABLE, v] == 1))


@kernel
def _compute(net: Ints, w: Ints, code: int, p: int) -> bool:
    v, d = code // net[DIMS, DEVICES], code % net[DIMS, DEVICES]
    m, ins, outs = net[MEMORY_OF, d], net[IN_PTR, v + 1] - net[IN_PTR, v], net[OUT_PTR, v + 1] - net[OUT_PTR, v]
    if w[NUM, READ_COUNT] + ins >= w.shape[1] or w[NUM, INSTANCES] + outs >= w.shape[1]:
        return False
    if not _may_run(net, w, v, d):
        return False
    start = w[NUM, CLOCK]
    for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
        x = net[INS, k]
        if _read(w, m, x, p) < 0:
            return False
        start = max(start, w[READY + 5 * m, x])
    end = start + net[TIMES + 2 * d, v] + (net[CALL, d] if w[NUM, BEFORE] >= 0 and w[NUM, BEFORE] != d else 0)
    w[NUM, BEFORE], w[NUM, CLOCK], w[MOMENT, p] = d, end, start
    for k in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
        _make(w, m, net[OUTS, k], p)
        w[READY + 5 * m, net[OUTS, k]] = end
    return True


@kernel
def _copy(net: Ints, w: Ints, code: int, p: int) -> bool:
    rest, d = (code - net[DIMS, COPIES]) // net[DIMS, DEVICES], (code - net[DIMS, COPIES]) % net[DIMS, DEVICES]
    x, s = rest // net[DIMS, DEVICES], rest % net[DIMS, DEVICES]
    a, b, length = net[MEMORY_OF, s], net[MEMORY_OF, d], net[net[DIMS, COPY_TIMES] + s * net[DIMS, DEVICES] + d, x]
    if length < 0 or w[NUM, READ_COUNT] + 1 >= w.shape[1] or w[NUM, INSTANCES] + 1 >= w.shape[1]:
        return False
    if _read(w, a, x, p) < 0:
        return False
    start = max(w[NUM, CLOCK], w[READY + 5 * a, x])
    if net[DIMS, OVERLAP] == 1:
        start = max(start, w[LINK + 5 * a, b])
        w[LINK + 5 * a, b] = start + length
    else:
        w[NUM, CLOCK] = start + length
    _make(w, b, x, p)
    w[READY + 5 * b, x] = w[MOMENT, p] = start + length
    return True


@kernel
def _end_of_copies(net: Ints, w: Ints, row: int) -> None:
    """The last copy may end last; what is copied stays up to the first compute that begins when the copy is over."""
    length = w[LENGTHS, row]
    for a in range(net[DIMS, MEMORIES]):
        for b in range(net[DIMS, MEMORIES]):
            w[NUM, TIME] = max(w[NUM, TIME], w[LINK + 5 * a, b])
    for p in range(length):
        if w[TRIAL + row, p] >= net[DIMS, COPIES]:
            source, q = w[READS, w[READS_PTR, p]], p + 1
            while q < length and (w[TRIAL + row, q] >= net[DIMS, COPIES] or w[MOMENT, q] < w[MOMENT, p]):
                q += 1
            w[LAST, source] = max(w[LAST, source], q - 1)


@kernel
def _keep(net: Ints, w: Ints, length: int) -> None:
    for x in range(net[DIMS, TENSORS]):
        if net[KEPT, x] == 1:
            w[LAST, w[ANYWHERE, x]] = length


@kernel
def _assign_storage(net: Ints, w: Ints, row: int) -> None:
    length = w[LENGTHS, row]
    for p in range(length):
        for i in range(w[MAKES_PTR, p], w[MAKES_PTR, p + 1]):
            shared = -1
            if w[TRIAL + row, p] < net[DIMS, COPIES] and w[LAST, i] < length:
                shared = _shared(net, w, w[TRIAL + row, p] // net[DIMS, DEVICES], i)
            if shared < 0:
                shared = w[NUM, STORAGES]
                w[NUM, STORAGES] += 1
                w[BYTES, shared], w[BORN, shared], w[ENDS, shared] = net[SIZE, w[TENSOR, i]], p, w[LAST, i]
                w[WHERE, shared] = w[MEMORY, i]
            w[STORAGE, i] = shared
            w[NEWBORN, shared] = p
            w[ENDS, shared] = max(w[ENDS, shared], w[LAST, i])


@kernel
def _shared(net: Ints, w: Ints, v: int, i: int) -> int:
    """The storage of an input that instance i, a result of op v, shares, or -1."""
    x, p = w[TENSOR, i], w[BIRTH, i]
    if net[BASE, x] >= 0:
        return _storage_read(w, p, net[BASE, x])
    for k in range(net[PAIR_PTR, v], net[PAIR_PTR, v + 1]):
        if net[PAIR_TO, k] == x:
            t = _storage_read(w, p, net[PAIR_FROM, k])
            times = 0
            for r in range(w[READS_PTR, p], w[READS_PTR, p + 1]):
                times += w[STORAGE, w[READS, r]] == t
            if w[ENDS, t] <= p and w[NEWBORN, t] != p and times == 1:
                return t
    return -1


@kernel
def _storage_read(w: Ints, p: int, x: int) -> int:
    """The storage of what step p reads of a tensor."""
    for r in range(w[READS_PTR, p], w[READS_PTR, p + 1]):
        if w[TENSOR, w[READS, r]] == x:
            return int(w[STORAGE, w[READS, r]])
    return -1


@kernel
def _hold_weights(net: Ints, w: Ints, row: int) -> None:
    """Each memory holds the weights of the ops computed there, where there are several."""
    length = w[LENGTHS, row]
    for p in range(length):
        if w[TRIAL + row, p] < net[DIMS, COPIES]:
            v, m = w[TRIAL + row, p] // net[DIMS, DEVICES], net[MEMORY_OF, w[TRIAL + row, p] % net[DIMS, DEVICES]]
            for k in range(net[WEIGHT_PTR, v], net[WEIGHT_PTR, v + 1]):
                if w[HELD + 5 * m, net[WEIGHTS, k]] != w[NUM, STAMP]:
                    w[HELD + 5 * m, net[WEIGHTS, k]] = w[NUM, STAMP]
                    w[MEM + 5 * m, 0] += net[WEIGHT_BYTES, net[WEIGHTS, k]]


@kernel
def _measure(net: Ints, w: Ints, row: int) -> None:
    """Memory during each step, and what is above budget."""
    length = w[LENGTHS, row]
    for m in range(net[DIMS, MEMORIES]):
        for p in range(length + 1):
            w[MEM + 5 * m, p] = 0
    if net[DIMS, MEMORIES] > 1:
        _hold_weights(net, w, row)
    for t in range(w[NUM, STORAGES]):
        m = w[WHERE, t]
        w[MEM + 5 * m, w[BORN, t]] += w[BYTES, t]
        if w[ENDS, t] < length:
            w[MEM + 5 * m, w[ENDS, t] + 1] -= w[BYTES, t]
    over = 0
    for m in range(net[DIMS, MEMORIES]):
        held = 0
        for p in range(length):
            held += w[MEM + 5 * m, p]
            v, d = w[TRIAL + row, p] // net[DIMS, DEVICES], w[TRIAL + row, p] % net[DIMS, DEVICES]
            is_here = w[TRIAL + row, p] < net[DIMS, COPIES] and net[MEMORY_OF, d] == m
            w[MEM + 5 * m, p] = held + (net[WORKSPACES + 2 * d, v] if is_here else 0)
            over += max(0, w[MEM + 5 * m, p] - net[ROOM, m])
    w[NUM, OVER] = over
