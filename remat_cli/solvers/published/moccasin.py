"""Moccasin: exact rematerialisation with CP-SAT over retention intervals."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from remat_cli.base.errors import InvalidSchedule
from remat_cli.base.present import present
from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import Limits, Reason, Solution, Space, Status
from remat_cli.solvers.milp.cp_sat import (
    WORK_PER_DETERMINISTIC_SECOND,
    Effort,
    Outcome,
    OutOfTime,
    Units,
    Watch,
    make_units,
    search,
)
from remat_cli.solvers.published._moccasin.clock import Calendar, Domain, make_clock
from remat_cli.solvers.published._moccasin.model import (
    MoccasinModel,
    Precedence,
    add_hint,
    build_model,
    minimise_peak,
    minimise_time,
    read_ops,
)


class Moccasin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Least total time within the budget, by CP-SAT over retention intervals.

    Bartan, Li, Teague, Lott, Dilkina: "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML 2023.
    Complete for its space: with order `keep` first computations follow the baseline order and recomputes of a stage
    follow the op index (spaces `staged_c2`, `staged`); with order `free` any sequence (`free_c2`, `free`). A model has
    O(C n) interval variables and O(C^2 m) pairing literals for n ops and m reads.

    Views and in-place results are merged with the op whose storage they share; what cannot be merged counts in full.
    Where that changed the problem, schedules are still good but nothing is proved.

    Options:
        max_copies: C_v, how often an op may be computed. Large values (the number of ops) lift the cap. An op that
            the start computes more often may be computed that often.
        domain: event numbers of order `keep`: `triangular` as printed, or `uniform`, where the start is linear in the
            stage; both have the same solutions.
        precedence: who reads what: `pairing` literals, or the paper's `reservoir` constraints.
        two_phase: without a start within budget, first minimise the peak, then, from there, the time (section 2.4).
    """

    name: ClassVar[str] = "moccasin"
    summary: ClassVar[str] = "exact, CP-SAT over retention intervals (Bartan et al. 2023)"
    takes: ClassVar[str] = "One device."
    proves: ClassVar[str] = "optimal, infeasible, bound; for at most max_copies computations of an op"

    max_copies: Annotated[int, msgspec.Meta(ge=2)] = 2
    domain: Domain = "uniform"
    precedence: Precedence = "pairing"
    two_phase: bool = True

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return None if len(problem.devices) == 1 else Reason("it places every op on one device")

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """Phase 1 unless a start within budget is known, then phase 2 from it."""
        plan = baseline(problem)
        if plan.peak <= problem.memories[0].budget_bytes:
            return Solution(Status.OPTIMAL, "free", plan.schedule, problem.baseline_time_ns)
        condensed = condense(problem)
        ops = condensed.contract(start).op_ids() if start is not None else None
        return _Session(self, condensed, limits, ops).solve()


@dataclass(frozen=True)
class _Incumbent:
    """Ops in order with their events (None: the domain has no place for them) and their peak in byte units."""

    ops: list[int]
    events: list[int] | None
    peak: int


