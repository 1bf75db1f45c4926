"""What the model of `xengine` may do where: which ops may run in which stage, what may be held, read and copied."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from remat_cli.core.schedule.floor import storage_root
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._precedence import readers_of
from remat_cli.solvers.published._staged.rows import last_stages

Room: TypeAlias = Literal["staging", "none", "pooled"]
Objective: TypeAlias = Literal["corrected", "paper"]


@dataclass(frozen=True)
class ModelRules:
    """What is minimised and what is allowed; see the options of `XEngine`.

    With `settled` a kept tensor is held where it was made last and not copied after that, as the judge has it: of a
    tensor that is kept, the newest instance stays.
    """

    room: Room = "staging"
    objective: Objective = "corrected"
    energy_weight: int = 0
    energy_limit_nj: int | None = None
    stage_energy_limit_nj: int | None = None
    total_stage_energy_limit_nj: int | None = None
    settled: bool = False

    @property
    def is_limited(self) -> bool:
        """Whether energy is limited."""
        limits = (self.energy_limit_nj, self.stage_energy_limit_nj, self.total_stage_energy_limit_nj)
        return any(limit is not None for limit in limits)


@dataclass(frozen=True)
class Layout:
    """A problem with what follows from it; bytes in `byte_unit`, costs in `cost_unit`.

    `homes[m]` are the devices of memory m. Op v may be of use in stages v to `last_run[v]`, tensor x at the starts of
    stages up to `last_hold[x]` (the number of ops: at the end). `sources[d][x]` are the devices to copy x from for d.
    `sizes[x]` holds for views too, which the model gives storage of their own.
    """

    problem: Problem
    rules: ModelRules
    homes: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    last_run: tuple[int, ...]
    last_hold: tuple[int, ...]
    sources: tuple[tuple[tuple[int, ...], ...], ...]
    sizes: tuple[int, ...]
    byte_unit: int
    cost_unit: int

    def capacity(self, memory: int) -> int:
        """What activations, workspace and weights may take, in byte units, rounded down."""
        return self.problem.memories[memory].free_bytes // self.byte_unit

    def units(self, size_bytes: int) -> int:
        """How many byte units so many bytes take."""
        return -(-size_bytes // self.byte_unit)

    def memory(self, device: int) -> int:
        """The memory of a device."""
        return self.problem.devices[device].memory

    def run_cost(self, op: int, device: int) -> int:
        """What a compute costs, in cost units."""
        spec = self.problem.ops[op]
        return ((spec.time_ns[device] or 0) + self.rules.energy_weight * self.run_energy(op, device)) // self.cost_unit

    def run_energy(self, op: int, device: int) -> int:
        """What a compute takes of its device, in nanojoules."""
        energy = self.problem.ops[op].energy_nj
        return energy[device] if energy else 0

    def copy_cost(self, tensor: int, source: int, target: int) -> int:
        """What a copy costs, in cost units."""
        return _copy_price(self.problem, self.rules, tensor, source, target) // self.cost_unit

    def copy_energy(self, tensor: int, source: int, target: int) -> int:
        """What a copy takes of its source, in nanojoules."""
        energy = self.problem.copy_energy_nj
        return energy[source][target][tensor] if energy else 0

    def running(self, stage: int) -> list[int]:
        """Ops that may run in a stage, in order."""
        return [op for op in range(stage + 1) if self.last_run[op] >= stage]

    def is_tight(self, memory: int) -> bool:
        """Whether everything at once might not fit."""
        ops = self.problem.ops
        most = sum(self.sizes) + sum(self.units(size) for size in self.problem.weight_bytes)
        most += max(self.units(max(op.workspace_bytes)) for op in ops)
        if self.rules.room == "staging" and len(self.homes) > 1:
            most += max(sum(self.sizes[x] for x in op.inputs) for op in ops)
        return most > self.capacity(memory)

    def binaries(self) -> int:
        """About how many binary variables the model has: runs, holds, copies and frees."""
        total, devices, memories = 0, len(self.problem.devices), len(self.homes)
        for op, spec in enumerate(self.problem.ops):
            copies = sum(len(self.sources[d][x]) for d in range(devices) for x in spec.inputs)
            total += (self.last_run[op] - op + 1) * (devices + copies + memories * len(spec.inputs))
        return total + memories * sum(
            max(0, last - spec.producer) for last, spec in zip(self.last_hold, self.problem.tensors, strict=True)
        )


def make_layout(problem: Problem, rules: ModelRules) -> Layout:
    """Everything that the model asks of a problem more than once."""
    readers = readers_of(problem)
    last_run, last_hold = last_stages(problem, readers)
    sizes = _sizes(problem)
    workspaces = [size for op in problem.ops for size in op.workspace_bytes]
    byte_unit = math.gcd(*sizes, *workspaces, *problem.weight_bytes) or 1
    devices = range(len(problem.devices))
    times = [time for op in problem.ops for time in op.time_ns if time]
    copies = {time for row in problem.copy_ns for entry in row for time in entry if time}
    energies: set[int] = set()
    if rules.energy_weight:
        energies = {rules.energy_weight * energy for op in problem.ops for energy in op.energy_nj}
        energies |= {rules.energy_weight * e for row in problem.copy_energy_nj for entry in row for e in entry}
    cost_unit = math.gcd(*times, *copies, *energies) or 1
    return Layout(
        problem=problem,
        rules=rules,
        homes=tuple(
            tuple(d for d in devices if problem.devices[d].memory == memory) for memory in range(len(problem.memories))
        ),
        readers=tuple(map(tuple, readers)),
        last_run=tuple(last_run),
        last_hold=tuple(last_hold),
        sources=tuple(tuple(_sources(problem, rules, d, x) for x in range(len(problem.tensors))) for d in devices),
        sizes=tuple(size // byte_unit for size in sizes),
        byte_unit=byte_unit,
        cost_unit=cost_unit,
    )


def _sizes(problem: Problem) -> list[int]:
    """Bytes of each tensor; a view counts what it may keep in memory."""
    return [
        max(spec.size_bytes, problem.tensors[storage_root(problem, x)].size_bytes)
        for x, spec in enumerate(problem.tensors)
    ]


def _sources(problem: Problem, rules: ModelRules, target: int, tensor: int) -> tuple[int, ...]:
    """Devices to copy a tensor from, the cheapest of each other memory; all of them where their energy is limited."""
    home, best = problem.devices[target].memory, dict[int, tuple[int, int]]()
    usable = []
    for source, device in enumerate(problem.devices):
        if device.memory != home and problem.copy_ns[source][target][tensor] is not None:
            usable.append(source)
            price = (_copy_price(problem, rules, tensor, source, target), source)
            best[device.memory] = min(price, best.get(device.memory, price))
    return tuple(usable) if rules.is_limited else tuple(sorted(source for _, source in best.values()))


def _copy_price(problem: Problem, rules: ModelRules, tensor: int, source: int, target: int) -> int:
    energy = problem.copy_energy_nj[source][target][tensor] if problem.copy_energy_nj else 0
    return (problem.copy_ns[source][target][tensor] or 0) + rules.energy_weight * energy


def is_exact(problem: Problem) -> bool:
    """Whether giving views and in-place results storage of their own changes nothing."""
    sizes = _sizes(problem)
    shared = [x for x, spec in enumerate(problem.tensors) if spec.view_of is not None]
    shared += [output for op in problem.ops for _, output in op.in_place]
    # More than any memory ever needs.
    staged = max(sum(sizes[x] for x in op.inputs) for op in problem.ops)
    most = sum(sizes) + staged + sum(problem.weight_bytes) + max(max(op.workspace_bytes) for op in problem.ops)
    is_roomy = all(most <= memory.free_bytes for memory in problem.memories)
    return is_roomy or all(sizes[x] == 0 for x in shared)


def without_sharing(problem: Problem) -> Problem:
    """The problem with storage of its own for every tensor; its schedules need no more than this in the original."""
    sizes = _sizes(problem)
    tensors = tuple(
        msgspec.structs.replace(spec, size_bytes=size, view_of=None)
        for spec, size in zip(problem.tensors, sizes, strict=True)
    )
    ops = tuple(msgspec.structs.replace(op, in_place=()) for op in problem.ops)
    return msgspec.structs.replace(problem, tensors=tensors, ops=ops)
