"""Checkmate's integer program (Jain et al. 2020): what runs in each stage, what is held between stages, what fits.

Stages as in `rows`. In the paper's names computed = R, held = S, level = U. FREE is written as what it leaves: of a
tensor with readers k_1 < k_2 < ... in a stage, left[i] says that it is in memory from after k_(i-1) to k_i, and

    left[i] >= R[t, k_i],   left[i] >= left[i+1],   the one after the last reader is S[t+1, x],

so FREE[t, x, k_i] = left[i] - left[i+1]. That is the paper's hazard, without its products, and says more of fractions.
left[1] is S[t, x] + R[t, op(x)], apart from ops with several results, which may run for the sake of one of them and
free the others at once.

Only R need be integral: given R, the least S, left and U that satisfy all rows are integral, and no row wants more. S
and left are declared so all the same, because HiGHS then proves in seconds what it cannot in minutes (rl_g1).

Left out is what cannot matter: ops in stages, and tensors between stages, without a chain of readers that reaches
further; recomputes of ops that must not be repeated; all of the first stages as long as everything made so far fits
together, because holding it all is as good as any other way to get there; levels of stages where it fits.
"""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._precedence import readers_of
from remat_cli.solvers.milp.program import Milp, Terms, Unfinished
from remat_cli.solvers.published._staged.rows import Stages, last_stages

Expression: TypeAlias = tuple[Terms, int]
"""Terms and a constant."""

MOST_VARIABLES = 1_000_000
"""About 2 GB, and as much again in the process of an engine."""

_NOTHING: Expression = ([], 0)


@dataclass
class StageModel:
    """A program with what its variables mean; costs are those of recomputes, in units of `cost_unit` ns.

    `computed[t, v]` is R for v < t (R[t, t] is 1), `held[t, x]` is S; what has no variable is 0, except that kept
    tensors are held at the end and that before stage `begin` nothing is recomputed and all is held that is of use.
    `derived` are the other variables in an order in which each follows from those before it: the most of its
    expressions. `levels` are those that count bytes.
    """

    problem: Problem
    capacity: int
    begin: int
    byte_unit: int
    cost_unit: int
    milp: Milp = field(default_factory=Milp)
    computed: dict[tuple[int, int], int] = field(default_factory=dict)
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    derived: list[tuple[int, list[Expression]]] = field(default_factory=list)
    levels: set[int] = field(default_factory=set)

    def stages_computed(self, values: Sequence[float]) -> list[set[int]]:
        """The ops that run in each stage by a solution."""
        found = [{stage} for stage in range(len(self.problem.ops))]
        for (stage, op), variable in self.computed.items():
            if values[variable] > 0.5:
                found[stage].add(op)
        return found

    def hint(self, stages: Stages) -> list[int] | None:
        """Values of all variables for a schedule; None where the program has no place for it."""
        values = [0] * len(self.milp.upper)
        for stage in range(self.begin, len(self.problem.ops)):
            for op in stages.computed[stage] - {stage}:
                if (stage, op) not in self.computed:
                    return None
                values[self.computed[stage, op]] = 1
            for tensor in stages.held[stage]:
                if (stage, tensor) not in self.held:
                    return None
                values[self.held[stage, tensor]] = 1
        for variable, expressions in self.derived:
            sums = [constant + sum(c * values[v] for c, v in terms) for terms, constant in expressions]
            values[variable] = max(0, *sums)
        is_within = all(value <= upper for value, upper in zip(values, self.milp.upper, strict=True))
        return values if is_within else None


