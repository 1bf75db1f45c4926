"""The judge of periodic schedules: runs many mini-batches one event after another, and believes nobody.

Shares no code with the planners. Naive on purpose: every task, transfer and life of a tensor is an interval of time.
"""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import msgspec

from remat_cli.base.errors import InvalidSchedule
from remat_cli.pipelines.plan.chain import MemoryModel, PeriodicSchedule, PipelineChain


class PipelineRun(msgspec.Struct, frozen=True):
    """What running a schedule showed.

    Attributes:
        normalized_period: steady time per mini-batch.
        peak_bytes: per device that has a layer.
        memory: per device, (time, bytes from then on), one entry per change.
        live: per layer, the most mini-batches between the start of its forward and the end of its backward.
    """

    normalized_period: Fraction
    peak_bytes: dict[int, int]
    memory: dict[int, tuple[tuple[int, int], ...]]
    live: tuple[int, ...]


class _Task(NamedTuple):
    batch: int
    task: int
    start: int
    end: int


def simulate_pipeline(chain: PipelineChain, schedule: PeriodicSchedule, model: MemoryModel) -> PipelineRun:
    """Run enough mini-batches for the steady state to show.

    Raises:
        InvalidSchedule: a task runs before what it needs, or a device or a link does two things at once.
    """
    _check_shape(chain, schedule)
    first = min(min(starts) for starts in schedule.starts)
    last = max(max(starts) for starts in schedule.starts) + max(chain.forward + chain.backward)
    in_pattern = len(schedule.starts)
    # Three times as many as can be under way at once, and ten more.
    batches = (3 * ((last - first) // schedule.period + 1) + 10) * in_pattern
    placed = [_placed(chain, schedule, batch) for batch in range(batches)]
    tasks, moves = [done for done, _ in placed], [moved for _, moved in placed]
    for done, moved in zip(tasks, moves, strict=True):
        for before, after in pairwise(done):
            steps = [before, *([moved[before.task]] if before.task in moved else []), after]
            for one, other in pairwise(steps):
                if other.start < one.end:
                    raise InvalidSchedule(
                        f"mini-batch {one.batch}: what follows task {before.task} starts at {other.start}, "
                        f"before {one.end}, when its input is there"
                    )
    _check_alone(chain, schedule, tasks, moves)
    memory = {device: _memory_of(device, chain, schedule, tasks, model) for device in sorted(set(schedule.devices))}
    ends = sorted(done[-1].end for done in tasks)
    return PipelineRun(
        Fraction(ends[-1] - ends[-1 - in_pattern], in_pattern),  # between completions a whole pattern apart, at the end
        {device: max(held for _, held in line) for device, line in memory.items()},
        memory,
        tuple(_most_alive(chain, tasks, layer) for layer in range(1, chain.layers + 1)),
    )


def _layer(chain: PipelineChain, task: int) -> int:
    """The layer that task 1..2n belongs to."""
    return task if task <= chain.layers else 2 * chain.layers + 1 - task


def _device(chain: PipelineChain, schedule: PeriodicSchedule, task: int) -> int:
    return schedule.devices[_layer(chain, task) - 1]


def _check_shape(chain: PipelineChain, schedule: PeriodicSchedule) -> None:
    tasks = 2 * chain.layers
    if schedule.period <= 0:
        raise InvalidSchedule(f"the period is {schedule.period}, not positive")
    if len(schedule.devices) != chain.layers:
        raise InvalidSchedule(f"{len(schedule.devices)} layers have a device, but there are {chain.layers} layers")
    if not schedule.starts or len(schedule.starts) != len(schedule.transfers):
        raise InvalidSchedule("each mini-batch of the pattern needs its starts and its transfers")
    for starts, transfers in zip(schedule.starts, schedule.transfers, strict=True):
        if len(starts) != tasks or len(transfers) != tasks - 1:
            raise InvalidSchedule(f"a mini-batch needs {tasks} starts and {tasks - 1} transfers")
        for task, start in enumerate(transfers, 1):
            apart = _device(chain, schedule, task) != _device(chain, schedule, task + 1)
            if apart != (start is not None):
                raise InvalidSchedule(f"after task {task} a transfer is {'missing' if apart else 'too many'}")


def _placed(chain: PipelineChain, schedule: PeriodicSchedule, batch: int) -> tuple[list[_Task], dict[int, _Task]]:
    """When the tasks of a mini-batch run, and its transfers, by the task before each."""
    rounds, place = divmod(batch, len(schedule.starts))
    later = rounds * schedule.period
    tasks = []
    for task, start in enumerate(schedule.starts[place], 1):
        times = chain.forward if task <= chain.layers else chain.backward
        tasks.append(_Task(batch, task, start + later, start + later + times[_layer(chain, task) - 1]))
    moves = {}
    for task, begin in enumerate(schedule.transfers[place], 1):
        if begin is not None:
            lower = min(_layer(chain, task), _layer(chain, task + 1))
            takes = chain.transfers[lower - 1] if task < chain.layers or chain.has_gradients else 0
            moves[task] = _Task(batch, task, begin + later, begin + later + takes)
    return tasks, moves


def _check_alone(
    chain: PipelineChain, schedule: PeriodicSchedule, tasks: list[list[_Task]], moves: list[dict[int, _Task]]
) -> None:
    """No device and no link does two things at once."""
    groups: dict[str, list[_Task]] = defaultdict(list)
    for task in (task for done in tasks for task in done):
        groups[f"device {_device(chain, schedule, task.task)}"].append(task)
    for move in (move for moved in moves for move in moved.values()):
        ends = sorted((_device(chain, schedule, move.task), _device(chain, schedule, move.task + 1)))
        groups[f"the link between devices {ends[0]} and {ends[1]}"].append(move)
    for place, group in groups.items():
        lasting = sorted((task for task in group if task.end > task.start), key=lambda task: task.start)
        for one, other in pairwise(lasting):
            if other.start < one.end:
                raise InvalidSchedule(
                    f"{place} does two things at time {other.start}: task {one.task} of mini-batch {one.batch} "
                    f"and task {other.task} of mini-batch {other.batch}"
                )


def _memory_of(
    device: int, chain: PipelineChain, schedule: PeriodicSchedule, tasks: list[list[_Task]], model: MemoryModel
) -> tuple[tuple[int, int], ...]:
    changes: dict[int, int] = defaultdict(int)
    for done in tasks:
        for start, end, held in _lives(device, chain, schedule, done, model):
            if start < end:
                changes[start] += held
                changes[end] -= held
    # Weights, and the buffers of transfers.
    held = sum(chain.copies * chain.weights[at] for at, where in enumerate(schedule.devices) if where == device)
    for layer, (here, there) in enumerate(pairwise(schedule.devices), 1):
        if model != "nca" and here != there and device in {here, there}:
            held += (2 if chain.has_gradients else 1) * chain.sizes[layer]
    line = [] if changes else [(0, held)]
    for time in sorted(changes):
        held += changes[time]
        line.append((time, held))
    return tuple(line)


def _lives(
    device: int, chain: PipelineChain, schedule: PeriodicSchedule, done: list[_Task], model: MemoryModel
) -> list[tuple[int, int, int]]:
    """(start, end, bytes) of all that one mini-batch holds on a device."""
    lives = []
    for task in done:
        if _device(chain, schedule, task.task) != device:
            continue
        layer = _layer(chain, task.task)
        is_forward = task.task <= chain.layers
        if is_forward:
            backward = done[2 * chain.layers - layer]
            lives.append((task.start, backward.end, chain.saved_bytes[layer - 1]))
        if model != "full":
            continue
        work = chain.forward_work_bytes if is_forward else chain.backward_work_bytes
        lives.append((task.start, task.end, work[layer - 1]))
        if task.task < len(done) and _device(chain, schedule, task.task + 1) == device:
            output = chain.sizes[layer] if is_forward else chain.sizes[layer - 1]
            lives.append((task.end, done[task.task].start, output))
    return lives


def _most_alive(chain: PipelineChain, tasks: list[list[_Task]], layer: int) -> int:
    changes: dict[int, int] = defaultdict(int)
    for done in tasks:
        changes[done[layer - 1].start] += 1
        changes[done[2 * chain.layers - layer].end] -= 1
    alive = most = 0
    for time in sorted(changes):
        alive += changes[time]
        most = max(most, alive)
    return most
