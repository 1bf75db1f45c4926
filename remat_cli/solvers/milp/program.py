"""Integer programs, and how they are solved or bounded: exactly by CP-SAT, or by HiGHS or SCIP in a process.

Bounds by HiGHS come in steps: first without integers; then with those variables fixed whose reduced cost says that
another value costs more than the best schedule known. See `_with_target` for why that is a proof.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from ortools.sat.python import cp_model

from remat_cli.solvers.base import Limits
from remat_cli.solvers.milp.cp_sat import WORK_PER_DETERMINISTIC_SECOND, Effort, Watch, search
from remat_cli.solvers.milp.process import Reply, ask_highs, safe_units

Terms: TypeAlias = list[tuple[int, int]]
"""(coefficient, variable) pairs."""

Known: TypeAlias = Callable[[], int | None]
"""The least cost known so far; a bound above it is of no use."""

BoundEngine: TypeAlias = Literal["cp-sat", "highs", "relaxed"]
"""Exactly in integers; in steps; or the first step alone, without integers."""

_CERTAIN = 1e-6


class Unfinished(Exception):
    """The program is not finished: time is up, or it would be too large for the memory of this process."""


class Milp(msgspec.Struct):
    """Minimise the cost of integer variables from 0 to `upper`, under rows `least <= terms <= most`.

    A variable that need not be integral, because the others force it, has `integral` False.
    """

    upper: list[int] = msgspec.field(default_factory=list)
    integral: list[bool] = msgspec.field(default_factory=list)
    cost: list[int] = msgspec.field(default_factory=list)
    rows: list[tuple[Terms, int | None, int | None]] = msgspec.field(default_factory=list)

    def add(self, upper: int = 1, cost: int = 0, integral: bool = True) -> int:
        """A new variable; returns its number."""
        self.upper.append(upper)
        self.cost.append(cost)
        self.integral.append(integral)
        return len(self.upper) - 1

    def at_least(self, terms: Terms, least: int) -> None:
        """A row with a lower limit."""
        self.rows.append((terms, least, None))

    def at_most(self, terms: Terms, most: int) -> None:
        """A row with an upper limit."""
        self.rows.append((terms, None, most))

    def implies(self, cause: int, needs: Iterable[int]) -> None:
        """A row: where `cause` is 1, one of `needs` is."""
        self.at_least([*((1, need) for need in needs), (-1, cause)], 0)

    def any_of(self, variables: list[int]) -> int:
        """A variable that is at least each of these."""
        if len(variables) == 1:
            return variables[0]
        found = self.add(integral=False)
        for variable in variables:
            self.implies(variable, [found])
        return found

    def all_of(self, variables: list[int]) -> int:
        """A variable that is at most each of these."""
        if len(variables) == 1:
            return variables[0]
        found = self.add(integral=False)
        for variable in variables:
            self.at_most([(1, found), (-1, variable)], 0)
        return found


@dataclass(frozen=True)
class Answer:
    """A proved lower bound on the cost; None: proved infeasible. `is_tight` says that it is the optimum.

    `values` is a solution of the program, if one was found; not always a best one.
    """

    bound: int | None
    is_tight: bool
    values: tuple[int, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def solve_milp(milp: Milp, engine: BoundEngine, limits: Limits, known: Known = lambda: None) -> Answer:
    """Bound the optimum within the limits; `known()` is a cost that is known to be in reach."""
    *_, last = [Answer(0, False), *rising_answers(milp, engine, limits, known)]
    return last


def rising_answers(milp: Milp, engine: BoundEngine, limits: Limits, known: Known = lambda: None) -> Iterator[Answer]:
    """Answers of which each says at least as much as those before it."""
    facts = {
        "variables": len(milp.upper),
        "rows": len(milp.rows),
        "engine": "cp-sat" if engine == "cp-sat" else "highs",
    }
    if engine == "relaxed":
        answers = iter([_relaxed(milp, limits)[0]])
    elif not milp.rows:  # nothing forces any cost; HiGHS gives no duals for such a program
        answers = iter([Answer(0, True, (0,) * len(milp.upper))])
    else:
        answers = iter([_solve_exactly(milp, limits)]) if engine == "cp-sat" else _solve_in_steps(milp, limits, known)
    for answer in answers:
        yield replace(answer, facts=facts)


def _solve_exactly(milp: Milp, limits: Limits) -> Answer:
    """Solve the program with CP-SAT, in integers."""
    run = Effort(limits.seconds_left, None, 0.0, linearization_level=2)
    found: list[list[int]] = []
    cp, variables = make_cp_model(milp)
    outcome = search(cp, lambda value: [value(v) for v in variables], run, limits, Watch(found.append))
    if outcome.is_infeasible:
        return Answer(None, True)
    return Answer(max(0, outcome.bound), outcome.is_optimal, tuple(found[-1]) if found else None)


def make_cp_model(milp: Milp) -> tuple[Any, list[Any]]:
    """The program and its variables in CP-SAT's terms, all integral."""
    cp = cp_model.CpModel()
    variables = [cp.new_int_var(0, upper, "") for upper in milp.upper]
    for terms, least, most in milp.rows:
        total = cp_model.LinearExpr.weighted_sum([variables[v] for _, v in terms], [c for c, _ in terms])
        cp.add_linear_constraint(
            total, cp_model.INT_MIN if least is None else least, cp_model.INT_MAX if most is None else most
        )
    cp.minimize(cp_model.LinearExpr.weighted_sum(variables, milp.cost))
    return cp, variables


