"""Reorder, split, recompute: which model is planned, the whole one or one with regions in tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from remat_cli.config import Config, available_cores
from remat_cli.core import progress as stages
from remat_cli.core.problem import make_problem
from remat_cli.core.profile import Profile
from remat_cli.core.progress import Progress, SilentProgress
from remat_cli.core.schedule import Schedule
from remat_cli.core.simulate import simulate
from remat_cli.core.splits import Region, RegionFacts, Splitting
from remat_cli.onnx_io.opset import raise_opset
from remat_cli.pipeline_prepare import Prepared, channel_block, find_culprit, prepare_split, profile_prepared
from remat_cli.pipeline_solve import Answer, Question, answer, ask, unsolved
from remat_cli.pipeline_write import Written, write_within_budget
from remat_cli.splitting.build import FILL_SINCE, TiledRegion, split_model
from remat_cli.splitting.obstacle import Obstacle, explain
from remat_cli.splitting.ordering import tile_order
from remat_cli.splitting.search import Candidate, Limits, Proposal, Search
from remat_cli.splitting.steps import region_steps
from remat_cli.splitting.timeline import Timeline
from remat_cli.splitting.view import view_model

FREE_PERCENT = 0.5  # a plan of whole ops that costs no more than this is taken as it is
WHOLE_SHARE, SEARCH_SHARE = 0.3, 0.3  # of the time limit: for plans of whole ops, for the search for regions
AIMS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # shares of the budget to aim at: estimates err, and the runtime's arena has gaps
MARGIN_PERCENT = 1.0  # what a lower aim may cost of the baseline time more than the highest
RUNGS = 16  # budgets tried for `min`, each a part below the last
RUNG_SHARE = 0.85
MOST_TRIALS = 4  # splits that are measured and planned
MOST_CULPRITS = 8  # ops found to change bits before splitting is given up


@dataclass(frozen=True)
class Planned:
    """A model, whole or split, and the answer for it; `written` is None where no plan fits.

    `obstacle` says in one line why splitting cannot help, or go further. `splitter` can plan again, tighter.
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


def plan_model(prepared: Prepared, profile: Profile, config: Config, work: Path, progress: Progress) -> Planned:
    """Plan whole ops; where that is not possible for free, plan with splits too and take what is better."""
    problem = make_problem(prepared.graph, profile, 0)
    question = ask(problem, config)
    share = 1.0 if config.split == "off" else WHOLE_SHARE
    first = answer(question, _with_time(config, share), progress)
    whole = Planned(prepared, profile, *write_within_budget(prepared, profile, first, config, progress))
    if config.split == "off" or (config.split == "auto" and _is_free(whole)):
        return whole
    return Splitter(whole, question, config, work, progress).best()


def propose_regions(
    prepared: Prepared, profile: Profile, config: Config, work: Path
) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
    """What would be split to meet the budget, estimated from the whole ops' figures, and what stands in the way."""
    question = ask(make_problem(prepared.graph, profile, 0), config)
    whole = Planned(prepared, profile, unsolved(question, config), None)
    return Splitter(whole, question, config, work, SilentProgress()).proposed()


def _is_free(whole: Planned) -> bool:
    """Whether a plan of whole ops needs nothing better."""
    question = whole.answer.question
    if whole.written is None or question.least:
        return False
    return whole.time_ns <= question.baseline.time_ns * (1 + FREE_PERCENT / 100)


def _with_time(config: Config, share: float) -> Config:
    return msgspec.structs.replace(config, time_limit_seconds=config.time_limit_seconds * share)