class _Session:
    """One call of `Moccasin.solve`: the two phases over a condensed problem."""

    def __init__(self, options: Moccasin, condensed: Condensed, limits: Limits, start: list[int] | None) -> None:
        self.options, self.condensed, self.limits, self.start = options, condensed, limits, start
        self.problem = condensed.problem
        runs = Counter(start)
        caps = [max(options.max_copies, runs[op]) for op in range(len(self.problem.ops))]
        self.clock: Calendar = make_clock(self.problem, limits.order, options.domain, caps)
        self.units: Units = make_units(self.problem, self.clock.horizon)
        self.is_exact = condensed.exact and self.units.is_exact
        self.facts: dict[str, Any] = {
            "intervals": sum(self.clock.copies),
            "horizon": self.clock.horizon,
            "is_exact": self.is_exact,
        }
        self.work_left = limits.work / WORK_PER_DETERMINISTIC_SECOND if limits.work is not None else None
        self.best: Schedule | None = None
        self.bound_ns: int | None = None

    @property
    def space(self) -> Space:
        """The space of what is proved; a cap above two proves more than `c2` says."""
        if self.limits.order == "free":
            return "free_c2" if self.clock.is_capped else "free"
        return "staged_c2" if self.clock.is_capped else "staged"

    def solve(self) -> Solution:
        """Both phases; the schedule in the answer is the last one reported."""
        # The start if the model can express it, otherwise every op once, in a topological order.
        hint = None if self.start is None else self._incumbent(self.start)
        if hint is None or hint.events is None:
            hint = present(self._incumbent(list(range(len(self.problem.ops)))), "a plan of the baseline order")
        if hint.peak <= self.units.capacities[0]:
            self._report(hint.ops)
        try:
            if hint.peak > self.units.capacities[0] and self.options.two_phase:
                hint, is_infeasible = self._squeeze(hint)
                if is_infeasible:
                    return self._solution(Status.INFEASIBLE if self.is_exact else Status.NOT_FOUND)
            # Phase 2: minimise the time within the budget.
            model = self._model((self.units.capacities[0], self.units.capacities[0]), hint)
            minimise_time(model)
            gap = self.limits.gap * self.problem.baseline_time_ns / self.units.time_unit
            outcome = self._run(model, "time", 1.0, Watch(self._report, self._raise_bound), gap)
            if not outcome.is_infeasible:
                self._raise_bound(outcome.bound)
            if outcome.is_infeasible and self.is_exact:
                return self._solution(Status.INFEASIBLE)
            if self.best is None:
                return self._solution(Status.NOT_FOUND)
            return self._solution(Status.OPTIMAL if outcome.is_optimal and self.is_exact else Status.FEASIBLE)
        except OutOfTime:
            return self._solution(Status.NOT_FOUND if self.best is None else Status.FEASIBLE)

    def _solution(self, status: Status) -> Solution:
        return Solution(status, self.space, self.best, self.bound_ns, facts=self.facts)

    def _incumbent(self, ops: list[int]) -> _Incumbent | None:
        """Place ops on events and judge the order these give; None if that order is not legal."""
        events = self.clock.events(ops)
        placed = [op for _, op in sorted(zip(events, ops, strict=True))] if events else ops
        try:
            plan = simulate(self.problem, Schedule.of_ops(placed))
        except InvalidSchedule:  # sorted by index inside a stage, a start may read what is not yet there
            return None
        peak_units = -(-(plan.peak - self.problem.memories[0].fixed_bytes) // self.units.byte_units[0])
        return _Incumbent(placed, self.clock.events(placed), peak_units)

    def _squeeze(self, hint: _Incumbent) -> tuple[_Incumbent, bool]:
        """Phase 1: minimise the peak down to the budget. Also says whether the budget is proved too small."""
        rounding = 0 if self.units.is_exact else len(self.units.sizes[0]) + 1
        model = self._model((self.units.capacities[0], max(hint.peak, self.units.capacities[0]) + rounding), hint)
        minimise_peak(model)
        found = [hint]

        def remember(ops: list[int]) -> None:
            incumbent = self._incumbent(ops)
            if incumbent is not None and incumbent.peak < found[-1].peak:
                found.append(incumbent)
                if incumbent.peak <= self.units.capacities[0]:
                    self._report(ops)

        outcome = self._run(model, "peak", 0.5, Watch(remember), gap=0.0)
        return found[-1], outcome.is_infeasible or outcome.bound > self.units.capacities[0]

    def _model(self, capacity: tuple[int, int], hint: _Incumbent) -> MoccasinModel:
        parts = self.problem, self.clock, self.units
        model = build_model(*parts, self.options.precedence, capacity, lambda: self.limits.is_over)
        if hint.events is not None:
            add_hint(model, hint.ops, hint.events, max(hint.peak, capacity[0]))
        return model

    def _run(
        self, model: MoccasinModel, phase: Literal["peak", "time"], share: float, watch: Watch, gap: float
    ) -> Outcome:
        work = None if self.work_left is None else self.work_left * share
        run = Effort(self.limits.seconds_left * share, work, gap)
        outcome = search(model.cp, partial(read_ops, model), run, self.limits, watch)
        if self.work_left is not None:
            self.work_left = max(0.0, self.work_left - outcome.deterministic_seconds)
        self.facts |= {f"{phase}_{key}": value for key, value in outcome.facts.items()}
        return outcome

    def _report(self, ops: list[int]) -> None:
        self.best = self.condensed.expand(Schedule.of_ops(ops))
        self.limits.report(self.best, None)

    def _raise_bound(self, extra: int) -> None:
        """A bound on the extra time in time units, to one on the total; void where the model lost schedules."""
        if self.is_exact:
            self.bound_ns = self.problem.baseline_time_ns + max(0, extra) * self.units.time_unit
            self.limits.report(None, self.bound_ns)
