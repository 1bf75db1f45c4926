"""Solving integer programs over stages: exactly by CP-SAT, or in floating point by HiGHS or SCIP, each in a process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from remat_cli.solvers._milp.cp_sat import WORK_PER_DETERMINISTIC_SECOND, Run, Watch, search
from remat_cli.solvers._milp.process import Reply, ask_highs, safe_units
from remat_cli.solvers._milp.program import Milp, make_cp_model
from remat_cli.solvers.base import Limits

Engine: TypeAlias = Literal["cp-sat", "highs", "scip"]
Hint: TypeAlias = dict[int, int]
"""Values of some variables in a good solution."""

Row: TypeAlias = tuple[Sequence[tuple[float, int]], float | None, float | None]
"""(coefficient, variable) pairs, and what they are at least and at most together."""

MOST_FOR_CP_SAT = 200_000
"""Variables that take CP-SAT about 4 GB."""

_LARGE = 1e6
_MODERATE = 1e5


class Model(Protocol):
    """A program, and which of its variables count bytes."""

    milp: Milp
    levels: set[int]


@dataclass(frozen=True)
class Verdict:
    """What is proved of a program: that nothing satisfies it, or the least cost it leaves open, in cost units."""

    is_infeasible: bool
    bound: int


def run_engine(model: Model, engine: Engine, hint: Hint, limits: Limits, watch: Watch, gap: float) -> Verdict:
    """Solve within the limits, up to a gap in cost units.

    HiGHS is given a hint only if it says all: it would solve a program of its own to complete one.
    """
    if engine == "cp-sat":
        return _run_cp_sat(model, hint, limits, watch, gap)
    given = hint if engine == "scip" or len(hint) == len(model.milp.upper) else {}
    best, is_found = 0, False
    for item in ask_highs(_program(model, engine, given, gap), limits):
        if isinstance(item, Reply) and item.status == "infeasible" and not is_found:
            return _confirmed(model, limits, watch, best)
        is_found |= isinstance(item, Reply) and bool(item.values)
        best = _hear(item, best, watch)
    return Verdict(False, best)


def _confirmed(model: Model, limits: Limits, watch: Watch, best: int) -> Verdict:
    """What floating point says is infeasible is so if CP-SAT agrees."""
    if len(model.milp.upper) > MOST_FOR_CP_SAT:
        return Verdict(False, best)
    verdict = _run_cp_sat(model, {}, limits, watch, 0.0)
    return Verdict(verdict.is_infeasible, max(best, verdict.bound))


def _hear(item: float | Reply, best: int, watch: Watch) -> int:
    """Pass on what an engine says; the best bound so far."""
    if isinstance(item, Reply) and item.values:
        watch.found([round(value) for value in item.values])
    if isinstance(item, Reply) and item.status == "infeasible":
        return best
    bound = safe_units(item.bound if isinstance(item, Reply) else item)
    if bound > best:
        watch.bounded(bound)
    return max(bound, best)


def _run_cp_sat(model: Model, hint: Hint, limits: Limits, watch: Watch, gap: float) -> Verdict:
    cp, variables = make_cp_model(model.milp)
    for variable, value in hint.items():
        cp.add_hint(variables[variable], value)
    work = limits.work / WORK_PER_DETERMINISTIC_SECOND if limits.work is not None else None
    run = Run(limits.seconds_left, work, gap)
    outcome = search(cp, lambda value: [value(variable) for variable in variables], run, limits, watch)
    if not outcome.is_infeasible:
        watch.bounded(outcome.bound)
    return Verdict(outcome.is_infeasible, max(0, outcome.bound))


def _program(model: Model, engine: Engine, hint: Hint, gap: float) -> dict[str, Any]:
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
        share = _share([factor for factor, _ in terms]) if levels.isdisjoint(v for _, v in terms) else unit
        if share == 1:
            yield terms, least, most
            continue
        yield (
            [(factor if variable in levels else factor / share, variable) for factor, variable in terms],
            None if least is None else least / share,
            None if most is None else most / share,
        )


def _share(factors: list[int]) -> float:
    largest = max(map(abs, factors), default=0)
    return largest / _MODERATE if largest > _LARGE else 1
