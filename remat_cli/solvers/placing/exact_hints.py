"""Schedules to hints and solutions to schedules, for the exact model of placement."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from remat_cli.base.errors import InvalidSchedule
from remat_cli.core.schedule.plan import Compute, Copy, Plan, Schedule, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.solvers.placing.exact_parts import Caps, Choices, PlacementModel


def counts_of(problem: Problem, schedule: Schedule) -> Caps:
    """How often a schedule computes each op and copies each tensor."""
    computes = Counter(step.op for step in schedule.steps if isinstance(step, Compute))
    copies = Counter(step.tensor for step in schedule.steps if isinstance(step, Copy))
    return Caps(
        tuple(computes[op] for op in range(len(problem.ops))),
        tuple(copies[tensor] for tensor in range(len(problem.tensors))),
    )


def expressible(problem: Problem, choices: Choices, schedule: Schedule) -> Schedule | None:
    """The schedule with each copy in its fastest way and without useless steps; None if that is illegal."""
    steps: list[Step] = []
    for step in schedule.steps:
        if isinstance(step, Compute):
            able = [choice for choice in choices.computes[step.op] if choice.step == step]
        else:
            ends = problem.devices[step.source].memory, problem.devices[step.target].memory
            able = [choice for choice in choices.copies[step.tensor] if (choice.source, choice.target) == ends]
        steps += [choice.step for choice in able[:1]]
    found = Schedule(tuple(steps))
    try:
        simulate(problem, found)
    except InvalidSchedule:
        return None
    return found


def add_hint(model: PlacementModel, plan: Plan) -> None:
    """Hint every variable of the model from a judged schedule of its steps, within its caps."""
    hint = _Hint(model, plan)
    hint.place_steps()
    hint.hold_values()
    hint.pair_readers()
    hint.derive()
    for variable, value in hint.values.values():
        model.cp.add_hint(variable, value)


class _Hint:
    """Values of all variables, by the variable's number."""

    def __init__(self, model: PlacementModel, plan: Plan) -> None:
        self.model, self.plan = model, plan
        self.values: dict[int, tuple[Any, int]] = {}
        # The event that each step is: those of an op or tensor are taken in turn.
        computes, copies = [iter(family) for family in model.computes], [iter(family) for family in model.copies]
        self.event_of_step = [
            next(computes[step.op] if isinstance(step, Compute) else copies[step.tensor])
            for step in plan.schedule.steps
        ]
        self.step_of = {id(event): number for number, event in enumerate(self.event_of_step)}
        self.newest = {instance.tensor: value for value, instance in enumerate(plan.instances)}
        self.value_at = {(i.birth, i.tensor): value for value, i in enumerate(plan.instances)}

    def put(self, variable: Any, value: int) -> None:
        """Give a variable of the model its value in the hint."""
        self.values[variable.index] = (variable, int(value))

    def place_steps(self) -> None:
        """An event that happens does so at the number of its step; the others take no place."""
        for event in self.model.events:
            number = self.step_of.get(id(event))
            step = None if number is None else self.plan.schedule.steps[number]
            self.put(event.start, event.earliest if number is None else number)
            for choice, literal in zip(event.choices, event.literals, strict=True):
                self.put(literal, choice.step == step)
        devices = [step.device for step in self.plan.schedule.steps if isinstance(step, Compute)]
        for device, (used, entry) in enumerate(zip(self.model.used, self.model.entry, strict=True)):
            self.put(used, device in devices)
            self.put(entry, devices[:1] == [device])

    def hold_values(self) -> None:
        """Ends of all instances, an absent one at once; and the weights that lie where they are needed."""
        # Last event at which each value is held; what a view was made from is held as long as the view.
        problem, horizon = self.model.question.problem, self.model.question.horizon
        ends = [each.death for each in self.plan.instances]
        for each in range(len(ends) - 1, -1, -1):
            own = self.plan.instances[each]
            kind, is_newest = problem.tensors[own.tensor], self.newest[own.tensor] == each
            if kind.kept and is_newest:
                ends[each] = horizon
            elif kind.view_of is not None and isinstance(self.plan.schedule.steps[own.birth], Compute):
                base = self._read(own.birth, kind.view_of)
                ends[base] = max(ends[base], ends[each])
        for instance in (instance for family in self.model.instances for instance in family):
            number = self.step_of.get(id(instance.event))
            value = None if number is None else self.value_at[number, instance.tensor]
            end = instance.event.earliest if value is None else ends[value]
            shared = None if value is None else self._overwritten(value)
            for source, literal in instance.in_place.items():
                self.put(literal, source == shared)
            born = self.values[instance.event.start.index][1] + (shared is not None and bool(instance.in_place))
            if instance.in_place:
                self.put(instance.born, born)
            self.put(instance.end, end)
            self.put(instance.length, end + 1 - born)
            if instance.kept is not None:
                self.put(instance.kept, value == self.newest.get(instance.tensor))
        problem, steps = self.model.question.problem, self.plan.schedule.steps
        there = {
            (weight, problem.devices[step.device].memory)
            for step in steps
            if isinstance(step, Compute)
            for weight in problem.ops[step.op].weights
        }
        for place, literal in self.model.held.items():
            self.put(literal, place in there)

    def _read(self, number: int, tensor: int) -> int:
        """The value that a step reads of a tensor."""
        return self.plan.reads[number][self.event_of_step[number].reads.index(tensor)]

    def _overwritten(self, value: int) -> int | None:
        """The tensor in whose place this value was computed, if it was."""
        instance = self.plan.instances[value]
        problem, step = self.model.question.problem, self.plan.schedule.steps[instance.birth]
        if isinstance(step, Compute) and problem.tensors[instance.tensor].view_of is None:
            for source, result in problem.ops[step.op].in_place:
                read = self.plan.instances[self._read(instance.birth, source)]
                if result == instance.tensor and read.storage == instance.storage:
                    return source
        return None

    def pair_readers(self) -> None:
        """Each step reads the newest value, as the judge has it."""
        for pair in self.model.pairs:
            number = self.step_of.get(id(pair.reader))
            made = None if number is None else self._read(number, pair.instance.tensor)
            birth = None if made is None else self.plan.instances[made].birth
            self.put(pair.literal, birth is not None and birth == self.step_of.get(id(pair.instance.event)))

    def derive(self) -> None:
        """Literals that follow from others, in the order in which they were made."""
        for derived in self.model.derived:
            self.put(derived.literal, derived.rule(bool(self.values[part.index][1]) for part in derived.parts))


def read_steps(steps: dict[Step, int], model: PlacementModel, value: Callable[[Any], int]) -> list[int]:
    """Numbers in `steps` of the steps of a solution, in the order of their events."""
    found = [
        (value(event.start), steps[choice.step])
        for event in model.events
        for choice, literal in zip(event.choices, event.literals, strict=True)
        if value(literal)
    ]
    return [step for _, step in sorted(found)]
