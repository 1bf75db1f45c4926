"""What the stages of a chain take, by running each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from remat_cli.core.problem import Problem
from remat_cli.solvers._chains.actions import Chain
from remat_cli.solvers._chains.cuts import Net


@dataclass(frozen=True)
class Stages:
    """Ops by stage; entry 0 of `forward` runs once before everything, and entry 0 of `backward` is empty.

    `once` are the forward ops that are never repeated.
    """

    problem: Problem
    net: Net
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    boundaries: tuple[tuple[int, int], ...]
    once: frozenset[int]

    @property
    def count(self) -> int:
        """N."""
        return len(self.forward) - 1

    @cached_property
    def resident(self) -> frozenset[int]:
        """Tensors that count as held all through: kept, never repeated, made before everything, or read far away."""
        block_of = {op: block for block, ops in enumerate(self._blocks) for op in ops}
        homes = {op: {block} for op, block in block_of.items()}
        for stage, (value, gradient) in enumerate(self.boundaries, 1):
            homes[value] |= {stage + 1, self._backward_block(stage + 1)}
            homes[gradient].add(self._backward_block(stage))
        for stage, ops in enumerate(self.forward):
            for op in ops:
                homes[op].add(self._backward_block(stage))
        return frozenset(t for t in range(len(self.problem.tensors)) if self._is_resident(t, block_of, homes))

    @property
    def _blocks(self) -> tuple[tuple[int, ...], ...]:
        """In running order: what runs before everything, forward 1 to N, backward N to 1."""
        return (*self.forward, *reversed(self.backward[1:]))

    def _backward_block(self, stage: int) -> int:
        return 2 * self.count + 1 - stage

    def _is_resident(self, tensor: int, block_of: dict[int, int], homes: dict[int, set[int]]) -> bool:
        spec = self.problem.tensors[tensor]
        op = spec.producer
        is_forward_once = block_of[op] <= self.count and not self.problem.ops[op].repeatable
        if spec.kept or is_forward_once or block_of[op] == 0:
            return True
        readers = (r for r in self.net.readers[op] if tensor in self.problem.ops[r].inputs)
        return any(block_of[r] not in homes[op] for r in readers)


def make_chain(stages: Stages) -> Chain:
    """Times and bytes of every stage."""
    costs = [_Costs(stages, stage) for stage in range(1, stages.count + 1)]
    first_ns = _time(stages.problem, stages.forward[0])
    return Chain(
        forward_ns=(0, *(cost.forward_ns for cost in costs)),
        backward_ns=(0, costs[0].backward_ns + first_ns, *(cost.backward_ns for cost in costs[1:])),
        value_bytes=(0, *(cost.value_bytes for cost in costs)),
        saved_bytes=(0, *(cost.saved_bytes for cost in costs)),
        gradient_bytes=(*(cost.gradient_bytes for cost in costs), 0),
        forward_extra_bytes=(0, *(cost.forward_extra_bytes for cost in costs)),
        saving_extra_bytes=(0, *(cost.saving_extra_bytes for cost in costs)),
        backward_extra_bytes=(0, *(cost.backward_extra_bytes for cost in costs)),
    )


class _Costs:
    """One stage run alone; what is resident counts nothing here."""

    def __init__(self, stages: Stages, stage: int) -> None:
        self.stages, self.problem = stages, stages.problem
        forward, backward = stages.forward[stage], stages.backward[stage]
        once = [op for op in forward if op in stages.once]
        self.forward_ns = _time(self.problem, [op for op in forward if op not in stages.once])
        self.backward_ns = _time(self.problem, (*backward, *once))
        is_last = stage == stages.count
        beyond = backward if is_last else (*stages.forward[stage + 1], *stages.backward[stage + 1])
        value = self._read_by(forward[-1] if is_last else stages.boundaries[stage - 1][0], beyond)
        saved = value.union(*(self._read_by(op, backward) for op in forward))
        before = stages.backward[stage - 1] if stage > 1 else ()
        gradient = self._read_by(stages.boundaries[stage - 2][1], before) if stage > 1 else frozenset()
        self.value_bytes, self.saved_bytes = self._bytes(value), self._bytes(saved)
        self.gradient_bytes = self._bytes(gradient)
        first = self._workspace(stages.forward[0]) if stage == 1 else 0
        self.forward_extra_bytes = max(first, self._peak(forward, value)) - self.value_bytes
        self.saving_extra_bytes = max(first, self._peak(forward, saved)) - self.saved_bytes
        self.backward_extra_bytes = self._peak(backward, gradient) - self.gradient_bytes

    def _read_by(self, op: int, readers: Sequence[int]) -> frozenset[int]:
        """Outputs of an op that are read there."""
        close = set(self.stages.net.readers[op]).intersection(readers)
        return frozenset(t for t in self.problem.ops[op].outputs if any(t in self.problem.ops[r].inputs for r in close))

    def _bytes(self, tensors: frozenset[int]) -> int:
        return sum(self.problem.tensors[t].size_bytes for t in tensors - self.stages.resident)

    def _workspace(self, ops: Sequence[int]) -> int:
        return max((self.problem.ops[op].workspace_bytes[0] for op in ops), default=0)

    def _peak(self, ops: Sequence[int], held: frozenset[int]) -> int:
        """The most that the results of these ops take while they run in order and `held` stays; at least `held`."""
        last_read: dict[int, int] = {}
        for place, op in enumerate(ops):
            last_read.update(dict.fromkeys(self.problem.ops[op].inputs, place))
        ends: list[int] = [0] * len(ops)
        live, peak = 0, self._bytes(held)
        for place, op in enumerate(ops):
            for tensor in self.problem.ops[op].outputs:
                size = self._bytes(frozenset((tensor,)))
                live += size
                if tensor not in held:
                    ends[last_read.get(tensor, place)] += size
            peak = max(peak, live + self.problem.ops[op].workspace_bytes[0])
            live -= ends[place]
        return peak


def _time(problem: Problem, ops: Sequence[int]) -> int:
    return sum(problem.ops[op].time_ns[0] or 0 for op in ops)
