"""A paged schedule without a clock: what each step and each transfer waits for, which is all that a run needs.

Each lane of the link carries its transfers in order: one lane, or with a duplex link one for writes, one for reads.
Whoever keeps the rules stays within the bytes of the schedule, however long things really take: when something takes
room, all that gave room before it in the schedule has done so.
"""

from bisect import bisect_right

import msgspec

from remat_cli.core.paging.paging import PagedProblem, PagedSchedule, PageTransfer


class MoveRule(msgspec.Struct, frozen=True):
    """A transfer (its `start` means nothing here) and what is over before it besides those before it on its lane.

    That is step `after_step` (-1: none), and so many transfers of the other lane.
    """

    move: PageTransfer
    after_step: int
    after_others: int = 0


class PagingRules(msgspec.Struct, frozen=True):
    """`lanes` are transfers in order; `waits[step]` says how many of each lane are over before a step starts."""

    lanes: tuple[tuple[MoveRule, ...], ...]
    waits: tuple[tuple[int, ...], ...]


def rules_of(problem: PagedProblem, schedule: PagedSchedule, unit: int = 1) -> PagingRules:
    """The rules of a legal schedule: everything waits for all that was over when it started.

    `unit` is what durations and transfers were rounded up to, in ticks, when the schedule was made.
    """

    def over(start: int, ticks: int) -> int:
        return start + -(-ticks // unit) * unit

    step_ends = [over(start, ticks) for start, ticks in zip(schedule.starts, problem.durations, strict=True)]
    order = sorted(schedule.transfers, key=lambda move: move.start)
    by_direction = [[move for move in order if move.direction == direction] for direction in ("write", "read")]
    lanes = by_direction if problem.link.is_duplex else [order]
    ends = [[over(m.start, problem.transfer_ticks(m.tensor, m.direction)) for m in lane] for lane in lanes]
    rules = tuple(
        tuple(
            MoveRule(
                move=move,
                after_step=bisect_right(step_ends, move.start) - 1,
                after_others=sum(bisect_right(ends[o], move.start) for o in range(len(lanes)) if o != number),
            )
            for move in lane
        )
        for number, lane in enumerate(lanes)
    )
    waits = tuple(tuple(bisect_right(lane, start) for lane in ends) for start in schedule.starts)
    return PagingRules(rules, waits)


def run_rules(problem: PagedProblem, rules: PagingRules) -> PagedSchedule:
    """The schedule of a run in which everything starts as soon as the rules let it, with the problem's own times.

    Never later than the schedule that the rules are of, and within its bytes.
    """
    step_ends: list[int] = []
    starts: list[int] = []
    done: list[list[int]] = [[] for _ in rules.lanes]
    moved: list[PageTransfer] = []
    for step in range(len(problem.durations) + 1):
        _move(problem, rules, (step_ends, done), moved)
        if step < len(problem.durations):
            before = [lane[count - 1] for lane, count in zip(done, rules.waits[step], strict=True) if count]
            starts.append(max([0, *step_ends[-1:], *before]))
            step_ends.append(starts[-1] + problem.durations[step])
    return PagedSchedule(tuple(starts), tuple(moved))


def _move(
    problem: PagedProblem, rules: PagingRules, over: tuple[list[int], list[list[int]]], moved: list[PageTransfer]
) -> None:
    """Start all transfers that wait for no later step, each when all is over that it waits for."""
    step_ends, done = over
    is_any = True
    while is_any:
        is_any = False
        for number, lane in enumerate(rules.lanes):
            others = [end for other, ends in enumerate(done) if other != number for end in ends]
            while len(done[number]) < len(lane):
                rule = lane[len(done[number])]
                if rule.after_step >= len(step_ends) or rule.after_others > len(others):
                    break
                waited = [0, *done[number][-1:], *others[: rule.after_others][-1:]]
                start = max([*waited, step_ends[rule.after_step]] if rule.after_step >= 0 else waited)
                move = rule.move
                moved.append(PageTransfer(move.tensor, move.direction, start, move.gap))
                done[number].append(start + problem.transfer_ticks(move.tensor, move.direction))
                is_any = True
