"""What a plan was asked for beside live bytes, as reports tell it, with the next cheaper budget that is known."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import Refused
from remat_cli.compiling.search.kept_curve import kept_curve
from remat_cli.core.files.plan_file import PlanFile
from remat_cli.core.values.curve import TradeOff
from remat_cli.core.values.promises import Asked, CheaperBudget
from remat_cli.report.solution import CHEAPEST_PERCENT

CHEAPER = 0.75
"""Of the extra time of a plan: what a larger budget takes at most to be worth naming."""
WHOLE_PERCENT = 100


def asked_of(plan: PlanFile, curve: TradeOff | None = None) -> Asked:
    """What a plan was asked for; cheaper budgets are looked up where the curve of its model is given."""
    request, process = plan.request, plan.promise.process
    counted = None if process is None else process.counted_bytes(with_mapped=request.count_mapped)
    cheaper = None
    if curve is not None:
        # The least budget of those that compiles of the model led to whose plan takes less time.
        own = 100 * (plan.solved.time_ns / max(1, plan.solved.baseline_time_ns) - 1)
        profile = plan.profile if plan.splitting is None else plan.splitting.whole_profile
        share_of = partial(_share, profile.fixed_bytes, plan.promise.baseline_peak_bytes)
        bounded = plan.promise.peak_bytes
        if request.process_budget_bytes is None:  # else its live bytes are no budget that the user wrote
            bounded = max(bounded, request.budget_bytes)
        cheaper = next_cheaper(_known(curve, share_of), share_of(bounded), own)
    return Asked(
        process_budget_bytes=request.process_budget_bytes,
        process_bytes=None if counted is None else counted + plan.graph.input_bytes,
        max_overhead_percent=request.max_overhead_percent,
        cheaper=cheaper,
        is_looked_up=curve is not None,
    )


def asked_in_vain(request: CompileRequest, refused: Refused, plain_bytes: int | None) -> Asked:
    """What was asked for where there is no plan, with what is known to cost less than it may.

    `plain_bytes` are what a process of the model as it is needs.
    """
    question = refused.answer.question
    share = request.search.allowed_overhead(question)
    most = None if share is None else 100 * float(share)
    is_dear = most is not None and CHEAPEST_PERCENT in refused.answer.run.facts
    share_of = partial(_share, question.problem.memories[0].fixed_bytes, question.baseline.peak)
    known = _known(kept_curve(refused.whole, request).curve(), share_of) if refused.kind == "one_model" else ()
    affordable = (each for each in known if most is None or each.overhead_percent <= most)
    return Asked(
        process_budget_bytes=request.process_budget_bytes,
        process_bytes=plain_bytes,
        max_overhead_percent=most,
        cheaper=_least_above(share_of(question.budget_bytes), affordable),
        is_looked_up=is_dear,
    )


def next_cheaper(known: Iterable[CheaperBudget], own_share: float, own_overhead: float) -> CheaperBudget | None:
    """The least budget above one's own whose plan takes less time, and so much less that it is worth naming."""
    most = own_overhead - (1 - CHEAPER) * abs(own_overhead)
    less = (each for each in known if each.overhead_percent < own_overhead and each.overhead_percent <= most)
    return _least_above(own_share, less)


def _known(curve: TradeOff, share_of: Callable[[int], float]) -> Iterator[CheaperBudget]:
    """What this and earlier compiles of a model led to."""
    for point in curve.points:
        yield CheaperBudget(math.ceil(share_of(point.budget_bytes)), point.overhead_percent)


def _least_above(share: float, found: Iterable[CheaperBudget]) -> CheaperBudget | None:
    larger = (each for each in found if share < each.share_percent < WHOLE_PERCENT)
    return min(larger, key=lambda each: each.share_percent, default=None)


def _share(fixed_bytes: int, peak_bytes: int, budget_bytes: int) -> float:
    """Bytes as a share of what planning can change, in percent."""
    return WHOLE_PERCENT * (budget_bytes - fixed_bytes) / max(1, peak_bytes - fixed_bytes)
