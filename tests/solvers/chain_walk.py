"""What a sequence of operations on a chain takes: the definition (Shilova 2021, ch. 2) that plans are held against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remat_cli.base.errors import InvalidSchedule
from remat_cli.solvers.chains.actions import Action, Chain


@dataclass(frozen=True)
class ChainRun:
    """What a sequence of operations takes: total time, and the largest memory during any of them."""

    time_ns: int
    peak_bytes: int


def follow(chain: Chain, actions: Iterable[Action]) -> ChainRun:
    """Run a sequence on the chain from its input and the last gradient to the gradient of its input.

    Plain on purpose: this is the definition, which tests hold every algorithm on chains against.

    Raises:
        InvalidSchedule: an operation lacks what it needs, or the sequence does not end with the first gradient.
    """
    walk = _Walk(chain)
    for number, action in enumerate(actions):
        walk.take(number, action)
    if walk.gradient != 0:
        raise InvalidSchedule(f"the sequence ends at the gradient of stage {walk.gradient}, not of the input")
    return ChainRun(walk.time_ns, walk.peak_bytes)


class _Walk:
    """What is stored, operation by operation: `bare` and `full` are the stages whose output or all is there."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.bare = {0}
        self.full: set[int] = set()
        self.gradient = chain.stages
        self.time_ns = 0
        self.peak_bytes = self.stored_bytes

    @property
    def stored_bytes(self) -> int:
        chain = self.chain
        values = sum(chain.value_bytes[stage] for stage in self.bare)
        return values + sum(chain.saved_bytes[stage] for stage in self.full) + chain.gradient_bytes[self.gradient]

    def take(self, number: int, action: Action) -> None:
        """One operation; `number` is its place, for the message."""
        lacks = self._lacks(action)
        if lacks:
            raise InvalidSchedule(f"operation {number} ({action.kind} {action.stage}): {lacks}")
        if action.kind == "back":
            self._back(action.stage)
        else:
            self._forward(action)

    def _lacks(self, action: Action) -> str | None:
        before, stage = action.stage - 1, action.stage
        if not 1 <= stage <= self.chain.stages:
            return "there is no such stage"
        if before not in self.bare and before not in self.full:
            return f"the output of stage {before} is not there"
        if action.kind == "back":
            is_ready = self.gradient == stage and stage in self.full
            return None if is_ready else "its gradient or what its forward saves is not there"
        if stage in self.bare or stage in self.full:
            return "its output is there already"
        if action.kind in ("move", "drop") and before not in self.bare:
            return f"the output of stage {before} is part of what its backward needs"
        return None

    def _forward(self, action: Action) -> None:
        chain, stage = self.chain, action.stage
        is_full = action.kind in ("all", "drop")
        made = chain.saved_bytes[stage] if is_full else chain.value_bytes[stage]
        extra = chain.saving_extra_bytes[stage] if is_full else chain.forward_extra_bytes[stage]
        self._spend(chain.forward_ns[stage], made + extra)
        (self.full if is_full else self.bare).add(stage)
        if action.kind in ("move", "drop"):
            self.bare.discard(stage - 1)

    def _back(self, stage: int) -> None:
        chain = self.chain
        self._spend(chain.backward_ns[stage], chain.gradient_bytes[stage - 1] + chain.backward_extra_bytes[stage])
        self.gradient = stage - 1
        self.full.discard(stage)
        self.bare.discard(stage - 1)

    def _spend(self, time_ns: int, more_bytes: int) -> None:
        self.time_ns += time_ns
        self.peak_bytes = max(self.peak_bytes, self.stored_bytes + more_bytes)
