"""Splits of one model, each built, measured, planned and written like a model of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.progress import Progress
from remat_cli.core.floor import working_set_floor
from remat_cli.core.plan import Plan
from remat_cli.core.problem import make_problem
from remat_cli.core.profile import Profile
from remat_cli.core.simulate import baseline
from remat_cli.core.splits import Region, RegionFacts, Splitting, regions_of_ops
from remat_cli.settings.config import Config, available_cores
from remat_cli.splitting.build import TiledRegion, split_model
from remat_cli.splitting.obstacle import Obstacle, explain
from remat_cli.splitting.search import Candidate, Limits, Proposal, Search
from remat_cli.splitting.steps import region_steps
from remat_cli.splitting.timeline import Timeline
from remat_cli.splitting.view import view_model
from remat_cli.stages.prepare import Prepared
from remat_cli.stages.solve import Answer, Question, answer
from remat_cli.stages.split_model import (
    channel_block,
    find_culprit,
    prepare_split,
    profile_split,
    raised_model,
)
from remat_cli.stages.write import Written, write_within_budget

WHOLE_SHARE, SEARCH_SHARE = 0.3, 0.3  # of the time limit: for plans of whole ops, for the search for regions
AIMS = (1.0, 0.985, 0.95, 0.9, 0.8, 0.65, 0.5)  # shares of the budget to aim at, one after the other: estimates err
RUNGS = 16  # budgets tried for `min`, each a part below the last
RUNG_SHARE = 0.85
RUNG_MARGIN = 3.5  # rungs may cost so many times the allowed overhead by estimate: measured, they often cost less
MOST_TRIALS = 4  # splits that are measured
MOST_CULPRITS = 8  # ops found to change bits before splitting is given up


@dataclass(frozen=True)
class Planned:
    """A model, whole or split, and the answer for it; `written` is None where no plan fits.

    `obstacle` says in one line why splitting cannot help. `splitter` can plan again, tighter.
    """

    prepared: Prepared
    profile: Profile
    answer: Answer
    written: Written | None
    splitting: Splitting | None = None
    obstacle: str | None = None
    splitter: Splitter | None = None

    @property
    def time_ns(self) -> int:
        """Time of the plan."""
        assert self.answer.plan is not None
        return self.answer.plan.time_ns

    def tighter(self) -> Planned | None:
        """A plan that holds less than this one, for when the runtime's arena leaves gaps; None where there is none."""
        return None if self.splitter is None else self.splitter.again()


@dataclass(frozen=True)
class Trial:
    """A split model, measured: its ops once each take `least_ns`."""

    proposal: Proposal
    prepared: Prepared
    profile: Profile

    @property
    def least_ns(self) -> int:
        """Time of all ops, once each."""
        return sum(cost.time_ns for cost in self.profile.ops)


