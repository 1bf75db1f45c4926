"""Where a search for placements begins: plain placements, and problems of one device below one of several.

Of these problems, all in one memory or of devices that share theirs, `lift` brings a schedule back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.placing import fastest, placed_schedule
from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.bounds.devices import SINK, SOURCE, CutNetwork
from remat_cli.solvers.bounds.devices_rooms import fastest_op

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
    network = CutNetwork(_NEVER)
    first, to_one, to_zero = (network.nodes(len(nodes)) for nodes in (problem.ops, problem.tensors, problem.tensors))
    for op, spec in enumerate(problem.ops):
        network.pay(SOURCE, first + op, spec.time_ns[1])
        network.pay(first + op, SINK, spec.time_ns[0])
        for tensor in spec.inputs:
            network.pay(to_one + tensor, first + op, None)
            network.pay(first + op, to_zero + tensor, None)
    for tensor, value in enumerate(problem.tensors):
        network.pay(first + value.producer, to_one + tensor, problem.copy_ns[0][1][tensor])
        network.pay(to_zero + tensor, first + value.producer, problem.copy_ns[1][0][tensor])
    ones = network.ones()
    return [0 if first + op in ones else 1 for op in range(len(problem.ops))]


@dataclass(frozen=True)
class Home:
    """`problem` is that of one device; `devices[op]` is the device that stands for it."""

    problem: Problem
    original: Problem
    memory: int
    devices: tuple[int, ...]

    def lift(self, schedule: Schedule) -> Schedule:
        """The same on the devices of the original; what a foreign op made is copied again where it was repeated."""
        steps: list[Step] = []
        ran: set[int] = set()
        side = next(d for d, device in enumerate(self.original.devices) if device.memory == self.memory)
        for op in schedule.op_ids():
            device = self.devices[op]
            if self.original.devices[device].memory == self.memory:
                steps.append(Compute(op, device))
                continue
            spec = self.original.ops[op]
            if op not in ran:
                steps += [Copy(tensor, side, device) for tensor in spec.inputs]
                steps.append(Compute(op, device))
            steps += [Copy(tensor, device, side) for tensor in spec.outputs]
            ran.add(op)
        return Schedule(tuple(steps))


def make_home(problem: Problem, memory: int) -> Home | None:
    """All in one memory, each op on its fastest device there; other ops run elsewhere and all they touch is copied.

    None where a value cannot be copied.
    """
    own = [d for d, device in enumerate(problem.devices) if device.memory == memory]
    if not own:
        return None
    devices = [_fastest(problem, op, own) for op in range(len(problem.ops))]
    foreign = [device is None for device in devices]
    ops: list[OpSpec] = []
    chosen: list[int] = []
    for op, device in enumerate(devices):
        made = _foreign_op(problem, op, own[0]) if device is None else (_on_device(problem.ops[op], device), device)
        if made is None:
            return None
        ops.append(made[0])
        chosen.append(made[1])
    # Weights of the ops run here are fixed; what a foreign op makes has storage of its own.
    spec = problem.memories[memory]
    fixed = spec.fixed_bytes
    if len(problem.memories) > 1:
        held = {w for op, is_foreign in enumerate(foreign) if not is_foreign for w in problem.ops[op].weights}
        fixed += sum(problem.weight_bytes[w] for w in held)
    tensors = tuple(
        msgspec.structs.replace(tensor, view_of=None) if foreign[tensor.producer] else tensor
        for tensor in problem.tensors
    )
    home_problem = _one_device(problem, tuple(ops), tensors, Memory(spec.name, spec.budget_bytes, fixed))
    return Home(home_problem, problem, memory, tuple(chosen))


def _fastest(problem: Problem, op: int, devices: Sequence[int]) -> int | None:
    """The fastest of these devices whose step fits the memory alone, else the one that needs least workspace."""
    spec = problem.ops[op]
    free = problem.memories[problem.devices[devices[0]].memory].free_bytes
    ends = {*spec.inputs, *spec.outputs}
    held = sum(problem.tensors[t].size_bytes for t in ends if problem.tensors[t].view_of not in ends)
    able = [(held + spec.workspace_bytes[d] > free, time, d) for d in devices if (time := spec.time_ns[d]) is not None]
    return min(able)[2] if able else None


def _foreign_op(problem: Problem, op: int, side: int) -> tuple[OpSpec, int] | None:
    """An op that no device of the memory can run: to another device and back."""
    spec = problem.ops[op]
    best: tuple[int, int] | None = None
    for device, time in enumerate(spec.time_ns):
        if time is None:
            continue
        there = [problem.copy_ns[side][device][t] for t in spec.inputs]
        back = [problem.copy_ns[device][side][t] for t in spec.outputs]
        copies = [*there, *back]
        if None not in copies:
            best = min(best or (2**62, 0), (time + sum(t for t in copies if t is not None), device))
    if best is None:
        return None
    made = OpSpec(spec.inputs, spec.outputs, (best[0],), (0,), repeatable=spec.repeatable or not spec.inputs)
    return made, best[1]


def relaxed_problem(problem: Problem) -> Problem:
    """Devices of one memory as one with the least time and workspace of any for each op; its bounds hold for all."""
    return _one_device(
        problem, tuple(fastest_op(problem, op) for op in problem.ops), problem.tensors, problem.memories[0]
    )


def single_problem(problem: Problem, device: int) -> Problem | None:
    """The same on one of the devices, None if it cannot run an op."""
    if any(op.time_ns[device] is None for op in problem.ops):
        return None
    ops = tuple(_on_device(op, device) for op in problem.ops)
    return _one_device(problem, ops, problem.tensors, problem.memories[0])


def lift(problem: Problem, relaxed: Problem, schedule: Schedule) -> Schedule | None:
    """The devices that run these ops, in this order, in least time within the budget; None if there are none.

    Changing devices costs the call of the new one, so this is a shortest path through (step, device): steps times
    devices squared (Viterbi 1967). Only devices whose workspace fits beside what is live at a step are used.
    """
    ops = schedule.op_ids()
    live = simulate(relaxed, schedule).live_bytes[0]
    budget = problem.memories[0].budget_bytes
    devices = range(len(problem.devices))
    cost: dict[int, int] = {}
    came: list[dict[int, int]] = []
    for op, held in zip(ops, live, strict=True):
        spec = problem.ops[op]
        able = [d for d in devices if spec.time_ns[d] is not None and held + spec.workspace_bytes[d] <= budget]
        if not able:
            return None
        # Least time up to here when this step runs on a device, and the device before it.
        before = {
            d: min(
                ((time + (problem.devices[d].call_ns if last != d else 0), last) for last, time in cost.items()),
                default=(0, d),
            )
            for d in able
        }
        came.append({d: before[d][1] for d in able})
        cost = {d: before[d][0] + (spec.time_ns[d] or 0) for d in able}
    # Back from the device that ends soonest.
    device = min(cost, key=lambda d: (cost[d], d))
    path = []
    for choice in reversed(came):
        path.append(device)
        device = choice[device]
    return Schedule(tuple(map(Compute, ops, path[::-1])))


def _on_device(op: OpSpec, device: int) -> OpSpec:
    time_ns, workspace_bytes = op.time_ns[device] or 0, op.workspace_bytes[device]
    return msgspec.structs.replace(op, time_ns=(time_ns,), workspace_bytes=(workspace_bytes,), energy_nj=())


def _one_device(problem: Problem, ops: tuple[OpSpec, ...], tensors: tuple[TensorSpec, ...], memory: Memory) -> Problem:
    return Problem(ops, tensors, (memory,), (Device(memory.name, 0),), weight_bytes=problem.weight_bytes)
