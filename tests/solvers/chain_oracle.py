"""Exact optima of tiny chains by exhaustive search over what is stored; shares no code with the solvers.

Dijkstra over states of the model of heterogeneous chains. `table`: the operations as they are. `persistent`: an output
that the very next operation does not use may not be moved any more. `free`: anything stored may be deleted at any time,
and of what a backward needs all but the output.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from remat_cli.solvers.chains.actions import Chain

MODES = ("table", "persistent", "free")
ABSENT, BARE, FULL = 0, 1, 2


class State(NamedTuple):
    """What is stored of each stage's output, the stage of the only gradient, and the output that may still move."""

    stored: tuple[int, ...]
    gradient: int
    fresh: int


def optimum(chain: Chain, budget: int, mode: str) -> int | None:
    """The least time within the budget; None if there is none."""
    last = len(chain.forward_ns) - 1
    start = State((BARE, *[ABSENT] * last), last, 0)
    if _bytes(chain, start) > budget:
        return None
    heap, done = [(0, start)], set()
    while heap:
        time, state = heapq.heappop(heap)
        if state in done:
            continue
        done.add(state)
        if state.gradient == 0:
            return time
        for cost, more, after in _following(chain, state, mode):
            if _bytes(chain, state) + more <= budget:
                heapq.heappush(heap, (time + cost, after if mode == "persistent" else after._replace(fresh=-1)))
    return None


def _bytes(chain: Chain, state: State) -> int:
    sizes = (0, chain.value_bytes, chain.saved_bytes)
    held = sum(sizes[kind][stage] for stage, kind in enumerate(state.stored) if kind)
    return held + chain.gradient_bytes[state.gradient]


def _following(chain: Chain, state: State, mode: str) -> Iterator[tuple[int, int, State]]:
    """Time, additional bytes during it, and outcome of every operation that is possible."""
    yield from _backward(chain, state)
    for stage in range(1, len(state.stored)):
        if state.stored[stage] == ABSENT and state.stored[stage - 1] != ABSENT:
            yield from _forwards(chain, state, stage, mode)
    if mode == "free":
        for stage, kind in enumerate(state.stored):
            for less in range(kind):
                yield 0, 0, state._replace(stored=_with(state.stored, stage, less))


def _backward(chain: Chain, state: State) -> Iterator[tuple[int, int, State]]:
    stage = state.gradient
    if state.stored[stage] == FULL and state.stored[stage - 1] != ABSENT:
        left = _with(state.stored, stage, ABSENT)
        if left[stage - 1] == BARE:
            left = _with(left, stage - 1, ABSENT)
        more = chain.gradient_bytes[stage - 1] + chain.backward_extra_bytes[stage]
        yield chain.backward_ns[stage], more, State(left, stage - 1, -1)


def _forwards(chain: Chain, state: State, stage: int, mode: str) -> Iterator[tuple[int, int, State]]:
    time = chain.forward_ns[stage]
    full = chain.saved_bytes[stage] + chain.saving_extra_bytes[stage]
    bare = chain.value_bytes[stage] + chain.forward_extra_bytes[stage]
    yield time, full, State(_with(state.stored, stage, FULL), state.gradient, -1)
    kept = _with(state.stored, stage, BARE)
    yield time, bare, State(kept, state.gradient, stage)
    if state.stored[stage - 1] == BARE and (mode != "persistent" or state.fresh == stage - 1):
        yield time, bare, State(_with(kept, stage - 1, ABSENT), state.gradient, stage)


def _with(stored: tuple[int, ...], stage: int, kind: int) -> tuple[int, ...]:
    return (*stored[:stage], kind, *stored[stage + 1 :])
