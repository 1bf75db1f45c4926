"""The judge of paged schedules, event by event: what they take in time and bytes, and whether they are legal.

Bytes leave when both the write and the use before the gap are over; room for a read is taken from its start; transfers
run beside steps and slow nothing. Beside `simulate`, which counts what each step of a list holds: here a transfer may
end, and its bytes go, while a step runs, and a step may wait for that.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.paging.paging import PagedProblem, PagedRun, PagedSchedule, PageTransfer

Held = tuple[int, int, int]
"""Bytes that are held from a tick up to another."""

Stretch = tuple[int, int, int]
"""A tensor, and the ticks from which and up to which it is there."""


def follow_paging(problem: PagedProblem, schedule: PagedSchedule) -> PagedRun:
    """Judge a schedule. A budget is not checked here; compare `peak_bytes` with it.

    Raises:
        InvalidSchedule: steps overlap, a transfer comes before its bytes are there or after they are needed, a gap may
            not be paged, or a link carries two transfers at once.
    """
    ends = _step_ends(problem, schedule)
    # A lane of the link carries one transfer at a time.
    lanes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for transfer in schedule.transfers:
        span = transfer.start, transfer.start + problem.transfer_ticks(transfer.tensor, transfer.direction)
        lanes[transfer.direction if problem.link.is_duplex else "both"].append(span)
    for spans in lanes.values():
        for (_, end), (start, _) in pairwise(sorted(spans)):
            if start < end:
                raise InvalidSchedule(f"two transfers at once: one starts at {start}, another ends at {end}")
    last = max(ends, default=0)
    held = [*zip(problem.workspace_bytes, schedule.starts, ends, strict=True)]
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    held += ((sizes[number], begin, end) for number, begin, end in stretches(problem, schedule))
    change: dict[int, int] = defaultdict(int)
    for size, begin, over in held:
        if begin < over:
            change[begin] += size
            change[over] -= size
    curve, total = [], 0
    for tick, more in sorted(change.items()):
        total += more
        if more:
            curve.append((tick, total))
    return PagedRun(
        makespan=last,
        peak_bytes=max((bytes_ for _, bytes_ in curve), default=0),
        stall=last - problem.compute_ticks,
        curve=tuple(curve),
    )


def stretches(problem: PagedProblem, schedule: PagedSchedule) -> Iterator[Stretch]:
    """When each tensor of a legal schedule is there, those that may page more than once; never for no time."""
    ends = _step_ends(problem, schedule)
    last = max(ends, default=0)
    moved: dict[int, list[PageTransfer]] = defaultdict(list)
    for transfer in schedule.transfers:
        moved[transfer.tensor].append(transfer)
    for number in range(len(problem.tensors)):
        for _, begin, end in _held_of(problem, schedule.starts, ends, (number, moved[number], last)):
            if begin < end:
                yield number, begin, end


def _step_ends(problem: PagedProblem, schedule: PagedSchedule) -> list[int]:
    if len(schedule.starts) != len(problem.durations):
        raise InvalidSchedule(f"{len(schedule.starts)} starts for {len(problem.durations)} steps")
    before = 0
    ends = []
    for step, (start, duration) in enumerate(zip(schedule.starts, problem.durations, strict=True)):
        if start < before:
            raise InvalidSchedule(f"step {step} starts at {start}, before {before}, when the one before it is over")
        before = start + duration
        ends.append(before)
    return ends


def _held_of(
    problem: PagedProblem, starts: tuple[int, ...], ends: list[int], what: tuple[int, list[PageTransfer], int]
) -> Iterator[Held]:
    """When a tensor is there: from where it is made or read to where it is no longer needed."""
    number, transfers, last = what
    tensor = problem.tensors[number]
    size, uses = tensor.size_bytes, tensor.uses
    final = uses[tensor.final]
    made = ends[final] if final >= 0 else 0
    written = _written(problem, number, made, [each for each in transfers if each.direction == "write"])
    reads: dict[int, int] = {}  # start of the read that ends each paged gap
    for each in transfers:
        if each.direction == "read":
            if each.gap not in tensor.open_gaps:
                raise InvalidSchedule(f"tensor {number} may not be away in gap {each.gap}")
            if each.gap in reads:
                raise InvalidSchedule(f"tensor {number} is read twice in gap {each.gap}")
            reads[each.gap] = each.start
    begin = starts[uses[0]] if uses[0] >= 0 else 0
    for gap, read in sorted(reads.items()):
        if written is None:
            raise InvalidSchedule(f"tensor {number} is read at {read}, but was never written")
        used = ends[uses[gap]] if uses[gap] >= 0 else 0
        away = max(used, written)
        if read < away:
            raise InvalidSchedule(f"tensor {number} is read at {read}, before it has gone at {away}")
        if (over := read + problem.transfer_ticks(number, "read")) > starts[uses[gap + 1]]:
            raise InvalidSchedule(f"tensor {number} is there at {over}, too late for step {uses[gap + 1]}")
        yield size, begin, away
        begin = read
    used = ends[uses[-1]] if uses[-1] >= 0 else 0
    yield size, begin, last if tensor.is_kept else max(used, written or 0)


def _written(problem: PagedProblem, number: int, made: int, writes: list[PageTransfer]) -> int | None:
    """When a tensor is in the larger memory; None: never."""
    if problem.tensors[number].is_hosted:
        if writes:
            raise InvalidSchedule(f"tensor {number} is written, but lies in the larger memory already")
        return 0
    if len(writes) > 1:
        raise InvalidSchedule(f"tensor {number} is written twice; once is enough for all its gaps")
    if not writes:
        return None
    if writes[0].start < made:
        raise InvalidSchedule(f"tensor {number} is written at {writes[0].start}, before it is made at {made}")
    return writes[0].start + problem.transfer_ticks(number, "write")
