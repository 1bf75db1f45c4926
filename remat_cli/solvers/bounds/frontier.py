"""Frontier bound: what must be recomputed in long stages between a few critical first computations.

Choose boundaries b_0 < ... < b_{K-1} = n-1. Stage k is all steps after the first computation of b_{k-1} up to that of
b_k. Of any schedule in the space `first_in_order` look only at R[k,v], whether op v runs in stage k, and, for an op
whose first run is in stage k, whether it runs there twice; S[k,x], whether tensor x is in memory right after b_{k-1},
to be used later; and H[k,x], whether it stays through all of stage k. They satisfy

    (i)   R[k,v] <= R[k,op(x)] + S[k,x]             x read by v, made before the stage
    (ii)  S[k+1,x] <= S[k,x] + R[k,op(x)]           S after the last stage = 1 for kept tensors, 0 for others
    (iii) working(b_k) + sum m[x] S[k+1,x] <= M     over classes that b_k does not touch
    (iv)  H[k,x] >= S[k+1,x] - R[k,op(x)], and H[k,x] >= 1 - R[k,op(x)] if b_k reads x
    (v)   working(v) R[k,v] + sum m[x] H[k,x] <= M  over classes that v does not touch
    (vi)  working(t) + sum m[x] P[t,x] <= M         t in stage k; over classes that t does not touch, where P[t,x] =
          1 - R[k,op(x)] if x, made before t, is read by a first computation after t in the stage,
          max(0, S[k+1,x] - R[k,op(x)]) if not

so the least cost of such R is a lower bound, whatever the boundaries and the t. (i) is right when v runs: its input was
there before the stage or made in it. (iii) holds at the step of b_k. (iv): not made in the stage, it was there before,
and at the end or at the last step still. (v) holds when v runs. (vi): what a first computation reads after t, or is in
memory at the end of the stage, and is not made in the stage (again, if its first run is there) is in memory at t. An op
that runs several times in a stage costs at least once. Kept tensors may be recomputed after the last op, so they get
one more stage, which ends without a boundary. Sums over tensors count storage once, as `_bounds.pressure` explains.

(v) is written with U, the most that can stay through the stage beside any of its first computations:
(working(v) + U - M) R[k,v] + sum m[x] H[k,x] <= U. With R = 0 it says that H fits, with R = 1 it is (v), and between
them it says more.

Without integers, few boundaries say more than many: a recompute in a long stage is paid whole. So the same is said of
several layers, each with some of the boundaries of the finest: in a stage of a coarse layer, R is at most the sum of
the R of the fine stages in it, and only the fine ones cost. The layers share S.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers.bounds.pressure import Pressure
from remat_cli.solvers.milp.program import Milp, Terms

# Events almost at the budget are worth a row: recomputes elsewhere may push them over it.
_CRITICAL_SHARE = 0.9
# In all rows (vi) of a layer together, about; enough for each critical event of a problem of 1,000 ops.
_ROW_TERMS = 100_000

Expression: TypeAlias = tuple[Terms, int]
"""Terms and a constant."""


def choose_boundaries(pressure: Pressure, count: int) -> list[int]:
    """At most `count` critical events, the worst of each of as many blocks, and the last op."""
    return sorted({*pressure.worst_events(_CRITICAL_SHARE, count), len(pressure.problem.ops) - 1})


@dataclass
class FrontierStage:
    """Steps after op `begin` up to op `end` (the number of ops: after the last op).

    `runs[v]` is R[v]; absent: never. `parts` are the fine stages in a coarse one.
    """

    begin: int
    end: int
    last: int
    parts: tuple[FrontierStage, ...]
    runs: dict[int, int] = field(default_factory=dict)
    through: dict[int, int] = field(default_factory=dict)
    total: int = -1
    most: int = 0


@dataclass(frozen=True)
class Frontier:
    """The program, its fine stages in order, and per end of a stage S (None: 1)."""

    milp: Milp
    stages: tuple[FrontierStage, ...]
    held: dict[int, dict[int, int | None]]


def make_frontier(pressure: Pressure, layers: Iterable[list[int]]) -> Frontier:
    """Cost in time units; each layer is boundaries in rising order that end with the last op.

    The finest has the boundaries of all.
    """
    count = len(pressure.problem.ops)
    after = [count] if pressure.kept else []
    coarse = [[*layer, *after] for layer in layers]
    fine = sorted({end for layer in coarse for end in layer})
    builder = _Builder(pressure)
    for end in fine:
        builder.hold(end)
    stages = tuple(builder.add(begin, end, ()) for begin, end in _pairs(fine))
    for begin, end in sorted({pair for layer in coarse for pair in _pairs(layer)} - set(_pairs(fine))):
        builder.add(begin, end, tuple(stage for stage in stages if begin <= stage.begin and stage.end <= end))
    return Frontier(builder.milp, stages, builder.held)


def _pairs(ends: list[int]) -> Iterator[tuple[int, int]]:
    return zip([-1, *ends], ends, strict=False)


@dataclass
class _Builder:
    """`held[end][x]` is S[k+1,x] for the stages that end with op `end`; `around[t]` what lives across event t."""

    pressure: Pressure
    milp: Milp = field(default_factory=Milp)
    held: dict[int, dict[int, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops = self.pressure.problem.ops
        self.used = [x for x in range(len(self.pressure.class_of)) if len(self.pressure.uses(x)) > 1]
        self.members = Counter(self.pressure.class_of)
        self.events = self.pressure.worst_events(_CRITICAL_SHARE, self.pressure.events_within(_ROW_TERMS))
        # Per event the tensors with weight made before and used after it, of classes that it does not touch.
        pressure = self.pressure
        around: dict[int, list[int]] = {event: [] for event in self.events}
        for tensor in self.used:
            uses, root = pressure.uses(tensor), pressure.class_of[tensor]
            for event in self.events[bisect_right(self.events, uses[0]) : bisect_left(self.events, uses[-1])]:
                if pressure.weight[root] > 0 and root not in pressure.own[event]:
                    around[event].append(tensor)
        self.around = around
        self.held[-1] = {}

    def hold(self, end: int) -> None:
        """S, what is held after a boundary, with rows (iii); after the last stage exactly the kept tensors."""
        pressure, count = self.pressure, len(self.ops)
        is_last = end == (count if pressure.kept else count - 1)
        if is_last:
            self.held[end] = dict.fromkeys(pressure.kept)
            return
        self.held[end] = {x: self.milp.add() for x in self.used if pressure.producer(x) <= end}
        by_class = self.pressure.by_class((x, self._held(end, x)) for x in self.held[end])
        others = {root: items for root, items in by_class.items() if root not in pressure.own[end]}
        self._fit_into([], pressure.capacity - pressure.working[end], others)

    def _held(self, end: int, tensor: int) -> Expression:
        if tensor not in self.held[end]:
            return [], 0
        variable = self.held[end][tensor]
        return ([], 1) if variable is None else ([(1, variable)], 0)

    def add(self, begin: int, end: int, parts: tuple[FrontierStage, ...]) -> FrontierStage:
        """All rows of a stage."""
        stage = FrontierStage(begin, end, min(end, len(self.ops) - 1), parts)
        for op in range(begin + 1):
            self._run(stage, op)
        for op in range(stage.last + 1):
            # Rows (i): what an op reads is held or made in the stage; first computations in it surely run.
            runs: Expression = (self._run(stage, op), 0) if op <= stage.begin else ([], 1)
            for tensor in self.ops[op].inputs if runs != ([], 0) else ():
                producer = self.pressure.producer(tensor)
                if producer <= stage.begin:
                    self._positive(self._held(stage.begin, tensor), (self._run(stage, producer), 0), minus=runs)
        for tensor in self.held[end]:
            if self.pressure.producer(tensor) <= begin:
                made = self._run(stage, self.pressure.producer(tensor))
                self._positive(self._held(begin, tensor), (made, 0), minus=self._held(end, tensor))
        self._stay(stage)
        for event in self.events[bisect_right(self.events, begin) : bisect_left(self.events, end)]:
            self._cross(stage, event)
        for op, run in stage.runs.items():
            # (v) with U.
            pressure, through = self.pressure, stage.through
            need = pressure.working[op] + stage.most - pressure.capacity
            if need > 0:
                own = [(-pressure.weight[root], through[root]) for root in pressure.own[op] if root in through]
                self.milp.at_most([(1, stage.total), *own, (need, run)], stage.most)
        return stage

    def _run(self, stage: FrontierStage, op: int) -> Terms:
        """R, whether an op runs in a stage; in a coarse stage at most the sum of its parts."""
        if not self.ops[op].repeatable:
            return []
        if op not in stage.runs:
            cost = 0 if stage.parts else self.pressure.times[op]
            stage.runs[op] = self.milp.add(cost=cost, integral=not stage.parts)
            if stage.parts:
                runs = [term for part in stage.parts if op <= part.last for term in self._run(part, op)]
                self._positive((runs, 0), minus=([(1, stage.runs[op])], 0))
        return [(1, stage.runs[op])]

    def _stay(self, stage: FrontierStage) -> None:
        """H, what stays all through a stage, with rows (iv), by storage, and the total."""
        last_inputs = self.ops[stage.end].inputs if stage.end < len(self.ops) else ()
        stays: list[tuple[int, Expression]] = []
        for tensor in self.used:
            if self.pressure.producer(tensor) <= stage.begin:
                made = self._minus((self._run(stage, self.pressure.producer(tensor)), 0))
                if tensor in self.held[stage.end]:
                    stays.append((tensor, self._sum(self._held(stage.end, tensor), made)))
                if tensor in last_inputs:
                    stays.append((tensor, self._sum(([], 1), made)))
        by_class = self.pressure.by_class(stays)
        stage.through = {root: self._at_least_each(items) for root, items in by_class.items()}
        # U: beside each first computation of the stage, whose own classes may be among what stays.
        pressure = self.pressure
        stage.most = min(
            (
                pressure.capacity
                - pressure.working[event]
                + sum(pressure.weight[root] for root in pressure.own[event] if root in stage.through)
                for event in range(stage.begin + 1, stage.last + 1)
            ),
            default=pressure.capacity,
        )
        stage.total = self.milp.add(upper=max(0, stage.most), integral=False)
        self._fit_into([(-1, stage.total)], 0, {root: [([(1, v)], 0)] for root, v in stage.through.items()})

    def _cross(self, stage: FrontierStage, event: int) -> None:
        """Row (vi): what stays through the stage and what lives around an event beyond that fit together."""
        pressure = self.pressure
        present: list[tuple[int, Expression]] = []
        for tensor in self.around[event]:
            producer, readers = pressure.producer(tensor), pressure.readers[tensor]
            later = bisect_right(readers, event)
            is_read = later < len(readers) and readers[later] <= stage.last
            if is_read:
                present.append((tensor, self._sum(([], 1), self._minus((self._run(stage, producer), 0)))))
            elif producer > stage.begin and tensor in self.held[stage.end]:
                made = self._minus((self._run(stage, producer), 0))
                present.append((tensor, self._sum(self._held(stage.end, tensor), made)))
        by_class = self.pressure.by_class(present)
        rest = [(-pressure.weight[root], stage.through[root]) for root in pressure.own[event] if root in stage.through]
        for root, items in by_class.items():
            if root in stage.through:
                rest.append((-pressure.weight[root], stage.through[root]))
            if root in stage.through and self.members[root] > 1:  # of a single tensor H <= 1 - R anyway
                items.append(([(1, stage.through[root])], 0))
        self._fit_into([(1, stage.total), *rest], pressure.capacity - pressure.working[event], by_class)

    def _fit_into(self, terms: Terms, most: int, by_class: dict[int, list[Expression]]) -> None:
        """A row over `terms` and, per class, its weight times the most of some expressions."""
        row = list(terms)
        for root, items in by_class.items():
            weight = self.pressure.weight[root]
            present = items[0] if len(items) == 1 else ([(1, self._at_least_each(items))], 0)
            row += [(weight * coefficient, variable) for coefficient, variable in present[0]]
            most -= weight * present[1]
        self.milp.at_most(row, most)

    def _at_least_each(self, items: list[Expression]) -> int:
        """A variable that is at least each of these expressions."""
        variable = self.milp.add(integral=False)
        for item in items:
            self._positive(([(1, variable)], 0), minus=item)
        return variable

    def _positive(self, *parts: Expression, minus: Expression) -> None:
        """The sum of parts is at least `minus`."""
        terms, constant = self._sum(*parts, self._minus(minus))
        self.milp.at_least(terms, -constant)

    def _minus(self, expression: Expression) -> Expression:
        return [(-coefficient, variable) for coefficient, variable in expression[0]], -expression[1]

    def _sum(self, *parts: Expression) -> Expression:
        return [term for terms, _ in parts for term in terms], sum(constant for _, constant in parts)


def rounded_schedule(problem: Problem, frontier: Frontier, values: Sequence[int]) -> Schedule:
    """A legal schedule with the recomputes of a solution, for a search to start from; it may exceed the budget.

    Each recompute of a stage goes directly before the first reader that lacks its result. When it does not, and takes
    no more time than the solution, it is optimal if the solution is.
    """
    steps: list[int] = []
    for stage in frontier.stages:
        present, wanted = (
            {x for x, variable in frontier.held[end].items() if variable is None or values[variable]}
            for end in (stage.begin, stage.end)
        )
        again = [op for op, run in stage.runs.items() if values[run]]
        steps += _Placing(problem, stage, present, wanted).place(again)
    return Schedule.of_ops(steps)


@dataclass(frozen=True)
class _Placing:
    """One stage with the tensors in memory when it begins and when it ends."""

    problem: Problem
    stage: FrontierStage
    present: set[int]
    wanted: set[int]

    def place(self, again: list[int]) -> list[int]:
        """All steps of the stage. Readers have larger numbers, so they are there before what they read."""
        steps = list(range(self.stage.begin + 1, self.stage.last + 1))
        for op in sorted(again, reverse=True):
            # Before the first reader that lacks a result; if none does, at the end of the longest time without a use.
            outputs = set(self.problem.ops[op].outputs)
            missing = {x for x in outputs if op <= self.stage.begin and x not in self.present}
            lacking = [place for place, step in enumerate(steps) if missing.intersection(self.problem.ops[step].inputs)]
            # Places that need the results: the start of the stage or the op's own first run, readers, and its end.
            uses = [0] if op <= self.stage.begin else []
            for place, step in enumerate(steps):
                if step == op or outputs.intersection(self.problem.ops[step].inputs):
                    uses.append(place)
            if self.wanted.intersection(outputs):
                uses.append(len(steps) - (self.stage.end == self.stage.last))  # before the run that ends the stage
            if lacking:
                place = lacking[0]
            elif len(uses) < 2:
                place = uses[0] if uses and op <= self.stage.begin else len(steps)
            else:
                place = max(pairwise(uses), key=lambda pair: pair[1] - pair[0])[1]
            steps.insert(place, op)
        return steps
