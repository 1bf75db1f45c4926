"""The CP-SAT model of placement: retention intervals with a memory each, for computes and for copies.

After Bartan et al., "Moccasin", ICML 2023, section 2, carried over to several devices: every step that may happen is an
event with a start and one literal per way to do it; what it makes is held from its start to its last read, in the
memory of the way that is taken; one event at a time; one cumulative per memory. A read takes some instance that lies
in the memory it reads from. The judge makes it take the newest there, which never needs more memory: where two
instances of one tensor in one memory overlap, dropping the older one and holding the newer one instead changes nothing.

A view that is computed holds the instance it was made from for as long as itself, and takes no memory; an op that works
in place holds its result from the event after its own. What the judge asks besides is left out, so with views and
in-place results the model may allow more than the judge, never less: its bounds hold, its schedules must be judged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ortools.sat.python import cp_model

from remat_cli.core.schedule.plan import Compute
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._precedence import make_events
from remat_cli.solvers.milp.cp_sat import OutOfTime
from remat_cli.solvers.placing.exact_parts import (
    Caps,
    Derived,
    Further,
    HeldInstance,
    InstanceRead,
    PlacementModel,
    Question,
    StepChoice,
    StepEvent,
)


def count_pairs(problem: Problem, caps: Caps) -> int:
    """How many literals of reads a model needs: what its size is made of."""
    made = [caps.computes[spec.producer] + caps.copies[x] for x, spec in enumerate(problem.tensors)]
    computes = sum(caps.computes[v] * made[x] for v, op in enumerate(problem.ops) for x in op.inputs)
    return computes + sum(copies * count for copies, count in zip(caps.copies, made, strict=True))


def build_model(question: Question, is_over: Callable[[], bool]) -> PlacementModel:
    """All variables, constraints, and the total time in time units as objective.

    Raises:
        OutOfTime: `is_over` says so before the model is complete.
    """
    builder = _Builder(question, is_over)
    builder.add_computes()
    builder.add_copies()
    builder.go_beyond()
    builder.add_instances()
    builder.keep_newest()
    builder.hold_weights()
    builder.pair_readers()
    builder.limit_memory()
    builder.run_one_at_a_time()
    builder.minimise_time()
    return builder.model()


@dataclass
class _Builder:
    """Collects variables and constraints family by family, in the order of `build_model`."""

    question: Question
    is_over: Callable[[], bool]
    cp: Any = field(default_factory=cp_model.CpModel)
    computes: list[tuple[StepEvent, ...]] = field(default_factory=list)
    copies: list[tuple[StepEvent, ...]] = field(default_factory=list)
    instances: list[tuple[HeldInstance, ...]] = field(default_factory=list)
    pairs: list[InstanceRead] = field(default_factory=list)
    held: dict[tuple[int, int], Any] = field(default_factory=dict)
    used: list[Any] = field(default_factory=list)
    entry: list[Any] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)
    more_computes: dict[int, Further] = field(default_factory=dict)
    more_copies: dict[int, Further] = field(default_factory=dict)
    reads_beyond: list[tuple[StepEvent, int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problem, self.horizon = self.question.problem, self.question.horizon
        self.sharing = {result for op in self.problem.ops for _, result in op.in_place}
        self.sharing |= {tensor for tensor, spec in enumerate(self.problem.tensors) if spec.view_of is not None}
        count = len(self.problem.ops)
        events = make_events(self.problem, range(count))
        self.before, self.after = ([bits.bit_count() for bits in side] for side in (events.before, events.after))
        if self.question.in_order:
            self.before, self.after = list(range(count)), list(reversed(range(count)))

    def model(self) -> PlacementModel:
        """The model that was built."""
        families = tuple(self.computes), tuple(self.copies), tuple(self.instances), tuple(self.pairs)
        calls = tuple(self.used), tuple(self.entry)
        return PlacementModel(self.question, self.cp, *families, self.held, *calls, tuple(self.derived))

    def check_time(self) -> None:
        """Stop building when time is up."""
        if self.is_over():
            raise OutOfTime

    def add_computes(self) -> None:
        """The computes of each op, the first of them always there, behind all that it cannot do without."""
        for op, count in enumerate(self.question.caps.computes):
            self.check_time()
            choices, reads, family = self.question.choices.computes[op], self.problem.ops[op].inputs, []
            for copy in range(count):
                first = self.before[op]
                last = self.horizon - self.after[op] if copy == 0 else self.horizon
                start = self.cp.new_int_var(first + copy, last, "")
                family.append(self._event((op, copy), reads, choices, (first + copy, start)))
            self.cp.add(family[0].present == 1)
            self._follow(family)
            self.computes.append(tuple(family))
        if self.question.in_order:
            for one, other in pairwise(self.computes):
                self.cp.add(one[0].start < other[0].start)

    def add_copies(self) -> None:
        """The copies of each tensor, behind the first compute of its producer."""
        for tensor, count in enumerate(self.question.caps.copies):
            self.check_time()
            choices, family = self.question.choices.copies[tensor], []
            first = self.before[self.problem.tensors[tensor].producer] + 1
            for copy in range(count):
                start = self.cp.new_int_var(first + copy, self.horizon, "")
                family.append(self._event((tensor, copy), (tensor,), choices, (first + copy, start)))
            self._follow(family)
            self.copies.append(tuple(family))

    def _event(
        self, name: tuple[int, int], reads: tuple[int, ...], choices: tuple[StepChoice, ...], start: tuple[int, Any]
    ) -> StepEvent:
        literals = tuple(self.cp.new_bool_var("") for _ in choices)
        present = self._any_of(literals)
        reading = self._by_memory([choice.source for choice in choices], literals)
        is_compute = isinstance(choices[0].step, Compute)
        making = reading if is_compute else self._by_memory([choice.target for choice in choices], literals)
        return StepEvent(*name, reads, *start, present, choices, literals, reading, making)

    def _by_memory(self, memories: list[int], literals: tuple[Any, ...]) -> dict[int, Any]:
        pairs = list(zip(memories, literals, strict=True))
        return {memory: self._any_of([lit for m, lit in pairs if m == memory]) for memory in sorted(set(memories))}

    def _any_of(self, literals: list[Any] | tuple[Any, ...]) -> Any:
        """A literal for "one of these", of which at most one is true."""
        if len(literals) == 1:
            return literals[0]
        found = self.cp.new_bool_var("")
        self.cp.add_exactly_one([*literals, found.negated()])
        self.derived.append(Derived(found, tuple(literals), any))
        return found

    def _follow(self, family: list[StepEvent]) -> None:
        """Events of one kind are taken in turn."""
        for earlier, later in pairwise(family):
            self.cp.add_implication(later.present, earlier.present)
            self.cp.add(earlier.start < later.start).only_enforce_if(later.present)

    def go_beyond(self) -> None:
        """With an excess: some op or tensor goes beyond its cap, which it has used up then."""
        excess = self.question.excess
        if excess is None:
            return
        self.more_computes = self._further(self.computes, excess.compute_ns)
        self.more_copies = self._further(self.copies, excess.copy_ns)
        self.cp.add_bool_or([f.literal for f in (*self.more_computes.values(), *self.more_copies.values())])

    def _further(self, families: list[tuple[StepEvent, ...]], costs_ns: tuple[int | None, ...]) -> dict[int, Further]:
        found = {}
        for index, (family, cost) in enumerate(zip(families, costs_ns, strict=True)):
            if cost is not None:
                found[index] = Further(self.cp.new_bool_var(""), family[-1] if family else None, cost)
                if family:
                    self.cp.add_implication(found[index].literal, family[-1].present)
        return found

    def add_instances(self) -> None:
        """What computes and copies make of each tensor."""
        for tensor, spec in enumerate(self.problem.tensors):
            self.check_time()
            family = []
            for event in (*self.computes[spec.producer], *self.copies[tensor]):
                end = self.cp.new_int_var(event.earliest, self.horizon, "")
                self.cp.add(end >= event.start)
                kept = self.cp.new_bool_var("") if spec.kept else None
                pairs = self.problem.ops[spec.producer].in_place if event.is_compute and spec.view_of is None else ()
                in_place = {source: self.cp.new_bool_var("") for source, result in pairs if result == tensor}
                born = event.start
                if in_place:
                    born = self.cp.new_int_var(event.earliest, self.horizon + 1, "")
                    self.cp.add(born == event.start + sum(in_place.values()))
                    self.cp.add_at_most_one([*in_place.values(), *([kept] if spec.kept else [])])
                length = self.cp.new_int_var(0, self.horizon + 1, "")
                self.cp.add(length == end + 1 - born)
                family.append(HeldInstance(tensor, event, end, born, length, kept, in_place))
            self.instances.append(tuple(family))

    def keep_newest(self) -> None:
        """The newest instance of a kept tensor, wherever it is, lasts to the last event."""
        for tensor, spec in enumerate(self.problem.tensors):
            if not spec.kept:
                continue
            family = self.instances[tensor]
            further = (self.more_computes.get(spec.producer), self.more_copies.get(tensor))
            self.cp.add_at_most_one([instance.kept for instance in family])
            self.cp.add_bool_or([*(i.kept for i in family), *(f.literal for f in further if f is not None)])
            for instance in family:
                self.cp.add_implication(instance.kept, instance.event.present)
                self.cp.add(instance.end == self.horizon).only_enforce_if(instance.kept)
                for other in family:
                    if other is not instance:
                        literals = [instance.kept, other.event.present]
                        self.cp.add(other.event.start < instance.event.start).only_enforce_if(literals)

    def hold_weights(self) -> None:
        """With several memories, one holds the weights of the ops that are computed there."""
        if len(self.problem.memories) == 1:
            return
        for op, family in enumerate(self.computes):
            for weight in dict.fromkeys(self.problem.ops[op].weights):
                for memory in family[0].making:
                    if (weight, memory) not in self.held:
                        self.held[weight, memory] = self.cp.new_bool_var("")
                    for event in family:
                        self.cp.add_implication(event.making[memory], self.held[weight, memory])

    def pair_readers(self) -> None:
        """Each event finds an instance of what it reads, live, in the memory it reads from."""
        for event in (event for family in (*self.computes, *self.copies) for event in family):
            self.check_time()
            for tensor in dict.fromkeys(event.reads):
                # Copies of a tensor are taken in turn: none reads a later one, nor itself.
                found = [
                    self._pair(event, instance)
                    for instance in self.instances[tensor]
                    if instance.event.is_compute or event.is_compute or instance.event.copy < event.copy
                ]
                self.pairs += found
                # Literals: an event reads what was made beyond a cap, and so after the last step within it.
                makers = [self.more_computes.get(self.problem.tensors[tensor].producer)]
                makers += [self.more_copies.get(tensor)] if event.is_compute else []
                beyond = []
                for maker in (maker for maker in makers if maker is not None):
                    literal = self.cp.new_bool_var("")
                    self.cp.add_implication(literal, maker.literal)
                    if maker.last is not None:
                        self.cp.add(maker.last.start < event.start).only_enforce_if(literal)
                    if tensor not in self.sharing:
                        self.reads_beyond.append((event, tensor, literal))
                    beyond.append(literal)
                self.cp.add_bool_or([*(pair.literal for pair in found), *beyond, event.present.negated()])

    def _pair(self, reader: StepEvent, instance: HeldInstance) -> InstanceRead:
        cp, literal, made = self.cp, self.cp.new_bool_var(""), instance.event
        cp.add_implication(literal, made.present)
        cp.add_implication(literal, reader.present)
        cp.add(made.start + 1 <= reader.start).only_enforce_if(literal)
        cp.add(reader.start <= instance.end).only_enforce_if(literal)
        for memory, reads in reader.reading.items():
            there = made.making.get(memory)
            cp.add_bool_or([literal.negated(), reads.negated(), *([] if there is None else [there])])
        pair = InstanceRead(reader, instance, literal)
        if reader.is_compute:
            # What a view or an in-place result asks of the instance that it shares storage with.
            source = pair.instance.tensor
            for tensor in self.problem.ops[pair.reader.index].outputs:
                result = self.instances[tensor][pair.reader.copy]
                if self.problem.tensors[tensor].view_of == source:
                    literals = [pair.literal, *([] if result.kept is None else [result.kept.negated()])]
                    self.cp.add(pair.instance.end >= result.end).only_enforce_if(literals)
                if source in result.in_place:
                    literals = [pair.literal, result.in_place[source]]
                    self.cp.add(pair.instance.end <= pair.reader.start).only_enforce_if(literals)
        return pair

    def limit_memory(self) -> None:
        """In each memory, what is held at an event stays within the budget."""
        units = self.question.units
        for memory, capacity in enumerate(units.capacities):
            self.check_time()
            demands: list[tuple[Any, int]] = []
            sizes = units.sizes[memory]
            for tensor, family in enumerate(self.instances):
                demands += [(self._interval(instance, memory), sizes[tensor]) for instance in family if sizes[tensor]]
            # What was made beyond a cap takes its bytes at least while it is read.
            read_beyond = [
                (self._at_start(reader, self._both(literal, reader.reading[memory])), sizes[tensor])
                for reader, tensor, literal in self.reads_beyond
                if memory in reader.reading and sizes[tensor]
            ]
            demands += [
                (self._at_start(event, literal), size)
                for family in self.computes
                for event in family
                for choice, literal in zip(event.choices, event.literals, strict=True)
                if choice.target == memory and (size := units.workspaces[event.index][choice.step.device])  # type: ignore[union-attr]
            ]
            demands += read_beyond
            for (weight, where), literal in self.held.items():
                if where == memory:
                    whole = self.cp.new_optional_fixed_size_interval_var(0, self.horizon + 1, literal, "")
                    demands.append((whole, units.weights[memory][weight]))
            there = [(interval, size) for interval, size in demands if interval is not None and size]
            self.cp.add_cumulative([interval for interval, _ in there], [size for _, size in there], capacity)

    def _interval(self, instance: HeldInstance, memory: int) -> Any:
        """The time in which an instance takes bytes of its own in a memory; None: it never does."""
        there = instance.event.making.get(memory)
        is_computed = instance.event.is_compute
        if there is not None and is_computed and self.problem.tensors[instance.tensor].view_of is not None:
            there = None if instance.kept is None else self._both(there, instance.kept)
        if there is None:
            return None
        return self.cp.new_optional_interval_var(instance.born, instance.length, instance.end + 1, there, "")

    def _both(self, one: Any, other: Any) -> Any:
        both = self.cp.new_bool_var("")
        self.cp.add_bool_or([one.negated(), other.negated(), both])
        self.cp.add_implication(both, one)
        self.cp.add_implication(both, other)
        self.derived.append(Derived(both, (one, other), all))
        return both

    def _at_start(self, event: StepEvent, literal: Any) -> Any:
        return self.cp.new_optional_fixed_size_interval_var(event.start, 1, literal, "")

    def run_one_at_a_time(self) -> None:
        """Copies have places of their own in the order, like computes."""
        events = (event for family in (*self.computes, *self.copies) for event in family)
        self.cp.add_no_overlap([self._at_start(event, event.present) for event in events])

    def minimise_time(self) -> None:
        """Time of all steps; of the calls that devices cost, one for each device used but the first."""
        events = [event for family in (*self.computes, *self.copies) for event in family]
        unit = self.question.units.time_unit
        terms = [
            choice.time_ns // unit * literal
            for event in events
            for choice, literal in zip(event.choices, event.literals, strict=True)
        ]
        if any(device.call_ns for device in self.problem.devices):
            self.used = [self.cp.new_bool_var("") for _ in self.problem.devices]
            self.entry = [self.cp.new_bool_var("") for _ in self.problem.devices]
            self.cp.add_exactly_one(self.entry)
            for entry, used in zip(self.entry, self.used, strict=True):
                self.cp.add_implication(entry, used)
            for event in (event for family in self.computes for event in family):
                for choice, literal in zip(event.choices, event.literals, strict=True):
                    self.cp.add_implication(literal, self.used[choice.step.device])  # type: ignore[union-attr]
            costs = [device.call_ns // unit for device in self.problem.devices]
            calls = [cost * (used - first) for cost, used, first in zip(costs, self.used, self.entry, strict=True)]
            terms += calls
        terms += [f.time_ns // unit * f.literal for f in (*self.more_computes.values(), *self.more_copies.values())]
        total = cp_model.LinearExpr.sum(terms)
        self.cp.minimize(total)
        excess = self.question.excess
        if excess is not None and excess.below_ns is not None:
            self.cp.add(total <= (excess.below_ns - 1) // unit)
