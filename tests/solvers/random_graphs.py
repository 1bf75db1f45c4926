"""Random and model-like problems for the search tests; larger than what hypothesis draws."""

from __future__ import annotations

import random

from remat_cli.core.schedule.problem import Device, Memory, OpSpec, Problem, TensorSpec
from remat_cli.core.schedule.simulate import baseline
from tests.strategies import fraction_of


def one_device(
    ops: list[tuple[list[int], int, int]], kept: tuple[int, ...] = (), budget: int = 2**40, fixed: int = 0
) -> Problem:
    """Ops with one output each, as (inputs, time, bytes)."""
    return Problem(
        ops=tuple(OpSpec(tuple(reads), (v,), (time,), (0,)) for v, (reads, time, _) in enumerate(ops)),
        tensors=tuple(TensorSpec(size, v, kept=v in kept) for v, (_, _, size) in enumerate(ops)),
        memories=(Memory("cpu", budget, fixed),),
        devices=(Device("cpu", 0),),
    )


def random_problem(seed: int, count: int = 40) -> Problem:
    """Several outputs, kept tensors, workspace, unrepeatable ops, zero sizes and times."""
    rng = random.Random(seed)
    ops: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    for op in range(count):
        near = list(range(max(0, len(tensors) - 12), len(tensors)))
        inputs = rng.sample(near, min(len(near), rng.choice([0, 1, 1, 2, 2, 3])))
        outputs = tuple(range(len(tensors), len(tensors) + rng.choice([1, 1, 1, 2, 3])))
        tensors += [TensorSpec(rng.choice([0, 1, 5, 9, 20]), op, kept=rng.random() < 0.1) for _ in outputs]
        workspace = rng.choice([0, 0, 0, 7])
        ops.append(OpSpec(tuple(inputs), outputs, (rng.randint(0, 50),), (workspace,), rng.random() < 0.9))
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40, 11),), (Device("cpu", 0),))


def in_place_problem(seed: int, count: int = 40) -> Problem:
    """One output each; some ops may work in place on one of two inputs, which often have other readers too."""
    rng = random.Random(seed)
    ops: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    for op in range(count):
        near = list(range(max(0, op - 6), op))
        inputs = rng.sample(near, min(len(near), rng.choice([0, 1, 2, 2, 3])))
        sources = inputs[: rng.choice([0, 1, 2])]
        size = tensors[sources[0]].size_bytes if sources else rng.choice([4, 8, 12])
        pairs = tuple((source, op) for source in sources if tensors[source].size_bytes == size)
        tensors.append(TensorSpec(size, op))
        ops.append(OpSpec(tuple(inputs), (op,), (rng.randint(1, 50),), (0,), in_place=pairs))
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40),), (Device("cpu", 0),))


def at_fraction(problem: Problem, fraction: float) -> Problem:
    """The problem under that fraction of its baseline peak."""
    fixed = problem.memories[0].fixed_bytes
    return problem.with_budget(fraction_of(baseline(problem).peak, fraction, fixed))


def nested_unet(depth: int = 4, size: int = 64, convs: int = 2) -> Problem:
    """U-Net++-like: a block reads all earlier results of its level and one from below; a block is a chain."""
    ops: list[tuple[list[int], int, int]] = []

    def add(reads: list[int], time: int, size_bytes: int) -> int:
        ops.append((reads, time, size_bytes))
        return len(ops) - 1

    def block(read: int, bytes_out: int, level: int) -> int:
        for _ in range(convs):
            read = add([read], 40 + 10 * level, bytes_out)
        return read

    grid: dict[tuple[int, int], int] = {}
    sizes = [size * 1024 >> level for level in range(depth + 1)]
    source = add([], 1, sizes[0] // 4)
    for diagonal in range(depth + 1):
        for level in range(depth - diagonal + 1):
            if diagonal == 0:
                read = source if level == 0 else add([grid[level - 1, 0]], 2, sizes[level] // 2)
            else:
                up = add([grid[level + 1, diagonal - 1]], 4, sizes[level])
                skips = [grid[level, d] for d in range(diagonal)]
                read = add([*skips, up], 60, sizes[level])
            grid[level, diagonal] = block(read, sizes[level], level)
    final = add([grid[0, depth]], 5, sizes[0] // 8)
    return one_device(ops, kept=(final,))


def fusion_net(branches: int = 4, stages: int = 4, size: int = 64) -> Problem:
    """HRNet-like: parallel resolutions, each stage a chain per branch, then sums over all branches resized."""
    ops: list[tuple[list[int], int, int]] = []

    def add(reads: list[int], time: int, size_bytes: int) -> int:
        ops.append((reads, time, size_bytes))
        return len(ops) - 1

    sizes = [size * 1024 >> branch for branch in range(branches)]
    live = [add([], 1, sizes[0])]
    for stage in range(stages):
        if len(live) < branches:
            live.append(add([live[-1]], 20, sizes[len(live)]))
        for branch, read in enumerate(live):
            inner = add([read], 50, sizes[branch])
            inner = add([inner], 50, sizes[branch])
            live[branch] = add([inner, read], 3, sizes[branch])
        if stage == stages - 1:
            break
        fused = []
        for branch in range(len(live)):
            parts = [live[branch]]
            parts += [add([other], 15, sizes[branch]) for i, other in enumerate(live) if i != branch]
            fused.append(add(parts, 5, sizes[branch]))
        live = fused
    parts = [live[0]] + [add([other], 4, sizes[0]) for other in live[1:]]
    final = add([add(parts, 8, sizes[0] // 2)], 30, sizes[0] // 4)
    return one_device(ops, kept=(final,))


def skip_net(seed: int, count: int = 7) -> Problem:
    """Nearly a chain, with skips over it, views, in-place results, kept tensors and an op that may not be repeated."""
    rng = random.Random(seed)
    ops: list[OpSpec] = []
    tensors: list[TensorSpec] = []
    for op in range(count):
        near = [rng.randrange(max(0, len(tensors) - 2), len(tensors))] if tensors and rng.random() < 0.85 else []
        far = [rng.randrange(len(tensors)) for _ in range(rng.choice([0, 0, 1, 1, 2]))] if tensors else []
        inputs = tuple(dict.fromkeys(near + far))
        nature = rng.choice(["plain"] * 4 + ["view", "in_place"]) if inputs else "plain"
        outputs = tuple(range(len(tensors), len(tensors) + (rng.choice([1, 1, 1, 1, 2]) if nature == "plain" else 1)))
        for _ in outputs:
            size = rng.choice([0, 1, 2, 3, 4, 6, 9]) if nature == "plain" else tensors[inputs[0]].size_bytes
            base = inputs[0] if nature == "view" else None
            tensors.append(TensorSpec(size, op, view_of=base, kept=rng.random() < 0.06 or op == count - 1))
        pairs = ((inputs[0], outputs[0]),) if nature == "in_place" else ()
        workspace = rng.choice([0, 0, 0, 0, 2])
        ops.append(OpSpec(inputs, outputs, (rng.randint(1, 9),), (workspace,), rng.random() < 0.95, pairs))
    return Problem(tuple(ops), tuple(tensors), (Memory("cpu", 2**40, rng.choice([0, 100])),), (Device("cpu", 0),))
