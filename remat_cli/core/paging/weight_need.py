"""Which weight is in the way of paging, and what budget it needs: each weight comes and goes as a whole."""

import msgspec

from remat_cli.core.paging.paged_sessions import SessionCosts, groups_of, paged_sessions
from remat_cli.core.paging.paging import Link
from remat_cli.core.paging.weight_loads import loads_of, weights_read
from remat_cli.core.paging.weight_paging import NO_WEIGHTS
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem


class WeightNeed(msgspec.Struct, frozen=True):
    """A weight by its number, and the least budget with which the session that reads it opens and runs.

    `packed_bytes` is the kernel's own copy, which is there beside it while the session opens (0: it makes none).
    """

    weight: int
    packed_bytes: int
    budget_bytes: int


def weight_need(problem: Problem, plan: Plan, link: Link, costs: SessionCosts) -> WeightNeed | None:
    """The largest weight of the op that needs most memory, if each op is a session and all is away that may be.

    None: what holds most reads no such weight, or it would fit.
    """
    groups = groups_of(plan, range(len(plan.schedule.steps)))
    read = weights_read(problem, plan, groups)
    weights = costs.weights.of_sessions(range(len(groups)), read) or NO_WEIGHTS
    alone = msgspec.structs.replace(costs, weights=weights)
    sessions = paged_sessions(problem, plan, range(len(groups)), link, alone)
    working = sessions.problem.working_bytes()
    first = sessions.first_action  # before it there is room for nothing, by rule
    held = max(working[first:], default=0)
    step = working.index(held, first)
    missing_bytes = held - sessions.problem.budget_bytes
    loads = loads_of(problem, plan, groups, weights)
    load = next((each for each in loads if each.session == sessions.steps[step].session), None)
    if load is None or missing_bytes <= 0:
        return None
    packs = {each.weight: each.packed_bytes for each in weights.weights}
    largest = max((*load.packed, *load.plain), key=lambda weight: problem.weight_bytes[weight] + packs[weight])
    return WeightNeed(largest, packs[largest], problem.memories[0].budget_bytes + missing_bytes)
