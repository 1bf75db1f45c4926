"""Kernels for slots and blocks: bytes added to ranges of slots, what a move would do to them, room for a new step.

All changes of memory are ranges of slots. A move to be looked at is *collected* as ranges first; `excess_change` and
`find_blocker` then say what it does to the *excess*, the bytes above the budget summed over all steps. Blocks that
stay below the budget are passed in one go, so the time goes into the few that matter.
"""

from remat_cli.solvers.search.state import (
    BLOCK_AT,
    BLOCK_BY,
    BUDGET,
    CHANGES,
    CUTS,
    EMPTY,
    MARK,
    MEM,
    MOST,
    NUM,
    PENDING,
    POS,
    RISES,
    SEQ,
    SHIFT,
    SLOTS,
    STAMP,
    USE,
    WORK,
    Ints,
    fragment,
    kernel,
)

REACH = 48  # slots to search for an empty one before all steps are spread anew


@kernel
def bytes_at(s: Ints, p: int) -> int:
    """Bytes of the step in slot p."""
    return int(s[MEM, p] + s[PENDING, p >> s[NUM, SHIFT]])


@kernel
def measure_block(s: Ints, block: int) -> None:
    """Find the most bytes of a block anew."""
    most = 2 * EMPTY
    for p in range(block << s[NUM, SHIFT], (block + 1) << s[NUM, SHIFT]):
        most = max(most, s[MEM, p])
    s[MOST, block] = most + s[PENDING, block]


@kernel
def add(s: Ints, low: int, high: int, size: int) -> None:
    """Add `size` bytes at slots low..high (nothing if empty)."""
    shift = s[NUM, SHIFT]
    block = low >> shift
    while low <= high:
        end = (block + 1) << shift
        if low == block << shift and high >= end - 1:
            s[PENDING, block] += size
            s[MOST, block] += size
        else:
            for p in range(low, min(high + 1, end)):
                s[MEM, p] += size
            measure_block(s, block)
        low = end
        block += 1


@kernel
def put(s: Ints, p: int, step: int, size: int) -> None:
    """Make `step` stand in the empty slot p with `size` bytes."""
    block = p >> s[NUM, SHIFT]
    s[SEQ, p], s[POS, step] = step, p
    s[MEM, p] = size - s[PENDING, block]
    s[MOST, block] = max(s[MOST, block], size)


@kernel
def clear(s: Ints, p: int) -> None:
    """Empty slot p."""
    s[SEQ, p], s[MEM, p] = -1, EMPTY
    measure_block(s, p >> s[NUM, SHIFT])


@kernel
def set_bytes(s: Ints, p: int, size: int) -> None:
    """Give the step in slot p so many bytes."""
    block = p >> s[NUM, SHIFT]
    s[MEM, p] = size - s[PENDING, block]
    measure_block(s, block)


@kernel
def occupied(s: Ints, p: int) -> int:
    """First slot from p on that holds a step; the end op stands in the last."""
    while s[SEQ, p] < 0:
        p += 1
    return p


@kernel
def excess(s: Ints) -> int:
    """Bytes above the budget, summed over all steps; 0 when the schedule fits."""
    total, shift, budget = 0, s[NUM, SHIFT], s[NUM, BUDGET]
    for block in range(((s[NUM, SLOTS] - 1) >> shift) + 1):
        if s[MOST, block] > budget:
            above = s[PENDING, block] - budget
            for p in range(block << shift, (block + 1) << shift):
                total += max(0, s[MEM, p] + above)
    return total


@kernel
def peak(s: Ints) -> int:
    """Most bytes of any step."""
    most = 0
    for block in range(((s[NUM, SLOTS] - 1) >> s[NUM, SHIFT]) + 1):
        most = max(most, s[MOST, block])
    return most


