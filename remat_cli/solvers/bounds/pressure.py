"""What must be in memory at a step in any schedule, in small integers: the ground under all lower bounds.

Storage is counted by class: a tensor and the views of it, found by following `view_of` to its root. Two facts make
sums over classes valid, whatever a schedule does:

1. An instance lies in a storage of at least `weight` bytes of its class. A storage is as large as the result that
   opened it: the root of the class; a kept view, whose last instance has a buffer of its own; or, for an in-place
   result, the source it took over. The weight is the least of these.
2. At the step of an op, instances of two classes lie in different storages, unless both classes are among those of
   the op's inputs and outputs. Instances of different classes share a storage only through an in-place step, and then
   the older ones die in that very step, whose op reads the one class and makes the other.

So memory at a step is at least `working` of its op plus the weights of all other classes with an instance in memory.
An op's own classes count in `working` only: inputs once per class, and an output only where it can share with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from remat_cli.core.schedule.floor import storage_root
from remat_cli.core.schedule.problem import OpSpec, Problem
from remat_cli.solvers._precedence import readers_of

# MIP solvers in floating point return wrong bounds, silently, when capacities are given in raw bytes.
_FLOAT_CAPACITY = 1_000_000

Item = TypeVar("Item")


@dataclass(frozen=True)
class Pressure:
    """Weights, working sets and the budget in units of `byte_unit` bytes, times in units of `time_unit` ns.

    `class_of[x]` is the root of tensor x; `weight[x]` is meant for roots. `own[v]` are the classes that op v reads or
    makes, `working[v]` the least they take while it runs, workspace included.
    """

    problem: Problem
    class_of: tuple[int, ...]
    weight: tuple[int, ...]
    working: tuple[int, ...]
    own: tuple[frozenset[int], ...]
    capacity: int
    times: tuple[int, ...]
    time_unit: int
    readers: tuple[tuple[int, ...], ...]
    byte_unit: int = 1

    @property
    def kept(self) -> list[int]:
        """Tensors that live to the end."""
        return [tensor for tensor, spec in enumerate(self.problem.tensors) if spec.kept]

    def producer(self, tensor: int) -> int:
        """The op that makes a tensor."""
        return self.problem.tensors[tensor].producer

    def for_floats(self) -> Pressure:
        """A relaxation with small numbers: needs rounded down, the budget rounded up."""
        unit = -(-self.capacity // _FLOAT_CAPACITY)
        if unit <= 1:
            return self
        return replace(
            self,
            weight=tuple(weight // unit for weight in self.weight),
            working=tuple(working // unit for working in self.working),
            capacity=-(-self.capacity // unit),
        )

    def live(self) -> list[int]:
        """For each op, the least memory at its first computation if nothing is ever recomputed."""
        count = len(self.problem.ops)
        change = [0] * (count + 1)
        # Per class with weight, (producer, last use) of its tensors; kept tensors are used after the last op.
        all_spans: dict[int, list[tuple[int, int]]] = {}
        for tensor, root in enumerate(self.class_of):
            uses = self.uses(tensor)
            if self.weight[root] > 0 and len(uses) > 1:
                all_spans.setdefault(root, []).append((uses[0], uses[-1]))
        for root, spans in all_spans.items():
            end = -1
            for first, last in sorted(spans):
                start, stop = max(first + 1, end), max(last, end)  # events covered before count once
                change[start] += self.weight[root]
                change[min(stop, count)] -= self.weight[root]
                end = stop
        beside = accumulate(change[:-1])
        # For each op the weight of the classes that it touches itself and that live across it.
        touched = [0] * len(self.problem.ops)
        for op, roots in enumerate(self.own):
            for root in roots:
                if any(first < op < last for first, last in all_spans.get(root, ())):
                    touched[op] += self.weight[root]
        return [
            working + around - inside for working, around, inside in zip(self.working, beside, touched, strict=True)
        ]

    def worst_events(self, share: float, count: int) -> list[int]:
        """The worst of each of `count` blocks of the events that need more than this share of the capacity."""
        live = self.live()
        critical = [event for event, need in enumerate(live) if need > share * self.capacity]
        count = min(count, len(critical))
        blocks = [critical[i * len(critical) // count : (i + 1) * len(critical) // count] for i in range(count)]
        return [max(block, key=live.__getitem__) for block in blocks]

    def events_within(self, terms: int) -> int:
        """How many events have rows of about so many terms together, one for each tensor that lives across; not 0."""
        ops = max(1, len(self.problem.ops))
        across = sum(uses[-1] - uses[0] for uses in map(self.uses, range(len(self.class_of)))) // ops
        return max(8, terms // max(1, across))

    def uses(self, tensor: int) -> list[int]:
        """Events that need a tensor: its producer, its readers, and the end (the number of ops) if it is kept."""
        end = [len(self.problem.ops)] if self.problem.tensors[tensor].kept else []
        return [self.producer(tensor), *self.readers[tensor], *end]

    def by_class(self, items: Iterable[tuple[int, Item]]) -> dict[int, list[Item]]:
        """What belongs to tensors, by class; what belongs to classes without weight is dropped."""
        found: dict[int, list[Item]] = {}
        for tensor, item in items:
            root = self.class_of[tensor]
            if self.weight[root] > 0:
                found.setdefault(root, []).append(item)
        return found

    def is_surely_too_much(self) -> bool:
        """Whether one step, or the end with all kept tensors in buffers of their own, exceeds the budget."""
        outputs = sum(self.problem.tensors[tensor].size_bytes for tensor in self.kept)
        return max(self.working) > self.capacity or outputs > self.problem.memories[0].free_bytes


def make_pressure(problem: Problem) -> Pressure:
    """Measure a one-device problem; bytes and times are divided by their greatest common divisors."""
    class_of = tuple(storage_root(problem, tensor) for tensor in range(len(problem.tensors)))
    # Least bytes of a storage that holds an instance, the same for all tensors of a class.
    least = [0] * len(problem.tensors)
    sources = {o: [i for i, r in op.in_place if r == o] for op in problem.ops for o in op.outputs}
    for tensor in sorted(range(len(least)), key=lambda t: problem.tensors[t].producer):
        spec = problem.tensors[tensor]
        shared = [least[spec.view_of]] if spec.view_of is not None else [least[s] for s in sources[tensor]]
        own = [spec.size_bytes] if spec.view_of is None or spec.kept else []
        least[tensor] = min(own + shared)
    by_root: dict[int, int] = {}
    for tensor, root in enumerate(class_of):
        by_root[root] = min(least[tensor], by_root.get(root, least[tensor]))
    weight = [by_root[root] for root in class_of]
    working = [_working_bytes(problem, op, class_of, weight) for op in problem.ops]
    times = [op.time_ns[0] or 0 for op in problem.ops]
    unit, time_unit = math.gcd(*weight, *working) or 1, math.gcd(*times) or 1
    return Pressure(
        problem=problem,
        class_of=class_of,
        weight=tuple(value // unit for value in weight),
        working=tuple(value // unit for value in working),
        own=tuple(frozenset(class_of[tensor] for tensor in (*op.inputs, *op.outputs)) for op in problem.ops),
        capacity=problem.memories[0].free_bytes // unit,
        times=tuple(time // time_unit for time in times),
        time_unit=time_unit,
        readers=tuple(map(tuple, readers_of(problem))),
        byte_unit=unit,
    )


def _working_bytes(problem: Problem, op: OpSpec, class_of: tuple[int, ...], weight: list[int]) -> int:
    """Least bytes of an op's step, in whichever of its runs; workspace included."""
    total = op.workspace_bytes[0] + sum(weight[root] for root in {class_of[tensor] for tensor in op.inputs})
    taken: set[int] = set()
    for output in op.outputs:
        spec = problem.tensors[output]
        is_last_run = spec.kept and not op.repeatable  # only the last instance of a kept tensor shares with nothing
        if spec.view_of is not None and not is_last_run:
            continue
        source = next((i for i, o in op.in_place if o == output and i not in taken), None)
        if source is not None and not is_last_run:
            taken |= set() if spec.kept else {source}
            continue
        total += spec.size_bytes
    return total
