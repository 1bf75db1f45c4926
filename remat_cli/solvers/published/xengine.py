"""XEngine: which device computes what, what is copied, kept and recomputed, as one integer program."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import msgspec

from remat_cli.base.errors import ModelError
from remat_cli.core.schedule.placing import fastest_schedule, one_device_schedule
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import Limits, Reason, Solution, Space, Status
from remat_cli.solvers.milp.cp_sat import Watch
from remat_cli.solvers.milp.program import Engine, Unfinished, run_engine
from remat_cli.solvers.published._xengine.layout import (
    ModelRules,
    Objective,
    Room,
    is_exact,
    make_layout,
    without_sharing,
)
from remat_cli.solvers.published._xengine.model import XEngineModel, build_model
from remat_cli.solvers.published._xengine.schedule import Staged, is_affordable, read_schedule, stage_schedule

Energy = Annotated[int, msgspec.Meta(ge=0)]


class XEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Least total time within the budget of every memory, by an integer program over stage matrices.

    Schuler, Membarth, Slusallek: "XEngine: Optimal Tensor Rematerialization for Neural Networks in Heterogeneous
    Environments", ACM TACO 2022, corrected and exactly linearised. Space `staged`: first computations in baseline
    order; between two of them each earlier op at most once per memory, in the order of ops and devices; what a compute
    lacks is copied for it alone and then dropped. About D^2 n m / 2 binaries for n ops, m reads and D devices: good for
    some tens of ops. On one device this is Checkmate (Jain et al. 2020).

    Views and in-place results count in full on several devices, so nothing is proved where that matters. What it costs
    to hand over to a device (`call_ns`) is not in the program: its bounds hold, but need not be reached. A kept tensor
    may stay in any memory; the judge keeps the newest instance: where that takes too much, a second program, in which
    kept tensors stay where they are made last, gives the schedule.

    Options:
        engine: `cp-sat` (exact, live), `highs` or `scip` (floating point, in a process of their own).
        room: `staging`: copies take room where they are read. `none`: they do not (the paper), which is a relaxation;
            `pooled`: besides, all memories are one (the paper's equations (13) to (16), summed over devices).
            A schedule of a relaxation is a plan only if the judge finds it within every budget.
        objective: `corrected`, or `paper`: objective (1) as printed, which charges a copy from every other memory that
            has the tensor. The value is in the facts; nothing is proved about time.
        energy_weight: nanoseconds that a nanojoule counts for in what is minimised (17).
        energy_limit_nj: most that each device may take in a run (18). Status and bound then hold within the limits.
        stage_energy_limit_nj: the same for each stage.
        total_stage_energy_limit_nj: most for each stage over all devices (19).
    """

    name: ClassVar[str] = "xengine"
    summary: ClassVar[str] = "exact, placement and recomputation on several devices (Schuler et al. 2022)"
    takes: ClassVar[str] = "Copies and computes one after the other."
    proves: ClassVar[str] = "optimal, infeasible, bound; for schedules in stages with copies for one reader"

    engine: Engine = "cp-sat"
    room: Room = "staging"
    objective: Objective = "corrected"
    energy_weight: Energy = 0
    energy_limit_nj: Energy | None = None
    stage_energy_limit_nj: Energy | None = None
    total_stage_energy_limit_nj: Energy | None = None

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return Reason("copies run beside computes, which it does not model") if problem.overlap else None

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """Plain placements and the start first, then the program from the best of them."""
        rules = ModelRules(
            self.room,
            self.objective,
            self.energy_weight,
            self.energy_limit_nj,
            self.stage_energy_limit_nj,
            self.total_stage_energy_limit_nj,
        )
        # The problem with storage of its own for every tensor; on several devices ops stay as they are.
        if len(problem.devices) == 1:
            condensed = condense(problem)
        else:
            condensed = Condensed(problem, without_sharing(problem), (), frozenset(), is_exact(problem))
        return _Session(problem, condensed, rules, self.engine, limits).solve(start)


