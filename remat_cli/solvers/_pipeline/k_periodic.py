"""The best schedule of any shape for small pipelines: cycles in the graph of all reachable states.

Stages on devices of their own, no transfers, and a limit on the mini-batches alive per stage. A state says per stage
what waits for its forward and for its backward, and what runs for how long still. Something starts only when something
ends: earlier is never worse. Exponential; for a few stages of short tasks.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from remat_cli.base.errors import InputError

State: TypeAlias = tuple[tuple[int, int, int, int], ...]
"""Per stage: waiting for forward, waiting for backward, task that runs (0 none, 1 forward, 2 backward), time left."""
_MOST_STATES = 200_000
_FAR = 2**40


@dataclass(frozen=True)
class StagedPipeline:
    """Times of forward and backward per stage, each at least 1, and the most mini-batches alive in it."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    limits: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises InputError where rows differ in length, or a figure is below 1."""
        if not len(self.forward) == len(self.backward) == len(self.limits):
            raise InputError(
                f"uF, uB and nca_limit have {len(self.forward)}, {len(self.backward)} and {len(self.limits)} figures; "
                "give one per stage each"
            )
        if min(self.forward + self.backward + self.limits, default=0) < 1:
            raise InputError("a pipeline needs stages, and times and limits of at least 1 for each")


def best_exactly_k(pipeline: StagedPipeline, most: int) -> list[Fraction]:
    """The best time per mini-batch of schedules whose pattern has exactly 1, 2, .., `most` mini-batches."""
    once = _between_completions(pipeline)
    found = []
    power = once
    for k in range(1, most + 1):
        found.append(Fraction(int(power.diagonal().min()), k))
        power = _min_plus(power, once)
    return found


def best_any_k(pipeline: StagedPipeline) -> Fraction:
    """The best time per mini-batch of all schedules: the least mean of a cycle, after Karp 1978."""
    once = _between_completions(pipeline)
    count = len(once)
    walks = np.zeros((count + 1, count), np.int64)
    for length in range(1, count + 1):
        walks[length] = np.minimum((walks[length - 1][:, None] + once).min(axis=0), _FAR)
    best = None
    for end in range(count):
        if walks[count, end] < _FAR:
            total = int(walks[count, end])
            worst = max(Fraction(total - int(walks[k, end]), count - k) for k in range(count))
            best = worst if best is None else min(best, worst)
    if best is None:
        raise InputError("no mini-batch ever comes through this pipeline")
    return best


def _between_completions(pipeline: StagedPipeline) -> NDArray[np.int64]:
    """Least time from one state just after a mini-batch came out to another, with one mini-batch more."""
    empty: State = ((0, 0, 0, 0),) * len(pipeline.forward)
    edges: dict[State, list[tuple[State, int, bool]]] = {}
    open_states = [empty]
    while open_states:
        state = open_states.pop()
        if state in edges:
            continue
        if len(edges) == _MOST_STATES:
            raise InputError(f"this pipeline has more than {_MOST_STATES} states; take fewer stages or shorter tasks")
        edges[state] = list(_steps(pipeline, state))
        open_states += [after for after, _, _ in edges[state]]
    done = sorted({after for steps in edges.values() for after, _, is_done in steps if is_done})
    place = {state: at for at, state in enumerate(done)}
    table = np.full((len(done), len(done)), _FAR, np.int64)
    for at, state in enumerate(done):
        for after, time in _first_completions(edges, state).items():
            table[at, place[after]] = time
    return table


def _first_completions(edges: dict[State, list[tuple[State, int, bool]]], start: State) -> dict[State, int]:
    """Dijkstra, up to the next mini-batch that comes out."""
    found: dict[State, int] = {}
    closed = set()
    queue = [(0, start)]
    while queue:
        time, state = heapq.heappop(queue)
        if state in closed:
            continue
        closed.add(state)
        for after, taken, is_done in edges[state]:
            if is_done:
                found[after] = min(found.get(after, _FAR), time + taken)
            elif after not in closed:
                heapq.heappush(queue, (time + taken, after))
    return found


def _min_plus(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([np.minimum((row[:, None] + other).min(axis=0), _FAR) for row in one])


def _steps(pipeline: StagedPipeline, state: State) -> Iterator[tuple[State, int, bool]]:
    """All ways to start tasks on idle devices, each run to the next end: the state then, time, did one come out."""
    alive = _alive(state)
    for chosen in product(*(_choices(pipeline, state, stage, alive[stage]) for stage in range(len(state)))):
        left = [each[3] for each in chosen if each[2]]
        if left:
            yield _run(chosen, min(left))


def _alive(state: State) -> list[int]:
    """Per stage, mini-batches between the start of its forward and the end of its backward."""
    counts = [0] * (len(state) + 1)
    for stage in reversed(range(len(state))):
        inner = state[stage + 1][0] if stage + 1 < len(state) else 0
        counts[stage] = counts[stage + 1] + inner + state[stage][1] + (state[stage][2] > 0)
    return counts[:-1]


def _choices(pipeline: StagedPipeline, state: State, stage: int, alive: int) -> list[tuple[int, int, int, int]]:
    forwards, backwards, task, left = state[stage]
    if task:
        return [state[stage]]
    found = [(forwards, backwards, 0, left)]
    if (stage == 0 or forwards) and alive < pipeline.limits[stage]:
        found.append((forwards - (stage > 0), backwards, 1, pipeline.forward[stage]))
    if backwards:
        found.append((forwards, backwards - 1, 2, pipeline.backward[stage]))
    return found


def _run(state: Sequence[tuple[int, int, int, int]], time: int) -> tuple[State, int, bool]:
    after = [list(each) for each in state]
    is_done = False
    for stage, (_, _, task, left) in enumerate(state):
        if not task:
            continue
        after[stage][3] = left - time
        if left > time:
            continue
        after[stage][2] = 0
        if task == 1:
            last = stage == len(state) - 1
            after[stage if last else stage + 1][1 if last else 0] += 1
        elif stage:
            after[stage - 1][1] += 1
        else:
            is_done = True
    return tuple((each[0], each[1], each[2], each[3]) for each in after), time, is_done
