"""The worker process of `_bounds_milp`: reads an integer program as JSON, writes what HiGHS proves about it.

Run as a script, so that it loads nothing but OR-Tools. HiGHS cannot be interrupted; a process can.
"""

import datetime
import json
import math
import sys
from typing import Any

from ortools.math_opt.python import mathopt


def main() -> None:
    """One request on stdin, one reply on stdout."""
    request = json.load(sys.stdin)
    json.dump(solve(request["milp"], request["seconds"]), sys.stdout)


def solve(milp: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Status (`optimal`, `infeasible`, `unknown`) and dual bound of a Milp."""
    # Costs are integers: a gap below one is closed by rounding up. A relative gap would end too early.
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=seconds), absolute_gap_tolerance=0.5, relative_gap_tolerance=0.0
    )
    result = mathopt.solve(build(milp), mathopt.SolverType.HIGHS, params=parameters)
    reason = mathopt.TerminationReason
    status = {reason.OPTIMAL: "optimal", reason.INFEASIBLE: "infeasible"}.get(result.termination.reason, "unknown")
    bound = result.termination.objective_bounds.dual_bound
    return {"status": status, "bound": bound if math.isfinite(bound) else None}


def build(milp: dict[str, Any]) -> mathopt.Model:
    """The model in MathOpt's terms; variables that need not be integral are continuous."""
    model = mathopt.Model()
    columns = zip(milp["upper"], milp["integral"], strict=True)
    variables = [model.add_variable(lb=0, ub=upper, is_integer=integral) for upper, integral in columns]
    for terms, least, most in milp["rows"]:
        row = model.add_linear_constraint(
            lb=-math.inf if least is None else least, ub=math.inf if most is None else most
        )
        for coefficient, variable in terms:
            row.set_coefficient(variables[variable], row.get_coefficient(variables[variable]) + coefficient)
    for variable, cost in zip(variables, milp["cost"], strict=True):
        model.objective.set_linear_coefficient(variable, cost)
    return model


if __name__ == "__main__":
    main()
