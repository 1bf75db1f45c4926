"""Frontier bound: what must be recomputed in long stages between a few critical first computations.

Choose boundaries b_0 < ... < b_{K-1} = n-1. Stage k is all steps after the first computation of b_{k-1} up to that of
b_k. Of any schedule in the space `first_in_order` look only at R[k,v], whether op v runs in stage k; S[k,x], whether
tensor x is in memory right after b_{k-1}, to be used later; and H[k,x], whether it stays through all of stage k. They
satisfy

    (i)   R[k,v] <= R[k,op(x)] + S[k,x]             x read by v
    (ii)  S[k+1,x] <= S[k,x] + R[k,op(x)]           S after the last stage = 1 for kept tensors, 0 for others
    (iii) working(b_k) + sum m[x] S[k+1,x] <= M     over classes that b_k does not touch
    (iv)  H[k,x] >= S[k+1,x] - R[k,op(x)], and H[k,x] >= 1 - R[k,op(x)] if b_k reads x
    (v)   working(v) R[k,v] + sum m[x] H[k,x] <= M  over classes that v does not touch, v made before the stage

so the least cost of such R is a lower bound, whatever the boundaries. (i) is right when v runs: its input was there
before the stage or made in it. (iii) holds at the step of b_k. (iv): not made in the stage, it was there before, and
at the end or at the last step still. (v) holds when v runs. An op that runs several times in a stage costs at least
once. Kept tensors may be recomputed after the last op, so they get one more stage, which ends without a boundary.
Sums over tensors count storage once, as `_bounds_pressure` explains.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_cli.solvers._bounds_milp import Milp, Terms
from remat_cli.solvers._bounds_pressure import Pressure

# Events almost at the budget are worth a boundary: recomputes elsewhere may push them over it.
_CRITICAL_SHARE = 0.9


def choose_boundaries(pressure: Pressure, count: int) -> list[int]:
    """At most `count` critical events, the worst of each of as many blocks, and the last op."""
    live, last = pressure.live(), len(pressure.problem.ops) - 1
    critical = [event for event, need in enumerate(live) if need > _CRITICAL_SHARE * pressure.capacity]
    count = min(count, len(critical))
    blocks = [critical[i * len(critical) // count : (i + 1) * len(critical) // count] for i in range(count)]
    return sorted({max(block, key=live.__getitem__) for block in blocks} | {last})


def frontier_milp(pressure: Pressure, boundaries: list[int]) -> Milp:
    """Cost in time units, for boundaries in rising order that end with the last op."""
    builder = _Builder(pressure)
    starts = [-1, *boundaries]
    for begin, end in zip(starts, boundaries, strict=False):
        builder.add_stage(begin, end, pressure.problem.ops[end].inputs)
        builder.fit_boundary(end)
    if pressure.kept:
        builder.add_stage(starts[-1], None, ())
    builder.finish()
    return builder.milp


@dataclass
class _Builder:
    """Adds stages in time order; `stays[x]` is S[k,x] of the current stage, absent where it is 0."""

    pressure: Pressure
    milp: Milp = field(default_factory=Milp)
    stays: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int | None] = field(default_factory=dict)
    begin: int = -1
    pending: tuple[int, ...] | None = None

    def add_stage(self, begin: int, end: int | None, read_last: tuple[int, ...]) -> None:
        """R, (i) and (ii) of a stage after op `begin` up to op `end` (None: the stage after the last op)."""
        self._close_stage()
        self.begin, self.pending = begin, read_last
        times, problem = self.pressure.times, self.pressure.problem
        self.runs = {op: self._run(op, times[op]) for op in range(begin + 1)}
        last = begin if end is None else end
        for op in range(last + 1):
            for tensor in problem.ops[op].inputs:
                if self.pressure.producer(tensor) <= begin:
                    self._supply(tensor, op)
        self.stays = self._survivors(last)

    def _run(self, op: int, time: int) -> int | None:
        return self.milp.add(cost=time) if self.pressure.problem.ops[op].repeatable else None

    def _supply(self, tensor: int, reader: int) -> None:
        """(i); first computations in the stage surely run."""
        terms = self._terms([(1, self.stays.get(tensor)), (1, self.runs[self.pressure.producer(tensor)])])
        if reader > self.begin:
            self.milp.at_least(terms, 1)
        elif self.runs[reader] is not None:
            self.milp.at_least([*terms, *self._terms([(-1, self.runs[reader])])], 0)

    def _survivors(self, last: int) -> dict[int, int]:
        """S of the next stage, with (ii)."""
        survivors = {}
        for tensor in range(len(self.pressure.class_of)):
            producer = self.pressure.producer(tensor)
            uses = self.pressure.uses(tensor)
            if producer > last or len(uses) == 1:
                continue
            survivors[tensor] = self.milp.add()
            if producer <= self.begin:
                terms = [(1, self.stays.get(tensor)), (1, self.runs[producer]), (-1, survivors[tensor])]
                self.milp.at_least(self._terms(terms), 0)
        return survivors

    def fit_boundary(self, end: int) -> None:
        """(iii): what stays beside the working set of the boundary."""
        most = self.pressure.capacity - self.pressure.working[end]
        terms = [
            (self.pressure.weight[root], held)
            for root, held in self._by_class(self.stays).items()
            if root not in self.pressure.own[end]
        ]
        self.milp.at_most(terms, most)

    def finish(self) -> None:
        """At the end exactly the kept tensors are held."""
        for tensor, held in self.stays.items():
            if self.pressure.problem.tensors[tensor].kept:
                self.milp.at_least([(1, held)], 1)
            else:
                self.milp.at_most([(1, held)], 0)
        self._close_stage()

    def _close_stage(self) -> None:
        """(iv) and (v) of the current stage, once S of the next one exists."""
        if self.pending is None or not any(run is not None for run in self.runs.values()):
            return
        through = self._by_class(self._through(self.pending))
        weight, capacity = self.pressure.weight, self.pressure.capacity
        total = self.milp.add(upper=capacity, integral=False)
        everything = [(weight[root], held) for root, held in through.items()]
        self.milp.at_most([*everything, (-1, total)], 0)
        for op, run in self.runs.items():
            if run is not None:
                own = [(-weight[root], through[root]) for root in self.pressure.own[op] if root in through]
                self.milp.at_most([(1, total), *own, (self.pressure.working[op], run)], capacity)

    def _through(self, read_last: tuple[int, ...]) -> dict[int, int]:
        """H with (iv), for tensors made before the stage that weigh something."""
        through = {}
        for tensor, root in enumerate(self.pressure.class_of):
            producer = self.pressure.producer(tensor)
            if producer > self.begin or self.pressure.weight[root] == 0:
                continue
            run = (1, self.runs[producer])
            if tensor in self.stays or tensor in read_last:
                through[tensor] = self.milp.add(integral=False)
            if tensor in self.stays:
                self.milp.at_least(self._terms([(1, through[tensor]), (-1, self.stays[tensor]), run]), 0)
            if tensor in read_last:
                self.milp.at_least(self._terms([(1, through[tensor]), run]), 1)
        return through

    def _by_class(self, held: dict[int, int]) -> dict[int, int]:
        """Per class with weight a variable that is at least that of each of its tensors."""
        members: dict[int, list[int]] = {}
        for tensor, variable in held.items():
            root = self.pressure.class_of[tensor]
            if self.pressure.weight[root] > 0:
                members.setdefault(root, []).append(variable)
        return {root: self._any_of(variables) for root, variables in members.items()}

    def _any_of(self, variables: list[int]) -> int:
        if len(variables) == 1:
            return variables[0]
        held = self.milp.add(integral=False)
        for variable in variables:
            self.milp.at_least([(1, held), (-1, variable)], 0)
        return held

    def _terms(self, terms: list[tuple[int, int | None]]) -> Terms:
        """Without the variables that are constant 0."""
        return [(coefficient, variable) for coefficient, variable in terms if variable is not None]
