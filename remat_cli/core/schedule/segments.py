"""A plan that spans devices, cut into what can be run: sessions on one device each, and copies between memories.

A session holds what it is given until it ends and makes what outlives it as buffers of its own, so a cut plan may need
more memory than its schedule. It is judged here by the same judge: each segment is a problem of its own. Where a memory
overflows, segments are cut again, since an op alone holds nothing but what it reads and makes. Inside what an opaque
device compiles neither order nor memory can be enforced, so nothing counts as freed there before the session ends.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from remat_cli.core.schedule.plan import Compute, Copy, Plan, Schedule
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import fixed_bytes_of, simulate
from remat_cli.core.values.buffer_cache import BufferCache, Hold, steady_bytes, workspace_holds

NO_CACHES: Mapping[int, BufferCache] = MappingProxyType({})


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
    def needed_bytes(self) -> tuple[int, ...]:
        """The same: a cut is judged in the sessions in which it runs."""
        return self.peak_bytes

    def at_least(self, bytes_: Mapping[int, int]) -> "Cut":
        """The same, where memories hold at least so many bytes all through."""
        curves = enumerate(self.memory_bytes)
        raised = (tuple(max(held, bytes_.get(memory, 0)) for held in curve) for memory, curve in curves)
        return Cut(self.actions, tuple(raised))

    @property
    def segments(self) -> int:
        """How many sessions there are."""
        return sum(isinstance(action, Segment) for action in self.actions)


def cut_plan(
    problem: Problem,
    plan: Plan,
    opaque: Collection[int] = (),
    given_ops: int = 0,
    sizes: Sequence[int] | None = None,
    caches: Mapping[int, BufferCache] = NO_CACHES,
) -> Cut:
    """Cut a plan where the device changes, at copies, and as budgets need; `opaque` are devices that compile.

    The first `given_ops` ops make the model's inputs: the caller holds what they make, and they are not run. `sizes`
    are the bytes of each tensor in a buffer of its own, where a problem says less (views of inputs). A memory with one
    of the `caches` holds all through what its provider keeps.
    """
    cutter = _cutter(problem, plan, opaque, given_ops, sizes)
    groups = [piece for group in cutter.first_groups() for piece in cutter.fitted(group)]
    cut = cutter.cut(groups)
    steady = {memory: cutter.steady_bytes(groups, memory, cache) for memory, cache in caches.items()}
    return cut.at_least(steady) if groups else cut


def _cutter(
    problem: Problem, plan: Plan, opaque: Collection[int], given_ops: int, sizes: Sequence[int] | None
) -> "_Cutter":
    own = tuple(sizes or (t.size_bytes for t in problem.tensors))
    steps = plan.schedule.steps
    given = {n for n, step in enumerate(steps) if isinstance(step, Compute) and step.op < given_ops}
    born = tuple(number for number, instance in enumerate(plan.instances) if instance.birth not in given)
    fixed = held_bytes_of(problem, plan.schedule, given_ops)
    return _Cutter(problem, plan, frozenset(opaque), given_ops, own, kept_instances(problem, plan), born, fixed)


def cut_at(
    problem: Problem, plan: Plan, groups: Sequence[Sequence[int]], sizes: Sequence[int] | None = None
) -> tuple[Cut, tuple[int, ...]]:
    """A plan of one device cut into these groups of steps, as if nothing were paged, and what sessions need inside.

    That is the most of each, in bytes, beside what it is given and buffers for what it gives, which are there all
    through.
    """
    cutter = _cutter(problem, plan, (), 0, sizes)
    steps = [list(group) for group in groups]
    return cutter.cut(steps), tuple(cutter.inner_peak(group, exports=False) for group in steps)


def kept_instances(problem: Problem, plan: Plan) -> frozenset[int]:
    """The instances that the caller gets for model outputs: the newest of each."""
    newest = {instance.tensor: number for number, instance in enumerate(plan.instances)}
    return frozenset(number for tensor, number in newest.items() if problem.tensors[tensor].kept)


def held_bytes_of(problem: Problem, schedule: Schedule, given_ops: int = 0) -> tuple[int, ...]:
    """What each memory holds all through a run: its fixed part, and what the caller gave, until the run is over."""
    held = list(fixed_bytes_of(problem, schedule))
    for step in schedule.steps:
        if isinstance(step, Compute) and step.op < given_ops:
            memory = problem.devices[step.device].memory
            held[memory] += sum(problem.tensors[tensor].size_bytes for tensor in problem.ops[step.op].outputs)
    return tuple(held)


def viewed(problem: Problem, plan: Plan, number: int, roots: Mapping[int, int]) -> int:
    """The instance whose buffer one uses: its own, or that of what it is a view of; `roots` are those found before."""
    instance = plan.instances[number]
    base = problem.tensors[instance.tensor].view_of
    step = plan.schedule.steps[instance.birth]
    if base is None or not isinstance(step, Compute):
        return number
    read = plan.reads[instance.birth][problem.ops[step.op].inputs.index(base)]
    return roots.get(read, read)


def workspaces(
    problem: Problem, plan: Plan, places: Mapping[int, int], memory: int, parts: Mapping[int, tuple[int, ...]]
) -> list[Hold]:
    """Buffers in a memory for what ops take beside tensors, each at the place of its step."""
    holds = []
    for number, place in places.items():
        step = plan.schedule.steps[number]
        if isinstance(step, Compute) and problem.devices[step.device].memory == memory:
            needed = problem.ops[step.op].workspace_bytes[step.device]
            holds += workspace_holds(needed, place, parts.get(step.op, ()))
    return holds


@dataclass(frozen=True)
class _Cutter:
    """One plan and ways to group its steps; a group is a list of steps that run together.

    `kept` are the instances that the caller gets for model outputs, `born` those that some step that is run makes,
    `fixed` the bytes that each memory holds all through.
    """

    problem: Problem
    plan: Plan
    opaque: frozenset[int]
    given_ops: int
    sizes: tuple[int, ...]
    kept: frozenset[int]
    born: tuple[int, ...]
    fixed: tuple[int, ...]

    def first_groups(self) -> list[list[int]]:
        """Group the steps into as few sessions as devices and copies allow."""
        groups: list[list[int]] = []
        last: int | None = None
        for number, step in enumerate(self.plan.schedule.steps):
            if isinstance(step, Copy):
                groups.append([number])
                last = None
            elif step.op >= self.given_ops:
                if step.device == last:
                    groups[-1].append(number)
                else:
                    groups.append([number])
                last = step.device
        return groups

    def fitted(self, group: list[int]) -> list[list[int]]:
        """Cut a group that does not fit into pieces, each as long as memory allows; one step alone if it must."""
        pieces, rest = [], group
        while rest:
            length = len(rest)
            if length > 1 and not self._fits(rest):  # more steps rarely need less memory, so it is bisected
                length, above = 1, len(rest)
                while above - length > 1:
                    middle = (length + above) // 2
                    length, above = (middle, above) if self._fits(rest[:middle]) else (length, middle)
            pieces.append(rest[:length])
            rest = rest[length:]
        return pieces

    def _fits(self, group: list[int]) -> bool:
        pairs = zip(self._during(group), self.problem.memories, strict=True)
        return all(held <= memory.budget_bytes for held, memory in pairs)

    def cut(self, groups: list[list[int]]) -> Cut:
        """Turn the groups into actions, each with what memories hold meanwhile."""
        homes = self._homes(groups)
        drops: list[list[int]] = [[] for _ in groups]
        for instance, (born, dies) in enumerate(homes):
            if born <= dies and dies >= 0 and instance not in self.kept:
                drops[dies].append(instance)
        actions: list[Action] = []
        for at, group in enumerate(groups):
            step = self.plan.schedule.steps[group[0]]
            if isinstance(step, Copy):
                source, target = self.plan.reads[group[0]][0], self.plan.makes[group[0]][0]
                actions.append(Transfer(group[0], source, target, tuple(drops[at])))
                continue
            made = [i for number in group for i in self.plan.makes[number]]
            read = dict.fromkeys(i for number in group for i in self.plan.reads[number])
            segment = Segment(
                device=step.device,
                steps=tuple(group),
                imports=tuple(i for i in read if homes[i][0] != at),
                exports=tuple(i for i in made if self._outlives(i, group)),
                drops=tuple(i for i in drops[at] if homes[i][0] != at or self._outlives(i, group)),
            )
            actions.append(segment)
        held = [self._during(group) for group in groups]
        curves = tuple(tuple(bytes_[m] for bytes_ in held) for m in range(len(self.problem.memories)))
        return Cut(tuple(actions), curves)

    def _homes(self, groups: list[list[int]]) -> list[tuple[int, int]]:
        """First and last group of each instance's life; born -1: given by the caller."""
        group_of = {step: index for index, group in enumerate(groups) for step in group}
        spans = []
        for number, instance in enumerate(self.plan.instances):
            born = group_of.get(instance.birth, -1)
            last = instance.death  # or the step before it that is run
            while last >= 0 and last not in group_of:
                last -= 1
            spans.append((born, len(groups) - 1 if number in self.kept else group_of.get(last, -1)))
        return spans

    def _outlives(self, instance: int, group: list[int]) -> bool:
        """Whether what is made in a group is needed after it."""
        return self.plan.instances[instance].death > group[-1] or instance in self.kept

    def _during(self, group: list[int]) -> list[int]:
        """Most bytes held in each memory while a group runs."""
        held = list(self.fixed)
        for number in self.born:
            instance = self.plan.instances[number]
            if instance.birth < group[0] and (instance.death >= group[0] or number in self.kept):
                held[instance.memory] += self.sizes[instance.tensor]
        step = self.plan.schedule.steps[group[0]]
        if isinstance(step, Copy):
            target = self.plan.instances[self.plan.makes[group[0]][0]]
            held[target.memory] += self.sizes[target.tensor]
        else:
            held[self.problem.devices[step.device].memory] += self.inner_peak(group)
        return held

    def inner_peak(self, group: list[int], *, exports: bool = True) -> int:
        """The most that a session holds of what it makes, workspace included; without its exports if not asked for."""
        # The segment as a problem of one device: what it imports is the caller's, what it exports is kept.
        made = [i for number in group for i in self.plan.makes[number]]
        local = {instance: tensor for tensor, instance in enumerate(made)}
        ops, tensors = [], []
        for number in group:
            step = self.plan.schedule.steps[number]
            assert isinstance(step, Compute)
            spec = self.problem.ops[step.op]
            instance_of = dict(zip(spec.inputs, self.plan.reads[number], strict=True))
            instance_of |= dict(zip(spec.outputs, self.plan.makes[number], strict=True))
            pairs = ((instance_of[i], instance_of[o]) for i, o in spec.in_place)
            op = OpSpec(
                inputs=tuple(local[i] for i in self.plan.reads[number] if i in local),
                outputs=tuple(local[i] for i in self.plan.makes[number]),
                time_ns=(0,),
                workspace_bytes=(spec.workspace_bytes[step.device],),
                in_place=tuple((local[source], local[result]) for source, result in pairs if source in local),
            )
            ops.append(op)
            for instance in self.plan.makes[number]:
                stays = step.device in self.opaque or self._outlives(instance, group)
                tensors.append(self._inner_tensor(instance, number, len(ops) - 1, local, stays))
        inner = Problem(tuple(ops), tuple(tensors), (Memory("segment", 2**62),), (Device("segment", 0),))
        if not exports:
            own = (msgspec.structs.replace(t, size_bytes=0) if t.kept else t for t in inner.tensors)
            inner = msgspec.structs.replace(inner, tensors=tuple(own))
        return simulate(inner, Schedule.of_ops(range(len(inner.ops)))).peak  # type: ignore[arg-type]

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

    def steady_bytes(self, groups: list[list[int]], memory: int, cache: BufferCache) -> int:
        """What a provider with a cache holds of a memory once these groups were run: no buffer is given back.

        What the caller gave has a buffer of its own, which its size is replaced by.
        """
        born, length = set(self.born), sum(map(len, groups))
        here = [number for number, instance in enumerate(self.plan.instances) if instance.memory == memory]
        given = [self.sizes[self.plan.instances[number].tensor] for number in here if number not in born]
        holds = [Hold(size, 0, length - 1) for size in given]
        # Positions are those of steps in the order of the groups; views inside a session share a buffer. What nobody
        # reads the runtime frees with its session.
        at = {step: position for position, step in enumerate(number for group in groups for number in group)}
        read = {made for reads in self.plan.reads for made in reads}
        homes = self._homes(groups)
        roots: dict[int, int] = {}
        last: dict[int, int] = {}
        for number in (number for number in here if number in born):
            made, (home, last_home) = self.plan.instances[number], homes[number]
            if self._outlives(number, groups[home]):
                first, end = groups[home][0], groups[max(home, last_home)][-1]
                holds.append(Hold(self.sizes[made.tensor], at[first], at[end]))
            else:
                root = roots[number] = viewed(self.problem, self.plan, number, roots)
                end = at[made.birth] if number in read else at[groups[home][-1]]
                last[root] = max(last.get(root, 0), end, at.get(made.death, 0))
        for root, end in last.items():
            if root in roots:
                made = self.plan.instances[root]
                holds.append(Hold(self.sizes[made.tensor], at[made.birth], end))
        holds += workspaces(self.problem, self.plan, at, memory, cache.parts)
        return self.fixed[memory] - sum(given) + steady_bytes(cache, holds, length)
