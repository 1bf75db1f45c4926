"""Kernels that change a schedule: put steps in, bring a value back, make a changed row legal again."""

from remat_cli.solvers.placing import rows
from remat_cli.solvers.placing.state import capacity, fastest, fastest_time, via
from remat_cli.solvers.search.state import Ints, kernel

WIDEST = 12  # ops that are recomputed together
MOST_ITEMS = 200


@kernel
def uniform(w: Ints) -> float:
    """The next random number in [0, 1): a linear congruence, whose high bits are taken."""
    w[rows.NUM, rows.RANDOM] = (
        w[rows.NUM, rows.RANDOM] * 6364136223846793005 + 1442695040888963407
    ) & 0x7FFFFFFFFFFFFFFF
    return float(w[rows.NUM, rows.RANDOM] >> 11) / float(1 << 52)


@kernel
def add_item(w: Ints, before: int, code: int) -> None:
    """Note a step to be put in before another; those before the same one stand in the order noted."""
    k = w[rows.NUM, rows.ITEMS]
    if k < MOST_ITEMS:
        w[rows.NUM, rows.ITEMS] = k + 1
        while k > 0 and w[rows.BEFORE_ITEM, k - 1] > before:
            w[rows.BEFORE_ITEM, k], w[rows.CODE_ITEM, k] = w[rows.BEFORE_ITEM, k - 1], w[rows.CODE_ITEM, k - 1]
            k -= 1
        w[rows.BEFORE_ITEM, k], w[rows.CODE_ITEM, k] = before, code


@kernel
def put_items(net: Ints, w: Ints, row: int) -> bool:
    """Write row 0 with the noted steps put in to another row; whether there is room."""
    length, items = w[rows.LENGTHS, 0], w[rows.NUM, rows.ITEMS]
    if length + items > capacity(net):
        return False
    k = at = 0
    for p in range(length + 1):
        while k < items and w[rows.BEFORE_ITEM, k] == p:
            w[rows.TRIAL + row, at] = w[rows.CODE_ITEM, k]
            at, k = at + 1, k + 1
        if p < length:
            w[rows.TRIAL + row, at] = w[rows.TRIAL + 0, p]
            at += 1
    w[rows.LENGTHS, row] = at
    return True


@kernel
def instance_at(w: Ints, m: int, x: int, q: int) -> int:
    """The instance that a step put in before q would read of a tensor in a memory, or -1."""
    i = w[rows.NEWEST + 5 * m, x]
    while i >= 0 and w[rows.BIRTH, i] >= q:
        i = w[rows.PRIOR, i]
    return int(i)


@kernel
def nearest_memory(net: Ints, w: Ints, m: int, x: int, q: int) -> int:
    """The memory from which a value is copied soonest, at best one where it lives anyway; -1 if there is none.

    The copy goes to memory m before step q.
    """
    best, least = -1, 0.0
    for other in range(net[rows.DIMS, rows.MEMORIES]):
        if other != m and net[via(net, other, m), x] >= 0:
            i = instance_at(w, other, x, q)
            if i >= 0:
                cost = (net[via(net, other, m) + 1, x] + 1.0) * (1.0 if w[rows.LAST, i] >= q else 1.5)
                if best < 0 or cost < least:
                    best, least = other, cost
    return best


@kernel
def gather(net: Ints, w: Ints, m: int, x: int, q: int, share: float) -> bool:
    """Note the steps that recompute a tensor in a memory before q, with the dead ancestors that this needs.

    An ancestor of up to `share` of the tensor's bytes is kept alive instead of brought back; others are copied from
    elsewhere or recomputed too, whichever takes less time. False where it cannot be done.
    """
    w[rows.NUM, rows.STAMP] += 1
    count = 1
    w[rows.STACK, 0] = net[rows.PRODUCER, x]
    w[rows.MARK, net[rows.PRODUCER, x]] = w[rows.NUM, rows.STAMP]
    done = 0
    while done < count:
        v = w[rows.STACK, done]
        done += 1
        if net[rows.REPEATABLE, v] == 0 or fastest(net, m, v) < 0:
            return False
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            u = net[rows.INS, k]
            way = _way(net, w, m, u, q, net[rows.SIZE, x] * share if count < WIDEST else 1e300)
            if way == -2:
                return False
            if way == -1:
                w[rows.STACK, count] = net[rows.PRODUCER, u]
                w[rows.MARK, net[rows.PRODUCER, u]] = w[rows.NUM, rows.STAMP]
                count += 1
            elif way > 0:
                add_item(w, q, net[via(net, way - 1, m), u])
    # Note the computes of a bundle in the order of ops.
    for a in range(1, count):
        op, b = w[rows.STACK, a], a
        while b > 0 and w[rows.STACK, b - 1] > op:
            w[rows.STACK, b] = w[rows.STACK, b - 1]
            b -= 1
        w[rows.STACK, b] = op
    for a in range(count):
        op = w[rows.STACK, a]
        add_item(w, q, op * net[rows.DIMS, rows.DEVICES] + fastest(net, m, op))
    return True


