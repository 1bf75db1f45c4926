"""Kernels for slots and blocks: bytes added to ranges of slots, what a move would do to them, room for a new step.

All changes of memory are ranges of slots. A move to be looked at is *collected* as ranges first; `excess_change` and
`find_blocker` then say what it does to the *excess*, the bytes above the budget summed over all steps. Blocks that
stay below the budget are passed in one go, so the time goes into the few that matter.
"""

from remat_cli.solvers.search import rows
from remat_cli.solvers.search.state import Ints, fragment, kernel

REACH = 48  # slots to search for an empty one before all steps are spread anew


@kernel
def bytes_at(s: Ints, p: int) -> int:
    """Bytes of the step in slot p."""
    return int(s[rows.MEM, p] + s[rows.PENDING, p >> s[rows.NUM, rows.SHIFT]])


@kernel
def measure_block(s: Ints, block: int) -> None:
    """Find the most bytes of a block anew."""
    most = 2 * rows.EMPTY
    for p in range(block << s[rows.NUM, rows.SHIFT], (block + 1) << s[rows.NUM, rows.SHIFT]):
        most = max(most, s[rows.MEM, p])
    s[rows.MOST, block] = most + s[rows.PENDING, block]


@kernel
def add(s: Ints, low: int, high: int, size: int) -> None:
    """Add `size` bytes at slots low..high (nothing if empty)."""
    shift = s[rows.NUM, rows.SHIFT]
    block = low >> shift
    while low <= high:
        end = (block + 1) << shift
        if low == block << shift and high >= end - 1:
            s[rows.PENDING, block] += size
            s[rows.MOST, block] += size
        else:
            for p in range(low, min(high + 1, end)):
                s[rows.MEM, p] += size
            measure_block(s, block)
        low = end
        block += 1


@kernel
def put(s: Ints, p: int, step: int, size: int) -> None:
    """Make `step` stand in the empty slot p with `size` bytes."""
    block = p >> s[rows.NUM, rows.SHIFT]
    s[rows.SEQ, p], s[rows.POS, step] = step, p
    s[rows.MEM, p] = size - s[rows.PENDING, block]
    s[rows.MOST, block] = max(s[rows.MOST, block], size)


@kernel
def clear(s: Ints, p: int) -> None:
    """Empty slot p."""
    s[rows.SEQ, p], s[rows.MEM, p] = -1, rows.EMPTY
    measure_block(s, p >> s[rows.NUM, rows.SHIFT])


@kernel
def set_bytes(s: Ints, p: int, size: int) -> None:
    """Give the step in slot p so many bytes."""
    block = p >> s[rows.NUM, rows.SHIFT]
    s[rows.MEM, p] = size - s[rows.PENDING, block]
    measure_block(s, block)


@kernel
def occupied(s: Ints, p: int) -> int:
    """First slot from p on that holds a step; the end op stands in the last."""
    while s[rows.SEQ, p] < 0:
        p += 1
    return p


@kernel
def excess(s: Ints) -> int:
    """Bytes above the budget, summed over all steps; 0 when the schedule fits."""
    total, shift, budget = 0, s[rows.NUM, rows.SHIFT], s[rows.NUM, rows.BUDGET]
    for block in range(((s[rows.NUM, rows.SLOTS] - 1) >> shift) + 1):
        if s[rows.MOST, block] > budget:
            above = s[rows.PENDING, block] - budget
            for p in range(block << shift, (block + 1) << shift):
                total += max(0, s[rows.MEM, p] + above)
    return total


@kernel
def peak(s: Ints) -> int:
    """Most bytes of any step."""
    most = 0
    for block in range(((s[rows.NUM, rows.SLOTS] - 1) >> s[rows.NUM, rows.SHIFT]) + 1):
        most = max(most, s[rows.MOST, block])
    return most


