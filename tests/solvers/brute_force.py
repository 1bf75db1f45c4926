"""Exact optima of tiny one-device problems by exhaustive search, in the judge's terms; shares no code with the solvers.

Dijkstra over what is in memory. A state says which ops have run, which tensors are in memory and which of them share
a storage. A step runs one op and then gives up some of the tensors that it read or made, for good: each instance is
given up exactly at its last read, so all schedules are covered, and each with the memory that the judge counts.
Whether a run is the last one of an op with kept results is guessed when it runs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from remat_cli.core.schedule.problem import OpSpec, Problem

SPACES = ("free", "free_c2", "first_in_order", "staged", "staged_c2")


@dataclass(frozen=True, order=True)
class State:
    """`runs[v]` counts op v's computations (at most 1 unless the space caps them), `closed` ops never run again.

    `stored` are (tensors in one storage, its bytes); `position` is the last recompute of the current stage, or -1.
    """

    runs: tuple[int, ...]
    closed: tuple[int, ...]
    stored: tuple[tuple[tuple[int, ...], int], ...]
    position: int

    @property
    def alive(self) -> set[int]:
        return {tensor for tensors, _ in self.stored for tensor in tensors}


def optimum(problem: Problem, space: str) -> tuple[int, list[int]] | None:
    """Least time and the ops of one best schedule within the budget; None if there is none."""
    start = State((0,) * len(problem.ops), (), (), -1)
    heap: list[tuple[int, int, State, tuple[int, ...]]] = [(0, 0, start, ())]
    done: set[State] = set()
    ticket = itertools.count(1)
    while heap:
        time, _, state, ops = heapq.heappop(heap)
        if state in done:
            continue
        done.add(state)
        if _is_complete(problem, state):
            return time, list(ops)
        for op in _next_ops(problem, state, space):
            for after in _run(problem, state, op, space):
                cost = time + (problem.ops[op].time_ns[0] or 0)
                heapq.heappush(heap, (cost, next(ticket), after, (*ops, op)))
    return None


def _is_complete(problem: Problem, state: State) -> bool:
    kept_ops = {spec.producer for spec in problem.tensors if spec.kept}
    return min(state.runs) > 0 and kept_ops <= set(state.closed)


def _next_ops(problem: Problem, state: State, space: str) -> Iterator[int]:
    alive = state.alive
    stage = next((op for op, runs in enumerate(state.runs) if runs == 0), len(problem.ops))
    for op, spec in enumerate(problem.ops):
        if op in state.closed or not set(spec.inputs) <= alive or set(spec.outputs) & alive:
            continue
        if state.runs[op] and (not spec.repeatable or (space.endswith("c2") and state.runs[op] == 2)):
            continue
        if not space.startswith("free") and op > stage:
            continue
        if space.startswith("staged") and (stage == len(problem.ops) or op <= state.position):
            continue
        yield op


def _run(problem: Problem, state: State, op: int, space: str) -> Iterator[State]:
    """All states after running op: every choice of what to give up, and of being the last run."""
    spec = problem.ops[op]
    first = state.runs[op] == 0
    position = -1 if first or not space.startswith("staged") else op
    count = state.runs[op] + 1 if space.endswith("c2") else 1
    runs = (*state.runs[:op], count, *state.runs[op + 1 :])
    kept = [tensor for tensor in spec.outputs if problem.tensors[tensor].kept]
    for last in (False, True) if kept else (False,):
        pinned = {t for t in state.alive if problem.tensors[t].kept and problem.tensors[t].producer in state.closed}
        pinned |= set(kept) if last else set()
        closed = tuple(sorted({*state.closed, op})) if last else state.closed
        touched = sorted({*spec.inputs, *spec.outputs} - pinned)
        for given_up in _subsets(touched):
            stored = _place(problem, state, spec, given_up, pinned)
            if stored is not None:
                yield State(runs, closed, stored, position)


def _subsets(items: list[int]) -> Iterator[set[int]]:
    for size in range(len(items) + 1):
        yield from map(set, itertools.combinations(items, size))


def _place(
    problem: Problem, state: State, spec: OpSpec, given_up: set[int], pinned: set[int]
) -> tuple[tuple[tuple[int, ...], int], ...] | None:
    """Storages after the step, None if the step does not fit."""
    buffers = [(set(tensors), size) for tensors, size in state.stored]
    read = {tensor: i for i, (tensors, _) in enumerate(buffers) for tensor in tensors if tensor in spec.inputs}
    reused: set[int] = set()
    for output in spec.outputs:
        free = {i for i, (tensors, _) in enumerate(buffers) if i not in reused and tensors <= given_up}
        home = None if output in pinned else _shared(problem, spec, output, read, free)
        if home is None:
            buffers.append(({output}, problem.tensors[output].size_bytes))
        else:
            buffers[home][0].add(output)
            reused.add(home)
    memory = problem.memories[0]
    if sum(size for _, size in buffers) + spec.workspace_bytes[0] + memory.fixed_bytes > memory.budget_bytes:
        return None
    left = [(tuple(sorted(tensors - given_up)), size) for tensors, size in buffers]
    return tuple(sorted((tensors, size) for tensors, size in left if tensors))


def _shared(problem: Problem, spec: OpSpec, output: int, read: dict[int, int], free: set[int]) -> int | None:
    """Index of the storage an output shares: that of its base, or a source's, if it is among the free ones."""
    base = problem.tensors[output].view_of
    if base is not None:
        return read[base]
    for source, result in spec.in_place:
        home = read[source]
        readers = sum(read[tensor] == home for tensor in spec.inputs)
        if result == output and home in free and readers == 1:
            return home
    return None
