"""A plan that spans devices, cut into what can be run: sessions on one device each, and copies between memories.

A session holds what it is given until it ends and makes what outlives it as buffers of its own, so a cut plan may need
more memory than its schedule. It is judged here by the same judge: each segment is a problem of its own. Where a memory
overflows, segments are cut again, since an op alone holds nothing but what it reads and makes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from remat_cli.core.plan import Plan
from remat_cli.core.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule import Compute, Copy, Schedule
from remat_cli.core.simulate import fixed_bytes_of, simulate


class Segment(msgspec.Struct, frozen=True):
    """Computes of one device that run in one session, by their steps in the schedule.

    `imports` are the instances it reads that were made before it, `exports` those it makes that are read later or are
    model outputs. `drops` are the instances that nobody needs once it is over.
    """

    device: int
    steps: tuple[int, ...]
    imports: tuple[int, ...] = ()
    exports: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()


class Transfer(msgspec.Struct, frozen=True):
    """One copy: a step of the schedule, the instance it reads and the one it makes; `drops` as in a segment."""

    step: int
    source: int
    target: int
    drops: tuple[int, ...] = ()


Action = Segment | Transfer


class Cut(msgspec.Struct, frozen=True):
    """What is run, in order. `memory_bytes[m][a]` is the most that memory m holds during action a, in bytes."""

    actions: tuple[Action, ...]
    memory_bytes: tuple[tuple[int, ...], ...]

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The largest of each memory's bytes."""
        return tuple(max(curve, default=0) for curve in self.memory_bytes)

    @property
    def segments(self) -> int:
        """How many sessions there are."""
        return sum(isinstance(action, Segment) for action in self.actions)


def cut_plan(
    problem: Problem, plan: Plan, alone: Collection[int] = (), given_ops: int = 0, sizes: Sequence[int] | None = None
) -> Cut:
    """Cut a plan where the device changes, at copies, around every op of a device in `alone`, and as budgets need.

    The first `given_ops` ops make the model's inputs: the caller holds what they make, and they are not run. `sizes`
    are the bytes of each tensor in a buffer of its own, where a problem says less (views of inputs).
    """
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    kept = frozenset(number for tensor, number in newest.items() if problem.tensors[tensor].kept)
    cutter = _Cutter(problem, plan, given_ops, tuple(sizes or (t.size_bytes for t in problem.tensors)), kept)
    groups = cutter.first_groups(frozenset(alone))
    while (better := cutter.refined(groups)) is not None:
        groups = better
    return cutter.cut(groups)


