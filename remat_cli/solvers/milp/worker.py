"""The worker process of `_milp.process`: reads integer programs as JSON, writes what HiGHS or SCIP proves about each.

Run as a script, so that it loads nothing but OR-Tools. HiGHS cannot be interrupted; a process can. HiGHS's own log goes
to standard output while it works, for the bounds in it; the last line is the reply. SCIP replies on its way, too, and
HiGHS writes the solutions that it finds into a file.
"""

import ctypes
import datetime
import json
import math
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt
from ortools.math_opt.solvers import highs_pb2

_FLUSH_SECONDS = 0.2
_WATCH_SECONDS = 1.0


def main() -> None:
    """One request on stdin; HiGHS's log and then a reply on stdout, for each program of the request.

    It has the programs, the time.time() `until` which to work, and the `parent` that asks.
    """
    request = json.load(sys.stdin)
    # When remat is gone, even killed, nobody else ends this process or removes the files of solutions.
    never = threading.Event()

    def watch() -> None:
        while not never.wait(_WATCH_SECONDS):
            if os.getppid() != request["parent"]:
                for milp in request["milps"]:
                    if milp.get("solutions"):
                        Path(milp["solutions"]).unlink(missing_ok=True)
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    for milp in request["milps"]:
        reply = solve(milp, max(0.0, request["until"] - time.time()))
        sys.stdout.write("\n" + json.dumps(reply) + "\n")
        sys.stdout.flush()


def solve(milp: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Status (`optimal`, `infeasible`, `unknown`), bound, best solution and (no integers) reduced costs of a Milp.

    `engine` (default `highs`) may be `scip`. A `hint` has [variable, value] pairs to start from; HiGHS must be given a
    value of each variable, or it would solve a program of its own to complete them, and log the bounds of that.
    `solutions` is the file for those that HiGHS finds.
    """
    # Costs are integers: a gap below one is closed by rounding up. A relative gap would end too early.
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=seconds),
        enable_output=True,
        absolute_gap_tolerance=max(0.5, milp.get("gap", 0.0)),
        relative_gap_tolerance=0.0,
    )
    model = build(milp)
    variables = list(model.variables())
    hint = mathopt.SolutionHint({variables[variable]: value for variable, value in milp.get("hint", ())})
    start = mathopt.ModelSolveParameters(solution_hints=[hint] if milp.get("hint") else [])
    if milp.get("engine") == "scip":
        news = mathopt.CallbackRegistration(events={mathopt.Event.MIP_SOLUTION})
        tell = partial(_tell, variables, [])
        scip = mathopt.SolverType.GSCIP
        result = mathopt.solve(model, scip, params=parameters, model_params=start, callback_reg=news, cb=tell)
    else:
        if milp.get("solutions"):
            _write_solutions(parameters, milp["solutions"])
        result = mathopt.solve(model, mathopt.SolverType.HIGHS, params=parameters, model_params=start)
    reason = mathopt.TerminationReason
    status = {reason.OPTIMAL: "optimal", reason.INFEASIBLE: "infeasible"}.get(result.termination.reason, "unknown")
    bound = result.termination.objective_bounds.dual_bound
    has_duals = status == "optimal" and not any(milp["integral"])
    return {
        "status": status,
        "bound": bound if math.isfinite(bound) else None,
        "values": result.variable_values(variables) if result.has_primal_feasible_solution() else None,
        "reduced": result.reduced_costs(variables) if has_duals else None,
        "duals": result.dual_values(list(model.linear_constraints())) if has_duals and milp.get("duals") else None,
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


def _write_solutions(parameters: mathopt.SolveParameters, path: str) -> None:
    """Have HiGHS write solutions into a file; C's buffers are flushed on and on, so that they get there at once."""
    options = highs_pb2.HighsOptionsProto()
    options.bool_options["mip_improving_solution_save"] = True
    options.string_options["mip_improving_solution_file"] = path
    parameters.highs = options
    flush, never = ctypes.CDLL(None).fflush, threading.Event()

    def flush_on() -> None:
        while not never.wait(_FLUSH_SECONDS):
            flush(None)

    threading.Thread(target=flush_on, daemon=True).start()


def build(milp: dict[str, Any]) -> mathopt.Model:
    """The model in MathOpt's terms; variables that need not be integral are continuous.

    By way of a message: adding coefficients one by one takes minutes for a million of them.
    """
    message = model_pb2.ModelProto()
    columns = message.variables
    columns.ids.extend(range(len(milp["upper"])))
    columns.lower_bounds.extend(milp["lower"])
    columns.upper_bounds.extend(milp["upper"])
    columns.integers.extend(milp["integral"])
    costs = [(variable, cost) for variable, cost in enumerate(milp["cost"]) if cost]
    message.objective.linear_coefficients.ids.extend(variable for variable, _ in costs)
    message.objective.linear_coefficients.values.extend(cost for _, cost in costs)
    rows = milp["rows"]
    message.linear_constraints.ids.extend(range(len(rows)))
    message.linear_constraints.lower_bounds.extend(-math.inf if least is None else least for _, least, _ in rows)
    message.linear_constraints.upper_bounds.extend(math.inf if most is None else most for _, _, most in rows)
    matrix = message.linear_constraint_matrix
    for row, (terms, _, _) in enumerate(rows):
        sums: dict[int, float] = {}
        for coefficient, variable in terms:
            sums[variable] = sums.get(variable, 0) + coefficient
        entries = sorted((variable, coefficient) for variable, coefficient in sums.items() if coefficient)
        matrix.row_ids.extend([row] * len(entries))
        matrix.column_ids.extend(variable for variable, _ in entries)
        matrix.coefficients.extend(coefficient for _, coefficient in entries)
    return mathopt.Model.from_model_proto(message)


if __name__ == "__main__":
    main()
