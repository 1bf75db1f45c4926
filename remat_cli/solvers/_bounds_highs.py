"""The worker process of `_bounds_process`: reads an integer program as JSON, writes what HiGHS or SCIP proves about it.

Run as a script, so that it loads nothing but OR-Tools. HiGHS cannot be interrupted; a process can. HiGHS's own log goes
to standard output while it works, for the bounds in it; the last line is the reply. SCIP replies on its way, too.
"""

import datetime
import json
import math
import sys
from functools import partial
from typing import Any

from ortools.math_opt.python import mathopt


def main() -> None:
    """One request on stdin, HiGHS's log and then one reply on stdout."""
    request = json.load(sys.stdin)
    reply = solve(request["milp"], request["seconds"])
    sys.stdout.write("\n" + json.dumps(reply) + "\n")


def solve(milp: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Status (`optimal`, `infeasible`, `unknown`), bound, best solution and (no integers) reduced costs of a Milp.

    `engine` (default `highs`) may be `scip`, which takes a `hint`: [variable, value] pairs to start from. HiGHS gets
    none: it would solve a program of its own to complete it, and log the bounds of that.
    """
    # Costs are integers: a gap below one is closed by rounding up. A relative gap would end too early.
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=seconds),
        enable_output=True,
        absolute_gap_tolerance=0.5,
        relative_gap_tolerance=0.0,
    )
    model = build(milp)
    variables = list(model.variables())
    if milp.get("engine") == "scip":
        hint = mathopt.SolutionHint({variables[variable]: value for variable, value in milp["hint"]})
        start = mathopt.ModelSolveParameters(solution_hints=[hint] if milp["hint"] else [])
        news = mathopt.CallbackRegistration(events={mathopt.Event.MIP_SOLUTION})
        tell = partial(_tell, variables, [])
        scip = mathopt.SolverType.GSCIP
        result = mathopt.solve(model, scip, params=parameters, model_params=start, callback_reg=news, cb=tell)
    else:
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters)
    reason = mathopt.TerminationReason
    status = {reason.OPTIMAL: "optimal", reason.INFEASIBLE: "infeasible"}.get(result.termination.reason, "unknown")
    bound = result.termination.objective_bounds.dual_bound
    has_duals = status == "optimal" and not any(milp["integral"])
    return {
        "status": status,
        "bound": bound if math.isfinite(bound) else None,
        "values": result.variable_values(variables) if result.has_primal_feasible_solution() else None,
        "reduced": result.reduced_costs(variables) if has_duals else None,
    }


def _tell(variables: list[Any], told: list[Any], news: Any) -> mathopt.CallbackResult:
    """Write a reply with a solution found on the way; the same one comes often."""
    values = [news.solution[variable] for variable in variables] if news.solution else None
    if values is not None and values != told:
        told[:] = values
        bound = news.mip_stats.dual_bound
        reply = {"status": "unknown", "bound": bound if bound and math.isfinite(bound) else None, "values": values}
        sys.stdout.write("\n" + json.dumps(reply | {"reduced": None}) + "\n")
        sys.stdout.flush()
    return mathopt.CallbackResult()


def build(milp: dict[str, Any]) -> mathopt.Model:
    """The model in MathOpt's terms; variables that need not be integral are continuous."""
    model = mathopt.Model()
    columns = zip(milp["lower"], milp["upper"], milp["integral"], strict=True)
    variables = [model.add_variable(lb=lower, ub=upper, is_integer=integral) for lower, upper, integral in columns]
    for terms, least, most in milp["rows"]:
        row = model.add_linear_constraint(
            lb=-math.inf if least is None else least, ub=math.inf if most is None else most
        )
        sums: dict[int, int] = {}
        for coefficient, variable in terms:
            sums[variable] = sums.get(variable, 0) + coefficient
        for variable, coefficient in sums.items():
            row.set_coefficient(variables[variable], coefficient)
    for variable, cost in zip(variables, milp["cost"], strict=True):
        if cost:
            model.objective.set_linear_coefficient(variable, cost)
    return model


if __name__ == "__main__":
    main()
