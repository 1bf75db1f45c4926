"""The one loop of every search for splits: propose, build, compare bits, measure, plan, write, keep the best.

Where to look next is a `Proposer`'s business, how a candidate is built and planned the candidate's own, and which plan
is kept a `KeepRule`'s. What all of them are given is a `SplitTask`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.clock import SearchClock
from remat_cli.base.errors import RuntimeFailure
from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest, ask
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.platform import Platform
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.process.forecast import needed_bytes
from remat_cli.compiling.solve import BudgetAnswer, BudgetQuestion, Search, answer, unsolved
from remat_cli.compiling.write import with_budget, write_within_budget
from remat_cli.core.schedule.problem import Problem
from remat_cli.core.schedule.splits import Splitting
from remat_cli.core.values.profile import Profile
from remat_cli.core.values.sizes import Dim
from remat_cli.runtime.sessions.error_text import is_of_the_machine

LEFT_OUT = "a way to split the model was left out, by a fault of remat that you may want to report: {}"
LAID_OUT_SHARE = 0.05
"""Of the time for a plan: what another takes where sessions with layouts of their own need more; less does better."""
Tighter = Callable[[], OneModel | Refused | None]
"""Plans again for what holds less."""


@dataclass(frozen=True)
class SplitTask:
    """What splits are searched for: `whole` is the plan without any, `began` when the whole search began."""

    whole: OneModel | Refused
    question: BudgetQuestion
    request: CompileRequest
    work: Path
    progress: Progress
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def unplanned(
        cls, prepared: Prepared, platform: Platform, request: CompileRequest, work: Path, progress: Progress
    ) -> SplitTask:
        """What is searched for in a model of which there is no plan yet; the search begins now."""
        began, question = time.monotonic(), ask(platform, request)
        bare = unsolved(question, request.search)
        whole = Refused(prepared=prepared, platform=platform, answer=bare, whole=prepared)
        return cls(whole, question, request, work, progress, began)

    @property
    def clock(self) -> SearchClock:
        """The time of the search."""
        return self.request.search.clock

    def should_stop(self) -> bool:
        """Whether nothing more may be begun: the user asked to stop, or time is over."""
        return self.progress.should_stop() or self.clock.ends()

    @property
    def ending(self) -> Progress:
        """Progress of a loop that begins nothing more once time is over."""
        return msgspec.structs.replace(self.progress, should_stop=self.should_stop)

    @property
    def baseline_ns(self) -> int:
        """Time of the baseline, at least one."""
        return max(1, self.question.baseline.time_ns)

    def overhead_share(self, time_ns: int) -> float:
        """How much longer than the baseline something takes, as a share of it."""
        return time_ns / self.baseline_ns - 1

    def share_of(self, found: OneModel | None) -> float:
        """The same of a plan; infinite: there is none."""
        return math.inf if found is None else self.overhead_share(found.plan.time_ns)

    @property
    def allowed_ns(self) -> float:
        """By how much a plan of least memory may take longer than the baseline."""
        return self.baseline_ns * float(self.request.search.max_overhead_share)

    def rank(self, planned: OneModel) -> tuple[int, int]:
        """Less is better: memory for `min`, what of it was asked for first, time otherwise."""
        live_bytes = planned.written.plan.peak
        if not self.question.least:
            return planned.plan.time_ns, live_bytes
        is_live = self.request.least == "live"
        return live_bytes if is_live else needed_bytes(planned, self.request), live_bytes

    def better(self, one: OneModel, other: OneModel) -> OneModel:
        """The plan that ranks first; of equals the one that was there before."""
        return min(one, other, key=self.rank)

    def is_allowed(self, planned: OneModel) -> bool:
        """Whether a plan costs no more time than the user allows."""
        return self.request.search.allows(planned.plan.time_ns, self.question)

    def plan(
        self,
        trial: SplitTrial,
        problem: Problem,
        search: Search,
        heeded: Callable[[BudgetAnswer], BudgetAnswer] = lambda found: found,
    ) -> OneModel | Refused:
        """Plan and write a split model like any model; `heeded` sees the answer before it is written.

        A share has room for small tensors of ours, and then grows by no more than what is needed of it.
        """
        names, budget_bytes = tuple(op.name for op in trial.prepared.graph.ops), problem.memories[0].budget_bytes
        asked = replace(
            self.question, problem=problem.with_budget(budget_bytes + self.question.room_bytes), names=names
        )
        solving = time.monotonic()
        first = replace(
            self.whole.refused(heeded(answer(asked, search, self.progress))),
            prepared=trial.prepared,
            platform=self.whole.platform.of_model(trial.prepared.graph, trial.profile),
            splitting=trial.splitting,
            dims=trial.dims,
        )
        again = search if trial.prepared.layout is None else search.share(LAID_OUT_SHARE)
        found = write_within_budget(first, again, self.progress)
        if not self.question.least:
            needed_bytes = found.written.least_budget_bytes if isinstance(found, OneModel) else 0
            found = with_budget(found, max(budget_bytes, needed_bytes))
        return found.solved_since(solving).searched_since(self.began)


class Candidate(Protocol):
    """A way to split the model that may be tried."""

    @property
    def is_probe(self) -> bool:
        """Whether it is measured and no more, for its proposer to see; where it is worth a plan its trial follows."""

    def measure(self) -> SplitTrial | None:
        """Build it, compare its bits with the whole model's, and measure it; None: it cannot be used."""

    def plan(self, trial: SplitTrial) -> OneModel | Refused | None:
        """Plan and write what was measured; None: that is not worth a solver's time, or was interrupted."""


