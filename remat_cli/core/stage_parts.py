"""A line cut into stages: what each stage runs, receives, keeps and sends; and the chain of blocks for planners."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from remat_cli.base.errors import InputError
from remat_cli.core.line import Line
from remat_cli.core.pipeline import PipelineChain

VERSIONS, GRADIENTS = 2, 2
"""Of the weights, for updates that come late; and of their gradients: the sum so far, and of the mini-batch at hand."""


@dataclass(frozen=True)
class StageParts:
    """One stage: ops by id, in order; tensors by id, each row in a stable order.

    Attributes:
        first, last: places on the line, the second one excluded.
        arrives: what the stage before sends there.
        leaves: what is sent on to the next stage.
        returns: what the next stage sends back.
        goes_back: what is sent back to the stage before.
        kept: what is kept of a mini-batch from its forward to its backward, inputs of the model left out.
        fed: inputs of the model that are fed anew with each mini-batch.
        states: inputs that are kept from step to step.
        gradients: what updates of the stage's states take.
    """

    first: int
    last: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    arrives: tuple[int, ...]
    leaves: tuple[int, ...]
    returns: tuple[int, ...]
    goes_back: tuple[int, ...]
    kept: tuple[int, ...]
    fed: tuple[int, ...]
    states: tuple[int, ...]
    gradients: tuple[int, ...]


class LineCosts(msgspec.Struct, frozen=True):
    """By op of the graph, nanoseconds and bytes of workspace; and what a link moves per nanosecond.

    `states_per_weight` are numbers that the optimizer remembers of each weight.
    """

    times_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    bytes_per_ns: float
    states_per_weight: int = 0


def stages_between(line: Line, ends: Sequence[int]) -> tuple[StageParts, ...]:
    """The stages that end at these places; the last end is the end of the line."""
    bounds = list(pairwise((0, *ends)))
    crossing = {cut: line.crossing(cut) for cut in ends[:-1]}
    return tuple(_stage(line, bound, crossing) for bound in bounds)


def _stage(
    line: Line, bound: tuple[int, int], crossing: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
) -> StageParts:
    first, last = bound
    graph = line.graph
    forward = line.forward[first:last]
    backward = tuple(op for op in line.backward if first <= line.place[op] < last)
    arrives, goes_back = crossing.get(first, ((), ()))
    leaves, returns = crossing.get(last, ((), ()))
    read_back = _read(line, backward)
    here = {*arrives, *(tensor for op in forward for tensor in graph.ops[op].outputs)}
    kept = tuple(sorted(tensor for tensor in here if tensor in read_back or tensor in goes_back))
    read = _read(line, forward) | read_back
    fed = tuple(t for t in graph.model_inputs if t in read and t not in line.homes)
    states = tuple(t for t in graph.model_inputs if t in line.homes and first <= line.homes[t] < last)
    gradients = tuple(sorted(t for t, home in line.gradient_homes.items() if first <= home < last))
    return StageParts(first, last, forward, backward, arrives, leaves, returns, goes_back, kept, fed, states, gradients)


def _read(line: Line, ops: Iterable[int]) -> set[int]:
    return {tensor for op in ops for tensor in line.graph.ops[op].inputs}


def place_times(line: Line, times_ns: Sequence[int]) -> list[int]:
    """Load of each place of the line, both ways."""
    loads = [0] * len(line.forward)
    for op, takes in enumerate(times_ns):
        loads[line.place[op]] += takes
    return loads


def chain_of(line: Line, ends: Sequence[int], costs: LineCosts) -> PipelineChain:
    """The chain whose layers are the stages that end at these places: times, weights, what crosses, what is kept.

    Weights are all copies that a stage holds of them, so that the chain has one.

    Raises:
        InputError: a link moves nothing.
    """
    if not costs.bytes_per_ns > 0:
        raise InputError(f"a link must move something, but moves {costs.bytes_per_ns} bytes per nanosecond")
    stages = stages_between(line, ends)
    sizes = (0, *(line.cut_bytes[cut] for cut in ends[:-1]), 0)
    saved = [_bytes(line, (*stage.kept, *_fed_back(line, stage))) for stage in stages]
    return PipelineChain(
        forward=tuple(_time(stage.forward, costs) for stage in stages),
        backward=tuple(_time(stage.backward, costs) for stage in stages),
        weights=tuple(_weight_bytes(line, stage, copies_of(costs)) for stage in stages),
        sizes=sizes,
        transfers=tuple(-int(-size // costs.bytes_per_ns) for size in sizes[1:-1]),
        copies=1,
        saved=tuple(saved),
        forward_work=tuple(_forward_work(line, stage, costs) for stage in stages),
        backward_work=tuple(_backward_work(line, stage, costs) for stage in stages),
        has_gradients=line.has_gradients,
        drops_at_end=True,
    )


def copies_of(costs: LineCosts) -> int:
    """How many weight-sized tensors a stage holds of what it trains."""
    return VERSIONS + GRADIENTS + costs.states_per_weight


def _bytes(line: Line, tensors: Iterable[int]) -> int:
    return sum(line.graph.tensors[tensor].size_bytes for tensor in tensors)


def _fed_back(line: Line, stage: StageParts) -> tuple[int, ...]:
    """Inputs of the model that both ways of a stage read."""
    read = _read(line, stage.backward)
    return tuple(tensor for tensor in stage.fed if tensor in read)


def _time(ops: Sequence[int], costs: LineCosts) -> int:
    return sum(costs.times_ns[op] for op in ops)


def _weight_bytes(line: Line, stage: StageParts, copies: int) -> int:
    """All copies of what the stage trains, and one of what it does not: constants never have more."""
    graph = line.graph
    fixed = {weight for op in (*stage.forward, *stage.backward) for weight in graph.ops[op].weights}
    return copies * _bytes(line, stage.gradients) + sum(graph.weights[weight].size_bytes for weight in fixed)


def _roots(line: Line) -> list[int]:
    """By tensor, the one whose storage it shares."""
    roots: list[int] = []
    for number, tensor in enumerate(line.graph.tensors):
        roots.append(number if tensor.view_of is None else roots[tensor.view_of])
    return roots


def _forward_work(line: Line, stage: StageParts, costs: LineCosts) -> int:
    """The most that the forward holds beyond all that it keeps: what it keeps counts from its start."""
    held = {*stage.arrives, *stage.fed}
    return _work(
        line, stage.forward, (held, {*stage.leaves, *stage.kept}), costs, {*stage.kept, *_fed_back(line, stage)}
    )


def _backward_work(line: Line, stage: StageParts, costs: LineCosts) -> int:
    """The most that the backward holds beside what was kept, and the gradients of weights, which have a place."""
    ends = {*stage.goes_back, *stage.gradients}
    return _work(line, stage.backward, (set(stage.returns), ends), costs, {*stage.kept, *stage.fed, *stage.gradients})


def _work(line: Line, ops: Sequence[int], ends: tuple[set[int], set[int]], costs: LineCosts, counted: set[int]) -> int:
    """Most bytes while ops run one after another, `counted` left out.

    What comes in is held by the caller all the time, what goes out from when it is made to the end.
    """
    graph, roots = line.graph, _roots(line)
    comes, goes = ends
    last: dict[int, int] = {}
    for at, op in enumerate(ops):
        last.update(dict.fromkeys((roots[tensor] for tensor in graph.ops[op].inputs), at))
    stays = {roots[tensor] for tensor in goes}
    alive = _bytes(line, comes - counted)
    most = alive
    mine: dict[int, int] = {}
    for at, op in enumerate(ops):
        for tensor in graph.ops[op].outputs:
            if roots[tensor] == tensor and tensor not in counted:
                mine[tensor] = graph.tensors[tensor].size_bytes
                alive += mine[tensor]
        most = max(most, alive + costs.workspace_bytes[op])
        for root in {roots[tensor] for tensor in (*graph.ops[op].inputs, *graph.ops[op].outputs)}:
            if root in mine and last.get(root, at) <= at and root not in stays:
                alive -= mine.pop(root)
    return most