def build_stage_model(problem: Problem, budget_bytes: int, should_stop: Callable[[], bool]) -> StageModel:
    """The whole program for a problem of one device without views and in-place results, under a total budget.

    Raises:
        Unfinished: told to stop, or there are too many variables.
    """
    builder = _Builder(problem, budget_bytes - problem.memories[0].fixed_bytes)
    with _no_collecting():
        for stage in range(builder.model.begin, len(problem.ops) + 1):
            builder.add_variables(stage)
            _check(builder.milp, should_stop)
        for stage in range(builder.model.begin, len(problem.ops)):
            builder.add_stage(stage)
            _check(builder.milp, should_stop)
    return builder.model


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Millions of small tuples, none of them garbage: to look for it takes twice as long as to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def full_size(problem: Problem) -> tuple[int, int]:
    """Variables and constraints of the program as published, lower triangle, before anything is left out."""
    count = len(problem.ops)
    levels = count * (count + 1) // 2
    variables, constraints = levels - count + levels, 2 * levels
    readers = readers_of(problem)
    constraints += sum(count - op for ops in readers for op in ops)
    for tensor, value in enumerate(problem.tensors):
        producer = value.producer
        variables += count - 1 - producer
        constraints += 3 * (count - producer)  # S only of what is there, (a) and (b)
        is_only = len(problem.ops[producer].outputs) == 1
        may_free = readers[tensor] if is_only else [producer, *readers[tensor]]
        for place, op in enumerate(may_free):
            variables += count - op
            constraints += 2 * (count - op) + sum(count - later for later in may_free[place + 1 :])
    return variables, constraints