@dataclass
class Splitter:
    """Tries splits of one model."""

    whole: Planned
    question: Question
    config: Config
    work: Path
    progress: Progress
    trials: int = 0
    builds: int = 0
    aim: float = AIMS[0]

    def best(self) -> Planned:
        """The better of the whole plan and the best one with splits."""
        self.progress.stage(stages.SPLITTING)
        found = self._least() if self.question.least else self._within(AIMS)
        if found is None:
            return self._without_splits()
        if self.config.split == "auto" and self.whole.written is not None:
            return min(self.whole, found, key=self._rank)
        return found

    def again(self) -> Planned | None:
        """The next plan at a lower aim than the last."""
        self.trials = 0
        return self._within(tuple(aim for aim in AIMS if aim < self.aim)[1:])

    def proposed(self) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
        """The cheapest regions that would meet the budget (for `min`: those of least memory), by estimate."""
        if self.question.least:
            ladder = list(self._ladder())
            proposal = ladder[-1] if ladder else None
        else:
            proposal = self.search.propose(self._free_bytes)
        if proposal is None:
            obstacle = self._obstacle()
            return (), (), None if obstacle is None else obstacle.text
        timeline = self.search.timeline
        return (
            tuple(_region(timeline, candidate) for candidate in proposal.regions),
            tuple(self._facts(candidate) for candidate in proposal.regions),
            None,
        )

    @cached_property
    def search(self) -> Search:
        """The search for regions, on the whole ops in the order of the baseline."""
        whole = self.whole
        block = channel_block(whole.prepared, self.config, self.work)
        threads = self.config.intra_op_threads or available_cores()
        raised = raised_model(whole.prepared, self.config, self.work)
        view = view_model(
            raised or whole.prepared.reference,
            whole.prepared.graph,
            block,
            threads,
            self.config.allow_reassociation,
        )
        plan = self.question.baseline
        memory = tuple(held - whole.profile.fixed_bytes for held in plan.memory_bytes[0])
        limits = Limits(
            most_tiles=self.config.max_tiles,
            axis=self.config.split_axis,
            may_fill=raised is not None,
            seconds=SEARCH_SHARE * self.config.time_limit_seconds,
        )
        return Search(Timeline(view, tuple(plan.schedule.op_ids()), memory), whole.profile.ops, limits)

    @property
    def _free_bytes(self) -> int:
        """What the budget leaves to activations and workspace."""
        return self.question.problem.memories[0].free_bytes

    def _rank(self, planned: Planned) -> int:
        """Less is better: memory for `min`, time otherwise."""
        assert planned.written is not None
        return planned.written.plan.peak if self.question.least else planned.time_ns

    def _without_splits(self) -> Planned:
        """The whole plan, and why no split is in it; `infeasible` only where nothing can get around the reason."""
        obstacle, whole = self._obstacle(), self.whole
        text = None if obstacle is None else obstacle.text
        if whole.answer.run.status == "infeasible" and (obstacle is None or not obstacle.is_final):
            run = msgspec.structs.replace(whole.answer.run, status="not_found")
            return replace(whole, answer=replace(whole.answer, run=run), obstacle=text)
        return replace(whole, obstacle=text)

    def _obstacle(self) -> Obstacle | None:
        search, floor_op = self.search, self.whole.answer.run.floor_op
        return explain(search.timeline, search.stuck, floor_op, self._free_bytes)

    def _within(self, aims: Sequence[float]) -> Planned | None:
        """The first split, by falling aims, whose plan fits the budget."""
        tried: set[tuple[object, ...]] = set()
        for aim in aims:
            proposal = self._propose(aim)
            if proposal is None or not proposal.regions or _key(proposal) in tried:
                continue
            tried.add(_key(proposal))
            self.aim = aim
            trial = self._measure(proposal, aim)
            found = None if trial is None else self._plan(trial)
            if found is not None and found.written is not None:
                return found
        return None

    def _propose(self, aim: float) -> Proposal | None:
        return None if self.progress.should_stop() else self.search.propose(int(self._free_bytes * aim))

    def _least(self) -> Planned | None:
        """The split of least memory whose plan takes no longer than the overhead allows, by bisection."""
        ladder = list(self._ladder())
        fits: list[Trial] = []
        low, high = 0, len(ladder) - 1
        probe = max((i for i, proposal in enumerate(ladder) if proposal.added_ns <= self._allowed_ns), default=0)
        while low <= high:
            trial = self._measure(ladder[probe], None)
            if trial is not None and trial.least_ns <= self.question.baseline.time_ns + self._allowed_ns:
                fits.append(trial)
                low = probe + 1
            else:
                high = probe - 1
            probe = (low + high) // 2
        plans = (self._plan(trial) for trial in reversed(fits))
        fit = (plan for plan in plans if plan is not None and plan.written is not None)
        return next((plan for plan in fit if self._is_allowed(plan)), None)

    @property
    def _allowed_ns(self) -> float:
        """By how much a plan may take longer than the baseline."""
        return self.question.baseline.time_ns * float(self.config.max_overhead_share)

    def _is_allowed(self, found: Planned) -> bool:
        return found.time_ns <= self.question.baseline.time_ns + self._allowed_ns

    def _ladder(self) -> Iterator[Proposal]:
        """Proposals for ever smaller budgets, as long as their estimated overhead is not far too large."""
        target = self.question.baseline.peak - self.whole.profile.fixed_bytes
        for _ in range(RUNGS):
            target = int(target * RUNG_SHARE)
            proposal = None if self.progress.should_stop() else self.search.propose(target)
            if proposal is None or proposal.added_ns > RUNG_MARGIN * self._allowed_ns:
                return
            if proposal.regions:
                target = min(target, proposal.peak_bytes)
                yield proposal

    def _measure(self, proposal: Proposal, aim: float | None) -> Trial | None:
        """Build and measure a split; None where it cannot be used or trials are used up."""
        if self.trials >= MOST_TRIALS or self.progress.should_stop():
            return None
        self.trials += 1
        built = self._build(proposal, aim)
        if built is None:
            return None
        proposal, prepared = built
        whole = self.whole.prepared
        profile = profile_split(prepared, whole, self.question.baseline.time_ns, self.config, self.progress)
        return Trial(proposal, prepared, profile)

    def _plan(self, trial: Trial) -> Planned | None:
        """Plan and write a split like any model; None where one of its ops alone is beyond the budget."""
        problem = make_problem(trial.prepared.graph, trial.profile, self.question.problem.memories[0].budget_bytes)
        if working_set_floor(problem).bytes[0] > self.question.budget_bytes:
            return None
        names = tuple(op.name for op in trial.prepared.graph.ops)
        asked = replace(self.question, problem=problem, names=names)
        seconds = self.config.time_limit_seconds * (1 - WHOLE_SHARE - SEARCH_SHARE)
        config = msgspec.structs.replace(self.config, time_limit_seconds=seconds)
        first = _lower(asked, answer(asked, config, self.progress))
        solved, written = write_within_budget(trial.prepared, trial.profile, first, config, self.progress)
        splitting = self._record(trial.proposal)
        if solved.plan is not None:
            splitting = _as_planned(splitting, trial, solved.plan)
        return Planned(trial.prepared, trial.profile, solved, written, splitting, splitter=self)

    def _build(self, proposal: Proposal, aim: float | None) -> tuple[Proposal, Prepared] | None:
        """The split model, with the bits of the whole one: ops that change bits are left whole."""
        view, order = self.search.timeline.view, self.search.timeline.order
        current: Proposal | None = proposal
        for _ in range(MOST_CULPRITS):
            if current is None or not current.regions:
                return None
            self.builds += 1
            regions = [TiledRegion(c.cutting.ops, region_steps(view, c.cutting) or ()) for c in current.regions]
            model = split_model(view, order, regions)
            prepared = prepare_split(self.whole.prepared, model, self.config, self.work / f"split_{self.builds}")
            if prepared is not None:
                return current, prepared
            culprit = find_culprit(view, model, regions, self.whole.prepared, self.config, self.work)
            if culprit is not None:
                self.search.forbid(culprit)
            elif not self.search.forbid_fills():
                return None
            if aim is None:
                return None
            current = self._propose(aim)
        return None

    def _record(self, proposal: Proposal) -> Splitting:
        regions = tuple(_region(self.search.timeline, candidate) for candidate in proposal.regions)
        return Splitting(
            regions=regions,
            facts=tuple(self._facts(candidate) for candidate in proposal.regions),
            whole_sha256=self.whole.prepared.reference_sha256,
            whole_profile=self.whole.profile,
            whole_floor_bytes=self.whole.answer.run.floor_bytes,
        )

    def _facts(self, candidate: Candidate) -> RegionFacts:
        timeline, fixed = self.search.timeline, self.whole.profile.fixed_bytes
        name, axis = candidate.cutting.exits[0]
        return RegionFacts(
            extent=timeline.view.tensors[name].shape[axis],
            halo_percent=100 * candidate.cost.added_ns / max(1, candidate.cost.whole_time_ns),
            peak_before_bytes=fixed + max(timeline.memory_bytes[candidate.start : candidate.stop]),
            peak_after_bytes=fixed + candidate.peak_bytes,
            time_before_ns=candidate.cost.whole_time_ns,
            time_after_ns=candidate.cost.time_ns,
        )