@kernel
def is_tight(s: Ints, low: int, high: int, size: int) -> bool:
    """Whether `size` bytes more at slots low..high would be above the budget somewhere."""
    most, shift = s[NUM, BUDGET] - size, s[NUM, SHIFT]
    block = low >> shift
    while low <= high:
        end = (block + 1) << shift
        if s[MOST, block] > most:
            if low == block << shift and high >= end - 1:
                return True
            for p in range(low, min(high + 1, end)):
                if s[MEM, p] + s[PENDING, block] > most:
                    return True
        low = end
        block += 1
    return False


@kernel
def collect(s: Ints, low: int, high: int, size: int) -> None:
    """Note that a move adds `size` bytes at slots low..high (nothing if empty)."""
    if low > high or size == 0:
        return
    for turn in range(2):
        at, rise = (low, size) if turn == 0 else (high + 1, -size)
        k = s[NUM, CHANGES]
        while k > 0 and s[CUTS, k - 1] > at:
            s[CUTS, k], s[RISES, k] = s[CUTS, k - 1], s[RISES, k - 1]
            k -= 1
        s[CUTS, k], s[RISES, k] = at, rise
        s[NUM, CHANGES] += 1


@kernel
def _range_change(s: Ints, low: int, high: int, run: int) -> int:
    """Change of the excess if slots low..high had `run` bytes more (or less)."""
    budget, shift, total = s[NUM, BUDGET], s[NUM, SHIFT], 0
    for block in range(low >> shift, (high >> shift) + 1):
        if s[MOST, block] + max(run, 0) <= budget:
            continue
        above = s[PENDING, block] - budget
        for p in range(max(low, block << shift), min(high + 1, (block + 1) << shift)):
            before = s[MEM, p] + above
            total += max(0, before + run) - max(0, before)
    return total


@kernel
def excess_change(s: Ints) -> int:
    """Change of the excess by the collected ranges; forgets them."""
    s[NUM, WORK] += 1
    run, total = 0, 0
    for k in range(s[NUM, CHANGES] - 1):
        run += s[RISES, k]
        low, high = s[CUTS, k], s[CUTS, k + 1] - 1
        if run == 0 or low > high:
            continue
        total += _range_change(s, low, high, run)
    s[NUM, CHANGES] = 0
    return total


@kernel
def excess_change_below(s: Ints, most: int) -> int:
    """Change of the excess by the collected ranges if that is below `most`, else some number not below it.

    What ranges take away is summed first, then what they add, in whole blocks as far as these tell, so that most moves
    that are not good enough end early. Forgets the ranges.
    """
    s[NUM, WORK] += 1
    changes = s[NUM, CHANGES]
    s[NUM, CHANGES] = 0
    total = _fallen(s, changes)
    if total >= most or total + _least_risen(s, changes, most - total) >= most:
        return most
    return int(total + _risen(s, changes))


@fragment
def _fallen(s: Ints, changes: int) -> int:
    """Sum, not positive, over the ranges that take bytes away."""
    run, total = 0, 0
    for k in range(changes - 1):
        run += s[RISES, k]
        low, high = s[CUTS, k], s[CUTS, k + 1] - 1
        if run >= 0 or low > high:
            continue
        total += _range_change(s, low, high, run)
    return total


@fragment
def _least_risen(s: Ints, changes: int, enough: int) -> int:
    """A lower bound on what the ranges add, from the highest slot of each whole block; may stop at `enough`."""
    budget, shift = s[NUM, BUDGET], s[NUM, SHIFT]
    run, total = 0, 0
    for k in range(changes - 1):
        run += s[RISES, k]
        low, high = s[CUTS, k], s[CUTS, k + 1] - 1
        if run <= 0 or low > high or total >= enough:
            continue
        for block in range((low + (1 << shift) - 1) >> shift, (high + 1) >> shift):
            total += min(run, max(0, s[MOST, block] + run - budget))
    return total