@dataclass
class _Session:
    """One call of `XEngine.solve`.

    `price` is what the best plan takes in the terms of what is minimised, in ns; `value` and `bound` are the best
    solution and bound of the program as asked, in its cost units. `is_refused`: the judge did not accept the last
    solution.
    """

    original: Problem
    plain: Condensed
    rules: ModelRules
    engine: Engine
    limits: Limits
    best: Plan | None = None
    price: int = 0
    value: int | None = None
    bound: int = 0
    cost_unit: int = 1
    is_refused: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    model: XEngineModel = field(init=False)

    @property
    def is_relaxed(self) -> bool:
        """Whether the program is one of those for comparison, whose schedules may be no plans."""
        return self.rules.room != "staging" or self.rules.objective != "corrected"

    @property
    def bound_ns(self) -> int | None:
        """The best bound on time; None where a plan from beyond the space is faster than all of the space."""
        is_timed = self.rules.objective == "corrected" and not self.rules.energy_weight and self.plain.exact
        proved = max(self.bound * self.cost_unit if is_timed else 0, self.original.baseline_time_ns)
        return proved if self.best is None or proved <= self.best.time_ns else None

    def solve(self, start: Schedule | None) -> Solution:
        """The program as asked; once more where the judge refuses its schedule for what is kept."""
        if start is not None:
            self._offer(start)
        starts = [] if self.is_relaxed else list(self._staged(start))
        is_settled = self.best is not None and self.best.time_ns == self.original.baseline_time_ns
        if (is_settled and not self.rules.energy_weight and not self.is_relaxed) or self.limits.is_over:
            return self._solution(is_infeasible=False)
        is_infeasible = self._run(self.rules, starts, Watch(self._take, self._raise))
        if self.is_refused and not self.is_relaxed and any(spec.kept for spec in self.original.tensors):
            self._run(replace(self.rules, settled=True), starts, Watch(self._take_only))
        return self._solution(is_infeasible)

    def _run(self, rules: ModelRules, starts: list[Staged], watch: Watch) -> bool:
        """Build and solve a program; whether it is proved to have no solution."""
        layout = make_layout(self.plain.problem, rules)
        self.cost_unit = layout.cost_unit
        self.facts |= {"engine": self.engine, "is_exact": self.plain.exact, "binaries": layout.binaries()}
        try:
            self.model = build_model(layout, lambda: self.limits.is_over)
        except Unfinished as reason:
            self.facts["unfinished"] = str(reason)
            return False
        milp = self.model.milp
        self.facts |= {"variables": len(milp.upper), "constraints": len(milp.rows)}
        gap = self.limits.gap * self.original.baseline_time_ns / layout.cost_unit
        hint = starts[-1].hint(self.model) if starts else {}
        return run_engine(self.model, self.engine, hint, self.limits, watch, gap).is_infeasible

    def _staged(self, start: Schedule | None) -> Iterator[Staged]:
        """The start and plain placements as solutions of the program, each better than the one before."""
        layout, best = make_layout(self.plain.problem, self.rules), None
        # Every op once, each on its fastest device or all on one; those that copies allow.
        problem = self.original
        placements = []
        with suppress(ModelError):
            placements.append(fastest_schedule(problem))
        for device in range(len(problem.devices)):
            with suppress(ModelError):
                placements.append(one_device_schedule(problem, device))
        for schedule in (*([start] if start is not None else []), *placements):
            staged = stage_schedule(
                layout, self.plain.contract(schedule) if len(self.original.devices) == 1 else schedule
            )
            if staged is not None:
                plan = self.limits.judge(self.plain.problem, staged.schedule())
                if self._is_allowed(plan) and (best is None or plan.time_ns < best):
                    best = plan.time_ns
                    self._offer(self._expand(plan.schedule))
                    yield staged

    def _expand(self, schedule: Schedule) -> Schedule:
        return self.plain.expand(schedule, judge=self.limits.judge) if len(self.original.devices) == 1 else schedule

    def _take(self, values: list[int]) -> None:
        """A solution of the program as asked."""
        cost = sum(factor * value for factor, value in zip(self.model.milp.cost, values, strict=True))
        self.value = cost if self.value is None else min(cost, self.value)
        self._take_only(values)

    def _take_only(self, values: list[int]) -> None:
        self._offer(self._expand(read_schedule(self.model, values)))

    def _raise(self, bound: int) -> None:
        self.bound = max(self.bound, bound)
        self.limits.report(None, self.bound_ns)

    def _offer(self, schedule: Schedule) -> None:
        """Keep a schedule if the judge allows it and it is better; report it if the best is what takes least time."""
        plan = self.limits.judge(self.original, schedule)
        self.is_refused = not self._is_allowed(plan)
        price = plan.time_ns + self.rules.energy_weight * sum(plan.energy_nj)
        if self.is_refused or (self.best is not None and price >= self.price):
            return
        self.best, self.price = plan, price
        if not self.rules.energy_weight:
            self.limits.report(schedule, None)

    def _is_allowed(self, plan: Plan) -> bool:
        pairs = zip(self.original.memories, plan.peak_bytes, strict=True)
        is_within = all(peak <= memory.budget_bytes for memory, peak in pairs)
        return is_within and is_affordable(self.original, self.rules, plan.schedule)

    def _solution(self, is_infeasible: bool) -> Solution:
        if self.value is not None:
            value, bound = self.value * self.cost_unit, self.bound * self.cost_unit
            self.facts |= {"objective": value, "objective_bound": bound}
            self.facts["gap_percent"] = 100.0 * (value - bound) / value if value else 0.0
        if self.best is None:
            is_proved = is_infeasible and self.plain.exact
            status = Status.INFEASIBLE if is_proved else Status.NOT_FOUND
            return Solution(status, "staged", None, None if is_proved else self.bound_ns, facts=self.facts)
        is_least = self.best.time_ns == self.bound_ns and not self.rules.energy_weight
        space: Space = "free" if self.best.time_ns == self.original.baseline_time_ns else "staged"
        status = Status.OPTIMAL if is_least else Status.FEASIBLE
        return Solution(status, space, self.best.schedule, self.bound_ns, facts=self.facts)
