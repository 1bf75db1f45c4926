"""The outcome of solving: what the solver says joined with what the judge says, as values that become JSON."""

from typing import Any

import msgspec

from remat_cli.base.errors import EXIT_INTERRUPTED
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.solver_run import SolverRun, StatusName
from remat_cli.core.values.promises import worst
from remat_cli.core.values.spill import Paging
from remat_cli.core.values.verification import Verification
from remat_cli.report.style import Style, percent

AMONG = {
    "free": "among all orders of ops",
    "free_c2": "among all orders with at most two runs of an op",
    "first_in_order": "among plans that keep the order of first runs",
    "staged": "among plans in stages",
    "staged_c2": "among plans in stages with at most two runs of an op",
}
"""What a proof or a bound holds for, by its space."""

EXIT_DONE = 0
EXIT_IMPOSSIBLE = 3
EXIT_NOT_FOUND = 4
EXIT_UNVERIFIED = 5
CHEAPEST_PERCENT, MOST_PERCENT = "cheapest_overhead_percent", "max_overhead_percent"
"""Facts of a run whose best plan was too slow: what it would cost, and what it might."""
NEAREST_PROCESS = "nearest_process_bytes"
"""Fact of a run whose plans need too large a process: the least of them."""
NEAREST_PERCENT = "nearest_overhead_percent"
"""Fact of such a run: what that plan costs in time."""
NEAREST_TERMS = "nearest_process_terms"
"""Fact of such a run: the parts of that process, which add up to all of it."""


class SolutionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of solving, judged; `lower_bound_percent` is the proved least overhead in `space`.

    The baseline is that of the unsplit model. `floor_bytes` is the floor of whole ops, `floor_with_splitting_bytes`
    what any schedule of the split model needs. With splits, bound and status hold for these splits. `seconds` and
    `seconds_to_best` count from the beginning of the search, splits included. `interrupted`: Ctrl-C ended it, and
    neither status nor bound proves anything of what was not searched.
    """

    solver: str
    status: StatusName
    space: str
    budget_bytes: int
    fixed_bytes: int
    floor_bytes: int
    baseline_peak_bytes: int
    peak_bytes: int | None
    baseline_time: int
    time: int | None
    overhead_percent: float | None
    lower_bound_percent: float | None
    gap_percent: float | None
    recomputed_ops: int | None
    seconds: float
    seconds_to_best: float | None
    seed: int
    floor_with_splitting_bytes: int | None = None
    options: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """0 with a plan, 3 when proved impossible, 4 when the time was not enough, 130 when Ctrl-C ended the search."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        return {"infeasible": EXIT_IMPOSSIBLE, "not_found": EXIT_NOT_FOUND}.get(self.status, EXIT_DONE)


def is_too_dear(solution: SolutionReport) -> bool:
    """Whether there was a plan within budget that took longer than the user allowed."""
    return solution.time is None and CHEAPEST_PERCENT in solution.facts


def no_verdict_lines(solution: SolutionReport, style: Style) -> list[str]:
    """Why a search ended without a plan and without a proof: Ctrl-C, or what a plan would cost."""
    if not solution.interrupted:
        cost, most = (percent(solution.facts[name]) for name in (CHEAPEST_PERCENT, MOST_PERCENT))
        lines = [f"no plan within budget was found that costs at most {most} time: the cheapest found costs {cost}"]
        return [style.paint(lines[0], "bad"), "allow more with --max-overhead, or give a larger --budget"]
    lines = [f"interrupted after {solution.seconds:.1f} s, before a plan within budget was found"]
    return [style.paint(lines[0], "bad"), "that proves nothing: there may be one"]


def compile_exit_code(solution: SolutionReport, seen: Verification | None) -> int:
    """The solution's exit code, but 5 where outputs or order were not kept, and 4 where bytes never came out right."""
    is_broken = seen is not None and verified_exit_code(seen) == EXIT_UNVERIFIED
    if seen is not None and (solution.exit_code == EXIT_DONE or is_broken):
        return verified_exit_code(seen)
    return solution.exit_code


def verified_exit_code(seen: Verification) -> int:
    """0 where all promises hold, 5 where outputs or order were not kept, 4 where only bytes were not as promised."""
    return {"memory": EXIT_NOT_FOUND, "broken": EXIT_UNVERIFIED}.get(worst(seen.promises), EXIT_DONE)


def solution_report(run: SolverRun, problem: Problem, baseline: Plan) -> SolutionReport:
    """Join what the solver says with what the judge says, for the first memory of the problem.

    With splits, problem and run are those of the split model, the baseline that of the whole one.
    """
    memory, plan = problem.memories[0], run.plan
    base = baseline.time_ns
    overhead = overhead_percent(plan.time_ns, base) if plan else None
    # Every op runs at least once, so a bound below the time of running each once says nothing.
    least = problem.baseline_time_ns
    bound = overhead_percent(max(run.bound_ns, least), base) if run.bound_ns is not None else None
    return SolutionReport(
        solver=run.solver,
        status=run.status.value,
        space=run.space,
        budget_bytes=memory.budget_bytes,
        fixed_bytes=memory.fixed_bytes,
        floor_bytes=run.floor.bytes,
        baseline_peak_bytes=baseline.peak,
        peak_bytes=plan.peak if plan else None,
        baseline_time=base,
        time=plan.time_ns if plan else None,
        overhead_percent=overhead,
        lower_bound_percent=bound,
        gap_percent=difference(overhead, bound),
        recomputed_ops=plan.recomputed_ops if plan else None,
        seconds=run.seconds,
        seconds_to_best=run.seconds_to_best,
        seed=run.seed,
        options=run.options,
        facts=run.facts,
        interrupted=run.interrupted,
    )


def with_paging(solution: SolutionReport, paging: Paging, peak_bytes: int | None = None) -> SolutionReport:
    """The solution of a plan that pages: its time is the makespan, its peak what is held, or `peak_bytes`."""
    spent = overhead_percent(paging.time_ns, solution.baseline_time)
    return msgspec.structs.replace(
        solution,
        time=paging.time_ns,
        overhead_percent=spent,
        gap_percent=difference(spent, solution.lower_bound_percent),
        peak_bytes=paging.peak_bytes if peak_bytes is None else peak_bytes,
    )


def overhead_percent(time: int, baseline_time: int) -> float | None:
    """How much longer than the baseline, in percent; None when the baseline takes no time."""
    return None if baseline_time == 0 else 100 * (time - baseline_time) / baseline_time


def difference(overhead: float | None, bound: float | None) -> float | None:
    """How far an overhead may be from the best, in percent; never negative, None when either is not known."""
    return None if overhead is None or bound is None else max(0.0, overhead - bound)
