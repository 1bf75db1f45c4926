"""A problem for several devices seen from one memory: the one-device problem of doing all there, and back again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from remat_cli.core.problem import Device, Memory, OpSpec, Problem
from remat_cli.core.schedule import Compute, Copy, Schedule, Step

Choice = Callable[[int], int | None]
"""The device for an op, None where none will do."""


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
        for op in schedule.op_ids():
            device = self.devices[op]
            if self.original.devices[device].memory == self.memory:
                steps.append(Compute(op, device))
                continue
            spec = self.original.ops[op]
            if op not in ran:
                steps += [self._copy(tensor, self._side(op), device) for tensor in spec.inputs]
                steps.append(Compute(op, device))
            steps += [self._copy(tensor, device, self._side(op)) for tensor in spec.outputs]
            ran.add(op)
        return Schedule(tuple(steps))

    def _side(self, op: int) -> int:
        """Any device of the home memory."""
        return next(d for d, device in enumerate(self.original.devices) if device.memory == self.memory)

    @staticmethod
    def _copy(tensor: int, source: int, target: int) -> Copy:
        return Copy(tensor, source, target)


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
        made = _own_op(problem, op, device) if device is not None else _foreign_op(problem, op, own[0])
        if made is None:
            return None
        ops.append(made[0])
        chosen.append(made[1])
    return Home(_one_device(problem, memory, ops, foreign), problem, memory, tuple(chosen))


def _fastest(problem: Problem, op: int, devices: Sequence[int]) -> int | None:
    """The fastest of these devices whose step fits the memory alone, else the one that needs least workspace."""
    spec = problem.ops[op]
    free = problem.memories[problem.devices[devices[0]].memory].free_bytes
    ends = {*spec.inputs, *spec.outputs}
    held = sum(problem.tensors[t].size_bytes for t in ends if problem.tensors[t].view_of not in ends)
    able = [(held + spec.workspace_bytes[d] > free, time, d) for d in devices if (time := spec.time_ns[d]) is not None]
    return min(able)[2] if able else None


def _own_op(problem: Problem, op: int, device: int) -> tuple[OpSpec, int]:
    spec = problem.ops[op]
    changed = msgspec.structs.replace(
        spec, time_ns=(spec.time_ns[device],), workspace_bytes=(spec.workspace_bytes[device],), energy_nj=()
    )
    return changed, device


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


def _one_device(problem: Problem, memory: int, ops: list[OpSpec], foreign: Sequence[bool]) -> Problem:
    """Weights of the ops run here are fixed; what a foreign op makes has storage of its own."""
    spec = problem.memories[memory]
    fixed = spec.fixed_bytes
    if len(problem.memories) > 1:
        held = {w for op, is_foreign in enumerate(foreign) if not is_foreign for w in problem.ops[op].weights}
        fixed += sum(problem.weight_bytes[w] for w in held)
    tensors = tuple(
        msgspec.structs.replace(tensor, view_of=None) if foreign[tensor.producer] else tensor
        for tensor in problem.tensors
    )
    return Problem(
        ops=tuple(ops),
        tensors=tensors,
        memories=(Memory(spec.name, spec.budget_bytes, fixed),),
        devices=(Device(spec.name, 0),),
        weight_bytes=problem.weight_bytes,
    )
