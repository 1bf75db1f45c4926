"""Least time on several devices, exactly: CP-SAT over retention intervals with a memory each.

A model lets each op be computed and each tensor be copied a limited number of times (Schuler et al. 2022, XEngine, has
one of each per stage). What goes beyond such caps is bounded from below: first by what it costs at least
(`Costs.beyond_ns`), then by a relaxation in which steps beyond a cap cost their time but hold nothing (`Excess`). The
lesser of that bound and the bound within the caps holds for all schedules, so proofs need no caps. They are raised
until the best schedule meets the bound, until nothing is left beyond them, or until time is up.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from remat_cli.core.schedule.placing import one_device_schedule
from remat_cli.core.schedule.plan import Schedule, Step
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers.base import BestPlan, Limits, Solution, Status
from remat_cli.solvers.milp.cp_sat import (
    WORK_PER_DETERMINISTIC_SECOND,
    Effort,
    OutOfTime,
    Units,
    Watch,
    make_units,
    search,
)
from remat_cli.solvers.placing.exact_hints import add_hint, counts_of, expressible, read_steps
from remat_cli.solvers.placing.exact_model import build_model, count_pairs
from remat_cli.solvers.placing.exact_parts import (
    Caps,
    Choices,
    Costs,
    Excess,
    PlacementModel,
    Question,
    make_choices,
    make_costs,
)

LARGEST_MODEL = 150_000
"""Literals of reads up to which a model is built."""


_NEVER = 2**62
"""Time of what cannot be."""


def solve_exact(problem: Problem, limits: Limits, start: Schedule | None) -> Solution:
    """Search with ever more computes of an op and copies of a tensor allowed, until a proof holds without caps.

    Each schedule within the budgets that is better than all before is reported, and each better bound. With one worker
    and `limits.work` the outcome is the same everywhere. An order `keep` asks for first computes in baseline order.
    Bound and proof hold in the space of the order, which no cap limits.

    `facts` say, besides figures, `refused`: why nothing (more) was searched, `rejected`: how many solutions of the
    model the judge found over budget (only with views or in-place results), and `rounds`: what was proved `within`
    the caps and `beyond` them, at most so many `computes` and `copies` of a kind: `optimal`, `infeasible` or `open`.
    Beyond them `infeasible` means that nothing there is better than the best schedule.
    """
    if problem.overlap:
        reason = "copies run beside computes, which one sequence of events cannot express"
        return Solution(Status.NOT_FOUND, limits.space, facts={"refused": reason})
    choices = make_choices(problem)
    stuck = next((op for op, family in enumerate(choices.computes) if not family), None)
    if stuck is not None:
        return Solution(Status.INFEASIBLE, "free", facts={"reason": f"op {stuck} fits no memory"})
    return _Session(problem, choices, limits).solve(start)


class _Session:
    """One call of `solve_exact`: rounds of growing caps."""

    def __init__(self, problem: Problem, choices: Choices, limits: Limits) -> None:
        self.problem, self.choices, self.limits = problem, choices, limits
        self.costs: Costs = make_costs(problem, choices)
        self.work_left = limits.work / WORK_PER_DETERMINISTIC_SECOND if limits.work is not None else None
        self.best = BestPlan(problem, limits)
        self.bound_ns: int | None = None
        self.hint: Schedule | None = None
        self.is_impossible = False
        self.is_even = _is_even(problem)
        self.steps: list[Step] = [c.step for family in (*choices.computes, *choices.copies) for c in family]
        self.number = {step: number for number, step in enumerate(self.steps)}
        self.facts: dict[str, Any] = {"rounds": [], "rejected": 0}

    def solve(self, start: Schedule | None) -> Solution:
        """Rounds until the gap is closed, no cap can grow, or time is up."""
        # The start and the plain placements: the best within the budgets, and the fastest as hint if none is.
        devices, ops = range(len(self.problem.devices)), self.problem.ops
        whole = [device for device in devices if all(op.time_ns[device] is not None for op in ops)]  # need no copies
        plain = [one_device_schedule(self.problem, device) for device in whole]
        for known in [*([] if start is None else [start]), *plain]:
            found = expressible(self.problem, self.choices, known)
            if found is not None and (self.limits.space == "free" or found.keeps_order):
                self.hint = found if self.hint is None else self.hint
                self._found(found)
        self._raise_bound(self.costs.least_ns)
        caps, count = None, 2
        try:
            while not self._is_done():
                # Wide enough for the best schedule so far.
                wider = self.costs.caps(count, None if self.best.plan is None else self.best.plan.time_ns)
                if self.hint is not None:
                    used = counts_of(self.problem, self.hint)
                    wider = Caps(
                        tuple(map(max, wider.computes, used.computes)), tuple(map(max, wider.copies, used.copies))
                    )
                if wider == caps or not self._round(wider):
                    break
                caps, count = wider, count + 1
        except OutOfTime:
            self.facts["stopped"] = "while building a model"
        schedule = None if self.best.plan is None else self.best.plan.schedule
        if schedule is None:
            status = Status.INFEASIBLE if self.is_impossible else Status.NOT_FOUND
        else:
            status = Status.OPTIMAL if self._gap_ns() <= 0 else Status.FEASIBLE
        return Solution(status, self.limits.space, schedule, self.bound_ns, facts=self.facts)

    def _found(self, schedule: Schedule) -> bool:
        """Judge a schedule, and take it if it is the best so far; whether it is within the budgets."""
        before = self.best.plan
        is_within = self.best.offer(schedule)
        self.hint = self.hint if self.best.plan is before else schedule
        return is_within

    def _raise_bound(self, bound_ns: int, question: Question | None = None) -> None:
        """Take a bound for all schedules; one from a model counts only where the model lost no schedule."""
        bound_ns = min(bound_ns, self._best_ns())
        is_void = bound_ns == _NEVER or (question is not None and not self._is_exact(question.units))
        if not is_void and (self.bound_ns is None or bound_ns > self.bound_ns):
            self.bound_ns = bound_ns
            self.limits.report(None, bound_ns)

    def _is_done(self) -> bool:
        out_of_work = self.work_left is not None and self.work_left <= 0.0
        return self.limits.is_over or out_of_work or self._gap_ns() <= self._allowed_gap_ns()

    def _gap_ns(self) -> float:
        return (
            float("inf") if self.best.plan is None or self.bound_ns is None else self.best.plan.time_ns - self.bound_ns
        )

    def _allowed_gap_ns(self) -> float:
        return self.limits.gap * baseline(self.problem).time_ns if self.limits.gap else 0.0

    def _round(self, caps: Caps) -> bool:
        """Search under these caps, then for a reason to go beyond them; whether wider caps may give more."""
        pairs = count_pairs(self.problem, caps)
        if pairs > LARGEST_MODEL:
            self.facts["refused"] = f"a model would have {pairs} literals of reads, more than {LARGEST_MODEL}"
            return False
        units = make_units(self.problem, caps.total)
        question = Question(self.problem, self.choices, caps, units, self.limits.space == "first_in_order")
        cost = self.costs.beyond_ns(caps)
        beyond = _NEVER if cost is None else cost
        model = build_model(question, lambda: self.limits.is_over)
        if self.hint is not None:
            add_hint(model, self.limits.judge(self.problem, self.hint))

        def found(numbers: list[int]) -> None:
            self.facts["rejected"] += not self._found(Schedule(tuple(self.steps[number] for number in numbers)))

        def bounded(bound: int) -> None:
            self._raise_bound(min(bound * units.time_unit, beyond), question)

        watch = Watch(found, bounded)
        within, is_proved = self._search("within", model, watch, beyond)
        if not is_proved or self._is_done() or beyond >= min(within, self._best_ns()):
            self.is_impossible = min(within, beyond) == _NEVER and self._is_exact(units)
            return False
        # What goes beyond the caps and is better than the best.
        below = None if self.best.plan is None else self.best.plan.time_ns
        excess = Excess(self.costs.compute_ns, self.costs.copy_ns, below)
        model = build_model(replace(question, excess=excess), lambda: self.limits.is_over)
        beyond = max(beyond, self._search("beyond", model, Watch(), within)[0])
        self.is_impossible = min(within, beyond) == _NEVER and self._is_exact(units)
        return beyond < min(within, self._best_ns())

    def _best_ns(self) -> int:
        return _NEVER if self.best.plan is None else self.best.plan.time_ns

    def _is_exact(self, units: Units) -> bool:
        """Whether what a model cannot do cannot be done."""
        return units.is_exact and self.is_even

    def _search(self, side: str, model: PlacementModel, watch: Watch, other: int) -> tuple[int, bool]:
        """The least time on a side of the caps, as far as it is proved, and whether it is; `other` is the other's."""
        question = model.question
        gap = self._allowed_gap_ns() / question.units.time_unit
        run = Effort(self.limits.seconds_left, self.work_left, gap)
        outcome = search(model.cp, partial(read_steps, self.number, model), run, self.limits, watch)
        if self.work_left is not None:
            self.work_left = max(0.0, self.work_left - outcome.deterministic_seconds)
        time_ns = _NEVER if outcome.is_infeasible else outcome.bound * question.units.time_unit
        self._raise_bound(min(time_ns, other), question)
        at_most = {"computes": max(question.caps.computes), "copies": max(question.caps.copies, default=0)}
        proved = "infeasible" if outcome.is_infeasible else "optimal" if outcome.is_optimal else "open"
        self.facts["rounds"].append({"side": side, **at_most, "proved": proved, **outcome.facts})
        return time_ns, outcome.is_infeasible or outcome.is_optimal


def _is_even(problem: Problem) -> bool:
    """Whether an in-place result never takes more bytes than the storage it is written to."""
    for op in problem.ops:
        for source, result in op.in_place:
            size = problem.tensors[result].size_bytes
            below: int | None = source
            while below is not None:
                if problem.tensors[below].size_bytes < size:
                    return False
                below = problem.tensors[below].view_of
    return True
