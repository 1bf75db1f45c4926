"""What ops and copies need on each of several memories, in small integers: the ground under bounds for devices.

Devices that use one memory count as one, which takes the least time and workspace of any of them. A storage is counted
as in `_bounds.pressure`, by class. A copy of a view opens a storage of the view's own size, and the last instance of a
kept tensor may be such a copy, so the one that its op made may share a storage after all. Therefore the root of a class
counts no more bytes than its smallest view, and an op that makes a kept tensor counts as repeatable: then both facts of
`_bounds.pressure` hold in each memory, since a copy shares with nothing.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from remat_cli.core.schedule.floor import storage_root
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.solvers.bounds.pressure import Pressure, make_pressure

# Floating-point engines go wrong, silently, on larger figures.
_MOST_UNITS = 1_000_000
_MOST_TIME_UNITS = 1_000_000_000


@dataclass(frozen=True)
class Room:
    """One memory: bytes of a class by its root, of a step of each op, of each weight, of each kept tensor (others 0).

    All in units, rounded down; `capacity` is rounded up. Without `is_limited` everything fits at once, once.
    """

    weight: tuple[int, ...]
    working: tuple[int, ...]
    fixed: tuple[int, ...]
    outputs: tuple[int, ...]
    capacity: int
    is_limited: bool

    def holds(self, problem: Problem, op: int) -> bool:
        """Whether a step of an op fits by itself, with its weights."""
        return self.working[op] + sum(self.fixed[w] for w in set(problem.ops[op].weights)) <= self.capacity


@dataclass(frozen=True)
class Rooms:
    """A problem by memory: `times[v][m]` and `copies[x][s][m]` in units of `time_unit` ns, None where impossible.

    An op has no time in a memory that cannot hold its step.
    """

    problem: Problem
    rooms: tuple[Room, ...]
    times: tuple[tuple[int | None, ...], ...]
    copies: tuple[tuple[tuple[int | None, ...], ...], ...]
    time_unit: int
    class_of: tuple[int, ...]
    own: tuple[frozenset[int], ...]
    readers: tuple[tuple[int, ...], ...]

    @property
    def has_stranded_op(self) -> bool:
        """Whether some op fits nowhere."""
        return any(all(time is None for time in times) for times in self.times)

    def producer(self, tensor: int) -> int:
        """The op that makes a tensor."""
        return self.problem.tensors[tensor].producer

    def links(self, tensor: int) -> Iterator[tuple[int, int, int]]:
        """Source and target memory and time of each possible copy of a tensor."""
        for source, row in enumerate(self.copies[tensor]):
            for target, time in enumerate(row):
                if time is not None:
                    yield source, target, time


def make_rooms(problem: Problem, is_exact: bool = False) -> Rooms:
    """Measure a problem with several memories; `is_exact` figures are divided by their common divisors only."""
    pressures = [make_pressure(one_memory(problem, memory)) for memory in range(len(problem.memories))]
    rooms = tuple(_room(problem, pressure, is_exact) for pressure in pressures)
    times = [
        [_time(problem, op, m) if room.holds(problem, v) else None for m, room in enumerate(rooms)]
        for v, op in enumerate(problem.ops)
    ]
    devices = [_devices(problem, memory) for memory in range(len(problem.memories))]
    copies = [
        [
            [_least(problem.copy_ns[s][t][x] for s in of for t in to) if of is not to else None for to in devices]
            for of in devices
        ]
        for x in range(len(problem.tensors))
    ]
    rows = (*times, *(row for table in copies for row in table))
    unit = math.gcd(*(time for row in rows for time in row if time)) or 1
    base = sum(_least(row) or 0 for row in times)
    if not is_exact and base // unit > _MOST_TIME_UNITS:
        unit = -(-base // _MOST_TIME_UNITS)
    return Rooms(
        problem=problem,
        rooms=rooms,
        times=tuple(_in_units(row, unit) for row in times),
        copies=tuple(tuple(_in_units(row, unit) for row in table) for table in copies),
        time_unit=unit,
        class_of=pressures[0].class_of,
        own=pressures[0].own,
        readers=pressures[0].readers,
    )


def one_memory(problem: Problem, memory: int) -> Problem:
    """The problem of one device as fast as any of this memory's and as modest; nothing is said about weights."""
    devices = _devices(problem, memory)
    return msgspec.structs.replace(
        problem,
        ops=tuple(
            loose_op(
                problem,
                op,
                _time(problem, op, memory) or 0,
                min((op.workspace_bytes[d] for d in devices if op.time_ns[d] is not None), default=0),
            )
            for op in problem.ops
        ),
        tensors=shrunk_tensors(problem),
        memories=(problem.memories[memory],),
        devices=(Device(problem.memories[memory].name, 0),),
        copy_ns=(),
        copy_energy_nj=(),
        overlap=False,
    )