@kernel
def is_tight(s: Ints, low: int, high: int, size: int) -> bool:
    """Whether `size` bytes more at slots low..high would be above the budget somewhere."""
    most, shift = s[rows.NUM, rows.BUDGET] - size, s[rows.NUM, rows.SHIFT]
    block = low >> shift
    while low <= high:
        end = (block + 1) << shift
        if s[rows.MOST, block] > most:
            if low == block << shift and high >= end - 1:
                return True
            for p in range(low, min(high + 1, end)):
                if s[rows.MEM, p] + s[rows.PENDING, block] > most:
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
        k = s[rows.NUM, rows.CHANGES]
        while k > 0 and s[rows.CUTS, k - 1] > at:
            s[rows.CUTS, k], s[rows.RISES, k] = s[rows.CUTS, k - 1], s[rows.RISES, k - 1]
            k -= 1
        s[rows.CUTS, k], s[rows.RISES, k] = at, rise
        s[rows.NUM, rows.CHANGES] += 1


@kernel
def _range_change(s: Ints, low: int, high: int, run: int) -> int:
    """Change of the excess if slots low..high had `run` bytes more (or less)."""
    budget, shift, total = s[rows.NUM, rows.BUDGET], s[rows.NUM, rows.SHIFT], 0
    for block in range(low >> shift, (high >> shift) + 1):
        if s[rows.MOST, block] + max(run, 0) <= budget:
            continue
        above = s[rows.PENDING, block] - budget
        for p in range(max(low, block << shift), min(high + 1, (block + 1) << shift)):
            before = s[rows.MEM, p] + above
            total += max(0, before + run) - max(0, before)
    return total


@kernel
def excess_change(s: Ints) -> int:
    """Change of the excess by the collected ranges; forgets them."""
    s[rows.NUM, rows.WORK] += 1
    run, total = 0, 0
    for k in range(s[rows.NUM, rows.CHANGES] - 1):
        run += s[rows.RISES, k]
        low, high = s[rows.CUTS, k], s[rows.CUTS, k + 1] - 1
        if run == 0 or low > high:
            continue
        total += _range_change(s, low, high, run)
    s[rows.NUM, rows.CHANGES] = 0
    return total


@kernel
def excess_change_below(s: Ints, most: int) -> int:
    """Change of the excess by the collected ranges if that is below `most`, else some number not below it.

    What ranges take away is summed first, then what they add, in whole blocks as far as these tell, so that most moves
    that are not good enough end early. Forgets the ranges.
    """
    s[rows.NUM, rows.WORK] += 1
    changes = s[rows.NUM, rows.CHANGES]
    s[rows.NUM, rows.CHANGES] = 0
    # What the ranges that take bytes away add to the sum.
    falling, total = 0, 0
    for k in range(changes - 1):
        falling += s[rows.RISES, k]
        first, last = s[rows.CUTS, k], s[rows.CUTS, k + 1] - 1
        if falling >= 0 or first > last:
            continue
        total += _range_change(s, first, last, falling)
    if total >= most or total + _least_risen(s, changes, most - total) >= most:
        return most
    # Sum over the ranges that add bytes.
    run, risen = 0, 0
    for k in range(changes - 1):
        run += s[rows.RISES, k]
        low, high = s[rows.CUTS, k], s[rows.CUTS, k + 1] - 1
        if run <= 0 or low > high:
            continue
        risen += _range_change(s, low, high, run)
    return int(total + risen)


@fragment
def _least_risen(s: Ints, changes: int, enough: int) -> int:
    """A lower bound on what the ranges add, from the highest slot of each whole block; may stop at `enough`."""
    budget, shift = s[rows.NUM, rows.BUDGET], s[rows.NUM, rows.SHIFT]
    run, total = 0, 0
    for k in range(changes - 1):
        run += s[rows.RISES, k]
        low, high = s[rows.CUTS, k], s[rows.CUTS, k + 1] - 1
        if run <= 0 or low > high or total >= enough:
            continue
        for block in range((low + (1 << shift) - 1) >> shift, (high + 1) >> shift):
            total += min(run, max(0, s[rows.MOST, block] + run - budget))
    return total


