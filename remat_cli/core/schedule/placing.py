"""Plain placements on several devices: every op once, what a device lacks copied to it; references, not plans."""

import heapq
from collections.abc import Sequence

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.timeline import time_of


def one_device_schedule(problem: Problem, device: int) -> Schedule:
    """Every op once in baseline order on one device; what it cannot run goes to the fastest that can."""
    return placed_schedule(
        problem, [device if op.time_ns[device] is not None else fastest(problem, i) for i, op in enumerate(problem.ops)]
    )


def fastest_schedule(problem: Problem) -> Schedule:
    """Every op once in baseline order on the device that runs it fastest, whatever copies cost."""
    return placed_schedule(problem, [fastest(problem, op) for op in range(len(problem.ops))])


def best_device(problem: Problem) -> int:
    """The device on which every op once takes least time, copies for what it cannot run included."""
    if len(problem.devices) == 1:
        return 0

    def rank(device: int) -> tuple[bool, int]:
        is_partial = any(op.time_ns[device] is None for op in problem.ops)
        return is_partial, time_of(problem, one_device_schedule(problem, device))

    return min(range(len(problem.devices)), key=rank)


def fastest(problem: Problem, op: int) -> int:
    """The device that runs an op fastest; the first of several."""
    times = problem.ops[op].time_ns
    return min((time, device) for device, time in enumerate(times) if time is not None)[1]


def placed_schedule(problem: Problem, device_of: Sequence[int]) -> Schedule:
    """Every op once in baseline order, each on its device; a value is copied once to each memory that reads it.

    Raises:
        ModelError: a value cannot get to where it is read.
    """
    steps: list[Step] = []
    holders: list[set[int]] = [set() for _ in problem.tensors]
    for index, op in enumerate(problem.ops):
        device = device_of[index]
        memory = problem.devices[device].memory
        for tensor in op.inputs:
            if memory not in holders[tensor]:
                copies = route(problem, tensor, holders[tensor], memory)
                if copies is None:
                    raise ModelError(f"tensor {tensor} cannot be copied to {problem.devices[device].name}")
                steps += copies
                holders[tensor].update(problem.devices[copy.target].memory for copy in copies)
        steps.append(Compute(index, device))
        for tensor in op.outputs:
            holders[tensor] = {memory}
    return Schedule(tuple(steps))


def route(problem: Problem, tensor: int, sources: set[int], target: int) -> tuple[Copy, ...] | None:
    """The fastest copies that bring a tensor from any of these memories to another; None where there is no way."""
    queue: list[tuple[int, int, int, tuple[Copy, ...]]] = [(0, i, m, ()) for i, m in enumerate(sorted(sources))]
    seen: set[int] = set()
    count = len(problem.devices)
    while queue:
        cost, _, memory, copies = heapq.heappop(queue)
        if memory == target:
            return copies
        if memory in seen:
            continue
        seen.add(memory)
        for source in (d for d in range(count) if problem.devices[d].memory == memory):
            for goal in (d for d in range(count) if problem.devices[d].memory not in seen):
                time = problem.copy_ns[source][goal][tensor]
                if time is not None:
                    step = Copy(tensor, source, goal)
                    entry = (cost + time, len(queue) + count * len(seen), problem.devices[goal].memory, (*copies, step))
                    heapq.heappush(queue, entry)
    return None
