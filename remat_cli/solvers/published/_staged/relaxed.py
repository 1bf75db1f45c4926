"""Checkmate's program without integers: its value is a lower bound, its S tells what to hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from remat_cli.solvers.base import Limits
from remat_cli.solvers.milp.process import Reply, ask_highs_in_turn, proved_value, safe_units
from remat_cli.solvers.milp.program import MOST_FOR_CP_SAT, scaled_rows, solve_milp
from remat_cli.solvers.published._staged.candidates import Shares, number_tensors
from remat_cli.solvers.published._staged.program import StageModel

_MOST = 1_000.0  # what a level may be: floating point needs numbers of moderate size


@dataclass(frozen=True)
class Relaxed:
    """What became of the program without integers; `bound` is in cost units, `shares` those of a best solution."""

    status: Literal["optimal", "infeasible", "unknown"]
    bound: int = 0
    shares: Shares | None = None


def relax(models: Sequence[StageModel], limits: Limits) -> Iterator[Relaxed]:
    """Solve them in turn with HiGHS, in a process of its own, which ends with the limits: the rest is unknown."""
    programs = [program_of(model) for model in models]
    answers = iter(()) if limits.is_over else ask_highs_in_turn(programs, limits)
    replies = (item for item in answers if isinstance(item, Reply))
    for model, program in zip(models, programs, strict=True):
        reply = next(replies, None)
        if reply is not None and reply.status == "optimal" and reply.values is not None and reply.duals is not None:
            bound = safe_units(proved_value(program, reply.duals))
            yield Relaxed("optimal", bound, shares_of(model, reply.values))
        else:
            yield Relaxed("infeasible" if reply is not None and reply.status == "infeasible" else "unknown")


def is_impossible(model: StageModel, limits: Limits) -> bool:
    """Whether CP-SAT, which is exact, proves that no schedule of the space fits: not of what is too large for it."""
    return len(model.milp.upper) <= MOST_FOR_CP_SAT and solve_milp(model.milp, "cp-sat", limits).bound is None


def program_of(model: StageModel) -> dict[str, Any]:
    """All variables continuous, levels and the rows about them in larger units; that changes no solution."""
    milp, unit = model.milp, max(1.0, model.capacity / _MOST)
    return {
        "cost": milp.cost,
        "integral": [False] * len(milp.upper),
        "lower": [0] * len(milp.upper),
        "upper": [most / unit if v in model.levels else most for v, most in enumerate(milp.upper)],
        "rows": list(scaled_rows(milp, model.levels, unit)),
        "duals": True,
    }


def shares_of(model: StageModel, values: list[float]) -> Shares:
    """S of a solution, a row per stage and one for the end, tensors numbered as in the net.

    Where nothing is recomputed yet, all is held. So is for good what comes from an op that must not be repeated:
    to hold what nobody reads takes nothing.
    """
    problem, numbers = model.problem, number_tensors(model.problem)
    count = len(problem.ops)
    shares = np.zeros((count + 1, len(problem.tensors)))
    for (stage, tensor), variable in model.held.items():
        shares[stage, numbers[tensor]] = values[variable]
    for tensor, spec in enumerate(problem.tensors):
        number = numbers[tensor]
        shares[spec.producer + 1 : model.begin, number] = 1.0
        if not problem.ops[spec.producer].repeatable:
            shares[spec.producer + 1 :, number] = 1.0
        shares[count, number] = float(spec.kept or shares[count, number])
    return shares
