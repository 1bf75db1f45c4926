"""A budget on the process: the live budget under which a plan's process stays within what the user wrote."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.learn.settle import AnySettled, Settled, Settling
from remat_cli.compiling.one_model.plan import plan_one_model
from remat_cli.compiling.one_model.settle import ModelSettling
from remat_cli.compiling.plan import within_overhead
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.forecast import needed_bytes, process_terms, uncounted_bytes
from remat_cli.compiling.process.leaner_form import in_leaner_form
from remat_cli.compiling.process.within_process import fastest_within
from remat_cli.compiling.search.known_plans import KnownPlans
from remat_cli.compiling.search.loop import SplitTask
from remat_cli.compiling.write import as_asked, with_budget
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.values.budget import Budget
from remat_cli.report.solution import NEAREST_PERCENT, NEAREST_PROCESS, NEAREST_TERMS, overhead_percent

PLANS = 6  # that are made to find the live budget which the process's comes to
MEASURED_PLANS = 3  # that are verified until a process stays within its budget
PLAN_SHARE = 0.5  # of the time that is left, for the next of these plans


@dataclass(frozen=True)
class ProcessPlanning:
    """How a model is planned whose process is to stay within a budget in bytes."""

    prepared: Prepared
    platform: Platform
    request: CompileRequest
    work: Path
    progress: Progress

    @property
    def budget_bytes(self) -> int:
        """What the user wrote."""
        (asked,) = self.request.asked.parts
        return asked.bytes

    @cached_property
    def uncounted_bytes(self) -> int:
        """What of the live bytes is mapped from a file, and does not count against the budget."""
        return uncounted_bytes(self.prepared, self.platform.profiles[0], self.request)

    def settled(self, *, verified: bool) -> AnySettled:
        """The plan, and what verification showed; where a process then holds more than it may, one for less.

        Raises:
            ConfigError: the solver does not take the model.
            ModelError: an op runs on no device.
        """
        asked_bytes = self.budget_bytes + self.uncounted_bytes
        planned, room_bytes, tried = self.planned(0), 0, 1
        while isinstance(planned, OneModel) and verified:
            found = ModelSettling(Settling(self.request, self.work, self.progress)).settle(planned)
            excess_bytes = found.seen.process.needed_bytes - self.budget_bytes if found.seen.process else 0
            if excess_bytes <= 0 or tried == MEASURED_PLANS:
                return replace(
                    found, planned=as_asked(found.planned, asked_bytes), uncounted_bytes=self.uncounted_bytes
                )
            tried, room_bytes = tried + 1, room_bytes + excess_bytes
            planned = self.planned(room_bytes)
        return Settled(as_asked(planned, asked_bytes), None, self.uncounted_bytes)

    def planned(self, room_bytes: int) -> OneModel | Refused:
        """The plan of least time whose process stays within the budget, with some room; refused where none was found.

        That no plan can be had is claimed only from what is live and not mapped: a process never holds less.
        """
        budget_bytes, began = self.budget_bytes - room_bytes, time.monotonic()
        live = replace(self.request, asked=self.request.asked.leaving(budget_bytes + self.uncounted_bytes))
        task = SplitTask.unplanned(self.prepared, self.platform, live, self.work, self.progress)
        known = KnownPlans(task, budget_bytes)
        if (answered := known.answer()) is not None:
            return self._in_form(answered).searched_since(began)
        tried: list[OneModel | Refused] = []
        needs: list[tuple[int, OneModel]] = []

        def plan_for(live_bytes: int) -> OneModel | Refused | None:
            if tried and self.request.search.clock.ends():
                return None
            tried.append(self._within(live_bytes))
            return tried[-1]

        def needed(found: OneModel) -> int:
            needs.append((needed_bytes(found, self.request), found))
            return needs[-1][0]

        budget = Budget(budget_bytes, "process", "typed")
        best = fastest_within(budget, self.uncounted_bytes, PLANS, plan_for, needed)
        if best is not None:
            known.searched()
        better = known.best(best)
        if better is not None:
            return (best if better is best else self._in_form(better)).searched_since(began)
        widest = (plan_for(self.budget_bytes + self.uncounted_bytes) or tried[-1]).searched_since(began)
        if isinstance(widest, OneModel):
            needed(widest)
        elif widest.answer.run.status is Status.INFEASIBLE:
            return widest
        return self._refused(widest, needs)

    def _refused(self, widest: OneModel | Refused, needs: Sequence[tuple[int, OneModel]]) -> Refused:
        """No plan, and the least that a process of those tried needs."""
        answer = widest.answer.without_plan()
        if needs:
            least_bytes, nearest = min(needs, key=lambda each: each[0])
            terms = process_terms(nearest, self.request)
            spent = overhead_percent(nearest.time_ns, nearest.answer.question.baseline.time_ns)
            found = {NEAREST_PROCESS: least_bytes, NEAREST_TERMS: terms, NEAREST_PERCENT: spent}
            facts = {**answer.run.facts, **found}
            answer = replace(answer, run=replace(answer.run, facts=facts))
        return widest.refused(answer)

    def _in_form(self, known: OneModel) -> OneModel:
        """A plan that was known, in its leaner form, for the live bytes that it promises."""
        found = in_leaner_form(known, self.request, self.progress)
        return with_budget(found, found.written.promised_bytes)

    def _within(self, live_bytes: int) -> OneModel | Refused:
        """The plan for so many live bytes; what its form needs on top of them counts as asked for."""
        search = self.request.search.part(PLAN_SHARE)
        live = replace(self.request, asked=self.request.asked.leaving(live_bytes), search=search)
        began = time.monotonic()
        found = plan_one_model(self.prepared, self.platform, live, self.work, self.progress)
        found = within_overhead(found.searched_since(began), live.search)
        if isinstance(found, Refused) or found.written.promised_bytes <= live_bytes:
            return found
        return with_budget(found, found.written.promised_bytes)