def shrunk_tensors(problem: Problem) -> tuple[TensorSpec, ...]:
    """Tensors of which a root is no larger than any view of it, which may be copied by itself."""
    least = [spec.size_bytes for spec in problem.tensors]
    for tensor in range(len(least)):
        root = storage_root(problem, tensor)
        least[root] = min(least[root], problem.tensors[tensor].size_bytes)
    return tuple(
        msgspec.structs.replace(spec, size_bytes=size) for spec, size in zip(problem.tensors, least, strict=True)
    )


def loose_op(problem: Problem, op: OpSpec, time_ns: int, workspace_bytes: int) -> OpSpec:
    """An op on one device, repeatable if it makes a kept tensor, see above."""
    return msgspec.structs.replace(
        op,
        time_ns=(time_ns,),
        workspace_bytes=(workspace_bytes,),
        repeatable=op.repeatable or any(problem.tensors[tensor].kept for tensor in op.outputs),
        energy_nj=(),
    )


def _devices(problem: Problem, memory: int) -> list[int]:
    return [number for number, device in enumerate(problem.devices) if device.memory == memory]


def _time(problem: Problem, op: OpSpec, memory: int) -> int | None:
    return _least(op.time_ns[device] for device in _devices(problem, memory))


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _room(problem: Problem, pressure: Pressure, is_exact: bool) -> Room:
    """Figures of a memory in common units."""
    fixed = problem.weight_bytes if len(problem.memories) > 1 else (0,) * len(problem.weight_bytes)
    weight = [value * pressure.byte_unit for value in pressure.weight]
    working = [value * pressure.byte_unit for value in pressure.working]
    roots = set(pressure.class_of)
    most = sum(weight[root] for root in roots) + max(working, default=0) + sum(fixed)
    free = pressure.problem.memories[0].free_bytes
    outputs = [spec.size_bytes if spec.kept else 0 for spec in problem.tensors]
    most += sum(outputs)
    capacity = min(free, most)
    coarse = max(1, -(-capacity // _MOST_UNITS))
    unit = (math.gcd(*weight, *working, *fixed, *outputs) or 1) if is_exact else coarse
    return Room(
        weight=tuple(value // unit for value in weight),
        working=tuple(value // unit for value in working),
        fixed=tuple(value // unit for value in fixed),
        outputs=tuple(value // unit for value in outputs),
        capacity=-(-capacity // unit),
        is_limited=free < most,
    )


def _in_units(times: Sequence[int | None], unit: int) -> tuple[int | None, ...]:
    return tuple(None if time is None else time // unit for time in times)


def merged_problem(problem: Problem) -> Problem:
    """All memories as one: its bounds hold for all devices, with least times, all budgets together and no copies.

    Take any schedule for several memories and drop its copies and devices. What the bounds for one device use of it
    holds:

    1. Reads. Where an op reads x, take the instance that it reads, which was made from one that op(x) made by copies,
       each of which reads the one before. One of these is in some memory at every step from that run of op(x) on. So
       at each step between the newest run of op(x) and a read of x, or the end for kept x, x is in some memory. Runs
       and first runs are those of the schedule, so rows about the order of first runs, and what is recomputed in
       between, hold.
    2. Memory. At the step of op v the memories together hold `working` of v and an instance of each other class that
       is present, in a storage of its own, of at least the weight of the class (see above). Kept tensors end in
       storages of their own. Each weight of an op is in some memory all through, besides all fixed parts.
    3. Time. Computes run one after the other, also beside copies, and take at least the least time of any device.
    """
    # All budgets, as far as they can be used, with what is fixed in any of them, and each weight once.
    several = len(problem.memories) > 1
    used = {weight for op in problem.ops for weight in op.weights} if several else set()
    fixed = sum(memory.fixed_bytes for memory in problem.memories) + sum(problem.weight_bytes[w] for w in used)
    sizes = 2 * sum(tensor.size_bytes for tensor in problem.tensors)
    usable = sizes + max((max(op.workspace_bytes) for op in problem.ops), default=0)
    all_rooms = Memory("all", min(sum(memory.budget_bytes for memory in problem.memories), fixed + usable), fixed)
    return msgspec.structs.replace(
        problem,
        ops=tuple(fastest_op(problem, op) for op in problem.ops),
        tensors=shrunk_tensors(problem) if len(problem.memories) > 1 else problem.tensors,
        memories=(all_rooms,),
        devices=(Device("all", 0),),
        copy_ns=(),
        copy_energy_nj=(),
        overlap=False,
    )


def fastest_op(problem: Problem, op: OpSpec) -> OpSpec:
    """An op at its least time and with its least workspace."""
    able = [device for device, time in enumerate(op.time_ns) if time is not None]
    time_ns, workspace = min(op.time_ns[d] or 0 for d in able), min(op.workspace_bytes[d] for d in able)
    if len(problem.memories) > 1:
        return loose_op(problem, op, time_ns, workspace)
    return msgspec.structs.replace(op, time_ns=(time_ns,), workspace_bytes=(workspace,), energy_nj=())
