"""The live budget that a budget for a process comes to: found from outside, plan by plan."""

from collections.abc import Callable

from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.core.values.budget import Budget

FIRST_SHARE = 1 / 16  # of the budget, left free at first for tables and gaps of the arena
FIRST_STEP_SHARE = 0.5  # of what is too much is taken off at first: fewer gaps come with fewer bytes
ENOUGH_SHARE = 0.03  # of the budget may be left over where the plan costs time


def fastest_within(
    budget: Budget,
    uncounted_bytes: int,
    tries: int,
    plan_for: Callable[[int], OneModel | Refused | None],
    needs: Callable[[OneModel], int],
) -> OneModel | None:
    """Of some plans for different live bytes the fastest whose process needs no more than its budget, if any does.

    More may be live than a process may hold by `uncounted_bytes`, which are mapped from a file.
    """
    best: OneModel | None = None
    most_live_bytes = budget.bytes + uncounted_bytes
    live_bytes = most_live_bytes - int(FIRST_SHARE * budget.bytes)
    for number in range(tries):
        found = plan_for(live_bytes) if live_bytes > 0 else None
        if found is None or isinstance(found, Refused):
            break
        left_bytes = budget.bytes - needs(found)
        if left_bytes >= 0 and (best is None or found.plan.time_ns < best.plan.time_ns):
            best = found
        is_free = found.plan.time_ns <= found.answer.question.baseline.time_ns
        if left_bytes >= 0 and (is_free or left_bytes <= ENOUGH_SHARE * budget.bytes):
            break
        if left_bytes >= 0:
            live_bytes = min(most_live_bytes, live_bytes + left_bytes)
        else:
            share = 1 if number else FIRST_STEP_SHARE
            live_bytes = min(live_bytes, found.written.promised_bytes) + int(share * left_bytes)
    return best