def _region(timeline: Timeline, candidate: Candidate) -> Region:
    cutting = candidate.cutting
    return Region(
        ops=tuple(timeline.view.graph.ops[op].name for op in cutting.ops),
        exits=tuple(name for name, _ in cutting.exits),
        axes=tuple(axis for _, axis in cutting.exits),
        tiles=cutting.tiles,
        kept=tuple(sorted(cutting.kept)),
    )


def _as_planned(splitting: Splitting, trial: Trial, plan: Plan) -> Splitting:
    """The record with peaks and times of the regions as they came out."""
    owner = regions_of_ops(splitting, trial.prepared.graph)
    peaks, times = [0] * len(splitting.regions), [0] * len(splitting.regions)
    for op, held in zip(plan.schedule.op_ids(), plan.memory_bytes[0], strict=True):
        region = owner[op]
        if region is not None:
            peaks[region] = max(peaks[region], held)
            times[region] += trial.profile.ops[op].time_ns
    facts = tuple(
        msgspec.structs.replace(known, peak_after_bytes=peak, time_after_ns=time_ns)
        for known, peak, time_ns in zip(splitting.facts, peaks, times, strict=True)
    )
    return msgspec.structs.replace(splitting, facts=facts)


def _lower(question: Question, found: Answer) -> Answer:
    """The answer with the order of tiles, where that holds less and takes no longer."""
    if found.plan is None:
        return found
    tiles = baseline(question.problem)
    is_better = tiles.time_ns <= found.plan.time_ns and tiles.peak < found.plan.peak
    return replace(found, plan=tiles) if is_better else found


def _key(proposal: Proposal) -> tuple[object, ...]:
    return tuple(region.cutting for region in proposal.regions)
