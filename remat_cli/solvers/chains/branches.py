"""A training step as branches of blocks that meet only in a loss, and plans on them spelled out as ops.

Where separate parts of a forward pass meet, and which backward ops belong to which of them, says `find_towers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from remat_cli.core.schedule.problem import OpSpec, Problem, TensorSpec
from remat_cli.solvers.base import Order, Reason
from remat_cli.solvers.chains.blocks import Blocks, backward_ops, find_blocks, forward_ops, marks_missing
from remat_cli.solvers.chains.cuts import OpNet, cut_places, make_net
from remat_cli.solvers.chains.revolve import SlotAction

LEAST_SAVED = (2, 1)  # a tower has at least so many ops that the backward pass reads; less if there are none such


@dataclass(frozen=True)
class Towers:
    """Every op of a training step in one of these.

    `forward[k]` and `backward[k]` are the ops of tower k; no tower reads from another. `meeting_forward` and
    `meeting_backward` are the ops where towers come together, and all that goes with no tower. `aside` are ops that no
    backward op of these needs, or that several towers feed and none needs (metrics, sums of weight gradients, their
    updates): they run when they can.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    meeting_forward: tuple[int, ...]
    meeting_backward: tuple[int, ...]
    aside: tuple[int, ...]


def find_towers(net: OpNet, forward: Sequence[int]) -> Towers:
    """The least part of the forward ops after which several towers are left; none if there is no such part."""
    members = set(forward)
    read = {op for op in forward if any(reader not in members for reader in net.readers[op])}
    needed = net.ancestors(read, members.__contains__)
    line = [op for op in forward if op in needed]
    late = [op for op in range(len(net.inputs)) if op not in members]
    towers = next(filter(None, (_separate(net, line, read, least) for least in LEAST_SAVED)), ())
    # Those along which a gradient goes back; none if that leaves one alone.
    owned = set(_Owners(net, towers, needed, late).of.values())
    left = tuple(ops for k, ops in enumerate(towers) if 1 << k in owned)
    towers = left if len(left) > 1 else ()
    owners = _Owners(net, towers, needed, late)
    backward = tuple(tuple(op for op in owners.late if owners.of[op] == 1 << k) for k in range(len(towers)))
    inside = {op for ops in towers for op in ops}
    meeting_forward = tuple(op for op in line if op not in inside)
    meeting_backward = tuple(op for op in owners.late if owners.of[op] == owners.meeting)
    unneeded = [op for op in forward if op not in needed]
    shared = [op for op in owners.late if owners.of[op] == owners.aside]
    return Towers(towers, backward, meeting_forward, meeting_backward, (*unneeded, *shared))


def _separate(net: OpNet, line: Sequence[int], read: set[int], least: int) -> tuple[tuple[int, ...], ...]:
    """Towers below the first op that all paths pass: those that are left when ops are taken off from its side.

    All ops at the same greatest distance from that op go at once; the fewest go.
    """
    last_source = max((place for place, op in enumerate(line) if not net.inputs[op]), default=0)
    place = next((place for place in cut_places(net, line) if place >= last_source), None)
    if place is None:
        return ()
    below = net.ancestors([line[place]], set(line).__contains__) - {line[place]}
    distance: dict[int, int] = {}
    for op in reversed(line):
        if op in below:
            distance[op] = max((distance[r] + 1 for r in net.readers[op] if r in below), default=0)
    levels: list[list[int]] = [[] for _ in range(max(distance.values(), default=-1) + 1)]
    for op in line:
        if op in below:
            levels[distance[op]].append(op)
    # Add levels, the furthest first; the last state with several towers in it.
    parts = _Parts(read, least)
    found: tuple[tuple[int, ...], ...] = ()
    for level in reversed(levels):
        for op in level:
            parts.add(op, net.inputs[op])
        towers = parts.towers()
        found = towers if len(towers) > 1 else found
    return found


@dataclass
class _Parts:
    """Connected parts of a growing set of ops."""

    read: set[int]
    least: int
    part_of: dict[int, list[int]] = field(default_factory=dict)

    def add(self, op: int, inputs: Iterable[int]) -> None:
        """One more op, all of whose inputs are there."""
        joined = {id(part): part for part in (self.part_of[source] for source in inputs)}
        merged = max(joined.values(), key=len, default=[])
        for part in joined.values():
            if part is not merged:
                merged += part
                self.part_of.update(dict.fromkeys(part, merged))
        merged.append(op)
        self.part_of[op] = merged

    def towers(self) -> tuple[tuple[int, ...], ...]:
        """Parts worth planning, by their first op."""
        parts = {id(part): part for part in self.part_of.values()}.values()
        worthy = [part for part in parts if len(self.read.intersection(part)) >= self.least]
        return tuple(sorted(tuple(sorted(part)) for part in worthy))


