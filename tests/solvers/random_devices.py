"""Tiny random problems with several devices and memories, of every kind the solvers for them must take."""

from __future__ import annotations

import random

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec

LAYOUTS = ((0, 1), (0, 1), (0, 0), (0, 1, 1))
"""The memory of each device."""


def random_devices(seed: int, count: int = 4, kept: float = 0.0) -> Problem:
    """Several outputs, weights, workspace, ops that run on one device only or never again, missing links, energy."""
    rng = random.Random(seed)
    homes = rng.choice(LAYOUTS)
    devices, memories = len(homes), max(homes) + 1
    tensors: list[TensorSpec] = []
    ops: list[OpSpec] = []
    for op in range(count):
        inputs = sorted(rng.sample(range(len(tensors)), min(len(tensors), rng.choice([1, 1, 2, 2, 3]))))
        outputs = tuple(range(len(tensors), len(tensors) + rng.choice([1, 1, 1, 2])))
        tensors += [TensorSpec(rng.choice([0, 2, 3, 4, 5, 7]), op, kept=rng.random() < kept) for _ in outputs]
        times: list[int | None] = [rng.randint(1, 12) for _ in homes]
        if rng.random() < 0.2:
            times[rng.randrange(devices)] = None
        ops.append(
            OpSpec(
                inputs=tuple(inputs),
                outputs=outputs,
                time_ns=tuple(times),
                workspace_bytes=tuple(rng.choice([0, 0, 0, 2]) for _ in homes),
                repeatable=rng.random() < 0.9,
                weights=(rng.randrange(2),) if rng.random() < 0.3 else (),
                energy_nj=tuple(rng.randint(0, 9) for _ in homes),
            )
        )
    largest = max(sum(tensors[x].size_bytes for x in {*op.inputs, *op.outputs}) for op in ops)
    return Problem(
        ops=tuple(ops),
        tensors=tuple(tensors),
        memories=tuple(Memory(f"memory{m}", largest + rng.randint(-3, 8), rng.choice([0, 1])) for m in range(memories)),
        devices=tuple(Device(f"device{d}", home) for d, home in enumerate(homes)),
        copy_ns=_copies(rng, homes, len(tensors)),
        weight_bytes=(2, 3),
        copy_energy_nj=tuple(tuple((rng.randint(0, 4),) * len(tensors) for _ in homes) for _ in homes),
    )


def _copies(rng: random.Random, homes: tuple[int, ...], tensors: int) -> tuple[tuple[tuple[int | None, ...], ...], ...]:
    """A time per link and tensor; a link is missing now and then."""
    table = []
    for _ in homes:
        is_there = [rng.random() < 0.9 for _ in homes]
        table.append(tuple(tuple(rng.randint(0, 6) if there else None for _ in range(tensors)) for there in is_there))
    return tuple(table)
