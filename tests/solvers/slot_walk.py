"""What a sequence of the unit-slot model takes: its definition, which the solvers' sequences are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_cli.base.errors import InvalidSchedule
from remat_cli.solvers.chains.revolve import SlotAction


@dataclass(frozen=True)
class SlotCosts:
    """What the forward and the backward of a layer and the loss take."""

    forward: int = 1
    backward: int = 1
    loss: int = 1


UNIT_COSTS = SlotCosts()


@dataclass(frozen=True)
class SlotRun:
    """What a sequence takes: total time and the most slots in use after any step.

    `gradients` are the branches whose input gradient is there at the end.
    """

    time: int
    peak_slots: int
    gradients: frozenset[int]


def follow_join(lengths: Sequence[int], actions: Iterable[SlotAction], costs: SlotCosts = UNIT_COSTS) -> SlotRun:
    """Run a sequence from the inputs of the branches to all their backwards.

    Raises:
        InvalidSchedule: an operation lacks what it needs, or a backward is missing at the end.
    """
    walk = _Walk(costs, Counter((branch, 0) for branch in range(len(lengths))), {})
    return walk.run(actions, lengths)


def follow_backwards(length: int, actions: Iterable[SlotAction], costs: SlotCosts = UNIT_COSTS) -> SlotRun:
    """Run a sequence on one branch from its input and the gradient of its end.

    Raises:
        InvalidSchedule: an operation lacks what it needs, or a backward is missing at the end.
    """
    return _Walk(costs, Counter([(0, 0)]), {0: length}).run(actions, (length,))


class _Walk:
    """What is stored, operation by operation: copies of each layer's output, and the gradient of each branch."""

    def __init__(self, costs: SlotCosts, values: Counter[tuple[int, int]], gradients: dict[int, int]) -> None:
        self.costs, self.values, self.gradients = costs, values, gradients
        self.dropped: set[int] = set()
        self.time = 0

    @property
    def slots(self) -> int:
        return self.values.total() + len(self.gradients)

    def run(self, actions: Iterable[SlotAction], lengths: Sequence[int]) -> SlotRun:
        peak = self.slots
        for number, action in enumerate(actions):
            if not self._take(action, lengths):
                name = f"{action.kind} of layer {action.layer} in branch {action.branch}"
                raise InvalidSchedule(f"operation {number} ({name}) lacks what it needs")
            peak = max(peak, self.slots)
        for branch in range(len(lengths)):
            if self.gradients.get(branch) != 0 and branch not in self.dropped:
                raise InvalidSchedule(f"the sequence does not reach the gradient of the input of branch {branch}")
        return SlotRun(self.time, peak, frozenset(self.gradients))

    def _take(self, action: SlotAction, lengths: Sequence[int]) -> bool:
        """Apply one operation; whether it could run."""
        branch, layer = action.branch, action.layer
        match action.kind:
            case "copy":
                self.values[branch, layer] += 1
                return self.values[branch, layer] > 1
            case "advance":
                self.values[branch, layer] += 1
                self.time += self.costs.forward
                return 1 <= layer <= lengths[branch] and self._consume(branch, layer - 1)
            case "back":
                self.time += self.costs.backward
                is_ready = layer >= 1 and self.gradients.get(branch) == layer
                self.gradients[branch] = layer - 1
                return is_ready and self._consume(branch, layer - 1)
            case "drop":
                self.dropped.add(branch)
                return self.gradients.pop(branch, None) == 0
            case "loss":
                return self._run_loss(lengths)

    def _run_loss(self, lengths: Sequence[int]) -> bool:
        if self.gradients or self.dropped:
            return False
        self.time += self.costs.loss
        self.gradients = dict(enumerate(lengths))
        return all(self._consume(branch, length) for branch, length in enumerate(lengths))

    def _consume(self, branch: int, layer: int) -> bool:
        self.values[branch, layer] -= 1
        return self.values[branch, layer] >= 0