def _relaxed(milp: Milp, limits: Limits) -> tuple[Answer, Reply | None]:
    """With HiGHS; an answer "infeasible" is believed only if CP-SAT proves it too."""
    program = msgspec.to_builtins(milp)
    program |= {"integral": [False] * len(milp.upper), "lower": [0] * len(milp.upper)}
    replies = [item for item in ask_highs(program, limits) if isinstance(item, Reply)]
    if not replies or replies[0].status == "unknown":
        return Answer(0, False), None
    if replies[0].status == "infeasible":
        return _checked(milp, limits), None
    return Answer(safe_units(replies[0].bound), False), replies[0]


def _checked(milp: Milp, limits: Limits) -> Answer:
    exact = _solve_exactly(milp, limits)
    return exact if exact.bound is None else Answer(exact.bound, False, exact.values)


def _solve_in_steps(milp: Milp, limits: Limits, known: Known) -> Iterator[Answer]:
    """Without integers, then with them, up to what is known."""
    best, relaxed = _relaxed(milp, limits)
    yield best
    if relaxed is None or relaxed.bound is None or limits.is_over:
        return
    cost = known()
    # A cost equal to the one known needs no proof that it cannot be had; a target lies between integers.
    target = None if cost is None else max(math.floor(relaxed.bound), cost - 1) + 0.5
    for answer in _with_target(milp, relaxed, target, limits):
        if answer.is_tight or answer.bound is None or best.bound is None:
            best = answer
        else:
            best = answer if answer.bound > best.bound else best
        if best is answer or answer.values:
            yield replace(best, values=answer.values)


def _with_target(milp: Milp, relaxed: Reply, target: float | None, limits: Limits) -> Iterator[Answer]:
    """Bounds up to the target, and the optimum if it is below the target.

    With x a best solution without integers and c its reduced costs, any solution y costs at least
    bound + sum over j of c[j] (y[j] - x[j]), all terms of the sum >= 0. So in solutions up to the target an integer
    variable with |c[j]| > target - bound stays where it is in x. What is then proved of the others holds up to the
    target, beyond which the proof says nothing.
    """
    lower, upper = [0] * len(milp.upper), list(milp.upper)
    if target is not None and relaxed.reduced and relaxed.values and relaxed.bound is not None:
        room = target - relaxed.bound + 2 * _CERTAIN * max(1.0, abs(relaxed.bound))
        for variable, (cost, value) in enumerate(zip(relaxed.reduced, relaxed.values, strict=True)):
            if milp.integral[variable] and cost > room and value < _CERTAIN:
                upper[variable] = 0
            elif milp.integral[variable] and cost < -room and value > upper[variable] - _CERTAIN:
                lower[variable] = upper[variable]
    for item in ask_highs(msgspec.to_builtins(milp) | {"lower": lower, "upper": upper}, limits):
        bound = item.bound if isinstance(item, Reply) else item
        if isinstance(item, Reply) and item.status == "infeasible":
            yield _checked(milp, limits) if target is None else Answer(safe_units(target), False)
            return
        reached = target is not None and bound is not None and bound >= target
        units = safe_units(target if reached else bound)
        values = tuple(map(round, item.values)) if isinstance(item, Reply) and item.values is not None else None
        is_tight = isinstance(item, Reply) and item.status == "optimal" and not reached
        yield Answer(units, is_tight, values)
        if reached:
            return


