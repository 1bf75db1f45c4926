"""A training step in two lines, and the ops of each where one value alone goes on.

Most of a forward part descends from one op without inputs: the main line. What does not (masks, labels, tables of
positions, computed constants) stands aside: it is put just before the one block that reads it, or, where several do,
it runs once before everything. What no backward op needs (metrics, often the loss itself) runs as soon as it can.

The order of the backward line is that of least memory: what only ends here (gradients of weights, their updates) as
soon as it can, then what reads furthest along the forward line. Updates, and ops that depend on no value of that line,
never stand in the way of a cut: what they hold across one stays in memory all through.
"""

import heapq
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat_cli.core.schedule.problem import Problem


@dataclass(frozen=True)
class OpNet:
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
class ForwardLine:
    """The forward ops: `before` run once before everything, `ops` in order; `cuts` are some of those.

    `unneeded` are those without which every backward op could run: they run once.
    """

    before: tuple[int, ...]
    ops: tuple[int, ...]
    cuts: tuple[int, ...]
    unneeded: frozenset[int]


def make_net(problem: Problem) -> OpNet:
    """Ops read from ops; tensors are left out."""
    producer = [tensor.producer for tensor in problem.tensors]
    inputs = tuple(tuple(sorted({producer[t] for t in op.inputs})) for op in problem.ops)
    readers: list[list[int]] = [[] for _ in problem.ops]
    for op, sources in enumerate(inputs):
        for source in sources:
            readers[source].append(op)
    return OpNet(inputs, tuple(map(tuple, readers)))


def forward_line(net: OpNet, forward: Sequence[int]) -> ForwardLine:
    """Put the forward ops in a line."""
    if not forward:
        return ForwardLine((), (), (), frozenset())
    return _Liner(net, forward).line()


def first_break(net: OpNet, line: Sequence[int]) -> tuple[int, int] | None:
    """The first op whose value goes past one that is in its way, and the last op of the line that reads it."""
    last_read = last_reads(net, line)
    furthest = 0
    for place in range(1, len(line)):
        if last_read[furthest] > place:
            return line[furthest], line[last_read[furthest]]
        furthest = max(furthest, place, key=lambda earlier: last_read[earlier])
    return None


def widest_break(net: OpNet, line: Sequence[int]) -> tuple[int, int] | None:
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


def last_reads(net: OpNet, line: Sequence[int], counted: Container[int] | None = None) -> list[int]:
    """For each place in a line the last place that reads it, itself if none does; of all or of the counted ops."""
    place_of = {op: place for place, op in enumerate(line) if counted is None or op in counted}
    return [
        max([place, *(place_of[r] for r in net.readers[op] if r in place_of and op in place_of)])
        for place, op in enumerate(line)
    ]


def cut_places(net: OpNet, line: Sequence[int]) -> list[int]:
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

    def __init__(self, net: OpNet, forward: Sequence[int]) -> None:
        self.net = net
        self.forward = sorted(forward)
        self.members = set(forward)
        # Forward ops that no other op needs; none where there is no other op that reads them.
        read = [op for op in self.forward if any(r not in self.members for r in self.net.readers[op])]
        if not read:
            self.unneeded = set()
        else:
            self.unneeded = self.members - self.net.ancestors(read, self.members.__contains__)
        # What descends from the op without inputs from which most does.
        needed = self.members - self.unneeded
        sources = [op for op in self.forward if op in needed and not self.net.inputs[op]]
        lines = [self.net.descendants([source], needed.__contains__) for source in sources]
        self.main = max(lines, key=len)
        # Those of the unneeded that need nothing of the main line.
        found: set[int] = set()
        for op in self.forward:
            if op in self.unneeded:
                inputs = self.net.inputs[op]
                if all(s not in self.main and (s not in self.unneeded or s in found) for s in inputs):
                    found.add(op)
        self.early_unneeded = found

    def line(self) -> ForwardLine:
        """Cut the main line, then put beside it what stands aside."""
        skeleton = self._emit(set())
        places = cut_places(self.net, skeleton)
        cuts = [skeleton[place] for place in places if skeleton[place] in self.main]
        # Ops aside that are read between two cuts only, as their readers aside are.
        block_of: dict[int, set[int]] = {}
        ends, in_skeleton = set(places), set(skeleton)
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
        aside = [op for op in self.forward if op not in in_skeleton]
        local = {op for op in aside if len(block_of[op]) == 1 and -1 not in block_of[op]}
        before = [op for op in aside if op not in local]
        return ForwardLine(tuple(before), tuple(self._emit(local)), tuple(cuts), frozenset(self.unneeded))

    def _emit(self, local: set[int]) -> list[int]:
        """The main line in baseline order, what is unneeded as soon as possible, `local` ops when they are read."""
        emitted: dict[int, None] = {}
        late_unneeded = [op for op in self.forward if op in self.unneeded and op not in self.early_unneeded]
        late = set(late_unneeded)
        # An unneeded op waits for these.
        waits = {op: {s for s in self.net.inputs[op] if s in self.main or s in late} for op in late_unneeded}
        for op in self.forward:
            if op in self.main:
                ready = [op]
                while ready:
                    following = ready.pop()
                    self.net.emit(following, local, emitted)
                    ready += reversed(self.net.released(following, waits))
        return list(emitted)


