"""Kernels that follow a schedule and count its memory and time exactly as the judge does, some thousand times faster.

The rules are those of `core/schedule/simulate.py` and `core/schedule/timeline.py`, function by function; a test holds
the two together on random schedules, and the judge still decides about every schedule that is reported.
"""

from remat_cli.solvers.placing import rows
from remat_cli.solvers.search.state import Ints, kernel


@kernel
def evaluate(net: Ints, w: Ints, row: int) -> bool:
    """Follow the codes of a trial row: time, bytes above budget, instances, reads, memory over steps.

    False where a step is impossible, an op never runs, or there is no room for so many steps; then `w` holds nothing
    of use.
    """
    length = w[rows.LENGTHS, row]
    w[rows.NUM, rows.EVALUATIONS] += 1
    w[rows.NUM, rows.STAMP] += 1
    _clear(net, w)
    for p in range(length):
        w[rows.READS_PTR, p], w[rows.MAKES_PTR, p] = w[rows.NUM, rows.READ_COUNT], w[rows.NUM, rows.INSTANCES]
        code = w[rows.TRIAL + row, p]
        is_legal = _compute(net, w, code, p) if code < net[rows.DIMS, rows.COPIES] else _copy(net, w, code, p)
        if not is_legal:
            return False
    if w[rows.NUM, rows.DONE] < net[rows.DIMS, rows.OPS]:
        return False
    w[rows.READS_PTR, length], w[rows.MAKES_PTR, length] = w[rows.NUM, rows.READ_COUNT], w[rows.NUM, rows.INSTANCES]
    w[rows.NUM, rows.TIME] = w[rows.NUM, rows.CLOCK]
    if net[rows.DIMS, rows.OVERLAP] == 1:
        _end_of_copies(net, w, row)
    for x in range(net[rows.DIMS, rows.TENSORS]):
        if net[rows.KEPT, x] == 1:
            w[rows.LAST, w[rows.ANYWHERE, x]] = length
    _assign_storage(net, w, row)
    _measure(net, w, row)
    return True


@kernel
def _clear(net: Ints, w: Ints) -> None:
    for m in range(net[rows.DIMS, rows.MEMORIES]):
        for x in range(net[rows.DIMS, rows.TENSORS]):
            w[rows.NEWEST + 5 * m, x] = -1
    for v in range(net[rows.DIMS, rows.OPS]):
        w[rows.COUNT, v] = 0
    for a in range(net[rows.DIMS, rows.MEMORIES]):
        for b in range(net[rows.DIMS, rows.MEMORIES]):
            w[rows.LINK + 5 * a, b] = 0
    for i in (rows.INSTANCES, rows.STORAGES, rows.CLOCK, rows.READ_COUNT, rows.DONE):
        w[rows.NUM, i] = 0
    w[rows.NUM, rows.LAST_FIRST] = w[rows.NUM, rows.BEFORE] = -1


@kernel
def _read(w: Ints, m: int, x: int, p: int) -> int:
    """Read the newest instance of a tensor in a memory at a step; it, or -1."""
    i = w[rows.NEWEST + 5 * m, x]
    if i >= 0:
        w[rows.LAST, i] = p
        w[rows.READS, w[rows.NUM, rows.READ_COUNT]] = i
        w[rows.NUM, rows.READ_COUNT] += 1
    return int(i)


@kernel
def _make(w: Ints, m: int, x: int, p: int) -> None:
    i = w[rows.NUM, rows.INSTANCES]
    w[rows.NUM, rows.INSTANCES] += 1
    w[rows.TENSOR, i], w[rows.MEMORY, i], w[rows.BIRTH, i], w[rows.LAST, i] = x, m, p, p
    w[rows.PRIOR, i] = w[rows.NEWEST + 5 * m, x]
    w[rows.NEWEST + 5 * m, x] = w[rows.ANYWHERE, x] = i


@kernel
def _may_run(net: Ints, w: Ints, v: int, d: int) -> bool:
    """Count a compute; whether the device can run the op, and may, again or in this order."""
    w[rows.COUNT, v] += 1
    if w[rows.COUNT, v] == 1:
        w[rows.NUM, rows.DONE] += 1
        if net[rows.DIMS, rows.PINNED] == 1 and v < w[rows.NUM, rows.LAST_FIRST]:
            return False
        w[rows.NUM, rows.LAST_FIRST] = v
    return bool(net[rows.TIMES + 2 * d, v] >= 0 and (w[rows.COUNT, v] == 1 or net[rows.REPEATABLE, v] == 1))