@fragment
def _risen(s: Ints, changes: int) -> int:
    """Sum over the ranges that add bytes."""
    run, total = 0, 0
    for k in range(changes - 1):
        run += s[RISES, k]
        low, high = s[CUTS, k], s[CUTS, k + 1] - 1
        if run <= 0 or low > high:
            continue
        total += _range_change(s, low, high, run)
    return total


@kernel
def is_blocked(s: Ints) -> bool:
    """Whether the collected ranges would put some slot above the budget; forgets them.

    The slot, and the bytes that would be added there, go to BLOCK_AT and BLOCK_BY.
    """
    s[NUM, WORK] += 1
    budget, shift, run, changes = s[NUM, BUDGET], s[NUM, SHIFT], 0, s[NUM, CHANGES]
    s[NUM, CHANGES] = 0
    for k in range(changes - 1):
        run += s[RISES, k]
        low, high = s[CUTS, k], s[CUTS, k + 1] - 1
        if run <= 0 or low > high:
            continue
        for block in range(low >> shift, (high >> shift) + 1):
            if s[MOST, block] + run <= budget:
                continue
            most = budget - run - s[PENDING, block]
            for p in range(max(low, block << shift), min(high + 1, (block + 1) << shift)):
                if s[MEM, p] > most:
                    s[NUM, BLOCK_AT], s[NUM, BLOCK_BY] = p, run
                    return True
    return False


@fragment
def _make_room(s: Ints, a: int) -> bool:
    """Move the steps between slot a and an empty one nearby, so that the slot before the step at a gets empty."""
    for d in range(1, REACH):
        for side in range(-1, 2, 2):
            r = a + side * d
            if r < 0 or r >= s[NUM, SLOTS] or s[SEQ, r] >= 0:
                continue
            while r != (a if side > 0 else a - 1):
                put(s, r, s[SEQ, r - side], bytes_at(s, r - side))
                clear(s, r - side)
                r -= side
            return True
    return False


@kernel
def open_slot(s: Ints, anchor: int) -> int:
    """An empty slot directly before step `anchor`; steps nearby make room if there is none."""
    while True:
        a = s[POS, anchor]
        low = a
        while low > 0 and s[SEQ, low - 1] < 0 and a - low < 16:
            low -= 1
        if low < a:
            return int((low + a) // 2)
        if not _make_room(s, a):
            spread(s)


@kernel
def spread(s: Ints) -> None:
    """Give all steps slots anew, with as much room between them as there is."""
    count = 0
    for p in range(s[NUM, SLOTS]):
        if s[SEQ, p] >= 0:
            s[MARK, count], s[USE, count] = s[SEQ, p], bytes_at(s, p)
            count += 1
    clear_slots(s, count)
    for k in range(count):
        p = slot_of(s, k, count)
        s[SEQ, p], s[MEM, p], s[POS, s[MARK, k]] = s[MARK, k], s[USE, k], p
    for block in range(((s[NUM, SLOTS] - 1) >> s[NUM, SHIFT]) + 1):
        measure_block(s, block)
    for k in range(s.shape[1]):
        s[MARK, k], s[USE, k] = 0, 0
    s[NUM, STAMP] += 1


@kernel
def clear_slots(s: Ints, length: int) -> None:
    """Empty all slots, and choose how many to use for so many steps."""
    size = 1 << s[NUM, SHIFT]
    slots = min(s.shape[1] - 2 * size, 2 * length + 32)
    s[NUM, SLOTS] = slots
    for p in range(min(s.shape[1], slots + size)):
        s[SEQ, p], s[MEM, p] = -1, EMPTY
    for block in range(((slots - 1) >> s[NUM, SHIFT]) + 1):
        s[PENDING, block], s[MOST, block] = 0, EMPTY


@fragment
def slot_of(s: Ints, k: int, length: int) -> int:
    """Slot of the k-th of so many steps after spreading: the last step stands in the last slot."""
    return int(((k + 1) * s[NUM, SLOTS]) // length - 1)
