"""Gap cover: a bound in milliseconds for schedules whose first computations follow the baseline order.

Between two uses in a row, a tensor is recomputed or it stays in memory. At each first computation where keeping
everything takes too much, enough of the gaps around it must be recomputed; costs of gaps add up, because the gaps of
one tensor do not overlap in time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from remat_cli.solvers._bounds.pressure import Pressure
from remat_cli.solvers._milp.program import Milp

# In all rows together, about; enough for each critical event of a problem of 1,000 ops.
_ROW_TERMS = 200_000


@dataclass(frozen=True, order=True)
class UseGap:
    """A tensor between two uses in a row, `first` and `last` (events; the number of ops is the end)."""

    tensor: int
    first: int
    last: int


def gap_cover_milp(pressure: Pressure) -> Milp:
    """Cost in time units; one row per first computation that is over budget when nothing is recomputed.

    Of very many only the worst of each of some blocks get a row.
    """
    builder = _Builder(pressure, pressure.worst_events(1.0, pressure.events_within(_ROW_TERMS)))
    for event in builder.events:
        builder.cover(event)
    return builder.milp


@dataclass
class _Builder:
    """Creates a literal "recomputed in this gap" when a row first asks for it."""

    pressure: Pressure
    events: list[int]
    milp: Milp = field(default_factory=Milp)
    recomputed: dict[UseGap, int | None] = field(default_factory=dict)
    slots: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gaps: dict[int, list[UseGap]] = {event: [] for event in self.events}
        for tensor, root in enumerate(self.pressure.class_of):
            uses = self.pressure.uses(tensor)
            for first, last in pairwise(uses):
                for event in self.events[bisect_right(self.events, first) : bisect_left(self.events, last)]:
                    if self.pressure.weight[root] > 0 and root not in self.pressure.own[event]:
                        self.gaps[event].append(UseGap(tensor, first, last))

    def cover(self, event: int) -> None:
        """Working set and what stays in memory around an event fit together."""
        pressure, terms, most = self.pressure, [], self.pressure.capacity - self.pressure.working[event]
        for root, gaps in pressure.by_class((gap.tensor, gap) for gap in self.gaps[event]).items():
            found = [self._recomputed(gap) for gap in gaps]
            literals = [literal for literal in found if literal is not None]
            most -= pressure.weight[root]
            if len(literals) == len(found):
                terms.append((-pressure.weight[root], self.milp.all_of(literals)))
        self.milp.at_most(terms, most)

    def _recomputed(self, gap: UseGap) -> int | None:
        if gap not in self.recomputed:
            self.recomputed[gap] = self._new_literal(gap)
        return self.recomputed[gap]

    def _new_literal(self, gap: UseGap) -> int | None:
        op = self.pressure.producer(gap.tensor)
        spec = self.pressure.problem.ops[op]
        if not spec.repeatable:
            return None
        if len(spec.outputs) == 1:
            return self.milp.add(cost=self.pressure.times[op])
        # One run serves all results of an op: runs are counted per slot between uses of any of them.
        literal = self.milp.add()
        uses = sorted({use for tensor in spec.outputs for use in self.pressure.uses(tensor)})
        covered = [self._slot(op, use) for use in uses if gap.first < use <= gap.last]
        self.milp.at_least([(1, slot) for slot in covered] + [(-1, literal)], 0)
        return literal

    def _slot(self, op: int, use: int) -> int:
        if (op, use) not in self.slots:
            self.slots[op, use] = self.milp.add(cost=self.pressure.times[op])
        return self.slots[op, use]
