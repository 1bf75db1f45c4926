"""When each step of a schedule runs: one after the other, or with copies beside computes."""

from collections import defaultdict

from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Problem


def timeline(problem: Problem, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """Start and end of each step in nanoseconds.

    Computes run one after the other; one that follows a compute on another device begins with the call of its own
    device. A copy waits for its turn too, unless the problem overlaps: then it starts when the computes before it are
    over, its value is there and its link is free, and holds up only the steps that read what it makes.
    """
    clock, spans, lengths = 0, [], _step_lengths(problem, schedule)
    ready: dict[tuple[int, int], int] = {}
    link_free: dict[tuple[int, int], int] = defaultdict(int)
    link: tuple[int, int] | None
    for step, length in zip(schedule.steps, lengths, strict=True):
        # Values are told apart by the memory that they are in; a copy takes the link between two of them.
        if isinstance(step, Copy):
            link = (problem.devices[step.source].memory, problem.devices[step.target].memory)
            reads, makes = [(link[0], step.tensor)], [(link[1], step.tensor)]
        else:
            link, memory, op = None, problem.devices[step.device].memory, problem.ops[step.op]
            reads, makes = [(memory, tensor) for tensor in op.inputs], [(memory, tensor) for tensor in op.outputs]
        start = max((clock, *(ready.get(value, 0) for value in reads)))
        if link is not None and problem.overlap:
            start = max(start, link_free[link])
            link_free[link] = start + length
        end = start + length
        if link is None or not problem.overlap:
            clock = end
        ready.update(dict.fromkeys(makes, end))
        spans.append((start, end))
    return tuple(spans)


def time_of(problem: Problem, schedule: Schedule) -> int:
    """Time of all steps, legal or not: what the judge says of a legal schedule, without judging it."""
    if problem.overlap:
        return max((end for _, end in timeline(problem, schedule)), default=0)
    return sum(_step_lengths(problem, schedule))


def _step_lengths(problem: Problem, schedule: Schedule) -> list[int]:
    """How long each step takes, with what it costs to change devices."""
    lengths, before = [], None
    for step in schedule.steps:
        length = step_ns(problem, step)
        if isinstance(step, Compute):
            if before is not None and before != step.device:
                length += problem.devices[step.device].call_ns
            before = step.device
        lengths.append(length)
    return lengths


def step_ns(problem: Problem, step: Step) -> int:
    """How long a step takes by itself, whatever ran before it."""
    if isinstance(step, Compute):
        return problem.ops[step.op].time_ns[step.device] or 0
    return problem.copy_ns[step.source][step.target][step.tensor] or 0


def energy_of(problem: Problem, schedule: Schedule) -> tuple[int, ...]:
    """Energy by device in nanojoules; a copy counts for the device it reads from. What is not known counts nothing."""
    total = [0] * len(problem.devices)
    for step in schedule.steps:
        if isinstance(step, Compute):
            energy = problem.ops[step.op].energy_nj
            total[step.device] += energy[step.device] if energy else 0
        elif problem.copy_energy_nj:
            total[step.source] += problem.copy_energy_nj[step.source][step.target][step.tensor]
    return tuple(total)
