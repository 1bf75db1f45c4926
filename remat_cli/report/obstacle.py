"""Why no plan on several devices can stay within its budgets: an op that fits in no memory."""

from __future__ import annotations

import msgspec

from remat_cli.core.floor import working_set_bytes
from remat_cli.core.problem import OpSpec, Problem
from remat_cli.report.placed import PlacedPlan


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """An op, and the least bytes that each memory in which it could run would have to hold meanwhile."""

    op: str
    op_type: str
    needs: dict[str, int]


def find_obstacle(placed: PlacedPlan) -> Obstacle | None:
    """The op furthest above the budget of every memory in which it could run; None where each op fits somewhere."""
    problem, found = placed.problem, []
    for index, op in enumerate(problem.ops[placed.given :]):
        needs = _needs(problem, op, placed.given)
        excess = min(need - problem.memories[memory].budget_bytes for memory, need in needs.items())
        if excess > 0:
            found.append((excess, -index, needs))
    if not found:
        return None
    _, negative, needs = max(found, key=lambda entry: entry[:2])
    op_node = placed.graph.ops[-negative]
    named = {problem.memories[memory].name: need for memory, need in needs.items()}
    return Obstacle(op=op_node.name, op_type=op_node.op_type, needs=named)


def _needs(problem: Problem, op: OpSpec, given: int) -> dict[int, int]:
    """Least total bytes of each memory while the op runs there."""
    workspace: dict[int, int] = {}
    for device, time in enumerate(op.time_ns):
        if time is not None:
            memory, bytes_ = problem.devices[device].memory, op.workspace_bytes[device]
            workspace[memory] = min(workspace.get(memory, bytes_), bytes_)
    return {memory: bytes_ + _held(problem, op, memory, given) for memory, bytes_ in workspace.items()}


def _held(problem: Problem, op: OpSpec, memory: int, given: int) -> int:
    """What lies in a memory beside workspace; model inputs are in the fixed part of the caller's memory already."""
    held = problem.memories[memory].fixed_bytes + working_set_bytes(problem, op)
    if len(problem.memories) > 1:
        held += sum(problem.weight_bytes[weight] for weight in op.weights)
    if problem.memories[memory].fixed_bytes:
        held -= sum(problem.tensors[tensor].size_bytes for tensor in op.inputs if tensor < given)
    return held