def _check(milp: Milp, should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise Unfinished("time was up before the program was written")
    if len(milp.upper) > MOST_VARIABLES:
        raise Unfinished(f"more than {MOST_VARIABLES} variables")


class _Builder:
    """Bytes in units of what all sizes have in common, the budget rounded down."""

    def __init__(self, problem: Problem, free_bytes: int) -> None:
        self.problem = problem
        self.ops = [tuple(dict.fromkeys(op.inputs)) for op in problem.ops]
        sizes = [spec.size_bytes for spec in problem.tensors]
        workspaces = [op.workspace_bytes[0] for op in problem.ops]
        times = [op.time_ns[0] or 0 for op in problem.ops]
        byte_unit, cost_unit = math.gcd(*sizes, *workspaces) or 1, math.gcd(*times) or 1
        self.sizes = [size // byte_unit for size in sizes]
        self.workspaces = [size // byte_unit for size in workspaces]
        self.times = [time // cost_unit for time in times]
        self.readers = readers_of(problem)
        self.last_run, self.last_hold = last_stages(problem, self.readers)
        capacity = free_bytes // byte_unit
        self.model = StageModel(problem, capacity, self._begin(capacity), byte_unit, cost_unit)
        self.milp = self.model.milp

    def _begin(self, capacity: int) -> int:
        """The first stage in which not all that was made so far and is of use fits together."""
        count = len(self.ops)
        return next((stage for stage in range(count) if self._most(stage) > capacity), count)

    def _most(self, stage: int) -> int:
        """The most that a stage can hold at one time, in byte units."""
        tensors = self.problem.tensors
        made = sum(
            size
            for x, size in enumerate(self.sizes)
            if tensors[x].producer == stage
            or (
                tensors[x].producer < stage
                and (self.last_hold[x] >= stage or self.last_run[tensors[x].producer] >= stage)
            )
        )
        return made + max(self.workspaces[op] for op in self._running(stage))

    def _running(self, stage: int) -> list[int]:
        return [op for op in range(stage + 1) if self.last_run[op] >= stage]

    def add_variables(self, stage: int) -> None:
        """The variables of a stage: R, ops that run, and S, tensors held; what is held at the end is known."""
        if stage == len(self.ops):
            return
        for tensor, spec in enumerate(self.problem.tensors):
            if spec.producer < stage <= self.last_hold[tensor]:
                self.model.held[stage, tensor] = self.milp.add()
        if stage >= self.model.begin:
            for op in self._running(stage)[:-1]:
                self.model.computed[stage, op] = self.milp.add(cost=self.times[op])

    def add_stage(self, stage: int) -> None:
        """What is read is there, and all fits."""
        spans = {x: self._span(stage, x) for x, spec in enumerate(self.problem.tensors) if spec.producer <= stage}
        if self._most(stage) > self.model.capacity:
            # U op by op, with workspace.
            level = _sum(*(_scale(self.sizes[tensor], self._hold(stage, tensor)) for tensor in spans))
            for op in self._running(stage):
                outputs = [x for x in self.problem.ops[op].outputs if self.sizes[x]]
                made = [_scale(self.sizes[x], self._run(stage, op)) for x in outputs]
                held = self._derive([_sum(level, *made)], max(0, self.model.capacity), integral=False)
                self.model.levels.add(held)
                beside = _scale(self.workspaces[op], self._run(stage, op))
                if self.workspaces[op]:
                    self._at_most(_sum(([(1, held)], 0), beside), ([], self.model.capacity))
                # What is left after an op, less what there was.
                changes = []
                for tensor in self.ops[op]:
                    # What is in memory up to a reader: what is left by the one before it.
                    left, readers = spans[tensor], sorted(spans[tensor])
                    previous = left[readers[readers.index(op) - 1]]
                    changes.append(_scale(self.sizes[tensor], _sum(left[op], _scale(-1, previous))))
                for tensor in self.problem.ops[op].outputs:
                    available = _sum(self._hold(stage, tensor), self._run(stage, op))
                    changes.append(_scale(self.sizes[tensor], _sum(spans[tensor][-1], _scale(-1, available))))
                level = _sum(([(1, held)], 0), *changes)

    def _run(self, stage: int, op: int) -> Expression:
        if op == stage:
            return [], 1
        variable = self.model.computed.get((stage, op))
        return _NOTHING if variable is None else ([(1, variable)], 0)

    def _hold(self, stage: int, tensor: int) -> Expression:
        if stage == len(self.ops):
            return [], int(self.problem.tensors[tensor].kept)
        variable = self.model.held.get((stage, tensor))
        return _NOTHING if variable is None else ([(1, variable)], 0)

    def _span(self, stage: int, tensor: int) -> dict[int, Expression]:
        """The rows of a tensor in a stage; whether it is in memory after its producer (-1) and after each reader."""
        producer, after = self.problem.tensors[tensor].producer, self._hold(stage + 1, tensor)
        before, made = self._hold(stage, tensor), self._run(stage, producer)
        available = _sum(before, made)
        if before[0] and made[0]:
            self._at_most(available, ([], 1))
        readers = [op for op in self.readers[tensor] if op <= stage <= self.last_run[op]]
        left = {readers[-1] if readers else -1: after}
        for place in range(len(readers) - 1, -1, -1):
            # The larger of two numbers of 0 and 1, as a variable if need be.
            larger = [each for each in (self._run(stage, readers[place]), left[readers[place]]) if each != _NOTHING]
            if ([], 1) in larger:
                here: Expression = ([], 1)
            elif len(larger) < 2:
                here = larger[0] if larger else _NOTHING
            else:
                here = ([(1, self._derive(larger, 1))], 0)
            left[readers[place - 1] if place else -1] = here
        self._at_most(left[-1], available)
        if len(self.problem.ops[producer].outputs) == 1 or not made[0]:
            left[-1] = available
        return left

    def _derive(self, expressions: list[Expression], upper: int, integral: bool = True) -> int:
        variable = self.milp.add(upper=upper, integral=integral)
        self.model.derived.append((variable, expressions))
        for expression in expressions:
            self._at_most(expression, ([(1, variable)], 0))
        return variable

    def _at_most(self, small: Expression, large: Expression) -> None:
        terms, constant = _sum(small, _scale(-1, large))
        if terms:
            self.milp.at_most(terms, -constant)
        elif constant > 0:
            self.milp.at_least([], 1)


def _sum(*parts: Expression) -> Expression:
    sums: dict[int, int] = {}
    for terms, _ in parts:
        for coefficient, variable in terms:
            sums[variable] = sums.get(variable, 0) + coefficient
    return [(c, variable) for variable, c in sums.items() if c], sum(constant for _, constant in parts)


def _scale(factor: int, expression: Expression) -> Expression:
    terms, constant = expression
    return [(factor * c, variable) for c, variable in terms], factor * constant
