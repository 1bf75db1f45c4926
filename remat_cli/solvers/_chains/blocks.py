"""A training step seen as a chain of blocks, or the reason why it is none; and from plans on blocks back to ops.

A stage is a run of forward ops that ends with the only value that goes on, and the backward ops that go with it. Its
figures are found by running it alone (`costs.py`), so that a plan on blocks never takes more, spelled out as
ops, than on the chain: not more memory, counting what is resident, and not more time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat_cli.core.problem import Problem
from remat_cli.solvers._chains.actions import Action, Chain
from remat_cli.solvers._chains.costs import Stages, make_chain
from remat_cli.solvers._chains.cuts import Line, Net, first_break, forward_line, make_net, widest_break
from remat_cli.solvers._chains.pairs import Backward, Backwards, GradientCuts, pair
from remat_cli.solvers.base import Order

LEAST_STAGES = 2


@dataclass(frozen=True)
class Blocks:
    """A one-device problem as a chain; every op is in exactly one entry of `forward` or `backward`.

    `forward[l]` and `backward[l]` are the ops of stage l in running order. `forward[0]` runs once, before everything,
    and its time is in the last backward, as is that of every op that is never repeated (`once`) in its stage's.
    `boundaries[l - 1]` are the forward op whose value stage l hands on, and the backward op that makes its gradient.
    `resident_bytes` counts against the budget all through, besides the problem's fixed bytes: kept values, what is
    never repeated, what is read outside its stage.
    """

    problem: Problem
    chain: Chain
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    boundaries: tuple[tuple[int, int], ...]
    resident_bytes: int
    once: frozenset[int]


def find_blocks(problem: Problem, order: Order) -> Blocks | str:
    """The problem as a chain of at least two stages, or the reason why it is none; one device, condensed."""
    if (reason := marks_missing(problem)) is not None:
        return reason
    net = make_net(problem)
    forward = forward_ops(problem)
    line = forward_line(net, forward)
    if not line.ops:
        return "every op is marked backward or update, or reads from one that is"
    backward = _backward(problem, net, line, order)
    boundaries = pair(net, line, backward)
    if len(boundaries) + 1 < LEAST_STAGES:
        return _no_boundary(net, line, backward)
    once = frozenset(op for op in line.ops if op in line.unneeded or not problem.ops[op].repeatable)
    stages = Stages(
        problem,
        net,
        forward=(line.before, *_split(line.ops, [value for value, _ in boundaries])),
        backward=((), *_split(backward.ops, [gradient for _, gradient in reversed(boundaries)])[::-1]),
        boundaries=boundaries,
        once=once,
    )
    resident = sum(problem.tensors[t].size_bytes for t in stages.resident)
    return Blocks(problem, make_chain(stages), stages.forward, stages.backward, boundaries, resident, once)


def marks_missing(problem: Problem) -> str | None:
    """None, or the reason: no op is marked backward; and what is not a chain either."""
    if any(spec.phase == "backward" for spec in problem.ops):
        return None
    reason = "no op is marked backward (`remat train` writes such marks)"
    net = make_net(problem)
    broken = first_break(net, forward_line(net, range(len(problem.ops))).ops)
    return reason if broken is None else f"{reason}, and it is no chain: {_passes(*broken)}"


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


def _backward(problem: Problem, net: Net, line: Line, order: Order) -> Backward:
    forward = {*line.before, *line.ops}
    backwards = Backwards(problem, net, line, [op for op in range(len(problem.ops)) if op not in forward])
    return backwards.by_need() if order == "free" else backwards.in_baseline_order()


def _split(ops: Sequence[int], ends: Sequence[int]) -> list[tuple[int, ...]]:
    """Pieces of a sequence, each but the last up to one of `ends`."""
    places = [0, *(ops.index(end) + 1 for end in ends), len(ops)]
    return [tuple(ops[begin:end]) for begin, end in pairwise(places)]


def _passes(op: int, reader: int) -> str:
    return f"op {op} is still read by op {reader}, past the ops between them"


def _no_boundary(net: Net, line: Line, backward: Backward) -> str:
    """Why there is no place where one value and its gradient alone go on."""
    if len(line.ops) == 1:
        return f"it is no chain: no forward op reads op {line.ops[0]}"
    inner = [op for op in line.cuts if op not in (line.ops[0], line.ops[-1])]
    broken = widest_break(net, line.ops)
    if broken is not None and not inner:
        return f"it is no chain: {_passes(*broken)}"
    cut = [line.ops[0], *inner][-1]
    return f"it is no chain: {_blocked(net, line, backward, cut)}"


def _blocked(net: Net, line: Line, backward: Backward, cut: int) -> str:
    """What is in the way of a cut in the backward part."""
    early, other = GradientCuts(net, backward, len(line.ops)).obstacle(line.ops.index(cut))
    if early is None:
        return f"no backward op makes a gradient of op {cut}"
    if other is None:
        return f"the gradient of op {cut} does not go on alone, op {backward.ops[early]} does too"
    return (
        f"op {backward.ops[early]} reads from before op {cut} while op {backward.ops[other]} still reads from after it"
    )
