"""A plan on the host and one device beside it in one session: what each memory holds meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from remat_cli.core.schedule.plan import Compute, Copy, Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.segments import Cut, Segment, held_bytes_of, kept_instances, viewed, workspaces
from remat_cli.core.values.buffer_cache import BufferCache, Hold, most_bytes, steady_bytes


@dataclass(frozen=True)
class Shared:
    """A plan that is to run in one session, on the devices `sides`, of which the first is on the host.

    The first `given_ops` ops of the problem stand for model inputs.
    """

    problem: Problem
    plan: Plan
    given_ops: int
    sides: tuple[int, int]

    def is_given(self, instance: int) -> bool:
        """Whether an instance is a model input as the caller gives it."""
        step = self.plan.schedule.steps[self.plan.instances[instance].birth]
        return isinstance(step, Compute) and step.op < self.given_ops

    def is_there(self, instance: int) -> bool:
        """Whether an instance is in the memory of the device beside the host."""
        return self.plan.instances[instance].memory == self.problem.devices[self.sides[1]].memory


def used_devices(plan: Plan, given_ops: int) -> tuple[int, ...]:
    """Devices that compute something, ascending; the first `given_ops` ops stand for model inputs."""
    steps = plan.schedule.steps
    return tuple(sorted({step.device for step in steps if isinstance(step, Compute) and step.op >= given_ops}))


def origins(plan: Plan) -> tuple[int, ...]:
    """For each instance the one that it is a copy of, or itself."""
    found = list(range(len(plan.instances)))
    for number, step in enumerate(plan.schedule.steps):
        if isinstance(step, Copy):
            found[plan.makes[number][0]] = found[plan.reads[number][0]]
    return tuple(found)


def one_session_cut(shared: Shared, sizes: Sequence[int], caches: Mapping[int, BufferCache]) -> Cut:
    """A plan in the order of its session as that one session, with what each memory holds all through.

    `sizes` and `caches` are those of `cut_plan`. What the caller gets has a buffer of its own on the device from the
    start, as inputs that only the device reads have to the end.
    """
    problem, plan = shared.problem, shared.plan
    steps = [n for n, s in enumerate(plan.schedule.steps) if not isinstance(s, Compute) or s.op >= shared.given_ops]
    found = origins(plan)
    kept = tuple(sorted({found[instance] for instance in kept_instances(problem, plan)}))
    parts = {op: sizes for cache in caches.values() for op, sizes in cache.parts.items()}
    holding = _Holding(shared, {step: at for at, step in enumerate(steps)}, frozenset(kept), tuple(sizes), parts)
    fixed = held_bytes_of(problem, plan.schedule, shared.given_ops)
    held = []
    for memory, fixed_bytes in enumerate(fixed):
        holds, cache = holding.holds(memory, is_cached=memory in caches), caches.get(memory)
        most = most_bytes(holds, len(steps)) if cache is None else steady_bytes(cache, holds, len(steps))
        held.append((fixed_bytes + most,))
    return Cut((Segment(shared.sides[1], tuple(steps), exports=kept),), tuple(held))


@dataclass(frozen=True)
class _Holding:
    """Buffers of a session, by places of its steps."""

    shared: Shared
    places: Mapping[int, int]
    kept: frozenset[int]
    sizes: tuple[int, ...]
    parts: Mapping[int, tuple[int, ...]]

    def holds(self, memory: int, *, is_cached: bool) -> list[Hold]:
        """From where to where each buffer of a memory is needed; views share one, and what is made in place there.

        A provider with a cache of buffers makes nothing in place.
        """
        problem, plan = self.shared.problem, self.shared.plan
        spans: dict[int, Hold] = {}
        roots: dict[int, int] = {}
        for number, instance in enumerate(plan.instances):
            if instance.memory != memory or instance.birth not in self.places:
                continue
            if not is_cached:
                root = -1 - instance.storage
            else:
                root = number if number in self.kept else viewed(problem, plan, number, roots)
            roots[number] = root
            own = self._own(number)
            before = spans.get(root, own)
            size = max(before.size_bytes, own.size_bytes)
            spans[root] = Hold(size, min(before.start, own.start), max(before.end, own.end))
        given = {
            number if is_cached else -1 - instance.storage
            for number, instance in enumerate(plan.instances)
            if self.shared.is_given(number)
        }
        mine = [hold for root, hold in spans.items() if root not in given]
        # What the caller gets from the device and ops on the host read: the runtime makes that beside its buffer.
        reads = zip(plan.schedule.steps, plan.reads, strict=True)
        copied = {read[0] for step, read in reads if isinstance(step, Copy)} if is_cached else set[int]()
        twice = [
            Hold(self.sizes[instance.tensor], self.places[instance.birth], len(self.places) - 1)
            for instance in map(plan.instances.__getitem__, self.kept & copied)
            if instance.memory == memory and instance.birth in self.places
        ]
        return [*mine, *twice, *workspaces(problem, plan, self.places, memory, self.parts)]

    def _own(self, number: int) -> Hold:
        """From where to where one instance is held; the runtime frees what nobody reads at the end only."""
        instance, last = self.shared.plan.instances[number], len(self.places) - 1
        birth = self.shared.plan.schedule.steps[instance.birth]
        is_upload = isinstance(birth, Copy) and self.shared.is_given(self.shared.plan.reads[instance.birth][0])
        is_bound = (number in self.kept or is_upload) and self.shared.is_there(number)
        stays = number in self.kept or is_upload or number not in self._read
        start = 0 if is_bound else self.places[instance.birth]
        if stays:
            return Hold(self.sizes[instance.tensor], start, last)
        end = self.places[instance.death]
        if isinstance(birth, Copy) and self.shared.is_there(number):
            # What was copied to the device was seen there, in some runs, until the next copy from the device.
            later = bisect_left(self._downloads, end)
            end = self._downloads[later] if later < len(self._downloads) else end
        return Hold(self.sizes[instance.tensor], start, end)

    @cached_property
    def _downloads(self) -> list[int]:
        steps = self.shared.plan.schedule.steps
        found = ((place, steps[number]) for number, place in self.places.items())
        return [place for place, step in found if isinstance(step, Copy) and step.source == self.shared.sides[1]]

    @cached_property
    def _read(self) -> frozenset[int]:
        return frozenset(instance for reads in self.shared.plan.reads for instance in reads)