@kernel
def _compute(net: Ints, w: Ints, code: int, p: int) -> bool:
    v, d = code // net[rows.DIMS, rows.DEVICES], code % net[rows.DIMS, rows.DEVICES]
    m, ins, outs = (
        net[rows.MEMORY_OF, d],
        net[rows.IN_PTR, v + 1] - net[rows.IN_PTR, v],
        net[rows.OUT_PTR, v + 1] - net[rows.OUT_PTR, v],
    )
    if w[rows.NUM, rows.READ_COUNT] + ins >= w.shape[1] or w[rows.NUM, rows.INSTANCES] + outs >= w.shape[1]:
        return False
    if not _may_run(net, w, v, d):
        return False
    start = w[rows.NUM, rows.CLOCK]
    for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
        x = net[rows.INS, k]
        if _read(w, m, x, p) < 0:
            return False
        start = max(start, w[rows.READY + 5 * m, x])
    end = (
        start
        + net[rows.TIMES + 2 * d, v]
        + (net[rows.CALL, d] if w[rows.NUM, rows.BEFORE] >= 0 and w[rows.NUM, rows.BEFORE] != d else 0)
    )
    w[rows.NUM, rows.BEFORE], w[rows.NUM, rows.CLOCK], w[rows.MOMENT, p] = d, end, start
    for k in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
        _make(w, m, net[rows.OUTS, k], p)
        w[rows.READY + 5 * m, net[rows.OUTS, k]] = end
    return True


@kernel
def _copy(net: Ints, w: Ints, code: int, p: int) -> bool:
    rest, d = (
        (code - net[rows.DIMS, rows.COPIES]) // net[rows.DIMS, rows.DEVICES],
        (code - net[rows.DIMS, rows.COPIES]) % net[rows.DIMS, rows.DEVICES],
    )
    x, s = rest // net[rows.DIMS, rows.DEVICES], rest % net[rows.DIMS, rows.DEVICES]
    a, b, length = (
        net[rows.MEMORY_OF, s],
        net[rows.MEMORY_OF, d],
        net[net[rows.DIMS, rows.COPY_TIMES] + s * net[rows.DIMS, rows.DEVICES] + d, x],
    )
    if length < 0 or w[rows.NUM, rows.READ_COUNT] + 1 >= w.shape[1] or w[rows.NUM, rows.INSTANCES] + 1 >= w.shape[1]:
        return False
    if _read(w, a, x, p) < 0:
        return False
    start = max(w[rows.NUM, rows.CLOCK], w[rows.READY + 5 * a, x])
    if net[rows.DIMS, rows.OVERLAP] == 1:
        start = max(start, w[rows.LINK + 5 * a, b])
        w[rows.LINK + 5 * a, b] = start + length
    else:
        w[rows.NUM, rows.CLOCK] = start + length
    _make(w, b, x, p)
    w[rows.READY + 5 * b, x] = w[rows.MOMENT, p] = start + length
    return True


@kernel
def _end_of_copies(net: Ints, w: Ints, row: int) -> None:
    """The last copy may end last; what is copied stays up to the first compute that begins when the copy is over."""
    length = w[rows.LENGTHS, row]
    for a in range(net[rows.DIMS, rows.MEMORIES]):
        for b in range(net[rows.DIMS, rows.MEMORIES]):
            w[rows.NUM, rows.TIME] = max(w[rows.NUM, rows.TIME], w[rows.LINK + 5 * a, b])
    for p in range(length):
        if w[rows.TRIAL + row, p] >= net[rows.DIMS, rows.COPIES]:
            source, q = w[rows.READS, w[rows.READS_PTR, p]], p + 1
            while q < length and (
                w[rows.TRIAL + row, q] >= net[rows.DIMS, rows.COPIES] or w[rows.MOMENT, q] < w[rows.MOMENT, p]
            ):
                q += 1
            w[rows.LAST, source] = max(w[rows.LAST, source], q - 1)


