"""What comes before and after a few chosen ops in every order, and what must be in memory there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from remat_cli.core.problem import Problem
from remat_cli.solvers._bounds.pressure import Pressure

# Bits per op while loads are measured: memory is the number of ops times twice this over eight bytes.
_BLOCK = 1024
_CHUNK = 1024  # storages whose bits are spread out at once


@dataclass(frozen=True)
class Events:
    """Chosen ops in baseline order. Bit i of `before[v]`: events[i] is an ancestor of op v; of `after[v]`: its heir."""

    events: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


def make_events(problem: Problem, chosen: Sequence[int]) -> Events:
    """Linear in the size of the problem times the number of machine words for the events."""
    bit = {op: 1 << i for i, op in enumerate(chosen)}
    before, after = [0] * len(problem.ops), [0] * len(problem.ops)
    producers = [{problem.tensors[tensor].producer for tensor in op.inputs} for op in problem.ops]
    for op, sources in enumerate(producers):
        for source in sources:
            before[op] |= before[source] | bit.get(source, 0)
    for op in reversed(range(len(producers))):
        for source in producers[op]:
            after[source] |= after[op] | bit.get(op, 0)
    return Events(tuple(chosen), tuple(before), tuple(after))


def forced_tensors(pressure: Pressure, chosen: Events) -> Iterator[tuple[int, int]]:
    """Tensors that weigh something, each with the events (bits) before which it is made and after which it is needed.

    In every order: its producer is an ancestor of the event, and a reader a descendant, or it is kept.
    """
    everywhere = (1 << len(chosen.events)) - 1
    for tensor, root in enumerate(pressure.class_of):
        if pressure.weight[root] == 0:
            continue
        needed = everywhere if pressure.problem.tensors[tensor].kept else 0
        for reader in pressure.readers[tensor]:
            needed |= chosen.before[reader]
        needed &= chosen.after[pressure.producer(tensor)]
        if needed:
            yield tensor, needed


def forced_loads(pressure: Pressure, ops: Sequence[int]) -> list[int]:
    """For each of the ops the least memory at its first computation, in every order, if nothing is recomputed."""
    loads: list[int] = []
    for start in range(0, len(ops), _BLOCK):
        loads += _loads_of(pressure, ops[start : start + _BLOCK])
    return loads


def _loads_of(pressure: Pressure, ops: Sequence[int]) -> list[int]:
    by_root: dict[int, int] = {}
    for tensor, needed in forced_tensors(pressure, make_events(pressure.problem, ops)):
        root = pressure.class_of[tensor]
        by_root[root] = by_root.get(root, 0) | needed
    loads = [pressure.working[op] for op in ops]
    for i, op in enumerate(ops):
        own = sum(pressure.weight[root] for root in pressure.own[op] if by_root.get(root, 0) >> i & 1)
        loads[i] -= own
    roots = list(by_root)
    for start in range(0, len(roots), _CHUNK):
        chunk = roots[start : start + _CHUNK]
        weights = np.array([pressure.weight[root] for root in chunk], dtype=np.int64)
        sums = weights @ _bit_rows([by_root[root] for root in chunk], len(ops))
        loads = [load + int(more) for load, more in zip(loads, sums, strict=True)]
    return loads


def _bit_rows(sets: Sequence[int], width: int) -> npt.NDArray[np.int64]:
    """A row of zeros and ones per bit set."""
    size = -(-width // 8)
    packed = np.frombuffer(b"".join(bits.to_bytes(size, "little") for bits in sets), dtype=np.uint8)
    rows = np.unpackbits(packed.reshape(len(sets), size), axis=1, bitorder="little")
    return rows[:, :width].astype(np.int64)


def bits_of(items: int) -> Iterator[int]:
    """Numbers in a bit set, rising."""
    while items:
        low = items & -items
        yield low.bit_length() - 1
        items ^= low