Engine: TypeAlias = Literal["cp-sat", "highs", "scip"]
Hint: TypeAlias = dict[int, int]
"""Values of some variables in a good solution."""

Row: TypeAlias = tuple[Sequence[tuple[float, int]], float | None, float | None]
"""(coefficient, variable) pairs, and what they are at least and at most together."""

MOST_FOR_CP_SAT = 200_000
"""Variables that take CP-SAT about 4 GB."""

_LARGE = 1e6
_MODERATE = 1e5


class ByteModel(Protocol):
    """A program, and which of its variables count bytes."""

    milp: Milp
    levels: set[int]


@dataclass(frozen=True)
class Verdict:
    """What is proved of a program: that nothing satisfies it, or the least cost it leaves open, in cost units."""

    is_infeasible: bool
    bound: int


def run_engine(model: ByteModel, engine: Engine, hint: Hint, limits: Limits, watch: Watch, gap: float) -> Verdict:
    """Solve within the limits, up to a gap in cost units.

    HiGHS is given a hint only if it says all: it would solve a program of its own to complete one.
    """
    if engine == "cp-sat":
        return _run_cp_sat(model, hint, limits, watch, gap)
    given = hint if engine == "scip" or len(hint) == len(model.milp.upper) else {}
    best, is_found = 0, False
    for item in ask_highs(_program(model, engine, given, gap), limits):
        is_infeasible = isinstance(item, Reply) and item.status == "infeasible"
        if is_infeasible and not is_found:
            # What floating point says is infeasible is so if CP-SAT agrees.
            if len(model.milp.upper) > MOST_FOR_CP_SAT:
                return Verdict(False, best)
            verdict = _run_cp_sat(model, {}, limits, watch, 0.0)
            return Verdict(verdict.is_infeasible, max(best, verdict.bound))
        if isinstance(item, Reply) and item.values:
            is_found = True
            watch.found([round(value) for value in item.values])
        bound = 0 if is_infeasible else safe_units(item.bound if isinstance(item, Reply) else item)
        if bound > best:
            best = bound
            watch.bounded(bound)
    return Verdict(False, best)


def _run_cp_sat(model: ByteModel, hint: Hint, limits: Limits, watch: Watch, gap: float) -> Verdict:
    cp, variables = make_cp_model(model.milp)
    for variable, value in hint.items():
        cp.add_hint(variables[variable], value)
    work = limits.work / WORK_PER_DETERMINISTIC_SECOND if limits.work is not None else None
    run = Effort(limits.seconds_left, work, gap)
    outcome = search(cp, lambda value: [value(variable) for variable in variables], run, limits, watch)
    if not outcome.is_infeasible:
        watch.bounded(outcome.bound)
    return Verdict(outcome.is_infeasible, max(0, outcome.bound))


def _program(model: ByteModel, engine: Engine, hint: Hint, gap: float) -> dict[str, Any]:
    """The program in numbers of moderate size, which floating point needs: wrong bounds have come from raw bytes.

    Levels count in larger units, and rows with large factors are divided; that changes no solution.
    """
    milp = model.milp
    most = max((milp.upper[level] for level in model.levels), default=0)
    unit = most / _MODERATE if most > _LARGE else 1
    upper = [limit / unit if v in model.levels else limit for v, limit in enumerate(milp.upper)]
    return {
        "integral": milp.integral,
        "cost": milp.cost,
        "lower": [0] * len(upper),
        "upper": upper,
        "rows": list(scaled_rows(milp, model.levels, unit)),
        "engine": engine,
        "hint": [(v, value / unit if v in model.levels else value) for v, value in hint.items()],
        "gap": gap,
        "live": engine == "highs",
    }


def scaled_rows(milp: Milp, levels: set[int], unit: float) -> Iterator[Row]:
    """Rows about levels, which now count in `unit`, divided by it; others by what makes large factors moderate."""
    for terms, least, most in milp.rows:
        share = unit
        if levels.isdisjoint(v for _, v in terms):
            largest = max((abs(factor) for factor, _ in terms), default=0)
            share = largest / _MODERATE if largest > _LARGE else 1
        if share == 1:
            yield terms, least, most
            continue
        yield (
            [(factor if variable in levels else factor / share, variable) for factor, variable in terms],
            None if least is None else least / share,
            None if most is None else most / share,
        )
