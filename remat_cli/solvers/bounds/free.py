"""A bound for any order of first computations, from what the graph alone forces.

If the producer of x comes before op t in every order, and a reader of x after it, then at the first computation of t
tensor x is in memory, or its op runs again after that and before the reader runs first. Two such recomputes are two
when a reader of x lies on a path between the two ops t. One variable says so for all events t between the same readers
of x: they have the same chains, so nothing is lost.

Strong where the graph is nearly a chain, as in training; zero on wide graphs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_cli.solvers._precedence import Events, bits_of, make_events
from remat_cli.solvers.bounds.pressure import Pressure
from remat_cli.solvers.milp.program import Milp

# A row has a term per tensor that is forced to be there: on large problems only some of the rows are used.
_MOST_TERMS = 150_000
_MOST_ROWS = 1_000
_MOST_CANDIDATES = 4_000
# Bits per op while loads are measured: memory is the number of ops times twice this over eight bytes.
_BLOCK = 1024
_CHUNK = 1024  # storages whose bits are spread out at once


def free_order_milp(pressure: Pressure) -> Milp:
    """Cost in time units; one row per op that is over budget when all that is forced to be there stays."""
    extra = Extra(pressure)
    add_cover(pressure, extra)
    return extra.milp


@dataclass
class Extra:
    """An integer program in the making, and the variables for how often an op runs beyond its first time."""

    pressure: Pressure
    milp: Milp = field(default_factory=Milp)
    runs: dict[int, int] = field(default_factory=dict)

    def of(self, op: int) -> int:
        """The variable of an op; costs its time."""
        if op not in self.runs:
            upper = len(self.pressure.problem.ops)
            self.runs[op] = self.milp.add(upper, self.pressure.times[op], integral=False)
        return self.runs[op]


@dataclass(frozen=True)
class EventGap:
    """Events between the same readers of a tensor, as ops and as bits; `heirs` are those that come after in any order.

    `missing` is 1 if the tensor is not in memory at the first computation of one of them; its op then runs again
    after that and before the first computation of each heir.
    """

    tensor: int
    bits: int
    missing: int
    events: tuple[int, ...]
    heirs: tuple[int, ...]


def add_cover(pressure: Pressure, extra: Extra) -> list[EventGap]:
    """Rows for the worst events, and what the recomputes in them cost; returns all that may be missing."""
    chosen = make_events(pressure.problem, critical_events(pressure))
    gaps: list[EventGap] = []
    for tensor, needed in forced_tensors(pressure, chosen):
        # Split the events that need a tensor by which of its readers come before and after them.
        parts, readers = [needed], pressure.readers[tensor]
        for reader in readers:
            for side in (chosen.after[reader], chosen.before[reader]):
                parts = [part for whole in parts for part in (whole & side, whole & ~side) if part]
        for part in parts:
            events = tuple(chosen.events[i] for i in bits_of(part))
            heirs = tuple(reader for reader in readers if not part & ~chosen.before[reader])
            gaps.append(EventGap(tensor, part, extra.milp.add(), events, heirs))
    _Rows(pressure, extra.milp, chosen, gaps).add()
    by_tensor: dict[int, list[EventGap]] = {}
    for gap in gaps:
        by_tensor.setdefault(gap.tensor, []).append(gap)
    for tensor, of_tensor in by_tensor.items():
        if pressure.problem.ops[pressure.producer(tensor)].repeatable:
            _count(chosen, extra, of_tensor)
        else:
            extra.milp.at_most([(1, gap.missing) for gap in of_tensor], 0)
    return gaps


def critical_events(pressure: Pressure) -> list[int]:
    """Ops whose forced load exceeds the budget; of too many, the worst of each of as many parts as rows are allowed."""
    live = pressure.live()  # never less than the forced load
    candidates = [op for op, need in enumerate(live) if need > pressure.capacity]
    candidates = sorted(sorted(candidates, key=live.__getitem__)[-_MOST_CANDIDATES:])
    loads = dict(zip(candidates, forced_loads(pressure, candidates), strict=True))
    critical = [op for op in candidates if loads[op] > pressure.capacity]
    return worst_of_parts(critical, loads, min(_MOST_ROWS, 1 + _MOST_TERMS // (1 + len(live) // 2)))


def worst_of_parts(ops: list[int], loads: Mapping[int, float], most: int) -> list[int]:
    """At most so many of the ops: the one of greatest load in each of as many parts of the list."""
    count = min(len(ops), most)
    parts = [ops[i * len(ops) // count : (i + 1) * len(ops) // count] for i in range(count)]
    return [max(part, key=loads.__getitem__) for part in parts]


@dataclass
class _Rows:
    """One row per event: the working set and what stays in memory around it fit together.

    `shared` are variables that say whether none of the tensors of a storage is in memory.
    """

    pressure: Pressure
    milp: Milp
    chosen: Events
    gaps: list[EventGap]
    shared: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add(self) -> None:
        forced: list[dict[int, list[int]]] = [{} for _ in self.chosen.events]
        for gap in self.gaps:
            for i in bits_of(gap.bits):
                forced[i].setdefault(self.pressure.class_of[gap.tensor], []).append(gap.missing)
        for event, classes in zip(self.chosen.events, forced, strict=True):
            others = {root: missing for root, missing in classes.items() if root not in self.pressure.own[event]}
            weight = self.pressure.weight
            most = self.pressure.capacity - self.pressure.working[event] - sum(weight[root] for root in others)
            if most < 0:
                terms = []
                for root, missing in others.items():
                    key = tuple(missing)
                    if key not in self.shared:
                        self.shared[key] = self.milp.all_of(missing)
                    terms.append((-weight[root], self.shared[key]))
                self.milp.at_most(terms, most)


def _count(chosen: Events, extra: Extra, gaps: list[EventGap]) -> None:
    """Recomputes for a tensor: at least the longest chain of gaps with readers between that it is missing in."""
    milp, tensor = extra.milp, gaps[0].tensor
    readers = extra.pressure.readers[tensor]
    order = sorted(gaps, key=lambda gap: gap.bits & -gap.bits)
    longest: list[int] = []
    before: list[int] = []
    for number, gap in enumerate(order):
        past = 0
        for reader in readers:
            past |= chosen.before[reader] if not gap.bits & ~chosen.after[reader] else 0
        earlier = [i for i in range(number) if not order[i].bits & ~past]
        longest.append(milp.add(len(gaps), integral=False))
        before.append(sum(1 << i for i in earlier))
        milp.at_least([(1, longest[number]), (-1, gap.missing)], 0)
        for i in earlier:
            if not any(before[j] >> i & 1 for j in earlier):
                milp.at_least([(1, longest[number]), (-1, longest[i]), (-1, gap.missing)], 0)
    runs = extra.of(extra.pressure.producer(tensor))
    ends = [i for i in range(len(order)) if not any(earlier >> i & 1 for earlier in before)]
    for i in ends:
        milp.at_least([(1, runs), (-1, longest[i])], 0)


def forced_tensors(pressure: Pressure, chosen: Events) -> Iterator[tuple[int, int]]:
    """Tensors that weigh something, each with the events (bits) before which it is made and after which it is needed.

    In every order: its producer is an ancestor of the event, and a reader a descendant, or it is kept.
    """
    everywhere = (1 << len(chosen.events)) - 1
    for tensor, root in enumerate(pressure.class_of):
        if pressure.weight[root] == 0:
            continue
        needed = everywhere if pressure.problem.tensors[tensor].kept else 0
        for reader in pressure.readers[tensor]:
            needed |= chosen.before[reader]
        needed &= chosen.after[pressure.producer(tensor)]
        if needed:
            yield tensor, needed


def forced_loads(pressure: Pressure, ops: Sequence[int]) -> list[int]:
    """For each of the ops the least memory at its first computation, in every order, if nothing is recomputed."""
    loads = [pressure.working[op] for op in ops]
    for start in range(0, len(ops), _BLOCK):
        block = ops[start : start + _BLOCK]
        by_root: dict[int, int] = {}
        for tensor, needed in forced_tensors(pressure, make_events(pressure.problem, block)):
            root = pressure.class_of[tensor]
            by_root[root] = by_root.get(root, 0) | needed
        for i, op in enumerate(block):
            loads[start + i] -= sum(pressure.weight[root] for root in pressure.own[op] if by_root.get(root, 0) >> i & 1)
        roots, size = list(by_root), -(-len(block) // 8)
        for first in range(0, len(roots), _CHUNK):
            chunk = roots[first : first + _CHUNK]
            weights = np.array([pressure.weight[root] for root in chunk], dtype=np.int64)
            # A row of zeros and ones per bit set.
            packed = np.frombuffer(b"".join(by_root[root].to_bytes(size, "little") for root in chunk), dtype=np.uint8)
            rows = np.unpackbits(packed.reshape(len(chunk), size), axis=1, bitorder="little")
            for i, more in enumerate(weights @ rows[:, : len(block)].astype(np.int64)):
                loads[start + i] += int(more)
    return loads