@dataclass
class Splitter:
    """Tries splits of one model, each built, measured, planned and written like a model of its own."""

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
        """The search for regions, on the whole ops in the order of `_order`."""
        whole = self.whole
        block = channel_block(whole.prepared, self.config, self.work)
        threads = self.config.intra_op_threads or available_cores()
        raised = raise_opset(whole.prepared.reference, FILL_SINCE)
        view = view_model(raised or whole.prepared.reference, whole.prepared.graph, block, threads)
        plan = simulate(self.question.problem, self._order())
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

    def _order(self) -> Schedule:
        """The order in which regions are looked for: the whole plan's if it repeats nothing, else the baseline's."""
        plan = self.whole.answer.plan
        ops = range(len(self.question.problem.ops))
        if plan is not None and len(plan.schedule.steps) == len(ops):
            return plan.schedule
        return Schedule.of_ops(list(ops))

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
        """The first split, by falling aims, whose plan fits the budget; lower aims first where they cost little."""
        base_ns = self.question.baseline.time_ns
        proposals = [(aim, self._propose(aim)) for aim in aims]
        known = [(aim, proposal) for aim, proposal in proposals if proposal is not None and proposal.regions]
        if not known:
            return None
        most_ns = known[0][1].added_ns + base_ns * MARGIN_PERCENT / 100
        cheap = [entry for entry in known if entry[1].added_ns <= most_ns]
        for aim, proposal in dict.fromkeys((cheap[-1], *known)):
            self.aim = aim
            found = self._try(proposal, aim)
            if found is not None and found.written is not None:
                return found
        return None

    def _propose(self, aim: float) -> Proposal | None:
        return None if self.progress.should_stop() else self.search.propose(int(self._free_bytes * aim))

    def _least(self) -> Planned | None:
        """The split of least memory whose plan takes no longer than the overhead allows."""
        most_ns = self.question.baseline.time_ns * (1 + self.config.max_overhead_share)
        for proposal in reversed(list(self._ladder())):
            found = self._try(proposal, None)
            if found is not None and found.written is not None and found.time_ns <= most_ns:
                return found
        return None

    def _ladder(self) -> Iterator[Proposal]:
        """Proposals for ever smaller budgets, as long as their estimated overhead is allowed."""
        allowed_ns = self.question.baseline.time_ns * float(self.config.max_overhead_share)
        target = self.question.baseline.peak - self.whole.profile.fixed_bytes
        for _ in range(RUNGS):
            target = int(target * RUNG_SHARE)
            proposal = self.search.propose(target)
            if proposal is None or proposal.added_ns > allowed_ns or self.progress.should_stop():
                return
            if proposal.regions:
                target = min(target, proposal.peak_bytes)
                yield proposal

    def _try(self, proposal: Proposal, aim: float | None) -> Planned | None:
        """Build, measure, plan and write a split; None where it cannot be used or trials are used up."""
        if self.trials >= MOST_TRIALS or self.progress.should_stop():
            return None
        self.trials += 1
        built = self._build(proposal, aim)
        if built is None:
            return None
        proposal, prepared, order = built
        profile = profile_prepared(prepared, self.config, self.whole.profile.device, self.progress)
        problem = make_problem(prepared.graph, profile, self.question.problem.memories[0].budget_bytes)
        asked = replace(self.question, problem=problem, start=Schedule.of_ops(order))
        first = _lower(answer(asked, _with_time(self.config, 1 - WHOLE_SHARE - SEARCH_SHARE), self.progress))
        solved, written = write_within_budget(prepared, profile, first, self.config, self.progress)
        splitting = self._record(proposal)
        return Planned(prepared, profile, solved, written, splitting, splitter=self)

    def _build(self, proposal: Proposal, aim: float | None) -> tuple[Proposal, Prepared, list[int]] | None:
        """The split model and its order, with the bits of the whole one: ops that change bits are left whole."""
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
                return current, prepared, tile_order(model, prepared.graph)
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


def _lower(found: Answer) -> Answer:
    """The answer with the schedule it started from, where that holds less and takes no longer."""
    question = found.question
    if found.plan is None or question.start is None:
        return found
    start = simulate(question.problem, question.start)
    is_better = start.time_ns <= found.plan.time_ns and start.peak < found.plan.peak
    return replace(found, plan=start) if is_better else found
