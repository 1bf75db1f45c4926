"""What the exact form of placement decides about: steps, how often and in what units; and its families of variables."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from remat_cli.core.schedule.floor import working_set_bytes
from remat_cli.core.schedule.plan import Compute, Copy, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.milp.cp_sat import Units


@dataclass(frozen=True)
class StepChoice:
    """One way to do something: a step, what it takes, the memory it reads and the memory it writes."""

    step: Step
    time_ns: int
    source: int
    target: int


@dataclass(frozen=True)
class Choices:
    """All useful ways: `computes[v]` per op and device, `copies[x]` per tensor and pair of memories.

    Left out are devices on which the working set of an op does not fit, copies of what nobody reads, and of several
    copies between two memories all but the fastest: no best schedule needs them.
    """

    computes: tuple[tuple[StepChoice, ...], ...]
    copies: tuple[tuple[StepChoice, ...], ...]


@dataclass(frozen=True)
class Caps:
    """How often op v may be computed and tensor x copied."""

    computes: tuple[int, ...]
    copies: tuple[int, ...]

    @property
    def total(self) -> int:
        """Steps of the longest schedule."""
        return sum(self.computes) + sum(self.copies)


def make_choices(problem: Problem) -> Choices:
    """The steps worth deciding about."""
    read = {tensor for op in problem.ops for tensor in op.inputs}
    wanted = [tensor in read or spec.kept for tensor, spec in enumerate(problem.tensors)]
    # an instance that is not the newest shares storage even if its tensor is kept, so the working set is without those
    unkept = tuple(msgspec.structs.replace(tensor, kept=False) for tensor in problem.tensors)
    sharing = msgspec.structs.replace(problem, tensors=unkept)
    several = len(problem.memories) > 1
    computes = []
    for index, op in enumerate(problem.ops):
        need = working_set_bytes(sharing, op)
        need += sum(problem.weight_bytes[weight] for weight in set(op.weights)) if several else 0
        family = []
        for device, time in enumerate(op.time_ns):
            memory = problem.devices[device].memory
            if time is not None and need + op.workspace_bytes[device] <= problem.memories[memory].free_bytes:
                family.append(StepChoice(Compute(index, device), time, memory, memory))
        computes.append(tuple(family))
    return Choices(
        tuple(computes),
        tuple(tuple(_copy_choices(problem, tensor)) if wanted[tensor] else () for tensor in range(len(wanted))),
    )


def _copy_choices(problem: Problem, tensor: int) -> Iterator[StepChoice]:
    best: dict[tuple[int, int], StepChoice] = {}
    for source, row in enumerate(problem.copy_ns):
        for target, times in enumerate(row):
            time, ends = times[tensor], (problem.devices[source].memory, problem.devices[target].memory)
            if time is None or ends[0] == ends[1]:
                continue
            if ends not in best or time < best[ends].time_ns:
                best[ends] = StepChoice(Copy(tensor, source, target), time, *ends)
    size = problem.tensors[tensor].size_bytes
    for ends, choice in sorted(best.items()):
        if all(size <= problem.memories[memory].free_bytes for memory in ends):
            yield choice


@dataclass(frozen=True)
class Costs:
    """What bounds how often a step can be worth it.

    `least_ns` is what each op once costs at least; `compute_ns[v]` and `copy_ns[x]` are what one more of a kind costs
    at least, None where there cannot be (one) more.
    """

    least_ns: int
    compute_ns: tuple[int | None, ...]
    copy_ns: tuple[int | None, ...]

    def caps(self, count: int, best_ns: int | None) -> Caps:
        """At most `count` of each kind, and no more than a schedule of at most `best_ns` can have room for."""
        return Caps(
            tuple(1 + _room(cost, count - 1, best_ns, self.least_ns) for cost in self.compute_ns),
            tuple(_room(cost, count, best_ns, self.least_ns) for cost in self.copy_ns),
        )

    def beyond_ns(self, caps: Caps) -> int | None:
        """What a schedule costs at least that exceeds some cap; None: there is no such schedule.

        It computes some op v at least caps.computes[v] times more than once, or copies some tensor once too often;
        and it computes every op once.
        """
        computes = [cost * cap for cost, cap in zip(self.compute_ns, caps.computes, strict=True) if cost is not None]
        copies = [cost * (cap + 1) for cost, cap in zip(self.copy_ns, caps.copies, strict=True) if cost is not None]
        return self.least_ns + min(computes + copies) if computes or copies else None


def make_costs(problem: Problem, choices: Choices) -> Costs:
    """Costs of a problem each of whose ops has a choice."""
    least = [min(choice.time_ns for choice in family) for family in choices.computes]
    wanted = {tensor for op in problem.ops for tensor in op.inputs} | {
        tensor for tensor, spec in enumerate(problem.tensors) if spec.kept
    }
    again = [op.repeatable and not wanted.isdisjoint(op.outputs) for op in problem.ops]
    return Costs(
        least_ns=sum(least),
        compute_ns=tuple(time if useful else None for time, useful in zip(least, again, strict=True)),
        copy_ns=tuple(min(c.time_ns for c in family) if family else None for family in choices.copies),
    )


def _room(cost_ns: int | None, count: int, best_ns: int | None, least_ns: int) -> int:
    if cost_ns is None:
        return 0
    if best_ns is None or cost_ns == 0:
        return count
    return min(count, max(0, best_ns - least_ns) // cost_ns)


@dataclass(frozen=True)
class Excess:
    """Asks for schedules that go beyond some cap and take less than `below_ns` (None: any time).

    `compute_ns[v]` and `copy_ns[x]` are what the first step beyond a cap costs at least, None where there is none.
    """

    compute_ns: tuple[int | None, ...]
    copy_ns: tuple[int | None, ...]
    below_ns: int | None


@dataclass(frozen=True)
class Question:
    """What a model is of; `in_order` asks for first computes in baseline order.

    With an `excess` it is a relaxation: of what happens beyond a cap no more is asked than that it happens after the
    last step within it, and costs at least once; readers may take its results wherever they are, and these take bytes
    only while they are read.
    """

    problem: Problem
    choices: Choices
    caps: Caps
    units: Units
    in_order: bool
    excess: Excess | None = None

    @property
    def horizon(self) -> int:
        """The number of the last event."""
        return self.caps.total - 1


@dataclass(frozen=True)
class StepEvent:
    """Number `copy` of the computes of an op, or of the copies of a tensor; `index` is that op or tensor.

    `literals` stand beside `choices`; `reading[m]` and `making[m]` say which memory is read and written.
    """

    index: int
    copy: int
    reads: tuple[int, ...]
    earliest: int
    start: Any
    present: Any
    choices: tuple[StepChoice, ...]
    literals: tuple[Any, ...]
    reading: dict[int, Any]
    making: dict[int, Any]

    @property
    def is_compute(self) -> bool:
        """Whether this is a compute, not a copy."""
        return isinstance(self.choices[0].step, Compute)


@dataclass(frozen=True)
class HeldInstance:
    """What an event makes of one tensor: held from `born` to `end`.

    `born` is the start, or the event after it where the op works in place on tensor s and `in_place[s]` is true.
    `kept` is the literal "this one lasts to the end", for tensors that are kept; `length` is of its interval.
    """

    tensor: int
    event: StepEvent
    end: Any
    born: Any
    length: Any
    kept: Any
    in_place: dict[int, Any]


@dataclass(frozen=True)
class Further:
    """Literal: there are computes, or copies, beyond a cap, after `last`; `time_ns` is what one costs at least."""

    literal: Any
    last: StepEvent | None
    time_ns: int


@dataclass(frozen=True)
class InstanceRead:
    """Literal: `reader` takes its input from `instance`."""

    reader: StepEvent
    instance: HeldInstance
    literal: Any


@dataclass(frozen=True)
class Derived:
    """A literal that follows from others: true if any of them is, or if all are."""

    literal: Any
    parts: tuple[Any, ...]
    rule: Callable[[Iterable[bool]], bool]


@dataclass(frozen=True)
class PlacementModel:
    """A built model. `computes[v][i]`, `copies[x][j]`; instances[x] by computes, then by copies; all other variables.

    `held[w, m]` says that memory m holds weight w; `used[d]` that device d computes, `entry[d]` that it does so first.
    """

    question: Question
    cp: Any
    computes: tuple[tuple[StepEvent, ...], ...]
    copies: tuple[tuple[StepEvent, ...], ...]
    instances: tuple[tuple[HeldInstance, ...], ...]
    pairs: tuple[InstanceRead, ...]
    held: dict[tuple[int, int], Any]
    used: tuple[Any, ...]
    entry: tuple[Any, ...]
    derived: tuple[Derived, ...]

    @property
    def events(self) -> list[StepEvent]:
        """All events: computes, then copies."""
        return [event for family in (*self.computes, *self.copies) for event in family]
