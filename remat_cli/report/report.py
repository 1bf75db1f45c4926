"""What each command found out: everything a reader or a script may want, as plain values that become JSON.

Bytes are totals, fixed part included, unless a name says otherwise. Times are integers in nanoseconds, or in cost units
for abstract instances. None means not known.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from remat_cli.core.device_verification import DeviceVerification
from remat_cli.core.plan import Plan
from remat_cli.core.problem import Problem
from remat_cli.core.verification import Verification
from remat_cli.report.explain import LiveTensor, Recompute
from remat_cli.report.regions import RegionReport
from remat_cli.report.style import Style

StatusName = Literal["optimal", "feasible", "infeasible", "not_found"]

EXIT_DONE = 0
EXIT_IMPOSSIBLE = 3
EXIT_NOT_FOUND = 4
EXIT_UNVERIFIED = 5


class SolverRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a solver run said, in plain values; status and bound hold in `space` only.

    `floor_op` is the op whose step needs `floor_bytes`, while `floor_held` (ids in the problem) are in memory besides.
    """

    solver: str
    status: StatusName
    space: str
    floor_bytes: int
    seed: int
    seconds: float
    floor_op: int | None = None
    floor_held: tuple[int, ...] = ()
    seconds_to_best: float | None = None
    bound: int | None = None
    options: dict[str, Any] = {}
    facts: dict[str, Any] = {}


class SolutionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of solving, judged; `lower_bound_percent` is the proved least overhead in `space`.

    The baseline is that of the unsplit model. `floor_bytes` is the floor of whole ops, `floor_with_splitting_bytes`
    what any schedule of the split model needs. With splits, bound and status hold for these splits.
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

    @property
    def exit_code(self) -> int:
        """0 with a plan, 3 when proved impossible, 4 when the time was not enough."""
        return {"infeasible": EXIT_IMPOSSIBLE, "not_found": EXIT_NOT_FOUND}.get(self.status, EXIT_DONE)


def compile_exit_code(solution: SolutionReport, seen: Verification | DeviceVerification | None) -> int:
    """The solution's exit code, or 5 where what was found did not keep its promises."""
    if solution.exit_code == EXIT_DONE and seen is not None and not seen.passed:
        return EXIT_UNVERIFIED
    return solution.exit_code


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One compilation. `output` and `plan` are None when nothing was written.

    `blockers` and `blocking_workspace_bytes` are what is held while `blocking_op` runs: together the floor's cause.
    `is_blocked_by_many`: the op alone would fit, other tensors must be held meanwhile. `regions` run in tiles;
    `split_obstacle` says in one line why splitting cannot help.
    """

    model: str
    device: str
    budget: str
    solution: SolutionReport
    ops: int
    output: str | None = None
    plan: str | None = None
    failed_output: str | None = None
    verification: Verification | None = None
    recomputes: tuple[Recompute, ...] = ()
    blocking_op: str | None = None
    is_blocked_by_many: bool = False
    blockers: tuple[LiveTensor, ...] = ()
    blocking_workspace_bytes: int = 0
    regions: tuple[RegionReport, ...] = ()
    split_obstacle: str | None = None
    gates: int = 0
    snippet: str = ""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The solution's, or 5 when the model does not keep its promises."""
        return compile_exit_code(self.solution, self.verification)

    def lines(self, style: Style) -> list[str]:
        """What was compiled to what, before and after, the proof, and the snippet that runs it."""
        from remat_cli.report.text import compile_lines

        return compile_lines(self, style)


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """One verification of a plan's model against the original; `budget_bytes` is that of the first memory."""

    plan: str
    model: str
    source: str
    budget_bytes: int
    verification: Verification | DeviceVerification
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when every promise holds, else 5."""
        return EXIT_DONE if self.verification.passed else EXIT_UNVERIFIED

    def lines(self, style: Style) -> list[str]:
        """The verdict, and the figures behind it."""
        from remat_cli.report.text import verify_lines

        return verify_lines(self, style)


def solution_report(run: SolverRun, problem: Problem, baseline: Plan, plan: Plan | None) -> SolutionReport:
    """Join what the solver says with what the judge says, for the first memory of the problem.

    With splits, problem, run and plan are those of the split model, the baseline that of the whole one.
    """
    memory = problem.memories[0]
    base = baseline.time_ns
    overhead = overhead_percent(plan.time_ns, base) if plan else None
    # Every op runs at least once, so a bound below the time of running each once says nothing.
    least = problem.baseline_time_ns
    bound = overhead_percent(max(run.bound, least), base) if run.bound is not None else None
    return SolutionReport(
        solver=run.solver,
        status=run.status,
        space=run.space,
        budget_bytes=memory.budget_bytes,
        fixed_bytes=memory.fixed_bytes,
        floor_bytes=run.floor_bytes,
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
    )


def overhead_percent(time: int, baseline_time: int) -> float | None:
    """How much longer than the baseline, in percent; None when the baseline takes no time."""
    return None if baseline_time == 0 else 100 * (time - baseline_time) / baseline_time


def difference(overhead: float | None, bound: float | None) -> float | None:
    """How far an overhead may be from the best, in percent; never negative, None when either is not known."""
    return None if overhead is None or bound is None else max(0.0, overhead - bound)
