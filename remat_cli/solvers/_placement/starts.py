"""Placements that ignore budgets: the best cut between two memories, and the plain references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remat_cli.base.errors import ModelError
from remat_cli.core.placing import fastest, placed_schedule
from remat_cli.core.problem import Problem
from remat_cli.core.schedule import Compute, Schedule

_NEVER = 2**50  # ns; more than any schedule takes


def plain_starts(problem: Problem) -> Iterator[Schedule]:
    """All on each device as far as it can, all on its fastest device, and the cheapest cut between the memories.

    Where a value cannot be copied to where it is read there are no copies, and the schedule is not legal.
    """
    for device in range(len(problem.devices)):
        yield _placed(
            problem,
            [device if op.time_ns[device] is not None else fastest(problem, i) for i, op in enumerate(problem.ops)],
        )
    yield _placed(problem, [fastest(problem, op) for op in range(len(problem.ops))])
    if len(problem.memories) == 2 and len(problem.devices) == 2:
        yield _placed(problem, cut_labels(problem))


def _placed(problem: Problem, devices: Sequence[int]) -> Schedule:
    try:
        return placed_schedule(problem, devices)
    except ModelError:
        return Schedule(tuple(Compute(op, device) for op, device in enumerate(devices)))


def cut_labels(problem: Problem) -> list[int]:
    """The device of each op that makes times and copies together least, memory aside, for two devices.

    Every op runs once and a value is copied at most once, so this is a minimum cut: an op on the side of the sink
    runs on device 1, and a value has a place of its own for each direction that is cut once for all its readers.
    Polynomial (preflow push). Stone 1977, Multiprocessor scheduling with the aid of network flow algorithms.
    """
    from ortools.graph.python import max_flow

    flow = max_flow.SimpleMaxFlow()
    count, tensors = len(problem.ops), len(problem.tensors)
    source, sink = count + 2 * tensors, count + 2 * tensors + 1
    for op, spec in enumerate(problem.ops):
        times = [_NEVER if time is None else time for time in spec.time_ns]
        flow.add_arc_with_capacity(source, op, times[1])
        flow.add_arc_with_capacity(op, sink, times[0])
    for tensor, value in enumerate(problem.tensors):
        there, back = problem.copy_ns[0][1][tensor], problem.copy_ns[1][0][tensor]
        to_one, to_zero = count + tensor, count + tensors + tensor
        flow.add_arc_with_capacity(value.producer, to_one, _NEVER if there is None else there)
        flow.add_arc_with_capacity(to_zero, value.producer, _NEVER if back is None else back)
    for op, spec in enumerate(problem.ops):
        for tensor in spec.inputs:
            flow.add_arc_with_capacity(count + tensor, op, _NEVER)
            flow.add_arc_with_capacity(op, count + tensors + tensor, _NEVER)
    flow.solve(source, sink)
    side = set(flow.get_source_side_min_cut())
    return [0 if op in side else 1 for op in range(count)]
