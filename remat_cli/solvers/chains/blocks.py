"""A training step seen as a chain of blocks, or the reason why it is none; and from plans on blocks back to ops.

A stage is a run of forward ops that ends with the only value that goes on, and the backward ops that go with it. Its
figures are found by running it alone, so that a plan on blocks never takes more, spelled out as ops, than on the chain:
not more memory, counting what is resident, and not more time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.base import Order, Reason
from remat_cli.solvers.chains.actions import Action, Chain
from remat_cli.solvers.chains.cuts import (
    Backward,
    Backwards,
    ForwardLine,
    GradientCuts,
    OpNet,
    first_break,
    forward_line,
    make_net,
    pair,
    widest_break,
)


@dataclass(frozen=True)
class Blocks:
    """A one-device problem as a chain; every op is in exactly one entry of `forward` or `backward`.

    `forward[l]` and `backward[l]` are the ops of stage l in running order. `forward[0]` runs once, before everything,
    and its time is in the last backward, as is that of every op that is never repeated (`once`) in its stage's.
    `boundaries[l - 1]` are the forward op whose value stage l hands on, and the backward op that makes its gradient.
    """

    problem: Problem
    net: OpNet
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    boundaries: tuple[tuple[int, int], ...]
    once: frozenset[int]

    @property
    def count(self) -> int:
        """How many blocks there are, the loss among them."""
        return len(self.forward) - 1

    @cached_property
    def chain(self) -> Chain:
        """Times and bytes of every stage."""
        costs = [_Costs(self, stage) for stage in range(1, self.count + 1)]
        first_ns = _time(self.problem, self.forward[0])
        return Chain(
            forward_ns=(0, *(cost.forward_ns for cost in costs)),
            backward_ns=(0, costs[0].backward_ns + first_ns, *(cost.backward_ns for cost in costs[1:])),
            value_bytes=(0, *(cost.value_bytes for cost in costs)),
            saved_bytes=(0, *(cost.saved_bytes for cost in costs)),
            gradient_bytes=(*(cost.gradient_bytes for cost in costs), 0),
            forward_extra_bytes=(0, *(cost.forward_extra_bytes for cost in costs)),
            saving_extra_bytes=(0, *(cost.saving_extra_bytes for cost in costs)),
            backward_extra_bytes=(0, *(cost.backward_extra_bytes for cost in costs)),
        )

    @property
    def resident_bytes(self) -> int:
        """What counts against the budget all through, besides the problem's fixed bytes."""
        return sum(self.problem.tensors[t].size_bytes for t in self.resident)

    @cached_property
    def resident(self) -> frozenset[int]:
        """Tensors that count as held all through: kept, never repeated, made before everything, or read far away."""
        # In running order: what runs before everything, forward 1 to N, backward N to 1.
        block_of = {op: block for block, ops in enumerate((*self.forward, *reversed(self.backward[1:]))) for op in ops}
        homes = {op: {block} for op, block in block_of.items()}
        for stage, (value, gradient) in enumerate(self.boundaries, 1):
            homes[value] |= {stage + 1, self._backward_block(stage + 1)}
            homes[gradient].add(self._backward_block(stage))
        for stage, ops in enumerate(self.forward):
            for op in ops:
                homes[op].add(self._backward_block(stage))
        found: set[int] = set()
        for tensor, spec in enumerate(self.problem.tensors):
            op = spec.producer
            is_forward_once = block_of[op] <= self.count and not self.problem.ops[op].repeatable
            readers = (r for r in self.net.readers[op] if tensor in self.problem.ops[r].inputs)
            if spec.kept or is_forward_once or block_of[op] == 0 or any(block_of[r] not in homes[op] for r in readers):
                found.add(tensor)
        return frozenset(found)

    def _backward_block(self, stage: int) -> int:
        return 2 * self.count + 1 - stage


class _Costs:
    """One stage run alone; what is resident counts nothing here."""

    def __init__(self, stages: Blocks, stage: int) -> None:
        self.stages, self.problem = stages, stages.problem
        forward, backward = stages.forward[stage], stages.backward[stage]
        once = [op for op in forward if op in stages.once]
        self.forward_ns = _time(self.problem, [op for op in forward if op not in stages.once])
        self.backward_ns = _time(self.problem, (*backward, *once))
        is_last = stage == stages.count
        beyond = backward if is_last else (*stages.forward[stage + 1], *stages.backward[stage + 1])
        value = self._read_by(forward[-1] if is_last else stages.boundaries[stage - 1][0], beyond)
        saved = value.union(*(self._read_by(op, backward) for op in forward))
        before = stages.backward[stage - 1] if stage > 1 else ()
        gradient = self._read_by(stages.boundaries[stage - 2][1], before) if stage > 1 else frozenset()
        self.value_bytes, self.saved_bytes = self._bytes(value), self._bytes(saved)
        self.gradient_bytes = self._bytes(gradient)
        if stage == 1:
            first = max((self.problem.ops[op].workspace_bytes[0] for op in stages.forward[0]), default=0)
        else:
            first = 0
        self.forward_extra_bytes = max(first, self._peak(forward, value)) - self.value_bytes
        self.saving_extra_bytes = max(first, self._peak(forward, saved)) - self.saved_bytes
        self.backward_extra_bytes = self._peak(backward, gradient) - self.gradient_bytes

    def _read_by(self, op: int, readers: Sequence[int]) -> frozenset[int]:
        """Outputs of an op that are read there."""
        close = set(self.stages.net.readers[op]).intersection(readers)
        return frozenset(t for t in self.problem.ops[op].outputs if any(t in self.problem.ops[r].inputs for r in close))

    def _bytes(self, tensors: frozenset[int]) -> int:
        return sum(self.problem.tensors[t].size_bytes for t in tensors - self.stages.resident)

    def _peak(self, ops: Sequence[int], held: frozenset[int]) -> int:
        """The most that the results of these ops take while they run in order and `held` stays; at least `held`."""
        last_read: dict[int, int] = {}
        for place, op in enumerate(ops):
            last_read.update(dict.fromkeys(self.problem.ops[op].inputs, place))
        ends: list[int] = [0] * len(ops)
        live, peak = 0, self._bytes(held)
        for place, op in enumerate(ops):
            for tensor in self.problem.ops[op].outputs:
                size = self._bytes(frozenset((tensor,)))
                live += size
                if tensor not in held:
                    ends[last_read.get(tensor, place)] += size
            peak = max(peak, live + self.problem.ops[op].workspace_bytes[0])
            live -= ends[place]
        return peak