@dataclass(frozen=True)
class Backward:
    """The backward ops in order, with what they read of the forward line.

    For each place: `reads` are places of the forward line; `bears` says whether its op counts in cuts, which updates
    and ops that depend on no value of the line do not.
    """

    ops: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    bears: tuple[bool, ...]


class Backwards:
    """What is known of backward ops before they are in order."""

    def __init__(self, problem: Problem, net: OpNet, line: ForwardLine, late: Sequence[int]) -> None:
        self.net = net
        self.late = sorted(late)
        self.members = set(late)
        place_of = {op: place for place, op in enumerate(line.ops)}
        self.reads = {op: tuple(place_of[s] for s in net.inputs[op] if s in place_of) for op in self.late}
        self.updates = {op for op in self.late if problem.ops[op].phase == "update"}
        self.inputs = {op: [s for s in net.inputs[op] if s in self.members] for op in self.late}
        self.readers = {op: [r for r in net.readers[op] if r in self.members] for op in self.late}
        self.rootless: set[int] = set()
        for op in self.late:
            if not self.reads[op] and self.rootless.issuperset(self.inputs[op]):
                self.rootless.add(op)

    def in_baseline_order(self) -> Backward:
        """Backward ops in baseline order."""
        return self._view(self.late)

    def by_need(self) -> Backward:
        """What ends here first, then what reads furthest along the line; ops without roots when they are read."""
        waits = {op: sum(s not in self.rootless for s in self.inputs[op]) for op in self.late}
        keys: dict[int, int] = {}
        emitted: dict[int, None] = {}
        ready = [self._entry(op, keys) for op in self.late if waits[op] == 0 and op not in self.rootless]
        heapq.heapify(ready)
        while ready:
            op = heapq.heappop(ready)[2]
            self.net.emit(op, self.rootless, emitted)
            for reader in self.readers[op]:
                waits[reader] -= 1
                if waits[reader] == 0:
                    heapq.heappush(ready, self._entry(reader, keys))
        for op in self.late:
            self.net.emit(op, self.rootless, emitted)
        return self._view(list(emitted))

    def _entry(self, op: int, keys: dict[int, int]) -> tuple[int, int, int]:
        roots = [keys[s] for s in self.inputs[op] if s not in self.rootless]
        keys[op] = max(self.reads[op]) if self.reads[op] else min(roots)
        ends_here = op in self.updates or self.updates.issuperset(self.readers[op])
        return 0 if ends_here else 1, -keys[op], op

    def _view(self, ops: list[int]) -> Backward:
        bears = tuple(op not in self.updates and op not in self.rootless for op in ops)
        return Backward(tuple(ops), tuple(self.reads[op] for op in ops), bears)


class GradientCuts:
    """Answers which place of the backward line goes with a place of the forward line, in linear time each."""

    def __init__(self, net: OpNet, backward: Backward, forward_places: int) -> None:
        reads = [r if bears else () for r, bears in zip(backward.reads, backward.bears, strict=True)]
        self.last_read = last_reads(
            net, backward.ops, {op for op, bears in zip(backward.ops, backward.bears, strict=True) if bears}
        )
        self.furthest = list(accumulate(self.last_read, max, initial=-1))[:-1]
        self.lowest = list(accumulate((min(r, default=forward_places) for r in reads), min))
        highest_first = accumulate((max(r, default=-1) for r in reversed(reads)), max, initial=-1)
        self.highest = list(highest_first)[-2::-1]

    def first(self, cut: int, start: int) -> int | None:
        """The first backward place from `start` on that one value passes, between what reads behind and before."""
        for place in range(start, len(self.last_read)):
            if self.lowest[place] < cut:
                return None
            if self.furthest[place] <= place < self.last_read[place] and self.highest[place] <= cut:
                return place
        return None

    def obstacle(self, cut: int) -> tuple[int | None, int | None]:
        """Two backward places in the way of forward place `cut`, of which there may be one or none.

        Two: the first reads from before the cut, the second, no earlier, from after it. One: a value made there goes
        past the cut beside the gradient.
        """
        places = range(len(self.last_read))
        beyond = next((place for place in places if self.lowest[place] < cut), len(places))
        late = next((place for place in reversed(places) if place > 0 and self.highest[place - 1] > cut), 0)
        if beyond < len(places) and late >= beyond:
            return beyond, late
        return next((place for place in places[:beyond] if self.last_read[place] >= beyond), None), None


def pair(net: OpNet, line: ForwardLine, backward: Backward) -> tuple[tuple[int, int], ...]:
    """Boundaries from the chain's input on: a forward op and the backward op that makes its gradient.

    Goes from the loss end to the input, and takes for each cut the first place that goes with it.
    """
    cuts = GradientCuts(net, backward, len(line.ops))
    place_of = {op: place for place, op in enumerate(line.ops)}
    found: list[tuple[int, int]] = []
    start = 0
    for op in reversed(line.cuts):
        place = cuts.first(place_of[op], start) if op != line.ops[-1] else None
        if place is not None:
            found.append((op, backward.ops[place]))
            start = place + 1
    return tuple(found[::-1])