@kernel
def is_blocked(s: Ints) -> bool:
    """Whether the collected ranges would put some slot above the budget; forgets them.

    The slot, and the bytes that would be added there, go to BLOCK_AT and BLOCK_BY.
    """
    s[rows.NUM, rows.WORK] += 1
    budget, shift, run, changes = s[rows.NUM, rows.BUDGET], s[rows.NUM, rows.SHIFT], 0, s[rows.NUM, rows.CHANGES]
    s[rows.NUM, rows.CHANGES] = 0
    for k in range(changes - 1):
        run += s[rows.RISES, k]
        low, high = s[rows.CUTS, k], s[rows.CUTS, k + 1] - 1
        if run <= 0 or low > high:
            continue
        for block in range(low >> shift, (high >> shift) + 1):
            if s[rows.MOST, block] + run <= budget:
                continue
            most = budget - run - s[rows.PENDING, block]
            for p in range(max(low, block << shift), min(high + 1, (block + 1) << shift)):
                if s[rows.MEM, p] > most:
                    s[rows.NUM, rows.BLOCK_AT], s[rows.NUM, rows.BLOCK_BY] = p, run
                    return True
    return False


@fragment
def _make_room(s: Ints, a: int) -> bool:
    """Move the steps between slot a and an empty one nearby, so that the slot before the step at a gets empty."""
    for d in range(1, REACH):
        for side in range(-1, 2, 2):
            r = a + side * d
            if r < 0 or r >= s[rows.NUM, rows.SLOTS] or s[rows.SEQ, r] >= 0:
                continue
            while r != (a if side > 0 else a - 1):
                put(s, r, s[rows.SEQ, r - side], bytes_at(s, r - side))
                clear(s, r - side)
                r -= side
            return True
    return False


@kernel
def open_slot(s: Ints, anchor: int) -> int:
    """An empty slot directly before step `anchor`; steps nearby make room if there is none."""
    while True:
        a = s[rows.POS, anchor]
        low = a
        while low > 0 and s[rows.SEQ, low - 1] < 0 and a - low < 16:
            low -= 1
        if low < a:
            return int((low + a) // 2)
        if not _make_room(s, a):
            spread(s)


@kernel
def spread(s: Ints) -> None:
    """Give all steps slots anew, with as much room between them as there is."""
    count = 0
    for p in range(s[rows.NUM, rows.SLOTS]):
        if s[rows.SEQ, p] >= 0:
            s[rows.MARK, count], s[rows.USE, count] = s[rows.SEQ, p], bytes_at(s, p)
            count += 1
    clear_slots(s, count)
    for k in range(count):
        p = slot_of(s, k, count)
        s[rows.SEQ, p], s[rows.MEM, p], s[rows.POS, s[rows.MARK, k]] = s[rows.MARK, k], s[rows.USE, k], p
    for block in range(((s[rows.NUM, rows.SLOTS] - 1) >> s[rows.NUM, rows.SHIFT]) + 1):
        measure_block(s, block)
    for k in range(s.shape[1]):
        s[rows.MARK, k], s[rows.USE, k] = 0, 0
    s[rows.NUM, rows.STAMP] += 1


@kernel
def clear_slots(s: Ints, length: int) -> None:
    """Empty all slots, and choose how many to use for so many steps."""
    size = 1 << s[rows.NUM, rows.SHIFT]
    slots = min(s.shape[1] - 2 * size, 2 * length + 32)
    s[rows.NUM, rows.SLOTS] = slots
    for p in range(min(s.shape[1], slots + size)):
        s[rows.SEQ, p], s[rows.MEM, p] = -1, rows.EMPTY
    for block in range(((slots - 1) >> s[rows.NUM, rows.SHIFT]) + 1):
        s[rows.PENDING, block], s[rows.MOST, block] = 0, rows.EMPTY


@fragment
def slot_of(s: Ints, k: int, length: int) -> int:
    """Slot of the k-th of so many steps after spreading: the last step stands in the last slot."""
    return int(((k + 1) * s[rows.NUM, rows.SLOTS]) // length - 1)
