"""A schedule again, each thing as early as those that were over before it allow: what a run without a clock does."""

import heapq
from collections.abc import Sequence

from remat_cli.core.paging import PagedProblem, PagedSchedule, PageTransfer


def retimed(problem: PagedProblem, schedule: PagedSchedule, unit: int = 1) -> PagedSchedule:
    """Start steps and transfers in the same order, each when all that ended before it has ended.

    Legal whenever the schedule is, and within the same bytes: what takes room keeps its order and begins after
    all that gave room before. `unit` is what durations and transfers were rounded up to, in ticks, when it was made.
    """
    steps = len(schedule.starts)
    lengths = [
        *problem.durations,
        *(problem.transfer_ticks(each.tensor, each.direction) for each in schedule.transfers),
    ]
    old = [*schedule.starts, *(each.start for each in schedule.transfers)]
    new = [0] * len(old)
    order = sorted(range(len(old)), key=lambda number: (old[number], number < steps, number))
    running: list[tuple[int, int]] = []
    latest, begun = 0, 0
    for number in order:
        while running and running[0][0] <= old[number]:
            latest = max(latest, _end(new, lengths, heapq.heappop(running)[1]))
        begun = new[number] = max(begun, latest)
        heapq.heappush(running, (old[number] + -(-lengths[number] // unit) * unit, number))
    moved = zip(schedule.transfers, new[steps:], strict=True)
    transfers = tuple(PageTransfer(each.tensor, each.direction, start, each.gap) for each, start in moved)
    return PagedSchedule(tuple(new[:steps]), transfers)


def _end(starts: Sequence[int], lengths: Sequence[int], number: int) -> int:
    return starts[number] + lengths[number]
