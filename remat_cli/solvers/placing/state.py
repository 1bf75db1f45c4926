"""What the placement kernels work on: a problem for several devices and schedules of it, as two tables of integers.

Rows have names in `rows`: `net[rows.SIZE, x]`, `w[rows.LAST, i]`. Two plain arrays instead of some fifty keep
compilation short and calls cheap. `net` never changes; `w` is scratch of one thread, which holds schedules in its
TRIAL rows and what the last evaluation found in the others.

A schedule is a row of codes, one per step: `op * devices + device` for a compute, and from `ops * devices` on
`(tensor * devices + source) * devices + target` more for a copy.
"""

from collections.abc import Sequence

import numpy as np

from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.placing import rows
from remat_cli.solvers.search.state import Ints, kernel


@kernel
def fastest(net: Ints, m: int, v: int) -> int:
    """The device of a memory that runs an op fastest, -1 if none does."""
    return int(net[net[rows.DIMS, rows.FASTEST] + m, v])


@kernel
def fastest_time(net: Ints, m: int, v: int) -> int:
    """The time of an op on the device of a memory that runs it fastest."""
    return int(net[rows.TIMES + 2 * net[net[rows.DIMS, rows.FASTEST] + m, v], v])


@kernel
def via(net: Ints, a: int, b: int) -> int:
    """The row with the codes of the fastest copies from one memory to another; their times are in the next."""
    return int(net[rows.DIMS, rows.VIA] + 2 * (a * net[rows.DIMS, rows.MEMORIES] + b))


def make_net(problem: Problem, is_pinned: bool = False) -> Ints:
    """The table of a problem; `is_pinned` keeps first computations in baseline order."""
    tensors, devices = problem.tensors, problem.devices
    entries: list[Sequence[int]] = [(), *_op_rows(problem)]
    entries += [
        [t.size_bytes for t in tensors],
        [t.producer for t in tensors],
        [-1 if t.view_of is None else t.view_of for t in tensors],
        [t.kept for t in tensors],
        problem.weight_bytes,
        [device.memory for device in devices],
        [device.call_ns for device in devices],
        [memory.free_bytes for memory in problem.memories],
    ]
    for d in range(len(devices)):
        entries.append([_or_none(op.time_ns[d]) for op in problem.ops])
        entries.append([op.workspace_bytes[d] for op in problem.ops])
    starts = [len(entries)]
    # Codes and times of the fastest copies by memory.
    via_rows: list[list[int]] = []
    for a in range(len(problem.memories)):
        for b in range(len(problem.memories)):
            best = [_fastest_copy(problem, a, b, x) for x in range(len(problem.tensors))]
            via_rows += [[code for _, code in best], [time for time, _ in best]]
    fastest_rows = []
    for memory in range(len(problem.memories)):
        own = [d for d, device in enumerate(problem.devices) if device.memory == memory]
        able = [[(t, d) for d in own if (t := op.time_ns[d]) is not None] for op in problem.ops]
        fastest_rows.append([min(found, default=(0, -1))[1] for found in able])
    copy_rows = [  # within one memory there are none
        [_or_none(problem.copy_ns[s][t][x]) if a.memory != b.memory else -1 for x in range(len(problem.tensors))]
        for s, a in enumerate(problem.devices)
        for t, b in enumerate(problem.devices)
    ]
    for table in (copy_rows, via_rows, fastest_rows):
        entries += table
        starts.append(len(entries))
    counts = [len(problem.ops), len(devices), len(problem.memories), len(tensors)]
    entries[rows.DIMS] = [*counts, problem.overlap, is_pinned, counts[0] * counts[1], *starts[:3]]
    net = np.zeros((len(entries), max(len(row) for row in entries) + 1), np.int64)
    for number, row in enumerate(entries):
        net[number, : len(row)] = row
    return net


def make_work(net: Ints, seed: int) -> Ints:
    """Scratch for schedules of up to some four steps per op."""
    steps, tensors, memories = int(capacity(net)), int(net[rows.DIMS, rows.TENSORS]), int(net[rows.DIMS, rows.MEMORIES])
    reads = steps + 6 * edges(net) + 64
    picks = 4 * tensors * (memories + 1) + 64
    width = max(reads, picks, steps + 4 * tensors + 64, len(net[rows.WEIGHT_BYTES]))
    work = np.zeros((rows.NEWEST + 5 * memories, width), np.int64)
    work[rows.NUM, rows.RANDOM] = seed * 2 + 1
    return work


@kernel
def capacity(net: Ints) -> int:
    """Steps a schedule may have."""
    return int(4 * net[rows.DIMS, rows.OPS] + 2 * net[rows.DIMS, rows.TENSORS] + 512)


def edges(net: Ints) -> int:
    """Reads of all ops together."""
    return int(net[rows.IN_PTR, net[rows.DIMS, rows.OPS]])


def encode(problem: Problem, schedule: Schedule) -> Ints:
    """The codes of a schedule."""
    devices = len(problem.devices)
    start = len(problem.ops) * devices
    return np.array(
        [
            step.op * devices + step.device
            if isinstance(step, Compute)
            else start + (step.tensor * devices + step.source) * devices + step.target
            for step in schedule.steps
        ],
        np.int64,
    )


def decode(problem: Problem, codes: Ints) -> Schedule:
    """The schedule of a row of codes."""
    devices = len(problem.devices)
    start = len(problem.ops) * devices
    steps: list[Step] = []
    for code in codes.tolist():
        if code < start:
            steps.append(Compute(code // devices, code % devices))
        else:
            rest, target = divmod(code - start, devices)
            steps.append(Copy(rest // devices, rest % devices, target))
    return Schedule(tuple(steps))


def _op_rows(problem: Problem) -> list[Sequence[int]]:
    ops = problem.ops
    pairs = [op.in_place for op in ops]
    return [
        *_packed([op.inputs for op in ops]),
        *_packed([op.outputs for op in ops]),
        *_packed([[source for source, _ in row] for row in pairs]),
        [result for row in pairs for _, result in row],
        *_packed([op.weights for op in ops]),
        [op.repeatable for op in ops],
    ]


def _packed(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    return starts, [entry for row in rows for entry in row]


def _or_none(time: int | None) -> int:
    return -1 if time is None else time


def _fastest_copy(problem: Problem, a: int, b: int, x: int) -> tuple[int, int]:
    """Time and code of the fastest copy of a tensor between two memories, -1 and -1 where there is none."""
    count, first = len(problem.devices), len(problem.ops) * len(problem.devices)
    found = [
        (time, first + (x * count + s) * count + t)
        for s, source in enumerate(problem.devices)
        for t, target in enumerate(problem.devices)
        if a != b and source.memory == a and target.memory == b
        if (time := problem.copy_ns[s][t][x]) is not None
    ]
    return min(found, default=(-1, -1))
