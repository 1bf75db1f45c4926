"""What is known of a model before a search, and after it: the best plan of its trade-off curve, built again."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path

from remat_cli.base import progress as stages
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.search.aimed import AIMS, fit_less
from remat_cli.compiling.search.kept_curve import KeptCurve, KeptPlan, keep_plan, kept_curve, point_of
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.search.split_model import prepare_split, profile_split
from remat_cli.compiling.search.tiles import Tiles, as_planned
from remat_cli.compiling.solve import BudgetAnswer, BudgetQuestion, unsolved
from remat_cli.compiling.write import with_budget, write_within_budget
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import simulate
from remat_cli.core.schedule.solver_run import ProvedFloor, SolverRun, Status
from remat_cli.core.schedule.splits import Splitting
from remat_cli.core.values.curve import CurvePoint, CurveQuestion, Searched, TradeOff
from remat_cli.core.values.profile import Profile
from remat_cli.onnx_io.write.apart import unpacked

MOST_BUILT = 3  # kept plans that are built again for one question, as others turn out not to be as promised
FROM_CURVE = "from_curve"
"""Fact of a run whose plan was known before."""
BUILD_SECONDS = 1.0


@dataclass(frozen=True)
class SplitAgain:
    """A split model that was kept, built again, and what is known of it."""

    prepared: Prepared
    profile: Profile
    splitting: Splitting


@dataclass(frozen=True)
class KnownPlans:
    """Answers the question of a task from the curve of its model, where `task.whole` need have no plan.

    With `process_bytes` plans are asked for whose process needs no more; the task's budget of live bytes is then so
    wide that it holds all of these.
    """

    task: SplitTask
    process_bytes: int | None = None

    @cached_property
    def kept(self) -> KeptCurve:
        """The curve in the cache."""
        return kept_curve(self.task.whole.prepared, self.task.request)

    @property
    def is_kept(self) -> bool:
        """Whether plans of the model are kept: of one that this machine runs, at one size."""
        prepared = self.task.whole.prepared
        return prepared.runnable is None and prepared.conditions.family is None

    @property
    def question(self) -> CurveQuestion:
        """The task's question, as one to the curve."""
        asked, request = self.task.question, self.task.request
        allowed = request.search.allowed_overhead(asked)
        most_time = None if allowed is None else 1 + float(allowed)
        if self.process_bytes is not None:
            return CurveQuestion(most_process_bytes=self.process_bytes, most_time=most_time)
        if asked.least:
            return CurveQuestion(request.least, most_time=most_time)
        return CurveQuestion(most_bytes=asked.most_bytes, most_time=most_time, is_share=asked.is_share)

    @property
    def asked(self) -> Searched:
        """The question with what a search for it may take."""
        search, splits = self.task.request.search, self.task.request.splits
        limits = search.limits
        effort = f"{splits.race_share} {limits.seed} {float(limits.gap)}"
        return Searched(self.question, limits.seconds, effort)

    def curve(self) -> TradeOff:
        """The curve as it is now; empty where none is kept."""
        return self.kept.curve() if self.is_kept else TradeOff()

    def best_share(self, curve: TradeOff) -> float:
        """How much longer than the baseline the best plan of a curve takes for the question; infinite: it has none."""
        best = curve.best(self.question)
        return math.inf if best is None else best.relative_time - 1

    def answer(self) -> OneModel | None:
        """A plan that is as good as a search would find; None where there must be one."""
        if not self.is_kept:
            return None
        return self._weighed(None, lambda curve: curve.answer(self.asked))

    def best(self, found: OneModel | None) -> OneModel | None:
        """The plan that a search has `found`, or one that was known before and is better."""
        if not self.is_kept or self.task.progress.should_stop():
            return found
        return self._weighed(found, lambda curve: curve.best(self.question))

    def _weighed(self, found: OneModel | None, named: Callable[[TradeOff], CurvePoint | None]) -> OneModel | None:
        """The best of what was found and of what the curve names, one plan after another, each built again first.

        Built again a plan may not be as it was kept: then the curve, put right, may name another one.
        """
        best = None if found is None else (self._order(found), found)
        for _ in range(MOST_BUILT):
            point = named(self.kept.curve())
            if point is None or (best is not None and best[0] <= self.question.order(point)):
                break
            # The plan of the point, if it is still what it promised; what is known of it is put right otherwise.
            kept = self.kept.plans().get(point.key)
            built = None if kept is None else self.build(kept)
            if built is None:
                self.kept.forget(point.key)
                again = None
            else:
                fresh = keep_plan(built, self.task.request)
                if fresh.key != point.key:
                    self.kept.forget(point.key)
                is_as_good = self.question.order(fresh) <= self.question.order(point)
                again = built if self.question.admits(fresh) or is_as_good else None
            if again is not None:
                best = min((each for each in (best, (self._order(again), again)) if each), key=itemgetter(0))
        return None if best is None else best[1]

    def _order(self, found: OneModel) -> tuple[float, ...]:
        return self.question.order(point_of(found, self.task.request))

    def searched(self) -> None:
        """Note that a search for the question came to its end, or had all the time that it may have."""
        if self.is_kept and not self.task.progress.should_stop():
            self.kept.note(self.asked)

    def keep(self, found: OneModel) -> None:
        """Put a plan of whole ops on the curve, whatever budget it is for."""
        if self.is_kept:
            keep_plan(found, self.task.request)

    def build(self, kept: KeptPlan) -> OneModel | None:
        """Build a plan of the curve again; None where that is not possible any more."""
        task, asked = self.task, self.task.question
        split, problem = None, asked.problem.with_budget(asked.most_bytes)
        if kept.reference_sha256 != task.whole.prepared.reference_sha256:
            task.progress.stage(stages.SPLITTING)
            split = self._split(kept)
            if split is None:
                return None
            problem = make_problem(split.prepared.graph, split.profile, asked.most_bytes)
        plan = simulate(problem, kept.schedule)
        if asked.least:
            problem = problem.with_budget(plan.peak)
        if plan.peak > problem.memories[0].budget_bytes:
            return None
        question = replace(asked, problem=problem)
        first = task.whole.refused(BudgetAnswer(question, self._run(kept, question, plan)))
        if split is not None:
            platform = task.whole.platform.of_model(split.prepared.graph, split.profile)
            first = replace(first, prepared=split.prepared, platform=platform, splitting=split.splitting)
        found = write_within_budget(first, task.request.search.within(BUILD_SECONDS), task.progress)
        if isinstance(found, OneModel) and split is not None:
            tighter = partial(fit_less, Tiles(task), AIMS[1:])
            found = replace(found, splitting=as_planned(split.splitting, found), tighter=tighter)
        if isinstance(found, Refused):
            return None
        if not asked.least:
            found = with_budget(found, max(asked.budget_bytes, found.written.least_budget_bytes))
        return found.searched_since(task.began)

    def _run(self, kept: KeptPlan, question: BudgetQuestion, plan: Plan) -> SolverRun:
        """A kept plan as what a solver says; a bound that was proved for more memory holds for less."""
        bound_ns, baseline_ns = question.problem.baseline_time_ns, question.baseline.time_ns
        if kept.bound_time is not None and self.task.question.budget_bytes <= kept.bound_bytes:
            bound_ns = max(bound_ns, round(kept.bound_time * baseline_ns))
        run = unsolved(question, self.task.request.search).run
        floor = run.floor
        if not kept.point.is_split and kept.whole_floor_bytes > floor.bytes:
            floor = ProvedFloor(kept.whole_floor_bytes, floor.ops)
        return replace(
            run,
            plan=plan,
            status=Status.OPTIMAL if plan.time_ns <= bound_ns else Status.FEASIBLE,
            bound_ns=bound_ns,
            floor=floor,
            seconds_to_best=0.0,
            facts={FROM_CURVE: True},
        )

    def _split(self, kept: KeptPlan) -> SplitAgain | None:
        """The split model of a kept plan, with what is known of it; None where it is another one today."""
        task, whole, tiles = self.task, self.task.whole, self.kept.tiles(kept.reference_sha256)
        model = None if tiles is None else unpacked(tiles.model, whole.prepared.reference)
        if tiles is None or model is None:
            return None
        folder = Path(tempfile.mkdtemp(prefix="kept_", dir=task.work))
        may_reassociate = task.request.splits.allow_reassociation
        with task.clock.running():
            prepared = prepare_split(whole.prepared, model, task.request.conditions, folder, may_reassociate)
            if prepared is None or prepared.reference_sha256 != kept.reference_sha256:
                return None
            profile = profile_split(prepared, whole, task.progress, task.clock.left)
        splitting = Splitting(
            regions=tiles.regions,
            facts=tiles.facts,
            whole_sha256=whole.prepared.reference_sha256,
            whole_profile=whole.profile,
            whole_floor_bytes=kept.whole_floor_bytes,
            most_threads=tiles.most_threads,
        )
        return SplitAgain(prepared, profile, splitting)
