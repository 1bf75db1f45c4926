"""Checkmate's approximation: the program without integers, rounded in two phases."""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec

from remat_cli.core.schedule.plan import Schedule
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.solvers._sharing import Condensed, condense
from remat_cli.solvers.base import BestPlan, Limits, Reason, Solution, Status
from remat_cli.solvers.milp.program import Unfinished
from remat_cli.solvers.published._staged.candidates import RoundedPlan, Rounder, Rounding, Shares, guesses
from remat_cli.solvers.published._staged.program import StageModel, build_stage_model
from remat_cli.solvers.published._staged.relaxed import Relaxed, is_impossible, relax
from remat_cli.solvers.published._staged.rows import stages_of

# Steps measured while recomputes are tried one by one, for each program solved: a few seconds.
_PRUNING_STEPS = 300_000_000
_FEW_OPS = 40

Count = Annotated[int, msgspec.Meta(ge=1)]


class CheckmateLp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Good schedules from Checkmate's program without integers, and its value as a proved bound.

    Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez: "Checkmate: Breaking the Memory Wall with Optimal
    Tensor Rematerialization", MLSys 2020, section 5. The program is solved for the budget, and for budgets smaller by
    an allowance, for rounded solutions take more memory than the program thinks. Of each solution, what is held between
    stages is rounded, by thresholds and at random, and completed by the recomputes which that makes necessary. The
    judge says what is within the budget. The best are then pruned of recomputes, which the paper does not.

    The bound is that of the program for the whole budget (allowance 0); it holds in the space `staged`: first
    computations in baseline order, recomputes in the order of ops between two of them. The program has O(n^2 + n m)
    variables and rows for n ops and m reads, and its solution takes nearly all the time.

    Views and in-place results are merged with the op whose storage they share; what cannot be merged counts in full.
    Where that changed the problem, schedules are still good but nothing is proved.

    Options:
        allowances: by which parts of itself the budget is made smaller, in turn, smallest first; 0 gives the bound.
        thresholds: at most so many of the distinct values of a solution.
        samples: so many random roundings of a solution; every other draws once for all stages of a tensor.
        rounding: `both`, `deterministic` (thresholds) or `randomised` (samples).
        prune: whether recomputes that can go are taken out, or put off.
    """

    name: ClassVar[str] = "checkmate-lp"
    summary: ClassVar[str] = "relaxed integer program, rounded in two phases (Jain et al. 2020)"
    takes: ClassVar[str] = "One device."
    proves: ClassVar[str] = "bound, for schedules in stages; infeasible where CP-SAT confirms it"

    allowances: str = "0,0.02,0.05,0.1,0.15,0.2,0.3"
    thresholds: Count = 60
    samples: Annotated[int, msgspec.Meta(ge=0)] = 400
    rounding: Rounding = "both"
    prune: bool = True

    def __post_init__(self) -> None:
        """Refuse what are no allowances.

        Raises:
            ValueError: not numbers from 0 to below 1 with commas between them.
        """
        with suppress(ValueError):
            if all(0.0 <= allowance < 1.0 for allowance in self.shares):
                return
        raise ValueError(f"allowances must be numbers from 0 to below 1, like 0,0.1, not {self.allowances}")

    @property
    def shares(self) -> list[float]:
        """The allowances as numbers, smallest first, each once."""
        return sorted({float(text) for text in self.allowances.split(",")})

    def supports(self, problem: Problem) -> Reason | None:
        """Why this solver cannot take a problem; None where it can."""
        return None if len(problem.devices) == 1 else Reason("it computes every op on one device")

    def kernels(self, problem: Problem) -> tuple[str, ...]:
        """The compiled functions that round."""
        return ("published._staged.warmup",)

    def solve(self, problem: Problem, limits: Limits, start: Schedule | None = None) -> Solution:
        """Solve and round for one allowance after the other, until the bound is reached or time is up."""
        plan = baseline(problem)
        if plan.peak <= problem.memories[0].budget_bytes:
            return Solution(Status.OPTIMAL, "free", plan.schedule, problem.baseline_time_ns)
        return _Session(self, problem, limits).solve(start)


@dataclass
class _Session:
    """One call of `CheckmateLp.solve`; `is_staged` says that the best plan is one of the space."""

    options: CheckmateLp
    problem: Problem
    limits: Limits
    is_staged: bool = True
    is_impossible: bool = False
    proved_ns: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.best = BestPlan(self.problem, self.limits)
        self.condensed: Condensed = condense(self.problem)
        self.rounder = Rounder(self.condensed, self.problem.memories[0].free_bytes)
        self.facts |= {"is_exact": self.condensed.exact, "programs_solved": 0, "candidates": 0}

    @property
    def bound_ns(self) -> int | None:
        """The proved bound; None where a start from beyond the space is as fast as the best of the space may be."""
        best = self.best.plan
        if self.proved_ns is None or best is None or self.is_staged or self.proved_ns < best.time_ns:
            return self.proved_ns
        return None

    @property
    def is_done(self) -> bool:
        """Whether time is up or the best plan is near enough to the bound."""
        return self.limits.is_over or self.best.is_baseline or self.best.is_near(self.bound_ns)

    def solve(self, start: Schedule | None) -> Solution:
        """All allowances; the best plan is reported as soon as it is found."""
        if start is not None:
            # The start in stages, and as it is where that is better.
            stages = stages_of(self.condensed.problem, self.condensed.contract(start))
            if stages is not None:
                count = len(stages.computed)
                events = [t * count + op for t, ops in enumerate(stages.computed) for op in sorted(ops)]
                self._offer(self.rounder.measure(events))
            if self.limits.order == "free" or start.keeps_order:
                self._take_better(start, is_staged=False)
        # Small programs go to one process together, since to start one takes longer than to solve them.
        allowances = self.options.shares
        size = len(allowances) if len(self.condensed.problem.ops) <= _FEW_OPS else 1
        batches = [allowances[place : place + size] for place in range(0, len(allowances), size)]
        for batch in batches:
            if self.is_done or not self._try(batch):
                break
        if self.best.is_baseline:
            return self.best.solution("free", self.problem.baseline_time_ns, self.facts)
        return self.best.solution("staged", self.bound_ns, self.facts, self.is_impossible)

    def _try(self, allowances: list[float]) -> bool:
        """Solve and round under smaller budgets; whether a still smaller one is worth a try."""
        memory = self.problem.memories[0]
        try:
            models = [
                build_stage_model(
                    self.condensed.problem,
                    memory.budget_bytes - math.floor(allowance * memory.free_bytes),
                    lambda: self.limits.is_over,
                )
                for allowance in allowances
            ]
        except Unfinished:
            self.facts["unfinished"] = "the program could not be built in the time given"
            return False
        for allowance, model, relaxed in zip(allowances, models, relax(models, self.limits), strict=True):
            if not self._take(allowance, model, relaxed) or self.is_done:
                return False
        return True

    def _take(self, allowance: float, model: StageModel, relaxed: Relaxed) -> bool:
        """What the solution of one program says; whether it has one."""
        if relaxed.status == "infeasible":
            self.facts["infeasible_allowance"] = allowance
            self.is_impossible = allowance == 0 and self.condensed.exact and is_impossible(model, self.limits)
        if relaxed.status == "unknown":
            self.facts["unfinished"] = (
                "the program without integers was not solved" + " in the time given" * self.limits.is_over
            )
        if relaxed.shares is None:
            return False
        if allowance == 0:
            # The value of the program for the whole budget is a bound if its schedules are all there are.
            value_ns = self.problem.baseline_time_ns + relaxed.bound * model.cost_unit
            self.facts |= {
                "variables": len(model.milp.upper),
                "constraints": len(model.milp.rows),
                "program_value_ns": value_ns,
            }
            if self.condensed.exact:
                self.proved_ns = value_ns
                self.limits.report(None, self.bound_ns)
        self.facts["programs_solved"] += 1
        self._round(relaxed.shares, allowance)
        return True

    def _round(self, shares: Shares, allowance: float) -> None:
        """All roundings of a solution, then the best of them pruned."""
        options, seed = self.options, self.limits.seed
        found: dict[bytes, tuple[RoundedPlan, str]] = {}
        for how, held in guesses(shares, options.rounding, options.thresholds, options.samples, seed):
            if self.is_done:
                return
            candidate = self.rounder.round(held)
            self.facts["candidates"] += 1
            found.setdefault(candidate.events.tobytes(), (candidate, how))
            self._consider(candidate, allowance, how)
        # From the best on, as many as a fixed number of steps allows, so that the same are tried on every machine.
        steps_left = _PRUNING_STEPS
        for candidate, how in (
            sorted(found.values(), key=lambda pair: self.rounder.rank(pair[0])) if options.prune else ()
        ):
            if self.is_done:
                return
            steps = self.rounder.steps_to_better(candidate)
            if steps <= steps_left:
                steps_left -= steps
                self._consider(self.rounder.better(candidate), allowance, f"{how}, pruned")

    def _consider(self, candidate: RoundedPlan, allowance: float, how: str) -> None:
        if self._offer(candidate):
            self.facts |= {"best_allowance": allowance, "best_rounding": how}

    def _offer(self, candidate: RoundedPlan) -> bool:
        """Have a candidate judged if its figures are good; whether it is the best plan now."""
        plan = self.best.plan
        if candidate.peak_bytes > self.rounder.free_bytes or (plan is not None and candidate.time_ns >= plan.time_ns):
            return False
        schedule = candidate.schedule(self.rounder.ops)
        spelled = self.condensed.expand(schedule, self.problem.memories[0].budget_bytes, self.limits.judge)
        return self._take_better(spelled, is_staged=True)

    def _take_better(self, schedule: Schedule, is_staged: bool) -> bool:
        before = self.best.plan
        self.best.offer(schedule)
        self.is_staged = self.is_staged if self.best.plan is before else is_staged
        return self.best.plan is not before
