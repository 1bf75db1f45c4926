"""All memories as one: bounds for one device hold for several, with least times, all budgets together and no copies.

Take any schedule for several memories and drop its copies and devices. What the bounds for one device use of it holds:

1. Reads. Where an op reads x, take the instance that it reads, which was made from one that op(x) made by copies, each
   of which reads the one before. One of these is in some memory at every step from that run of op(x) on. So at each
   step between the newest run of op(x) and a read of x, or the end for kept x, x is in some memory. Runs and first runs
   are those of the schedule, so rows about the order of first runs, and what is recomputed in between, hold.
2. Memory. At the step of op v the memories together hold `working` of v and an instance of each other class that is
   present, in a storage of its own, of at least the weight of the class (`_bounds.devices_rooms`). Kept tensors end in
   storages of their own. Each weight of an op is in some memory all through, besides all fixed parts.
3. Time. Computes run one after the other, also beside copies, and take at least the least time of any device.
"""

from __future__ import annotations

import msgspec

from remat_cli.core.problem import Device, Memory, OpSpec, Problem
from remat_cli.solvers._bounds.devices_rooms import loose_op, shrunk_tensors


def merged_problem(problem: Problem) -> Problem:
    """One device whose bounds hold for all devices of a problem."""
    return msgspec.structs.replace(
        problem,
        ops=tuple(_fastest(problem, op) for op in problem.ops),
        tensors=shrunk_tensors(problem) if len(problem.memories) > 1 else problem.tensors,
        memories=(_together(problem),),
        devices=(Device("all", 0),),
        copy_ns=(),
        copy_energy_nj=(),
        overlap=False,
    )


def _fastest(problem: Problem, op: OpSpec) -> OpSpec:
    """An op at its least time and with its least workspace."""
    able = [device for device, time in enumerate(op.time_ns) if time is not None]
    time_ns, workspace = min(op.time_ns[d] or 0 for d in able), min(op.workspace_bytes[d] for d in able)
    if len(problem.memories) > 1:
        return loose_op(problem, op, time_ns, workspace)
    return msgspec.structs.replace(op, time_ns=(time_ns,), workspace_bytes=(workspace,), energy_nj=())


def _together(problem: Problem) -> Memory:
    """All budgets, as far as they can be used, with what is fixed in any of them, and each weight once."""
    several = len(problem.memories) > 1
    used = {weight for op in problem.ops for weight in op.weights} if several else set()
    fixed = sum(memory.fixed_bytes for memory in problem.memories) + sum(problem.weight_bytes[w] for w in used)
    sizes = 2 * sum(tensor.size_bytes for tensor in problem.tensors)
    usable = sizes + max((max(op.workspace_bytes) for op in problem.ops), default=0)
    return Memory("all", min(sum(memory.budget_bytes for memory in problem.memories), fixed + usable), fixed)
