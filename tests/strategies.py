"""Random problems and schedules for property tests."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import replace

from remat_cli.core.schedule.plan import Compute, Copy, Schedule, Step
from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 8, sharing: bool = True) -> Problem:
    """A one-device problem: several outputs, kept tensors, workspace, unrepeatable ops; views and in-place pairs."""
    count = draw(st.integers(1, max_ops))
    tensors: list[TensorSpec] = []
    ops: list[OpSpec] = []
    for op in range(count):
        existing = list(range(len(tensors)))
        inputs = draw(st.lists(st.sampled_from(existing), max_size=3, unique=True)) if existing else []
        nature = draw(st.sampled_from(["plain", "plain", "view", "in_place"])) if sharing and inputs else "plain"
        made = 1 if nature != "plain" else draw(st.sampled_from([1, 1, 1, 2]))
        outputs = list(range(len(tensors), len(tensors) + made))
        for _ in outputs:
            base = inputs[0] if nature == "view" else None
            size = tensors[inputs[0]].size_bytes if nature != "plain" else draw(st.integers(0, 9))
            tensors.append(TensorSpec(size, op, view_of=base, kept=draw(st.integers(0, 5)) == 0))
        ops.append(
            OpSpec(
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                time_ns=(draw(st.integers(0, 9)),),
                workspace_bytes=(draw(st.sampled_from([0, 0, 0, 3])),),
                repeatable=draw(st.integers(0, 6)) > 0,
                in_place=((inputs[0], outputs[0]),) if nature == "in_place" else (),
            )
        )
    fixed = draw(st.sampled_from([0, 0, 100]))
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40, fixed),), (Device("cpu", 0),))


@st.composite
def schedules(draw: st.DrawFn, problem: Problem, max_repeats: int = 6) -> Schedule:
    """A legal schedule: a random topological order with random recomputes put in."""
    done: set[int] = set()
    made: set[int] = set()
    steps: list[int] = []
    repeats = draw(st.integers(0, max_repeats))
    while len(done) < len(problem.ops):
        ready = [
            op
            for op, spec in enumerate(problem.ops)
            if set(spec.inputs) <= made and (op not in done or spec.repeatable)
        ]
        fresh = [op for op in ready if op not in done]
        again = [op for op in ready if op in done]
        repeat = bool(again) and repeats > 0 and draw(st.booleans())
        op = draw(st.sampled_from(again if repeat else fresh))
        repeats -= repeat
        done.add(op)
        made.update(problem.ops[op].outputs)
        steps.append(op)
    return Schedule.of_ops(steps)


@st.composite
def device_problems(draw: st.DrawFn, max_ops: int = 6) -> Problem:
    """A problem with up to three devices on up to three memories: weights, energy, calls, impossible ops and copies."""
    alone = draw(problems(max_ops=max_ops))
    memory_of = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    names = sorted(set(memory_of))
    devices = tuple(Device(f"d{i}", names.index(m), draw(st.sampled_from([0, 0, 2]))) for i, m in enumerate(memory_of))
    memories = tuple(Memory(f"m{m}", 2**40, draw(st.sampled_from([0, 0, 50]))) for m in names)
    weights = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    count = len(devices)

    def copies(nothing: int | None) -> tuple[tuple[tuple[int | None, ...], ...], ...]:
        entry = st.one_of(st.just(nothing), st.integers(0, 9), st.integers(0, 9))
        row = st.tuples(*[entry] * len(alone.tensors))
        return draw(st.tuples(*[st.tuples(*[row] * count)] * count))

    def on_devices(spec: OpSpec) -> OpSpec:
        times = [draw(st.one_of(st.none(), st.integers(0, 9), st.integers(0, 9))) for _ in devices]
        times[0] = spec.time_ns[0] if all(time is None for time in times) else times[0]
        return replace(
            spec,
            time_ns=tuple(times),
            workspace_bytes=tuple(draw(st.sampled_from([0, 0, 3])) for _ in devices),
            weights=tuple(w for w in range(len(weights)) if draw(st.booleans())),
            energy_nj=tuple(draw(st.integers(0, 5)) for _ in devices) if draw(st.booleans()) else (),
        )

    return replace(
        alone,
        ops=tuple(on_devices(spec) for spec in alone.ops),
        memories=memories,
        devices=devices,
        copy_ns=copies(None) if len(memories) > 1 or draw(st.booleans()) else (),
        copy_energy_nj=copies(0) if draw(st.booleans()) else (),
        weight_bytes=weights,
        overlap=draw(st.booleans()),
    )


@st.composite
def device_schedules(draw: st.DrawFn, problem: Problem, most_steps: int = 24) -> Schedule:
    """A legal schedule on several devices: random computes, repeated ones too, and random copies.

    Problems on which such a walk gets stuck are left out.
    """
    homes = [device.memory for device in problem.devices]
    there: list[set[int]] = [set() for _ in problem.memories]
    done: set[int] = set()
    steps: list[Step] = []
    while len(done) < len(problem.ops):
        possible = [*_computes(problem, homes, there, done), *_copies(problem, homes, there)]
        fresh = [step for step in possible if isinstance(step, Compute) and step.op not in done]
        assume(possible and len(steps) < most_steps)
        step = draw(st.sampled_from(fresh if fresh and draw(st.booleans()) else possible))
        steps.append(step)
        if isinstance(step, Copy):
            there[homes[step.target]].add(step.tensor)
        else:
            done.add(step.op)
            there[homes[step.device]].update(problem.ops[step.op].outputs)
    return Schedule(tuple(steps))


def _computes(problem: Problem, homes: list[int], there: list[set[int]], done: set[int]) -> list[Step]:
    return [
        Compute(op, device)
        for op, spec in enumerate(problem.ops)
        if spec.repeatable or op not in done
        for device, time in enumerate(spec.time_ns)
        if time is not None and set(spec.inputs) <= there[homes[device]]
    ]


def _copies(problem: Problem, homes: list[int], there: list[set[int]]) -> list[Step]:
    return [
        Copy(tensor, source, target)
        for source, row in enumerate(problem.copy_ns)
        for target, times in enumerate(row)
        if homes[source] != homes[target]
        for tensor in sorted(there[homes[source]])
        if times[tensor] is not None
    ]


def fraction_of(peak_bytes: int, fraction: float, fixed_bytes: int = 0) -> int:
    """`fixed + fraction x (peak - fixed)`, rounded up: a percentage budget in bytes."""
    return fixed_bytes + math.ceil(Fraction(str(fraction)) * (peak_bytes - fixed_bytes))
