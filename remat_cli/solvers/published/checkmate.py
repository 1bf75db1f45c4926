"""Checkmate: exact rematerialisation as one integer program over stages."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import BestPlan, Limits, Reason, Solution, Status
from remat_cli.solvers.milp.cp_sat import Watch
from remat_cli.solvers.milp.program import MOST_FOR_CP_SAT, Engine, Unfinished, run_engine
from remat_cli.solvers.published._staged.program import StageModel, build_stage_model, full_size
from remat_cli.solvers.published._staged.rows import Stages, in_stages, schedule_of, stages_of

_MARGIN = 1e-5  # of the cost: less than this is within the tolerances of floating point
_ROUNDING_SHARE = 0.5  # of the time left, for a start by rounding
_ALLOWANCES = ("0", "0.1")  # of the budget, left to rounding: the second only if the first gives no plan


class Checkmate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Least total time within the budget, by an integer program over stages.

    Jain et al.: "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, with the
    memory of ops with several results corrected, workspace, kept tensors and ops that must not be repeated. Space
    `staged`: first computations in baseline order; between two of them each earlier op at most once, in the order of
    ops. About n^2 / 2 binaries each for what runs and is held, and n (m - n) / 2 for what is left after a read, with
    n ops and m reads: good for some hundreds of ops. What cannot matter is left out (`_staged.program`); facts say so.

    A start within budget is given to the engine, and ops that take longer than all recomputes of the start together
    are not recomputed. Views and in-place results are merged with the op whose storage they share; what cannot be
    merged counts in full. Where that changed the problem, schedules are still good but nothing is proved.

    Options:
        rounding: first solve the program without integers and round it, as `checkmate-lp` does (section 5 of the
            paper), for a start and a bound; without it the engine begins with nothing, as in the paper.
        engine: `highs` or `scip` (floating point, in a process of their own: bounds are rounded with a margin of 1e-6;
            whether less is possible within it, and whether nothing is, CP-SAT decides), or `cp-sat` (exact).
    """

    name: ClassVar[str] = "checkmate"
    summary: ClassVar[str] = "exact, integer program over stages (Jain et al. 2020)"
    takes: ClassVar[str] = "One device."
    proves: ClassVar[str] = "optimal, infeasible, bound; for schedules in stages"

    engine: Engine = "highs"
    rounding: bool = True

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return None if len(problem.devices) == 1 else Reason("it places every op on one device")

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """Those that round; without rounding there are none."""
        return ("published._staged.warmup",) if self.rounding else ()

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """The baseline if it fits; otherwise the program, from the start if that is in stages and fits."""
        plan = baseline(problem)
        if plan.peak <= problem.memories[0].budget_bytes:
            return Solution(Status.OPTIMAL, "free", plan.schedule, problem.baseline_time_ns)
        session = _Session(condense(problem), self.engine, limits)
        if self.rounding:
            start = session.rounded(start)
        return session.solve(start)


