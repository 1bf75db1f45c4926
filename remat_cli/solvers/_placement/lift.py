"""Devices that share one memory: the one-device problem below all of them, and the best devices for its schedules."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remat_cli.core.problem import Device, OpSpec, Problem
from remat_cli.core.schedule import Compute, Schedule
from remat_cli.core.simulate import simulate


def relaxed_problem(problem: Problem) -> Problem:
    """One device that runs each op in its least time and its least workspace; its bounds hold for all of them."""
    return _one_device(problem, tuple(_relaxed(op) for op in problem.ops))


def single_problem(problem: Problem, device: int) -> Problem | None:
    """The same on one of the devices, None if it cannot run an op."""
    if any(op.time_ns[device] is None for op in problem.ops):
        return None
    return _one_device(
        problem, tuple(_with_cost(op, op.time_ns[device] or 0, op.workspace_bytes[device]) for op in problem.ops)
    )


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
    for number, (op, held) in enumerate(zip(ops, live, strict=True)):
        spec = problem.ops[op]
        able = [d for d in devices if spec.time_ns[d] is not None and held + spec.workspace_bytes[d] <= budget]
        if not able:
            return None
        before = {d: _cheapest(problem, cost, d) if number else (0, d) for d in able}
        came.append({d: before[d][1] for d in able})
        cost = {d: before[d][0] + (spec.time_ns[d] or 0) for d in able}
    return Schedule(tuple(map(Compute, ops, _path(cost, came))))


def _cheapest(problem: Problem, cost: dict[int, int], device: int) -> tuple[int, int]:
    """Least time up to here when the next step runs on a device, and the device before it."""
    call = problem.devices[device].call_ns
    return min((time + (call if before != device else 0), before) for before, time in cost.items())


def _path(cost: dict[int, int], came: Sequence[dict[int, int]]) -> list[int]:
    device = min(cost, key=lambda d: (cost[d], d))
    path = []
    for choice in reversed(came):
        path.append(device)
        device = choice[device]
    return path[::-1]


def _relaxed(op: OpSpec) -> OpSpec:
    able = [d for d, time in enumerate(op.time_ns) if time is not None]
    return _with_cost(op, min(op.time_ns[d] or 0 for d in able), min(op.workspace_bytes[d] for d in able))


def _with_cost(op: OpSpec, time_ns: int, workspace_bytes: int) -> OpSpec:
    return msgspec.structs.replace(op, time_ns=(time_ns,), workspace_bytes=(workspace_bytes,), energy_nj=())


def _one_device(problem: Problem, ops: tuple[OpSpec, ...]) -> Problem:
    memory = problem.memories[0]
    return Problem(
        ops=ops,
        tensors=problem.tensors,
        memories=(memory,),
        devices=(Device(memory.name, 0),),
        weight_bytes=problem.weight_bytes,
    )