@dataclass(frozen=True)
class SplitTrial:
    """A candidate, built and measured: its model, what its ops cost, what a plan file says of its tiles.

    `dims` are the dimensions of tensors for all sizes, where there are many; `tiled` is the model before the runtime
    optimised it, where it is kept.
    """

    candidate: Candidate
    prepared: Prepared
    profile: Profile
    splitting: Splitting
    dims: Mapping[str, tuple[Dim, ...]] | None = None
    tiled: Any = None

    @property
    def least_ns(self) -> int:
        """Time of all ops, once each."""
        return sum(cost.time_ns for cost in self.profile.ops)


@dataclass
class Known:
    """What a search has found out so far: what became of its last candidate, and the best plan of all.

    `is_beaten`: the last one was measured, and not planned, since no plan of it would be the best.
    """

    trial: SplitTrial | None = None
    found: OneModel | Refused | None = None
    best: OneModel | None = None
    is_beaten: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether the last candidate led to the plan that is the best."""
        return self.found is not None and self.found is self.best


class Proposer(Protocol):
    """Says what is tried, one after another."""

    def propose(self, known: Known) -> Iterable[Candidate | SplitTrial]:
        """Candidates in the order in which they are tried, or trials, already measured, that shall be planned.

        When the next one is asked for, `known` says what became of the one before.
        """


@dataclass(frozen=True)
class KeepRule:
    """Which plans are admitted, which of two is kept, and when there need be no other; by default the first one.

    What is `beaten` by the best plan once it was measured is not planned.
    """

    admits: Callable[[OneModel], bool] = lambda found: True
    better: Callable[[OneModel, OneModel], OneModel] = lambda kept, found: found
    is_enough: Callable[[OneModel], bool] = lambda found: True
    beaten: Callable[[SplitTrial, OneModel | None], bool] = lambda trial, best: False


def search(proposer: Proposer, rule: KeepRule, progress: Progress) -> OneModel | None:
    """The best plan, by the rule, of what is proposed; None: there is none.

    Once the user has asked to stop, or time is over, nothing more is built; what was measured before is still planned.
    Ctrl-C ends what is built, measured, planned or written at that moment, and leaves the best plan so far. What the
    runtime refuses is a fault of ours: that candidate is left out, and the user is told.
    """
    known = Known()
    for proposed in proposer.propose(known):
        known.trial = known.found = None
        known.is_beaten = False
        try:
            _try_out(proposed, rule, known, progress)
        except RuntimeFailure as failure:
            if not may_go_on(failure):
                raise
            progress.leave_out(LEFT_OUT.format(failure))
            known.trial = known.found = None
        if isinstance(known.found, OneModel) and rule.admits(known.found):
            known.best = known.found if known.best is None else rule.better(known.best, known.found)
        if known.best is not None and rule.is_enough(known.best):
            break
        progress.stage(stages.SPLITTING)  # what is looked for now is no part of what was measured or written
    return known.best


def _try_out(proposed: Candidate | SplitTrial, rule: KeepRule, known: Known, progress: Progress) -> None:
    """Measure and plan what is proposed; what comes of it is known then."""
    if isinstance(proposed, SplitTrial):
        known.trial = proposed
    elif not progress.should_stop():
        with stages.giving_way(progress):
            known.trial = proposed.measure()
    is_planned = isinstance(proposed, SplitTrial) or not proposed.is_probe
    known.is_beaten = known.trial is not None and is_planned and rule.beaten(known.trial, known.best)
    if known.trial is not None and is_planned and not known.is_beaten:
        with stages.giving_way(progress):
            known.found = known.trial.candidate.plan(known.trial)


def may_go_on(failure: RuntimeFailure) -> bool:
    """Whether a search goes on without what failed: where the machine is to blame, the rest would fail too."""
    return not is_of_the_machine(str(failure))
