"""Into which shares the runtime's threads cut an op that makes a number of each number.

Its thread pool weighs how long an element takes, in cycles: what is soon done runs whole, other buffers in shares that
are long enough to be worth a thread's waking, four for each thread, or fewer where these fit the threads better. Each
share is computed in packets from the first address that holds one on, and element by element before and behind.

Measured with ONNX Runtime 1.32.0 on x86-64, 1 to 8 threads, 19 to 60 lengths of 900 to 120,064: which elements were
computed by themselves was foretold each time.
"""

from math import ceil

PACKET = 4
"""Elements that are computed at once; buffers begin at a multiple of them."""
MOVED_CYCLES = 8 * 11 / 64
"""That reading and writing a float takes."""
START_CYCLES = 100_000
"""That a second thread must be worth, and each further one."""
SHARE_CYCLES = 40_000
"""That a share takes at least."""
SHARES_PER_THREAD = 4
COARSER = 2
"""By how much shares may become longer so that they fit the threads."""
SLACK = 0.01
"""Of the time of all threads, that longer shares may waste more."""


def share_length(elements: int, cycles: float, threads: int) -> int:
    """How many elements each share has, but perhaps the last one; `cycles` are those that one element takes."""
    each = cycles + MOVED_CYCLES
    wanted = (elements * each - START_CYCLES) / START_CYCLES + 0.9
    if threads == 1 or elements <= 1 or int(min(max(1.0, wanted), threads)) == 1:
        return elements
    share = min(elements, max(ceil(elements / (SHARES_PER_THREAD * threads)), int(SHARE_CYCLES / each)))
    longest, count = min(elements, COARSER * share), ceil(elements / share)
    used = _used(count, threads)
    while used < 1 and count > 1:
        longer = ceil(elements / (count - 1))
        if longer > longest:
            break
        count = ceil(elements / longer)
        if _used(count, threads) + SLACK >= used:
            share, used = longer, max(used, _used(count, threads))
    return share


def _used(shares: int, threads: int) -> float:
    """How much of the time of all threads so many shares use."""
    return shares / (ceil(shares / threads) * threads)


def is_all_packets(elements: int, cycles: float | None, threads: int) -> bool:
    """Whether all elements are computed in packets; `cycles` are None for an op that one thread does alone."""
    share = elements if cycles is None else share_length(elements, cycles, threads)
    return elements % PACKET == 0 and (share == elements or share % PACKET == 0)


def lengths_in_packets(cycles: float | None, threads: int) -> tuple[int, int]:
    """A number, and the least multiple of it from which on all its multiples are computed in packets alone."""
    if cycles is None or threads == 1:
        return PACKET, PACKET
    multiple = PACKET * SHARES_PER_THREAD * threads
    least = SHARES_PER_THREAD * threads * int(SHARE_CYCLES / (cycles + MOVED_CYCLES))
    return multiple, -(-least // multiple) * multiple