@dataclass(frozen=True)
class _Cutter:
    """One plan and ways to group its steps; a group is a list of steps that run together.

    `kept` are the instances that the caller gets for model outputs.
    """

    problem: Problem
    plan: Plan
    given_ops: int
    sizes: tuple[int, ...]
    kept: frozenset[int]

    def first_groups(self, alone: frozenset[int]) -> list[list[int]]:
        """As few sessions as devices and copies allow."""
        groups: list[list[int]] = []
        last: int | None = None
        for number, step in enumerate(self.plan.schedule.steps):
            if isinstance(step, Copy):
                groups.append([number])
                last = None
            elif step.op >= self.given_ops:
                if step.device == last and step.device not in alone:
                    groups[-1].append(number)
                else:
                    groups.append([number])
                last = step.device
        return groups

    def refined(self, groups: list[list[int]]) -> list[list[int]] | None:
        """The group that overflows its memory most, cut in two where that helps most; None: nothing (more) to do."""
        peaks = self.cut(groups).memory_bytes
        over = [max(self._excess(m, curve[i]) for m, curve in enumerate(peaks)) for i in range(len(groups))]
        worst = max(range(len(groups)), key=over.__getitem__, default=None)
        if worst is None or over[worst] <= 0:
            return None
        for index in sorted((i for i in range(len(groups)) if over[i] > 0), key=lambda i: -over[i]):
            halves = self._best_halves(groups, index, over[index])
            if halves is not None:
                return halves
        return None

    def _best_halves(self, groups: list[list[int]], index: int, excess: int) -> list[list[int]] | None:
        group = groups[index]
        tries = [[*groups[:index], group[:at], group[at:], *groups[index + 1 :]] for at in range(1, len(group))]
        found = [(self._most_excess(halves, index), number) for number, halves in enumerate(tries)]
        least = min(found, default=None)
        return tries[least[1]] if least is not None and least[0] < excess else None

    def _most_excess(self, groups: list[list[int]], index: int) -> int:
        """Of two neighbouring groups; others do not change."""
        fixed = fixed_bytes_of(self.problem, self.plan.schedule)
        homes = self._homes(groups)
        return max(
            self._excess(memory, bytes_)
            for at in (index, index + 1)
            for memory, bytes_ in enumerate(self._during(groups, at, homes, fixed))
        )

    def _excess(self, memory: int, bytes_: int) -> int:
        return bytes_ - self.problem.memories[memory].budget_bytes

    def cut(self, groups: list[list[int]]) -> Cut:
        """The groups as actions, each with what is held meanwhile."""
        fixed = fixed_bytes_of(self.problem, self.plan.schedule)
        homes = self._homes(groups)
        drops: list[list[int]] = [[] for _ in groups]
        for instance, (born, dies) in enumerate(homes):
            if born <= dies and dies >= 0 and instance not in self.kept:
                drops[dies].append(instance)
        actions = tuple(self._action(group, homes, at, tuple(drops[at])) for at, group in enumerate(groups))
        held = [self._during(groups, at, homes, fixed) for at in range(len(groups))]
        return Cut(actions, tuple(tuple(bytes_[m] for bytes_ in held) for m in range(len(self.problem.memories))))

    def _homes(self, groups: list[list[int]]) -> list[tuple[int, int]]:
        """First and last group of each instance's life; born -1: given by the caller."""
        group_of = {step: index for index, group in enumerate(groups) for step in group}
        count = len(groups)
        spans = []
        for number, instance in enumerate(self.plan.instances):
            born = group_of.get(instance.birth, -1)
            dies = count - 1 if number in self.kept else self._last_group(instance.death, group_of)
            spans.append((born, dies))
        return spans

    def _last_group(self, step: int, group_of: dict[int, int]) -> int:
        """The group of a step, or of the last step before it that is run."""
        while step >= 0 and step not in group_of:
            step -= 1
        return group_of.get(step, -1)

    def _action(self, group: list[int], homes: list[tuple[int, int]], at: int, drops: tuple[int, ...]) -> Action:
        step = self.plan.schedule.steps[group[0]]
        if isinstance(step, Copy):
            return Transfer(group[0], self.plan.reads[group[0]][0], self.plan.makes[group[0]][0], drops)
        made = [i for number in group for i in self.plan.makes[number]]
        read = dict.fromkeys(i for number in group for i in self.plan.reads[number])
        return Segment(
            device=step.device,
            steps=tuple(group),
            imports=tuple(i for i in read if homes[i][0] != at),
            exports=tuple(i for i in made if self._outlives(i, homes, at)),
            drops=tuple(i for i in drops if homes[i][0] != at or self._outlives(i, homes, at)),
        )

    def _outlives(self, instance: int, homes: list[tuple[int, int]], at: int) -> bool:
        return homes[instance][1] > at or instance in self.kept

    def _during(
        self, groups: list[list[int]], at: int, homes: list[tuple[int, int]], fixed: tuple[int, ...]
    ) -> list[int]:
        """Most bytes held in each memory while a group runs."""
        held = list(fixed)
        for number, instance in enumerate(self.plan.instances):
            born, dies = homes[number]
            if 0 <= born < at <= dies:
                held[instance.memory] += self.sizes[instance.tensor]
        step = self.plan.schedule.steps[groups[at][0]]
        if isinstance(step, Copy):
            target = self.plan.instances[self.plan.makes[groups[at][0]][0]]
            held[target.memory] += self.sizes[target.tensor]
        else:
            inner = self._inner_problem(groups[at], homes, at)
            memory = self.problem.devices[step.device].memory
            held[memory] += simulate(inner, Schedule.of_ops(range(len(inner.ops)))).peak  # type: ignore[arg-type]
        return held

    def _inner_problem(self, group: list[int], homes: list[tuple[int, int]], at: int) -> Problem:
        """A segment as a problem of one device: what it imports is the caller's, what it exports is kept."""
        made = [i for number in group for i in self.plan.makes[number]]
        local = {instance: tensor for tensor, instance in enumerate(made)}
        ops, tensors = [], []
        for number in group:
            step = self.plan.schedule.steps[number]
            assert isinstance(step, Compute)
            ops.append(self._inner_op(step, number, local))
            for instance in self.plan.makes[number]:
                tensors.append(
                    self._inner_tensor(instance, number, len(ops) - 1, local, self._outlives(instance, homes, at))
                )
        return Problem(tuple(ops), tuple(tensors), (Memory("segment", 2**62),), (Device("segment", 0),))

    def _inner_op(self, step: Compute, number: int, local: dict[int, int]) -> OpSpec:
        spec = self.problem.ops[step.op]
        instance_of = dict(zip(spec.inputs, self.plan.reads[number], strict=True))
        instance_of |= dict(zip(spec.outputs, self.plan.makes[number], strict=True))
        return OpSpec(
            inputs=tuple(local[i] for i in self.plan.reads[number] if i in local),
            outputs=tuple(local[i] for i in self.plan.makes[number]),
            time_ns=(0,),
            workspace_bytes=(spec.workspace_bytes[step.device],),
            in_place=tuple(
                (local[instance_of[i]], local[instance_of[o]]) for i, o in spec.in_place if instance_of[i] in local
            ),
        )

    def _inner_tensor(
        self, instance: int, number: int, producer: int, local: dict[int, int], is_export: bool
    ) -> TensorSpec:
        tensor = self.plan.instances[instance].tensor
        base, size = self.problem.tensors[tensor].view_of, self.problem.tensors[tensor].size_bytes
        if is_export:
            size = self.sizes[tensor]
        if base is None:
            return TensorSpec(size, producer, None, is_export)
        step = self.plan.schedule.steps[number]
        assert isinstance(step, Compute)
        spec = self.problem.ops[step.op]
        read = self.plan.reads[number][spec.inputs.index(base)]
        if read not in local:
            return TensorSpec(size if is_export else 0, producer, None, is_export)
        return TensorSpec(size, producer, local[read], is_export)