@kernel
def _assign_storage(net: Ints, w: Ints, row: int) -> None:
    length = w[rows.LENGTHS, row]
    for p in range(length):
        for i in range(w[rows.MAKES_PTR, p], w[rows.MAKES_PTR, p + 1]):
            shared = -1
            if w[rows.TRIAL + row, p] < net[rows.DIMS, rows.COPIES] and w[rows.LAST, i] < length:
                shared = _shared(net, w, w[rows.TRIAL + row, p] // net[rows.DIMS, rows.DEVICES], i)
            if shared < 0:
                shared = w[rows.NUM, rows.STORAGES]
                w[rows.NUM, rows.STORAGES] += 1
                w[rows.BYTES, shared], w[rows.BORN, shared], w[rows.ENDS, shared] = (
                    net[rows.SIZE, w[rows.TENSOR, i]],
                    p,
                    w[rows.LAST, i],
                )
                w[rows.WHERE, shared] = w[rows.MEMORY, i]
            w[rows.STORAGE, i] = shared
            w[rows.NEWBORN, shared] = p
            w[rows.ENDS, shared] = max(w[rows.ENDS, shared], w[rows.LAST, i])


@kernel
def _shared(net: Ints, w: Ints, v: int, i: int) -> int:
    """The storage of an input that instance i, a result of op v, shares, or -1."""
    x, p = w[rows.TENSOR, i], w[rows.BIRTH, i]
    if net[rows.BASE, x] >= 0:
        return _storage_read(w, p, net[rows.BASE, x])
    for k in range(net[rows.PAIR_PTR, v], net[rows.PAIR_PTR, v + 1]):
        if net[rows.PAIR_TO, k] == x:
            t = _storage_read(w, p, net[rows.PAIR_FROM, k])
            times = 0
            for r in range(w[rows.READS_PTR, p], w[rows.READS_PTR, p + 1]):
                times += w[rows.STORAGE, w[rows.READS, r]] == t
            if w[rows.ENDS, t] <= p and w[rows.NEWBORN, t] != p and times == 1:
                return t
    return -1


@kernel
def _storage_read(w: Ints, p: int, x: int) -> int:
    """The storage of what step p reads of a tensor."""
    for r in range(w[rows.READS_PTR, p], w[rows.READS_PTR, p + 1]):
        if w[rows.TENSOR, w[rows.READS, r]] == x:
            return int(w[rows.STORAGE, w[rows.READS, r]])
    return -1


@kernel
def _hold_weights(net: Ints, w: Ints, row: int) -> None:
    """Each memory holds the weights of the ops computed there, where there are several."""
    length = w[rows.LENGTHS, row]
    for p in range(length):
        if w[rows.TRIAL + row, p] < net[rows.DIMS, rows.COPIES]:
            v, m = (
                w[rows.TRIAL + row, p] // net[rows.DIMS, rows.DEVICES],
                net[rows.MEMORY_OF, w[rows.TRIAL + row, p] % net[rows.DIMS, rows.DEVICES]],
            )
            for k in range(net[rows.WEIGHT_PTR, v], net[rows.WEIGHT_PTR, v + 1]):
                if w[rows.HELD + 5 * m, net[rows.WEIGHTS, k]] != w[rows.NUM, rows.STAMP]:
                    w[rows.HELD + 5 * m, net[rows.WEIGHTS, k]] = w[rows.NUM, rows.STAMP]
                    w[rows.MEM + 5 * m, 0] += net[rows.WEIGHT_BYTES, net[rows.WEIGHTS, k]]


@kernel
def _measure(net: Ints, w: Ints, row: int) -> None:
    """Memory during each step, and what is above budget."""
    length = w[rows.LENGTHS, row]
    for m in range(net[rows.DIMS, rows.MEMORIES]):
        for p in range(length + 1):
            w[rows.MEM + 5 * m, p] = 0
    if net[rows.DIMS, rows.MEMORIES] > 1:
        _hold_weights(net, w, row)
    for t in range(w[rows.NUM, rows.STORAGES]):
        m = w[rows.WHERE, t]
        w[rows.MEM + 5 * m, w[rows.BORN, t]] += w[rows.BYTES, t]
        if w[rows.ENDS, t] < length:
            w[rows.MEM + 5 * m, w[rows.ENDS, t] + 1] -= w[rows.BYTES, t]
    over = 0
    for m in range(net[rows.DIMS, rows.MEMORIES]):
        held = 0
        for p in range(length):
            held += w[rows.MEM + 5 * m, p]
            v, d = (
                w[rows.TRIAL + row, p] // net[rows.DIMS, rows.DEVICES],
                w[rows.TRIAL + row, p] % net[rows.DIMS, rows.DEVICES],
            )
            is_here = w[rows.TRIAL + row, p] < net[rows.DIMS, rows.COPIES] and net[rows.MEMORY_OF, d] == m
            w[rows.MEM + 5 * m, p] = held + (net[rows.WORKSPACES + 2 * d, v] if is_here else 0)
            over += max(0, w[rows.MEM + 5 * m, p] - net[rows.ROOM, m])
    w[rows.NUM, rows.OVER] = over