@dataclass
class _Session:
    """One call of `Checkmate.solve`.

    `value` is the cost of the best solution of the program, and `bound` is proved, both in its cost units;
    `rounded_ns` is proved by the program without integers.
    """

    condensed: Condensed
    engine: Engine
    limits: Limits
    bound: int = 0
    rounded_ns: int = 0
    value: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    model: StageModel = field(init=False)

    def __post_init__(self) -> None:
        self.original = self.condensed.original
        self.best = BestPlan(self.original, self.limits)

    @property
    def bound_ns(self) -> int | None:
        """The best bound on time; None where a start from beyond the space is faster than all of the space."""
        proved = self.original.baseline_time_ns
        if self.bound and self.condensed.exact:
            proved += self.bound * self.model.cost_unit
        proved = max(proved, self.rounded_ns)
        return proved if self.best.plan is None or proved <= self.best.plan.time_ns else None

    def rounded(self, start: Schedule | None) -> Schedule | None:
        """A start from the program without integers if that is better, and its value as a bound."""
        from remat_cli.solvers import make_solver

        seconds = self.limits.seconds - (1 - _ROUNDING_SHARE) * self.limits.seconds_left
        for allowance in _ALLOWANCES:
            solver = make_solver("checkmate-lp", {"allowances": allowance})
            found = solver.solve(self.original, replace(self.limits, seconds=seconds), start)
            self.facts[f"rounding_{allowance}"] = found.facts
            if allowance == _ALLOWANCES[0]:
                self.rounded_ns = found.bound_ns or 0
                self.facts |= {key: found.facts[key] for key in ("variables", "constraints") if key in found.facts}
            if found.schedule is not None:
                return found.schedule
        return start

    def solve(self, start: Schedule | None) -> Solution:
        """Build and solve the program."""
        self.facts |= {"engine": self.engine, "is_exact": self.condensed.exact}
        if start is not None and (self.limits.order == "free" or start.keeps_order):
            self.best.offer(start)
        staged = None if start is None else self._staged(start)
        if self.best.is_near(self.bound_ns):
            return self._solution(is_infeasible=False)
        try:
            # The program, and the start in its terms.
            problem = self.condensed.problem
            full = full_size(problem)
            self._write(problem if staged is None else _without_recomputes_of(problem, _extra_ns(problem, staged)))
            milp = self.model.milp
            self.facts |= {"variables": len(milp.upper), "constraints": len(milp.rows)}
            self.facts |= {"full_variables": full[0], "full_constraints": full[1]}
            values = None if staged is None else self.model.hint(staged)
            self.facts["has_hint"] = values is not None
            hint = {} if values is None else dict(enumerate(values))
        except Unfinished as reason:
            self.facts["unfinished"] = str(reason)
            return self._solution(is_infeasible=False)
        if self.engine == "cp-sat" and len(self.model.milp.upper) > MOST_FOR_CP_SAT:
            self.facts["unfinished"] = f"more than {MOST_FOR_CP_SAT} variables, which is too much for CP-SAT"
            return self._solution(is_infeasible=False)
        gap = self.limits.gap * self.original.baseline_time_ns / self.model.cost_unit
        watch = Watch(self._take, self._raise)
        is_infeasible = run_engine(self.model, self.engine, hint, self.limits, watch, gap).is_infeasible
        if self.value is not None and gap < self.value - self.bound <= _MARGIN * self.value + 1:
            self._settle(self.value, watch)
        return self._solution(is_infeasible)

    def _staged(self, start: Schedule) -> Stages | None:
        """The start as a solution of the program, which is reported; None where it is none."""
        problem = self.condensed.problem
        stages = stages_of(problem, self.condensed.contract(start))
        if stages is None:
            return None
        plan = self.limits.judge(problem, schedule_of(stages.computed))
        if plan.peak > problem.memories[0].budget_bytes:
            return None
        self.best.offer(self._expanded(stages))
        return stages

    def _settle(self, value: int, watch: Watch) -> None:
        """Floating point leaves a little open below the value: ask in integers whether that is possible."""
        try:
            self._write(_without_recomputes_of(self.condensed.problem, value * self.model.cost_unit - 1))
        except Unfinished:
            return
        if len(self.model.milp.upper) > MOST_FOR_CP_SAT:
            return
        costs = [(cost, variable) for variable, cost in enumerate(self.model.milp.cost) if cost]
        self.model.milp.at_most(costs, value - 1)
        if run_engine(self.model, "cp-sat", {}, self.limits, watch, 0.0).is_infeasible:
            self.facts["settled_by"] = "cp-sat"
            self._raise(value)

    def _write(self, problem: Problem) -> None:
        self.model = build_stage_model(problem, problem.memories[0].budget_bytes, lambda: self.limits.is_over)

    def _expanded(self, stages: Stages) -> Schedule:
        return self.condensed.expand(schedule_of(stages.computed), judge=self.limits.judge)

    def _take(self, values: list[int]) -> None:
        """A solution of the program; in floating point it need not quite be one."""
        stages = in_stages(self.condensed.problem, self.model.stages_computed(values))
        if stages is None or not self.best.offer(self._expanded(stages)):
            self.facts["refused"] = self.facts.get("refused", 0) + 1
            return
        value = _extra_ns(self.condensed.problem, stages) // self.model.cost_unit
        self.value = value if self.value is None else min(value, self.value)

    def _raise(self, bound: int) -> None:
        self.bound = max(self.bound, bound)
        self.limits.report(None, self.bound_ns)

    def _solution(self, is_infeasible: bool) -> Solution:
        is_baseline, plan = self.best.is_baseline, self.best.plan
        bound = plan.time_ns if plan and is_baseline else self.bound_ns
        if plan is not None and bound is not None:
            self.facts["gap_percent"] = 100.0 * (plan.time_ns - bound) / plan.time_ns if plan.time_ns else 0.0
        is_proved = is_infeasible and self.condensed.exact
        return self.best.solution("free" if is_baseline else "staged", bound, self.facts, is_proved)


def _extra_ns(problem: Problem, stages: Stages) -> int:
    """What all recomputes take."""
    times = [op.time_ns[0] or 0 for op in problem.ops]
    return sum(times[op] for ops in stages.computed for op in ops) - sum(times)


def _without_recomputes_of(problem: Problem, most_ns: int) -> Problem:
    """Without recomputes that take longer alone: they are in no schedule whose recomputes take that together."""
    ops = tuple(
        msgspec.structs.replace(op, repeatable=op.repeatable and (op.time_ns[0] or 0) <= most_ns) for op in problem.ops
    )
    return msgspec.structs.replace(problem, ops=ops)
