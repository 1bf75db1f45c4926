"""The forward part of a training step in a line, and the ops where one value alone goes on.

Most of a forward part descends from one op without inputs: the main line. What does not (masks, labels, tables of
positions, computed constants) stands aside: it is put just before the one block that reads it, or, where several do,
it runs once before everything. What no backward op needs (metrics, often the loss itself) runs as soon as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from remat_cli.core.problem import Problem


@dataclass(frozen=True)
class Net:
    """Which ops read from which; ops are in baseline order, which is topological."""

    inputs: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]

    def descendants(self, sources: Iterable[int], within: Callable[[int], bool]) -> set[int]:
        """The sources and what reads from them, through ops that `within` allows."""
        return _reached(sources, self.readers, within)

    def ancestors(self, sinks: Iterable[int], within: Callable[[int], bool]) -> set[int]:
        """The sinks and what they read from, through ops that `within` allows."""
        return _reached(sinks, self.inputs, within)

    def emit(self, op: int, aside: Container[int], emitted: dict[int, None]) -> None:
        """Put an op behind those emitted, and before it what it needs of the ops that wait aside."""
        needs = self.ancestors([op], lambda source: source in aside and source not in emitted)
        emitted.update(dict.fromkeys(sorted(needs)))

    def released(self, op: int, waits: dict[int, set[int]]) -> list[int]:
        """Readers that waited for this op only."""
        waiting = [reader for reader in self.readers[op] if reader in waits]
        for reader in waiting:
            waits[reader].discard(op)
        return [reader for reader in waiting if not waits[reader]]


@dataclass(frozen=True)
class Line:
    """The forward ops: `before` run once before everything, `ops` in order; `cuts` are some of those.

    `unneeded` are those without which every backward op could run: they run once.
    """

    before: tuple[int, ...]
    ops: tuple[int, ...]
    cuts: tuple[int, ...]
    unneeded: frozenset[int]


def make_net(problem: Problem) -> Net:
    """Ops read from ops; tensors are left out."""
    producer = [tensor.producer for tensor in problem.tensors]
    inputs = tuple(tuple(sorted({producer[t] for t in op.inputs})) for op in problem.ops)
    readers: list[list[int]] = [[] for _ in problem.ops]
    for op, sources in enumerate(inputs):
        for source in sources:
            readers[source].append(op)
    return Net(inputs, tuple(map(tuple, readers)))


def forward_line(net: Net, forward: Sequence[int]) -> Line:
    """Put the forward ops in a line."""
    if not forward:
        return Line((), (), (), frozenset())
    return _Liner(net, forward).line()


def first_break(net: Net, line: Sequence[int]) -> tuple[int, int] | None:
    """The first op whose value goes past one that is in its way, and the last op of the line that reads it."""
    last_read = last_reads(net, line)
    furthest = 0
    for place in range(1, len(line)):
        if last_read[furthest] > place:
            return line[furthest], line[last_read[furthest]]
        furthest = max(furthest, place, key=lambda earlier: last_read[earlier])
    return None


def widest_break(net: Net, line: Sequence[int]) -> tuple[int, int] | None:
    """The op whose value goes past most others, the first of such, and the last op of the line that reads it."""
    last_read = last_reads(net, line)
    widest = max(range(len(line)), key=lambda place: last_read[place] - place)
    return (line[widest], line[last_read[widest]]) if last_read[widest] > widest + 1 else None


def _reached(starts: Iterable[int], ways: Sequence[Sequence[int]], within: Callable[[int], bool]) -> set[int]:
    found = set(starts)
    waiting = list(found)
    while waiting:
        for op in ways[waiting.pop()]:
            if op not in found and within(op):
                found.add(op)
                waiting.append(op)
    return found


def last_reads(net: Net, line: Sequence[int], counted: Container[int] | None = None) -> list[int]:
    """For each place in a line the last place that reads it, itself if none does; of all or of the counted ops."""
    place_of = {op: place for place, op in enumerate(line) if counted is None or op in counted}
    return [
        max([place, *(place_of[r] for r in net.readers[op] if r in place_of and op in place_of)])
        for place, op in enumerate(line)
    ]


def cut_places(net: Net, line: Sequence[int]) -> list[int]:
    """Places past which nothing before them is read."""
    last_read = last_reads(net, line)
    found, furthest = [], 0
    for place in range(len(line)):
        if furthest <= place:
            found.append(place)
        furthest = max(furthest, last_read[place])
    return found


class _Liner:
    """Sorts forward ops into the main line, what stands aside, and what nobody needs."""

    def __init__(self, net: Net, forward: Sequence[int]) -> None:
        self.net = net
        self.forward = sorted(forward)
        self.members = set(forward)
        self.unneeded = self._find_unneeded()
        self.main = self._find_main()
        self.early_unneeded = self._find_early_unneeded()

    def line(self) -> Line:
        """Cut the main line, then put beside it what stands aside."""
        skeleton = self._emit(set())
        places = cut_places(self.net, skeleton)
        cuts = [skeleton[place] for place in places if skeleton[place] in self.main]
        local = self._local(skeleton, places)
        in_line = local.union(skeleton)
        before = [op for op in self.forward if op not in in_line]
        return Line(tuple(before), tuple(self._emit(local)), tuple(cuts), frozenset(self.unneeded))

    def _find_unneeded(self) -> set[int]:
        """Forward ops that no other op needs; none where there is no other op that reads them."""
        read = [op for op in self.forward if any(r not in self.members for r in self.net.readers[op])]
        if not read:
            return set()
        return self.members - self.net.ancestors(read, self.members.__contains__)

    def _find_main(self) -> set[int]:
        """What descends from the op without inputs from which most does."""
        needed = self.members - self.unneeded
        sources = [op for op in self.forward if op in needed and not self.net.inputs[op]]
        lines = [self.net.descendants([source], needed.__contains__) for source in sources]
        return max(lines, key=len)

    def _find_early_unneeded(self) -> set[int]:
        """Those of the unneeded that need nothing of the main line."""
        found: set[int] = set()
        for op in self.forward:
            if op in self.unneeded:
                sources = self.net.inputs[op]
                if all(s not in self.main and (s not in self.unneeded or s in found) for s in sources):
                    found.add(op)
        return found

    def _emit(self, local: set[int]) -> list[int]:
        """The main line in baseline order, what is unneeded as soon as possible, `local` ops when they are read."""
        emitted: dict[int, None] = {}
        late_unneeded = [op for op in self.forward if op in self.unneeded and op not in self.early_unneeded]
        waits = {op: self._line_inputs(op) for op in late_unneeded}
        for op in self.forward:
            if op in self.main:
                ready = [op]
                while ready:
                    following = ready.pop()
                    self.net.emit(following, local, emitted)
                    ready += reversed(self.net.released(following, waits))
        return list(emitted)

    def _line_inputs(self, op: int) -> set[int]:
        """What an unneeded op must wait for."""
        aside = self.early_unneeded
        return {s for s in self.net.inputs[op] if s in self.main or (s in self.unneeded and s not in aside)}

    def _local(self, skeleton: list[int], places: list[int]) -> set[int]:
        """Ops aside that are read between two cuts only, as their readers aside are."""
        block_of: dict[int, set[int]] = {}
        ends = set(places)
        block = 0
        for place, op in enumerate(skeleton):
            block_of[op] = {block}
            block += place in ends
        nowhere = {-1}
        for op in reversed(self.forward):
            if op not in block_of:
                is_early = op in self.early_unneeded
                read = [block_of[r] for r in self.net.readers[op] if r in self.members]
                block_of[op] = nowhere.union(*read) if is_early or not read else set().union(*read)
        in_line = set(skeleton)
        return {op for op in self.forward if op not in in_line and len(block_of[op]) == 1 and -1 not in block_of[op]}
