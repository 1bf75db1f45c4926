"""A line cut into stages: what each stage runs, receives, keeps and sends; and the chain of blocks for planners."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from remat_cli.base.errors import InputError
from remat_cli.pipelines.plan.chain import PipelineChain
from remat_cli.pipelines.plan.line import Line
from remat_cli.pipelines.plan.reruns import Reruns

VERSIONS, GRADIENTS, MEAN = 2, 2, 1
"""Of the weights, for late updates; of gradients, the sum so far and those of the mini-batch at hand; the mean."""


@dataclass(frozen=True)
class StageParts:
    """One stage: ops by id, in order; tensors by id, each row in a stable order.

    Attributes:
        first, last: places on the line, the second one excluded.
        backward: those of the backward, and those of the forward that run again in it.
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
    reruns: Reruns
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


Parts: TypeAlias = Sequence[tuple[tuple[int, int], ...]]
"""By stage, the ranges of places that run again; empty: none in any stage."""


def stages_between(line: Line, ends: Sequence[int], again: Parts = ()) -> tuple[StageParts, ...]:
    """The stages that end at these places; the last end is the end of the line."""
    bounds = list(pairwise((0, *ends)))
    crossing = {cut: line.crossing(cut) for cut in ends[:-1]}
    graph, found = line.graph, []
    for (first, last), each in zip(bounds, again or ((),) * len(bounds), strict=True):
        reruns, forward = Reruns(line, each), line.forward[first:last]
        backward = reruns.in_order(tuple(op for op in line.backward if first <= line.place[op] < last))
        arrives, goes_back = crossing.get(first, ((), ()))
        leaves, returns = crossing.get(last, ((), ()))
        read_back = {t for op in backward for t in graph.ops[op].inputs if not reruns.comes_again(op, t)}
        here = {*arrives, *(tensor for op in forward for tensor in graph.ops[op].outputs)}
        kept = tuple(sorted(tensor for tensor in here if tensor in read_back or tensor in goes_back))
        read = _read(line, forward) | read_back
        fed = tuple(t for t in graph.model_inputs if t in read and t not in line.homes)
        states = tuple(t for t in graph.model_inputs if t in line.homes and first <= line.homes[t] < last)
        gradients = tuple(sorted(t for t, home in line.gradient_homes.items() if first <= home < last))
        crossed = (arrives, leaves, returns, goes_back)
        found.append(StageParts(first, last, forward, backward, reruns, *crossed, kept, fed, states, gradients))
    return tuple(found)


def _read(line: Line, ops: Iterable[int]) -> set[int]:
    return {tensor for op in ops for tensor in line.graph.ops[op].inputs}


def place_times(line: Line, times_ns: Sequence[int]) -> list[int]:
    """Load of each place of the line, both ways."""
    loads = [0] * len(line.forward)
    for op, takes in enumerate(times_ns):
        loads[line.place[op]] += takes
    return loads


def chain_of(line: Line, ends: Sequence[int], costs: LineCosts, again: Parts = ()) -> PipelineChain:
    """The chain whose layers are the stages that end at these places: times, weights, what crosses, what is kept.

    Weights are all copies that a stage holds of them, so that the chain has one.

    Raises:
        InputError: a link moves nothing.
    """
    if not costs.bytes_per_ns > 0:
        raise InputError(f"a link must move something, but moves {costs.bytes_per_ns} bytes per nanosecond")
    stages = stages_between(line, ends, again)
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
    """How many weight-sized tensors a stage holds of what it trains, in a backward or while an update runs.

    The latter reads the newest version, the mean gradient and what the optimizer remembers, and makes the next
    version and all that is remembered anew; of what it takes the place of, no other version is there any more.
    """
    remembered = costs.states_per_weight
    return max(VERSIONS + GRADIENTS + remembered, VERSIONS + MEAN + 2 * remembered)


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


def _forward_work(line: Line, stage: StageParts, costs: LineCosts) -> int:
    """The most that the forward holds beyond all that it keeps: what it keeps counts from its start."""
    counted = {*stage.kept, *_fed_back(line, stage)}
    acts = []
    for op in stage.forward:
        reads, makes = line.graph.ops[op].inputs, line.graph.ops[op].outputs
        acts.append(_Act(_plainly(reads), _plainly(makes), costs.workspace_bytes[op]))
    return _work(line, acts, ({*stage.arrives, *stage.fed}, {*stage.leaves, *stage.kept}), counted)


def _backward_work(line: Line, stage: StageParts, costs: LineCosts) -> int:
    """The most that the backward holds beside what was kept, and the gradients of weights, which have a place."""
    counted = {*stage.kept, *stage.fed, *stage.gradients}
    acts = []
    for op in stage.backward:
        is_again = op not in line.backward_ops
        reads = tuple((tensor, stage.reruns.comes_again(op, tensor)) for tensor in line.graph.ops[op].inputs)
        makes = tuple((tensor, is_again) for tensor in line.graph.ops[op].outputs)
        acts.append(_Act(reads, makes, costs.workspace_bytes[op]))
    return _work(line, acts, (set(stage.returns), {*stage.goes_back, *stage.gradients}), counted)


_Made: TypeAlias = tuple[int, bool]  # a tensor, and whether it is the one that is made again


class _Act(NamedTuple):
    """An op as it runs in a session."""

    reads: tuple[_Made, ...]
    makes: tuple[_Made, ...]
    workspace_bytes: int


def _plainly(tensors: tuple[int, ...]) -> tuple[_Made, ...]:
    return tuple((tensor, False) for tensor in tensors)


def _work(line: Line, acts: Sequence[_Act], ends: tuple[set[int], set[int]], counted: set[int]) -> int:
    """Most bytes while ops run one after another, `counted` left out.

    What comes in is held by the caller all the time, what goes out from when it is made to the end.
    """
    comes, goes = ends
    last: dict[_Made, int] = {}
    for at, act in enumerate(acts):
        last.update(dict.fromkeys((_root(line, each) for each in act.reads), at))
    stays = {(line.roots[tensor], False) for tensor in goes}
    alive = _bytes(line, comes - counted)
    most = alive
    mine: dict[_Made, int] = {}
    for at, act in enumerate(acts):
        for each in act.makes:
            if _root(line, each) == each and (each[1] or each[0] not in counted):
                mine[each] = line.graph.tensors[each[0]].size_bytes
                alive += mine[each]
        most = max(most, alive + act.workspace_bytes)
        for root in {_root(line, each) for each in (*act.reads, *act.makes)}:
            if root in mine and last.get(root, at) <= at and root not in stays:
                alive -= mine.pop(root)
    return most


def _root(line: Line, made: _Made) -> _Made:
    return line.roots[made[0]], made[1]


def least_place_bytes(line: Line, costs: LineCosts) -> list[int]:
    """By place, what whoever runs it holds at least: its weights, and what one of its ops reads and makes.

    This holds however much is run again.
    """
    graph, copies = line.graph, copies_of(costs) if line.has_gradients else 1
    apart = {*line.homes, *line.gradient_homes}
    needs = [0] * len(line.forward)
    for op in (*line.forward, *line.backward):
        ends = {line.roots[tensor] for tensor in (*graph.ops[op].inputs, *graph.ops[op].outputs)} - apart
        place = line.place[op]
        needs[place] = max(needs[place], _bytes(line, ends) + costs.workspace_bytes[op])
    for gradient, home in line.gradient_homes.items():
        needs[home] += copies * graph.tensors[gradient].size_bytes
    return needs
