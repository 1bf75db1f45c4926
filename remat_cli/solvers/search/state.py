"""What the search kernels work on: a problem and a schedule as two tables of integers.

A table is a two-dimensional array whose rows are named by the constants below: `net[SIZE, x]`, `s[POS, step]`. Two
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

Ints = NDArray[np.int64]

# Rows of a net. Tensors are renumbered so that those of op v are OUT_PTR[v] .. OUT_PTR[v+1]-1.
(
    IN_PTR,  # per op: where its INPUTS begin
    INPUTS,
    OUT_PTR,  # per op: its first output
    PRODUCER,  # per tensor
    SIZE,  # per tensor: bytes
    RANK,  # per tensor: its number among the outputs of its op
    READ_PTR,  # per tensor: where its READERS begin
    READERS,
    TIME,  # per op
    WORKSPACE,  # per op: bytes
    OWN,  # per op: bytes of its outputs and workspace
    REPEATABLE,  # per op: 0 or 1
    PAIR_PTR,  # per op: where its PAIRS begin
    PAIRS,  # inputs, any one of which the op's only output overwrites when the op reads it last
    OPS,  # one entry: number of ops, the end op included
) = range(15)

# Rows of a state. Steps have numbers that stay while their slots change.
(
    SEQ,  # per slot: the step there, -1 if it is empty
    OP,  # per step
    POS,  # per step: its slot
    NXT,  # per step: next step of the same op, -1 if none
    HEAD,  # per op: its first step
    MEM,  # per slot: bytes, what its block has PENDING left out; far below zero if it is empty
    MOST,  # per block: most bytes of any slot
    PENDING,  # per block: bytes to be added to every slot
    SPARE,  # stack of unused step numbers
    MARK,  # scratch per op or step: stamps
    USE,  # scratch per tensor: where in a bundle it is read last
    FATE,  # scratch per tensor: stamps
    BUNDLE,  # scratch: ops or steps of the move being looked at
    CREDIT,  # per step: bytes it saves now by working in place, already taken off MEM
    CUTS,  # scratch: slots from which on the move being looked at changes memory, in rising order ...
    RISES,  # ... and by how many bytes more
    REPEATS,  # list of the ops that have more than one step
    PLACE,  # per op: where in that list, -1 if it is not
    BLOCKER,  # per step: a step that kept it from being removed when that was last tried, -1 if unknown
    BLOCK,  # ... and the bytes that the removal would have added there
    LOG,  # what has been done to the schedule since the log began: the kind of change,
    LOG_WHAT,  # the step, or its op once it is removed,
    LOG_AT,  # and the step before which it was put, or stood before
    NUM,  # the single numbers below
    LAST,  # rows from here on, per step: the last step that reads output k, the step itself when unread
) = range(25)

# Entries of row NUM.
(
    LENGTH,  # steps of the schedule, the end op included
    COST,  # total time of all steps
    BUDGET,  # bytes that activations and workspace may take
    STAMP,  # counter that makes marks of earlier moves void
    WORK,  # candidate moves looked at so far
    FREE,  # entries on the stack SPARE
    CHANGES,  # entries of CUTS
    SLOTS,  # slots in use, the last one holds the end op
    SHIFT,  # a block has 2**SHIFT slots
    PINNED,  # 1: first computations stay in their order
    RANDOM,  # state of the random numbers
    BEST,  # score of the best bundle found by the scan under way, its op, step to stand before, and how it was gathered
    BEST_OP,
    BEST_AT,
    BEST_LIMIT,
    BEST_LEAST,
    REPEATED,  # entries of the list REPEATS
    LOGGED,  # entries of the log
    OVER,  # excess of the schedule the search stands at
    LIVES,  # tensors looked at by the last scan for lives across a slot
    BLOCK_AT,  # slot where the move looked at last does not fit, and the bytes it adds there
    BLOCK_BY,
    WHOLE,  # excess when the scan under way began
    WIDTH,  # ops that a bundle may have
    ORDERING,  # 1: search orders only, no step is added or removed
    ROUNDS,  # rounds of search begun since the schedule was built
    REPAIRING,  # 1: the last round stopped in its repair, which goes on with what follows
    NOISE,  # of the repair, times SCALE
    SHARE,  # of a tensor's bytes below which its ancestors do not join a bundle, times SCALE
    MOST_COST,  # time at which the repair gives up
    FAILURES,  # tries in a row that did not lower the excess
    COST_BEFORE,  # time when the round began
) = range(32)

SCALE = 2.0**40  # keeps fractions and logarithms apart when they are stored as integers
EMPTY = -(2**60)  # bytes of an empty slot: nothing that is added ever brings it above a budget

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
    rows: dict[int, Sequence[int]] = {
        IN_PTR: _starts(reads),
        INPUTS: [entry for row in reads for entry in row],
        OUT_PTR: [*_starts([op.outputs for op in ops]), len(order)],
        PRODUCER: [tensors[t].producer for t in order],
        SIZE: [tensors[t].size_bytes for t in order],
        RANK: [rank for op in ops for rank in range(len(op.outputs))],
        READ_PTR: _starts(readers),
        READERS: [entry for row in readers for entry in row],
        TIME: [*(op.time_ns[0] or 0 for op in ops), 0],
        WORKSPACE: [*workspace, 0],
        OWN: [*(w + o for w, o in zip(workspace, outputs, strict=True)), 0],
        REPEATABLE: [*(int(op.repeatable) for op in ops), 0],
        PAIR_PTR: [*_starts(pairs), sum(len(row) for row in pairs)],
        PAIRS: [entry for row in pairs for entry in row],
        OPS: [len(ops) + 1],
    }
    net = np.zeros((len(rows), max(len(row) for row in rows.values())), np.int64)
    for name, row in rows.items():
        net[name, : len(row)] = row
    return net


def make_state(net: Ints, budget_bytes: int, seed: int) -> Ints:
    """An empty schedule with room for every op three times and some; `budget_bytes` is without the fixed part."""
    ops = int(net[OPS, 0])
    tensors = int(net[OUT_PTR, ops])
    widest = int(np.diff(net[OUT_PTR, : ops + 1]).max(initial=1))
    state = np.zeros((LAST + widest, max(4 * ops, tensors) + 512), np.int64)
    state[NUM, BUDGET] = budget_bytes
    state[NUM, RANDOM] = seed
    state[NUM, SHIFT] = 5 if ops < 4_000 else 6 if ops < 20_000 else 7
    return state


def _starts(rows: Sequence[Sequence[int]]) -> list[int]:
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row))
    return starts