class _Owners:
    """Which tower a backward op belongs to, as a bit; two further bits say `meeting` and `aside`.

    An op that reads forward values, or that others need who do, belongs where all of those are. Other ops belong where
    all their inputs do, and run aside if those belong to several.
    """

    def __init__(self, net: OpNet, towers: Sequence[Sequence[int]], needed: set[int], late: Sequence[int]) -> None:
        self.late = late
        self.meeting, self.aside = 1 << len(towers), 2 << len(towers)
        home = dict.fromkeys(needed, self.meeting)
        for k, ops in enumerate(towers):
            home.update(dict.fromkeys(ops, 1 << k))
        self.of: dict[int, int] = {}
        for op in reversed(late):
            mask = 0
            for bit in (*(home.get(s, 0) for s in net.inputs[op]), *(self.of.get(r, 0) for r in net.readers[op])):
                mask |= bit
            self.of[op] = mask
        for op in late:
            if self.of[op].bit_count() > 1:
                self.of[op] = self.meeting
            elif not self.of[op]:
                mask = 0
                for source in net.inputs[op]:
                    mask |= self.of.get(source, 0)
                self.of[op] = self.aside if mask.bit_count() > 1 else mask or self.meeting


@dataclass(frozen=True)
class Branch:
    """Blocks 1 to L in entries 1 to L, entry 0 is empty: ops in running order."""

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Join:
    """Every op of a one-device problem in one place.

    `before` run once at the start. `loss` is all that runs, forward and backward, between the last forward block of
    any branch and the first backward block. `aside` run as soon as they can, and `once` are never repeated.
    """

    problem: Problem
    branches: tuple[Branch, ...]
    before: tuple[int, ...]
    loss: tuple[int, ...]
    aside: tuple[int, ...]
    once: frozenset[int]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many blocks each branch has."""
        return tuple(len(branch.forward) - 1 for branch in self.branches)

    @property
    def backward_order(self) -> tuple[int, ...]:
        """The branch of each backward block, as their first ops come in the baseline order."""
        found = [(min(ops), k) for k, branch in enumerate(self.branches) for ops in branch.backward[1:]]
        return tuple(k for _, k in sorted(found))


def one_branch(problem: Problem, order: Order) -> Join | Reason:
    """A chain of blocks, the last of them as the loss; or the reason why it is none."""
    blocks = find_blocks(problem, order)
    if isinstance(blocks, Reason):
        return blocks
    branch = Branch(((), *blocks.forward[1:-1]), blocks.backward[:-1])
    loss = (*blocks.forward[-1], *blocks.backward[-1])
    return Join(problem, (branch,), blocks.forward[0], loss, (), blocks.once)


def several_branches(problem: Problem, order: Order) -> Join | Reason:
    """At least two chains of blocks that share no op before they meet; or the reason why there are none."""
    if (reason := marks_missing(problem)) is not None:
        return reason
    towers = find_towers(make_net(problem), forward_ops(problem))
    if not towers.forward:
        return Reason("no separate branches meet in a loss")
    parts = [_Part(problem, towers, tower) for tower in range(len(towers.forward))]
    chains: list[tuple[_Part, Blocks]] = []
    for part in parts:
        blocks = part.find_blocks(order)
        if isinstance(blocks, Reason):
            return Reason(f"the branch that begins with op {{}}: {blocks.words}", (part.names[0], *blocks.ops))
        chains.append((part, blocks))
    # Put together what was found for each tower; the last stage of each is part of the loss.
    ends = [part.named((blocks.forward[-1], blocks.backward[-1])) for part, blocks in chains]
    loss = {*towers.meeting_forward, *towers.meeting_backward, *(op for end in ends for ops in end for op in ops)}
    return Join(
        problem,
        branches=tuple(
            Branch(((), *part.named(blocks.forward[1:-1])), part.named(blocks.backward[:-1])) for part, blocks in chains
        ),
        before=tuple(op for part, blocks in chains for op in part.named(blocks.forward[:1])[0]),
        loss=tuple(op for op in (*forward_ops(problem), *backward_ops(problem, order)) if op in loss),
        aside=towers.aside,
        once=frozenset(part.names[op] for part, blocks in chains for op in blocks.once if part.is_own(op)),
    )


def spell_out(join: Join, actions: Iterable[SlotAction]) -> list[int]:
    """The ops of a plan, one per step: each block forward again just before it runs backward; dead steps are in it."""
    speller = _Speller(join)
    speller.run(join.before)
    for action in actions:
        branch = join.branches[action.branch]
        if action.kind == "loss":
            speller.run(join.loss)
        elif action.kind == "advance":
            speller.run(branch.forward[action.layer])
        elif action.kind == "back":
            speller.run(branch.forward[action.layer])
            speller.run(branch.backward[action.layer])
    return speller.steps


class _Part:
    """One tower as a problem of its own: its ops, and two that stand for all that comes where towers meet.

    `names[op]` is the op of the whole problem; for the two, one of those that they stand for.
    """

    def __init__(self, problem: Problem, towers: Towers, tower: int) -> None:
        forward, backward = towers.forward[tower], towers.backward[tower]
        ahead, behind = towers.meeting_forward, towers.meeting_backward
        made = {t for op in forward for t in problem.ops[op].outputs}
        wanted = {t for op in backward for t in problem.ops[op].inputs}
        handed = tuple(t for op in behind for t in problem.ops[op].outputs if t in wanted)
        signal = len(problem.tensors)
        self.meeting_forward, self.meeting_backward = len(forward), len(forward) + 1
        self.names = (*forward, ahead[0], (behind or ahead)[0], *backward)
        specs = (
            *(problem.ops[op] for op in forward),
            OpSpec(_reads(problem, ahead, made), (signal,), (0,), (0,), phase="forward"),
            OpSpec((signal, *_reads(problem, behind, made)), handed, (0,), (0,), phase="backward"),
            *(problem.ops[op] for op in backward),
        )
        # These ops alone as a problem, and tensors renumbered; one tensor is not of the whole and takes nothing.
        new_id: dict[int, int] = {}
        ops: list[OpSpec] = []
        tensors: list[TensorSpec] = []
        for op, spec in enumerate(specs):
            inputs = tuple(new_id[t] for t in spec.inputs if t in new_id)
            for tensor in spec.outputs:
                new_id[tensor] = len(tensors)
                known = problem.tensors[tensor] if tensor < len(problem.tensors) else TensorSpec(0, op)
                tensors.append(TensorSpec(known.size_bytes, op, kept=known.kept))
            ops.append(msgspec.structs.replace(spec, inputs=inputs, outputs=tuple(new_id[t] for t in spec.outputs)))
        self.problem = msgspec.structs.replace(problem, ops=tuple(ops), tensors=tuple(tensors))

    def is_own(self, op: int) -> bool:
        """Whether an op of this problem is one of the whole."""
        return op not in (self.meeting_forward, self.meeting_backward)

    def named(self, blocks: Iterable[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """The same blocks in ops of the whole problem."""
        return tuple(tuple(self.names[op] for op in ops if self.is_own(op)) for ops in blocks)

    def find_blocks(self, order: Order) -> Blocks | Reason:
        """The tower as a chain whose last stage holds the rest, or the reason why not."""
        blocks = find_blocks(self.problem, order)
        if isinstance(blocks, Reason):
            return blocks.renumbered(self.names)
        if self.meeting_backward not in blocks.backward[-1]:
            return Reason("its gradient does not come from where the branches meet")
        return blocks


def _reads(problem: Problem, ops: Iterable[int], made: set[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(t for op in ops for t in problem.ops[op].inputs if t in made))


class _Speller:
    """Writes ops down, those aside as soon as their inputs are there."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.steps: list[int] = []
        self.done: set[int] = set()
        self.net = make_net(join.problem)
        self.waits = {op: set(self.net.inputs[op]) for op in join.aside}
        for op in join.aside:
            if not self.waits[op]:
                self._emit(op)

    def run(self, ops: Iterable[int]) -> None:
        """These ops, and what waited for them."""
        for op in ops:
            if op not in self.done or op not in self.join.once:
                self._emit(op)

    def _emit(self, op: int) -> None:
        ready = [op]
        while ready:
            following = ready.pop()
            self.steps.append(following)
            if following not in self.done:
                self.done.add(following)
                ready += reversed(self.net.released(following, self.waits))
