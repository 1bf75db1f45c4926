"""Kernels that change a schedule: put steps in, bring a value back, make a changed row legal again."""

from remat_cli.solvers.placing.state import (
    BEFORE_ITEM,
    BIRTH,
    CODE_ITEM,
    COPIES,
    COUNT,
    DEVICES,
    DIMS,
    IN_PTR,
    INS,
    ITEMS,
    LAST,
    LENGTHS,
    MARK,
    MEMORIES,
    MEMORY_OF,
    NEWEST,
    NUM,
    OPS,
    OUT_PTR,
    OUTS,
    PRIOR,
    PRODUCER,
    RANDOM,
    REPEATABLE,
    SIZE,
    STACK,
    STAMP,
    TENSORS,
    TRIAL,
    capacity,
    fastest,
    fastest_time,
    via,
)
from remat_cli.solvers.search.state import Ints, kernel

WIDEST = 12  # ops that are recomputed together
MOST_ITEMS = 200


@kernel
def uniform(w: Ints) -> float:
    """The next random number in [0, 1): a linear congruence, whose high bits are taken."""
    w[NUM, RANDOM] = (w[NUM, RANDOM] * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
    return float(w[NUM, RANDOM] >> 11) / float(1 << 52)


@kernel
def add_item(w: Ints, before: int, code: int) -> None:
    """Note a step to be put in before another; those before the same one stand in the order noted."""
    k = w[NUM, ITEMS]
    if k < MOST_ITEMS:
        w[NUM, ITEMS] = k + 1
        while k > 0 and w[BEFORE_ITEM, k - 1] > before:
            w[BEFORE_ITEM, k], w[CODE_ITEM, k] = w[BEFORE_ITEM, k - 1], w[CODE_ITEM, k - 1]
            k -= 1
        w[BEFORE_ITEM, k], w[CODE_ITEM, k] = before, code


@kernel
def put_items(net: Ints, w: Ints, row: int) -> bool:
    """Write row 0 with the noted steps put in to another row; whether there is room."""
    length, items = w[LENGTHS, 0], w[NUM, ITEMS]
    if length + items > capacity(net):
        return False
    k = at = 0
    for p in range(length + 1):
        while k < items and w[BEFORE_ITEM, k] == p:
            w[TRIAL + row, at] = w[CODE_ITEM, k]
            at, k = at + 1, k + 1
        if p < length:
            w[TRIAL + row, at] = w[TRIAL + 0, p]
            at += 1
    w[LENGTHS, row] = at
    return True


@kernel
def instance_at(w: Ints, m: int, x: int, q: int) -> int:
    """The instance that a step put in before q would read of a tensor in a memory, or -1."""
    i = w[NEWEST + 5 * m, x]
    while i >= 0 and w[BIRTH, i] >= q:
        i = w[PRIOR, i]
    return int(i)


@kernel
def nearest_memory(net: Ints, w: Ints, m: int, x: int, q: int) -> int:
    """The memory from which a value is copied soonest, at best one where it lives anyway; -1 if there is none.

    The copy goes to memory m before step q.
    """
    best, least = -1, 0.0
    for other in range(net[DIMS, MEMORIES]):
        if other != m and net[via(net, other, m), x] >= 0:
            i = instance_at(w, other, x, q)
            if i >= 0:
                cost = (net[via(net, other, m) + 1, x] + 1.0) * (1.0 if w[LAST, i] >= q else 1.5)
                if best < 0 or cost < least:
                    best, least = other, cost
    return best


@kernel
def gather(net: Ints, w: Ints, m: int, x: int, q: int, share: float) -> bool:
    """Note the steps that recompute a tensor in a memory before q, with the dead ancestors that this needs.

    An ancestor of up to `share` of the tensor's bytes is kept alive instead of brought back; others are copied from
    elsewhere or recomputed too, whichever takes less time. False where it cannot be done.
    """
    w[NUM, STAMP] += 1
    count = 1
    w[STACK, 0] = net[PRODUCER, x]
    w[MARK, net[PRODUCER, x]] = w[NUM, STAMP]
    done = 0
    while done < count:
        v = w[STACK, done]
        done += 1
        if net[REPEATABLE, v] == 0 or fastest(net, m, v) < 0:
            return False
        for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
            u = net[INS, k]
            way = _way(net, w, m, u, q, net[SIZE, x] * share if count < WIDEST else 1e300)
            if way == -2:
                return False
            if way == -1:
                w[STACK, count] = net[PRODUCER, u]
                w[MARK, net[PRODUCER, u]] = w[NUM, STAMP]
                count += 1
            elif way > 0:
                add_item(w, q, net[via(net, way - 1, m), u])
    _note_bundle(net, w, m, q, count)
    return True


@kernel
def _way(net: Ints, w: Ints, m: int, u: int, q: int, small: float) -> int:
    """How an ancestor comes to be there: 0 it is, 1 + memory: copied from it, -1 recomputed, -2 not at all."""
    if w[MARK, net[PRODUCER, u]] == w[NUM, STAMP]:
        return 0
    i = instance_at(w, m, u, q)
    if i >= 0 and (w[LAST, i] >= q or net[SIZE, u] <= small):
        return 0
    v, other = net[PRODUCER, u], nearest_memory(net, w, m, u, q)
    can_run = net[REPEATABLE, v] == 1 and fastest(net, m, v) >= 0 and small < 1e300
    if can_run and (other < 0 or fastest_time(net, m, v) <= net[via(net, other, m) + 1, u]):
        return -1
    if other >= 0:
        return 1 + other
    return 0 if i >= 0 else -2


@kernel
def _note_bundle(net: Ints, w: Ints, m: int, q: int, count: int) -> None:
    """Note the computes of a bundle in the order of ops."""
    for a in range(1, count):
        v, b = w[STACK, a], a
        while b > 0 and w[STACK, b - 1] > v:
            w[STACK, b] = w[STACK, b - 1]
            b -= 1
        w[STACK, b] = v
    for a in range(count):
        v = w[STACK, a]
        add_item(w, q, v * net[DIMS, DEVICES] + fastest(net, m, v))


@kernel
def legalise(net: Ints, w: Ints, recompute: float) -> bool:
    """Rewrite row 0 so that every step finds what it reads: what is missing is copied or computed before it.

    A copy of what is not there goes; so does a second run of what must not be repeated. `recompute` is the chance
    that a value that is elsewhere is computed anew. False where it cannot be done.
    """
    length, w[LENGTHS, 1] = w[LENGTHS, 0], 0
    for m in range(net[DIMS, MEMORIES]):
        for x in range(net[DIMS, TENSORS]):
            w[NEWEST + 5 * m, x] = -1
    for v in range(net[DIMS, OPS]):
        w[COUNT, v] = 0
    for p in range(length):
        code = w[TRIAL + 0, p]
        if code >= net[DIMS, COPIES]:
            _pass_copy(net, w, code)
        elif _is_due(net, w, code // net[DIMS, DEVICES]) and not _run(net, w, code, recompute):
            return False
        if w[LENGTHS, 1] + 80 > capacity(net):
            return False
    w[LENGTHS, 0] = w[LENGTHS, 1]
    for p in range(w[LENGTHS, 1]):
        w[TRIAL + 0, p] = w[TRIAL + 1, p]
    return True


@kernel
def _is_due(net: Ints, w: Ints, v: int) -> bool:
    """Whether an op may run where row 1 ends now."""
    return bool(w[COUNT, v] == 0 or net[REPEATABLE, v] == 1)


@kernel
def _emit(net: Ints, w: Ints, code: int) -> None:
    if w[LENGTHS, 1] < capacity(net):
        w[TRIAL + 1, w[LENGTHS, 1]] = code
        w[LENGTHS, 1] += 1


@kernel
def _pass_copy(net: Ints, w: Ints, code: int) -> None:
    rest = (code - net[DIMS, COPIES]) // net[DIMS, DEVICES]
    x, a = rest // net[DIMS, DEVICES], net[MEMORY_OF, rest % net[DIMS, DEVICES]]
    if w[NEWEST + 5 * a, x] >= 0:
        _emit(net, w, code)
        w[NEWEST + 5 * (net[MEMORY_OF, (code - net[DIMS, COPIES]) % net[DIMS, DEVICES]]), x] = 0


@kernel
def _run(net: Ints, w: Ints, code: int, recompute: float) -> bool:
    """Emit a compute and all that it lacks, depth first."""
    depth = 1
    w[STACK, 0] = code
    while depth > 0:
        code = w[STACK, depth - 1]
        v, m = code // net[DIMS, DEVICES], net[MEMORY_OF, code % net[DIMS, DEVICES]]
        missing = -1
        for k in range(net[IN_PTR, v], net[IN_PTR, v + 1]):
            if w[NEWEST + 5 * m, net[INS, k]] < 0 and missing < 0:
                missing = net[INS, k]
        if missing < 0:
            _emit(net, w, code)
            w[COUNT, v] += 1
            for k in range(net[OUT_PTR, v], net[OUT_PTR, v + 1]):
                w[NEWEST + 5 * m, net[OUTS, k]] = 0
            depth -= 1
            continue
        producer = _bring(net, w, m, missing, recompute)
        if producer == -2 or depth + 1 >= 64 or w[LENGTHS, 1] + 8 > capacity(net):
            return False
        if producer >= 0:
            w[STACK, depth] = producer
            depth += 1
    return True


@kernel
def _bring(net: Ints, w: Ints, m: int, x: int, recompute: float) -> int:
    """Copy a value, and return -1; or the compute that makes it, or -2 where nothing does."""
    best = -1
    for other in range(net[DIMS, MEMORIES]):
        is_there = w[NEWEST + 5 * other, x] >= 0 and net[via(net, other, m), x] >= 0
        if is_there and (best < 0 or net[via(net, other, m) + 1, x] < net[via(net, best, m) + 1, x]):
            best = other
    v = net[PRODUCER, x]
    can_run = w[COUNT, v] == 0 or net[REPEATABLE, v] == 1
    if best >= 0 and not (can_run and fastest(net, m, v) >= 0 and uniform(w) < recompute):
        _emit(net, w, net[via(net, best, m), x])
        w[NEWEST + 5 * m, x] = 0
        return -1
    if not can_run:
        return -2
    if fastest(net, m, v) >= 0:
        return int(v * net[DIMS, DEVICES] + fastest(net, m, v))
    for other in range(net[DIMS, MEMORIES]):
        if fastest(net, other, v) >= 0 and net[via(net, other, m), x] >= 0:
            return int(v * net[DIMS, DEVICES] + fastest(net, other, v))
    return -2
