"""Where separate parts of a forward pass meet, and which backward ops belong to which of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from remat_cli.solvers._chains.cuts import Net, cut_places

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


def find_towers(net: Net, forward: Sequence[int]) -> Towers:
    """The least part of the forward ops after which several towers are left; none if there is no such part."""
    members = set(forward)
    read = {op for op in forward if any(reader not in members for reader in net.readers[op])}
    needed = net.ancestors(read, members.__contains__)
    line = [op for op in forward if op in needed]
    late = [op for op in range(len(net.inputs)) if op not in members]
    towers = next(filter(None, (_separate(net, line, read, least) for least in LEAST_SAVED)), ())
    towers = _with_backward(towers, _Owners(net, towers, needed, late))
    owners = _Owners(net, towers, needed, late)
    backward = tuple(tuple(op for op in owners.late if owners.of[op] == 1 << k) for k in range(len(towers)))
    inside = {op for ops in towers for op in ops}
    meeting_forward = tuple(op for op in line if op not in inside)
    meeting_backward = tuple(op for op in owners.late if owners.of[op] == owners.meeting)
    unneeded = [op for op in forward if op not in needed]
    shared = [op for op in owners.late if owners.of[op] == owners.aside]
    return Towers(towers, backward, meeting_forward, meeting_backward, (*unneeded, *shared))


def _separate(net: Net, line: Sequence[int], read: set[int], least: int) -> tuple[tuple[int, ...], ...]:
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
    return _grow(net, levels, _Parts(read, least))


def _with_backward(towers: tuple[tuple[int, ...], ...], owners: _Owners) -> tuple[tuple[int, ...], ...]:
    """Those along which a gradient goes back; none if that leaves one alone."""
    owned = set(owners.of.values())
    left = tuple(ops for k, ops in enumerate(towers) if 1 << k in owned)
    return left if len(left) > 1 else ()


def _grow(net: Net, levels: Sequence[Sequence[int]], parts: _Parts) -> tuple[tuple[int, ...], ...]:
    """Add levels, the furthest first; the last state with several towers in it."""
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

    def __init__(self, net: Net, towers: Sequence[Sequence[int]], needed: set[int], late: Sequence[int]) -> None:
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
            self.of[op] = self._settled(op, net.inputs[op])

    def _settled(self, op: int, inputs: Iterable[int]) -> int:
        mask = self.of[op]
        if mask:
            return mask if mask.bit_count() == 1 else self.meeting
        for source in inputs:
            mask |= self.of.get(source, 0)
        if mask.bit_count() > 1:
            return self.aside
        return mask or self.meeting