@kernel
def _way(net: Ints, w: Ints, m: int, u: int, q: int, small: float) -> int:
    """How an ancestor comes to be there: 0 it is, 1 + memory: copied from it, -1 recomputed, -2 not at all."""
    if w[rows.MARK, net[rows.PRODUCER, u]] == w[rows.NUM, rows.STAMP]:
        return 0
    i = instance_at(w, m, u, q)
    if i >= 0 and (w[rows.LAST, i] >= q or net[rows.SIZE, u] <= small):
        return 0
    v, other = net[rows.PRODUCER, u], nearest_memory(net, w, m, u, q)
    can_run = net[rows.REPEATABLE, v] == 1 and fastest(net, m, v) >= 0 and small < 1e300
    if can_run and (other < 0 or fastest_time(net, m, v) <= net[via(net, other, m) + 1, u]):
        return -1
    if other >= 0:
        return 1 + other
    return 0 if i >= 0 else -2


@kernel
def legalise(net: Ints, w: Ints, recompute: float) -> bool:
    """Rewrite row 0 so that every step finds what it reads: what is missing is copied or computed before it.

    A copy of what is not there goes; so does a second run of what must not be repeated. `recompute` is the chance
    that a value that is elsewhere is computed anew. False where it cannot be done.
    """
    length, w[rows.LENGTHS, 1] = w[rows.LENGTHS, 0], 0
    for m in range(net[rows.DIMS, rows.MEMORIES]):
        for x in range(net[rows.DIMS, rows.TENSORS]):
            w[rows.NEWEST + 5 * m, x] = -1
    for v in range(net[rows.DIMS, rows.OPS]):
        w[rows.COUNT, v] = 0
    for p in range(length):
        code = w[rows.TRIAL + 0, p]
        if code >= net[rows.DIMS, rows.COPIES]:
            rest = (code - net[rows.DIMS, rows.COPIES]) // net[rows.DIMS, rows.DEVICES]
            x, a = rest // net[rows.DIMS, rows.DEVICES], net[rows.MEMORY_OF, rest % net[rows.DIMS, rows.DEVICES]]
            if w[rows.NEWEST + 5 * a, x] >= 0:
                _emit(net, w, code)
                b = net[rows.MEMORY_OF, (code - net[rows.DIMS, rows.COPIES]) % net[rows.DIMS, rows.DEVICES]]
                w[rows.NEWEST + 5 * b, x] = 0
        else:
            v = code // net[rows.DIMS, rows.DEVICES]
            may_run = w[rows.COUNT, v] == 0 or net[rows.REPEATABLE, v] == 1
            if may_run and not _run(net, w, code, recompute):
                return False
        if w[rows.LENGTHS, 1] + 80 > capacity(net):
            return False
    w[rows.LENGTHS, 0] = w[rows.LENGTHS, 1]
    for p in range(w[rows.LENGTHS, 1]):
        w[rows.TRIAL + 0, p] = w[rows.TRIAL + 1, p]
    return True


@kernel
def _emit(net: Ints, w: Ints, code: int) -> None:
    if w[rows.LENGTHS, 1] < capacity(net):
        w[rows.TRIAL + 1, w[rows.LENGTHS, 1]] = code
        w[rows.LENGTHS, 1] += 1


@kernel
def _run(net: Ints, w: Ints, code: int, recompute: float) -> bool:
    """Emit a compute and all that it lacks, depth first."""
    depth = 1
    w[rows.STACK, 0] = code
    while depth > 0:
        code = w[rows.STACK, depth - 1]
        v, m = code // net[rows.DIMS, rows.DEVICES], net[rows.MEMORY_OF, code % net[rows.DIMS, rows.DEVICES]]
        missing = -1
        for k in range(net[rows.IN_PTR, v], net[rows.IN_PTR, v + 1]):
            if w[rows.NEWEST + 5 * m, net[rows.INS, k]] < 0 and missing < 0:
                missing = net[rows.INS, k]
        if missing < 0:
            _emit(net, w, code)
            w[rows.COUNT, v] += 1
            for k in range(net[rows.OUT_PTR, v], net[rows.OUT_PTR, v + 1]):
                w[rows.NEWEST + 5 * m, net[rows.OUTS, k]] = 0
            depth -= 1
            continue
        producer = _bring(net, w, m, missing, recompute)
        if producer == -2 or depth + 1 >= 64 or w[rows.LENGTHS, 1] + 8 > capacity(net):
            return False
        if producer >= 0:
            w[rows.STACK, depth] = producer
            depth += 1
    return True


@kernel
def _bring(net: Ints, w: Ints, m: int, x: int, recompute: float) -> int:
    """Copy a value, and return -1; or the compute that makes it, or -2 where nothing does."""
    best = -1
    for other in range(net[rows.DIMS, rows.MEMORIES]):
        is_there = w[rows.NEWEST + 5 * other, x] >= 0 and net[via(net, other, m), x] >= 0
        if is_there and (best < 0 or net[via(net, other, m) + 1, x] < net[via(net, best, m) + 1, x]):
            best = other
    v = net[rows.PRODUCER, x]
    can_run = w[rows.COUNT, v] == 0 or net[rows.REPEATABLE, v] == 1
    if best >= 0 and not (can_run and fastest(net, m, v) >= 0 and uniform(w) < recompute):
        _emit(net, w, net[via(net, best, m), x])
        w[rows.NEWEST + 5 * m, x] = 0
        return -1
    if not can_run:
        return -2
    if fastest(net, m, v) >= 0:
        return int(v * net[rows.DIMS, rows.DEVICES] + fastest(net, m, v))
    for other in range(net[rows.DIMS, rows.MEMORIES]):
        if fastest(net, other, v) >= 0 and net[via(net, other, m), x] >= 0:
            return int(v * net[rows.DIMS, rows.DEVICES] + fastest(net, other, v))
    return -2