def _time(problem: Problem, ops: Sequence[int]) -> int:
    return sum(problem.ops[op].time_ns[0] or 0 for op in ops)


LEAST_STAGES = 2


def find_blocks(problem: Problem, order: Order) -> Blocks | Reason:
    """The problem as a chain of at least two stages, or the reason why it is none; one device, condensed."""
    if (reason := marks_missing(problem)) is not None:
        return reason
    net = make_net(problem)
    line = forward_line(net, forward_ops(problem))
    if not line.ops:
        return Reason("every op is marked backward or update, or reads from one that is")
    backward = _backward(problem, net, line, order)
    boundaries = pair(net, line, backward)
    if len(boundaries) + 1 < LEAST_STAGES:
        return _no_boundary(net, line, backward)
    once = frozenset(op for op in line.ops if op in line.unneeded or not problem.ops[op].repeatable)
    return Blocks(
        problem,
        net,
        forward=(line.before, *_split(line.ops, [value for value, _ in boundaries])),
        backward=((), *_split(backward.ops, [gradient for _, gradient in reversed(boundaries)])[::-1]),
        boundaries=boundaries,
        once=once,
    )


def marks_missing(problem: Problem) -> Reason | None:
    """None, or the reason: no op is marked backward; and what is not a chain either."""
    if any(spec.phase == "backward" for spec in problem.ops):
        return None
    reason = "no op is marked backward (`remat train` writes such marks)"
    net = make_net(problem)
    broken = first_break(net, forward_line(net, range(len(problem.ops))).ops)
    return Reason(reason) if broken is None else Reason(f"{reason}, and it is no chain: {PASSES}", broken)


def forward_ops(problem: Problem) -> tuple[int, ...]:
    """Ops that come before the backward part, in baseline order: neither marked as it nor reading from it."""
    late: set[int] = set()
    for op, spec in enumerate(problem.ops):
        reads_late = any(problem.tensors[t].producer in late for t in spec.inputs)
        if spec.phase in ("backward", "update") or reads_late:
            late.add(op)
    return tuple(op for op in range(len(problem.ops)) if op not in late)


def backward_ops(problem: Problem, order: Order) -> tuple[int, ...]:
    """All others, updates among them: in the order of least memory, or with `keep` in baseline order."""
    net = make_net(problem)
    return _backward(problem, net, forward_line(net, forward_ops(problem)), order).ops


def cut_ops(problem: Problem, forward: Sequence[int]) -> tuple[int, ...]:
    """Forward ops through which everything on the main line passes, in order (articulation points)."""
    return forward_line(make_net(problem), forward).cuts


def spell_out(blocks: Blocks, actions: Iterable[Action]) -> list[int]:
    """The ops of a plan on blocks, one per step; dead steps are still in it."""
    ops = list(blocks.forward[0])
    done: set[int] = set()
    for action in actions:
        if action.kind == "back":
            ops += blocks.backward[action.stage]
        else:
            ops += (op for op in blocks.forward[action.stage] if op not in done)
            done |= blocks.once.intersection(blocks.forward[action.stage])
    return ops


def _backward(problem: Problem, net: OpNet, line: ForwardLine, order: Order) -> Backward:
    forward = {*line.before, *line.ops}
    backwards = Backwards(problem, net, line, [op for op in range(len(problem.ops)) if op not in forward])
    return backwards.by_need() if order == "free" else backwards.in_baseline_order()


def _split(ops: Sequence[int], ends: Sequence[int]) -> list[tuple[int, ...]]:
    """Pieces of a sequence, each but the last up to one of `ends`."""
    places = [0, *(ops.index(end) + 1 for end in ends), len(ops)]
    return [tuple(ops[begin:end]) for begin, end in pairwise(places)]


PASSES = "op {} is still read by op {}, past the ops between them"


def _no_boundary(net: OpNet, line: ForwardLine, backward: Backward) -> Reason:
    """Why there is no place where one value and its gradient alone go on."""
    if len(line.ops) == 1:
        return Reason("it is no chain: no forward op reads op {}", (line.ops[0],))
    inner = [op for op in line.cuts if op not in (line.ops[0], line.ops[-1])]
    broken = widest_break(net, line.ops)
    if broken is not None and not inner:
        return Reason(f"it is no chain: {PASSES}", broken)
    cut = [line.ops[0], *inner][-1]
    early, other = GradientCuts(net, backward, len(line.ops)).obstacle(line.ops.index(cut))
    if early is None:
        return Reason("it is no chain: no backward op makes a gradient of op {}", (cut,))
    ahead = backward.ops[early]
    if other is None:
        return Reason("it is no chain: the gradient of op {} does not go on alone, op {} does too", (cut, ahead))
    return Reason(
        "it is no chain: op {} reads from before op {} while op {} still reads from after it",
        (ahead, cut, backward.ops[other]),
    )
