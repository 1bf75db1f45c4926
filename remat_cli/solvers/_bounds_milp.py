"""Small integer programs for bounds, and two ways to solve them that can be interrupted.

CP-SAT is exact and stops when told. HiGHS proves far more on large models, but ignores interruption and works in
floating point: it runs in a process of its own, which is killed to stop it, and its bound is rounded with a margin.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from ortools.sat.python import cp_model

from remat_cli.core.errors import RuntimeFailure
from remat_cli.solvers._cp_sat import Run, Watch, search
from remat_cli.solvers.base import Limits

Terms: TypeAlias = list[tuple[int, int]]
"""(coefficient, variable) pairs."""

_POLL_SECONDS = 0.05
_WORKER = Path(__file__).with_name("_bounds_highs.py")


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


@dataclass(frozen=True)
class Answer:
    """A proved lower bound on the cost; None: proved infeasible. `is_tight` says that it is the optimum."""

    bound: int | None
    is_tight: bool
    facts: dict[str, Any] = field(default_factory=dict)


def solve_milp(milp: Milp, engine: Literal["cp-sat", "highs"], limits: Limits) -> Answer:
    """Bound the optimum within the limits."""
    facts = {"variables": len(milp.upper), "rows": len(milp.rows), "engine": engine}
    answer = _solve_exactly(milp, limits) if engine == "cp-sat" else _solve_in_process(milp, limits)
    return Answer(answer.bound, answer.is_tight, facts)


def _solve_exactly(milp: Milp, limits: Limits) -> Answer:
    """With CP-SAT, in integers."""
    run = Run(limits.seconds_left, None, 0.0, linearization_level=2)
    outcome = search(_cp_model(milp), lambda value: [], run, limits, Watch(_ignore_ops, _ignore_bound))
    if outcome.is_infeasible:
        return Answer(None, True)
    return Answer(max(0, outcome.bound), outcome.is_optimal)


def _cp_model(milp: Milp) -> Any:
    cp = cp_model.CpModel()
    variables = [cp.new_int_var(0, upper, "") for upper in milp.upper]
    for terms, least, most in milp.rows:
        total = cp_model.LinearExpr.weighted_sum([variables[v] for _, v in terms], [c for c, _ in terms])
        cp.add_linear_constraint(
            total, cp_model.INT_MIN if least is None else least, cp_model.INT_MAX if most is None else most
        )
    cp.minimize(cp_model.LinearExpr.weighted_sum(variables, milp.cost))
    return cp


def _ignore_ops(ops: list[int]) -> None:
    """A solution of a relaxation is not a schedule."""


def _ignore_bound(bound: int) -> None:
    """The last bound counts."""


def _solve_in_process(milp: Milp, limits: Limits) -> Answer:
    """With HiGHS; an answer "infeasible" is believed only if CP-SAT proves it too."""
    answer = _ask_worker(milp, limits)
    if answer is None:
        return Answer(0, False)
    if answer.status == "infeasible":
        exact = _solve_exactly(milp, limits)
        return exact if exact.bound is None else Answer(max(0, exact.bound), False)
    bound = _round_up(answer.bound)
    return Answer(bound, answer.status == "optimal")


def _round_up(bound: float | None) -> int:
    """The least integer a bound leaves open, after a margin of 1e-6 of it for the solver's tolerances."""
    if bound is None or not math.isfinite(bound):
        return 0
    return max(0, math.ceil(bound - 1e-6 * max(1.0, abs(bound))))


class _Request(msgspec.Struct):
    milp: Milp
    seconds: float


class _Reply(msgspec.Struct):
    status: str
    bound: float | None


def _ask_worker(milp: Milp, limits: Limits) -> _Reply | None:
    """The worker's reply; None when the search was stopped or ran out of time.

    Raises:
        RuntimeFailure: the worker failed.
    """
    with tempfile.TemporaryFile() as request:
        request.write(msgspec.json.encode(_Request(milp, limits.seconds_left)))
        request.seek(0)
        with subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for remat, which then stops the worker
        ) as process:
            try:
                output = _wait(process, limits)
            finally:
                process.kill()
    if output is None:
        return None
    if process.returncode != 0:
        raise RuntimeFailure(f"the bound worker {_WORKER.name} failed: {output[1].decode(errors='replace').strip()}")
    return msgspec.json.decode(output[0], type=_Reply)


def _wait(process: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, bytes] | None:
    """What the worker writes to its two outputs; None if it is time to stop."""
    while True:
        try:
            return process.communicate(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if limits.should_stop() or _is_overdue(limits):
                return None


def _is_overdue(limits: Limits) -> bool:
    """HiGHS notices its time limit late at times; the bound it then returns is worth a short wait."""
    late = min(10.0, 0.1 * limits.seconds + 1.0)
    return limits.seconds_left <= 0.0 and Limits(limits.seconds + late, started=limits.started).seconds_left <= 0.0
