"""What the search kernels work on: a problem and a schedule as two tables of integers.

A table is a two-dimensional array whose rows have names in `rows`: `net[rows.SIZE, x]`, `s[rows.POS, step]`. Two
plain arrays instead of some forty keep compilation short. `net` never changes; the state `s` is one schedule with its
memory profile, changed in place by the kernels only. A last, empty *end op* reads every kept tensor, so that "lives
to the end" needs no special case anywhere.

Steps stand in *slots*, with empty slots between them, so that a step comes or goes without moving the others. Slots
are grouped in blocks of a power of two; a block knows its highest slot, and what was added to all of its slots.
"""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._kernel import Function, compiled
from remat_cli.solvers.search import rows

Ints = NDArray[np.int64]


_OPTIONS: Final = MappingProxyType({"nogil": True, "no_cfunc_wrapper": True, "error_model": "numpy", "_nrt": False})


def kernel(function: Function) -> Function:
    """Compile with numba, once per machine, running without the interpreter's lock.

    Kernels allocate nothing, so reference counting is off, which with the other switches shortens compilation.
    """
    return compiled(function, **_OPTIONS)


def fragment(function: Function) -> Function:
    """A kernel that other kernels call in one place only: it is copied there instead of compiled on its own.

    Numba optimises a kernel anew inside each of its callers, and theirs, so every level of calls saved counts.
    """
    return compiled(function, inline="always", **_OPTIONS)


def make_net(problem: Problem, in_place: Sequence[Sequence[int]] = ()) -> Ints:
    """Table of a problem that has one device and no views; the end op is appended.

    `in_place` are, per op, the inputs that its only output may overwrite; pairs in the problem itself are ignored.
    """
    ops, tensors = problem.ops, problem.tensors
    order = [tensor for op in ops for tensor in op.outputs]
    number = {tensor: rank for rank, tensor in enumerate(order)}
    kept = [number[t] for t in order if tensors[t].kept]
    reads = [[number[t] for t in op.inputs] for op in ops] + [kept]
    readers: list[list[int]] = [[] for _ in order]
    for op_number, wanted in enumerate(reads):
        for tensor in wanted:
            readers[tensor].append(op_number)
    pairs = [[number[t] for t in row] for row in in_place] or [[] for _ in ops]
    workspace = [op.workspace_bytes[0] for op in ops]
    outputs = [sum(tensors[t].size_bytes for t in op.outputs) for op in ops]
    entries: dict[int, Sequence[int]] = {
        rows.IN_PTR: _starts(reads),
        rows.INPUTS: [entry for row in reads for entry in row],
        rows.OUT_PTR: [*_starts([op.outputs for op in ops]), len(order)],
        rows.PRODUCER: [tensors[t].producer for t in order],
        rows.SIZE: [tensors[t].size_bytes for t in order],
        rows.RANK: [rank for op in ops for rank in range(len(op.outputs))],
        rows.READ_PTR: _starts(readers),
        rows.READERS: [entry for row in readers for entry in row],
        rows.TIME: [*(op.time_ns[0] or 0 for op in ops), 0],
        rows.WORKSPACE: [*workspace, 0],
        rows.OWN: [*(w + o for w, o in zip(workspace, outputs, strict=True)), 0],
        rows.REPEATABLE: [*(int(op.repeatable) for op in ops), 0],
        rows.PAIR_PTR: [*_starts(pairs), sum(len(row) for row in pairs)],
        rows.PAIRS: [entry for row in pairs for entry in row],
        rows.OPS: [len(ops) + 1],
    }
    net = np.zeros((len(entries), max(len(row) for row in entries.values())), np.int64)
    for name, row in entries.items():
        net[name, : len(row)] = row
    return net


def make_state(net: Ints, budget_bytes: int, seed: int) -> Ints:
    """An empty schedule with room for every op three times and some; `budget_bytes` is without the fixed part."""
    ops = int(net[rows.OPS, 0])
    tensors = int(net[rows.OUT_PTR, ops])
    widest = int(np.diff(net[rows.OUT_PTR, : ops + 1]).max(initial=1))
    state = np.zeros((rows.LAST + widest, max(4 * ops, tensors) + 512), np.int64)
    state[rows.NUM, rows.BUDGET] = budget_bytes
    state[rows.NUM, rows.RANDOM] = seed
    state[rows.NUM, rows.SHIFT] = 5 if ops < 4_000 else 6 if ops < 20_000 else 7
    return state


def _starts(rows: Sequence[Sequence[int]]) -> list[int]:
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    return starts
