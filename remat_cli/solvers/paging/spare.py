"""Schedules with fewer transfers: what searches page although there is room is kept instead."""

from remat_cli.core.paging.paging import PagedProblem, PagedSchedule
from remat_cli.core.paging.paging_judge import follow_paging


def without_idle_moves(problem: PagedProblem, schedule: PagedSchedule) -> PagedSchedule:
    """The same starts, and no gap paged whose tensor has room all through it; largest transfers are left out first.

    Times alone do not say what a transfer costs: it takes the disk's time and the memory's, also from others. Without
    one, everything may still start when it did.
    """
    reads = [move for move in schedule.transfers if move.direction == "read"]
    reads.sort(key=lambda move: (-problem.tensors[move.tensor].size_bytes, -move.start))
    for read in reads:
        # Leave out a read, and the write of its tensor if no other read needs that.
        rest = tuple(move for move in schedule.transfers if move != read)
        if any(move.tensor == read.tensor and move.direction == "read" for move in rest):
            without = rest
        else:
            without = tuple(move for move in rest if move.tensor != read.tensor)
        fewer = PagedSchedule(schedule.starts, without)
        if follow_paging(problem, fewer).peak_bytes <= problem.budget_bytes:
            schedule = fewer
    return schedule
