"""The live budget that a budget for a process comes to: found from outside, plan by plan."""

from collections.abc import Callable
from dataclasses import dataclass

from remat_cli.compiling.planned import OneModel, Refused

FIRST_SHARE = 1 / 16  # of the budget, left free at first for tables and gaps of the arena
FIRST_STEP_SHARE = 0.5  # of what is too much is taken off at first: fewer gaps come with fewer bytes
ENOUGH_SHARE = 0.03  # of the budget may be left over where the plan costs time


@dataclass(frozen=True)
class ProcessBudget:
    """What a process may hold, and what its plan may have live: more where live bytes are mapped from a file."""

    bytes: int
    most_live_bytes: int


def fastest_within(
    budget: ProcessBudget,
    tries: int,
    plan_for: Callable[[int], OneModel | Refused | None],
    needs: Callable[[OneModel], int],
) -> OneModel | None:
    """Of some plans for different live bytes the fastest whose process needs no more than its budget, if any does."""
    best: OneModel | None = None
    target_bytes = budget.most_live_bytes - int(FIRST_SHARE * budget.bytes)
    for number in range(tries):
        found = plan_for(target_bytes) if target_bytes > 0 else None
        if not isinstance(found, OneModel):
            break
        left_bytes = budget.bytes - needs(found)
        if left_bytes >= 0 and (best is None or found.plan.time_ns < best.plan.time_ns):
            best = found
        is_free = found.plan.time_ns <= found.answer.question.baseline.time_ns
        if left_bytes >= 0 and (is_free or left_bytes <= ENOUGH_SHARE * budget.bytes):
            break
        if left_bytes >= 0:
            target_bytes = min(budget.most_live_bytes, target_bytes + left_bytes)
        else:
            share = 1 if number else FIRST_STEP_SHARE
            target_bytes = min(target_bytes, found.written.promised_bytes) + int(share * left_bytes)
    return best
