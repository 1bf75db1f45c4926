"""Splits of one model, each built, measured, planned and written like a model of its own."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.processes import available_cores
from remat_cli.base.progress import Progress
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.facts import KnownSplit
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.prepare import Prepared
from remat_cli.compiling.search.known_splits import known_splits, remember_split
from remat_cli.compiling.search.split_model import (
    ExposedTiles,
    find_culprit,
    in_least_opset,
    prepare_split,
    profile_split,
    raised_model,
)
from remat_cli.compiling.solve import BudgetAnswer, BudgetQuestion, answer
from remat_cli.compiling.write import write_within_budget
from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.schedule.splits import LargeTensor, Region, RegionFacts, Splitting, large_tensors, regions_of_ops
from remat_cli.core.values.profile import Profile
from remat_cli.onnx_io.read.interface import has_op
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.obstacle import SplitObstacle
from remat_cli.splitting.tiles.propose import SplitProposal, SplitProposer
from remat_cli.splitting.tiles.search import SplitLimits
from remat_cli.splitting.tiles.timeline import TensorTimeline
from remat_cli.splitting.tiles.view import view_model

WHOLE_SHARE, SEARCH_SHARE = 0.3, 0.3  # of the time limit: for plans of whole ops, for the search for regions
AIMS = (1.0, 0.985, 0.95, 0.9, 0.8, 0.65, 0.5)  # shares of the budget to aim at, one after the other: estimates err
RUNGS = 16  # budgets tried for `min`, each a part below the last
RUNG_SHARES = (0.85, 0.95, 0.985)  # of the last one: ever smaller steps, where a larger one leads nowhere
RUNG_MARGIN = 3.5  # rungs may cost so many times the allowed overhead by estimate: measured, they often cost less
MOST_TRIALS, FEW_TRIALS = 4, 2  # splits that are measured, of short and long models
LONG_NS = 1_000_000_000
DEAR_PERCENT = 5.0  # a split that costs more is compared with others
MOST_KNOWN, LEAST_GAIN = 2, 0.001  # plans of other budgets that are made again, and what they must promise
MADE_BY_RUNTIME = "the model has no such op: the runtime made it of others, which may well be cut"
MOST_CULPRITS = 8  # ops found to change bits before splitting is given up


@dataclass(frozen=True)
class SplitTrial:
    """A split model, measured: its ops once each take `least_ns`."""

    proposal: SplitProposal
    prepared: Prepared
    profile: Profile

    @property
    def least_ns(self) -> int:
        """Time of all ops, once each."""
        return sum(cost.time_ns for cost in self.profile.ops)


@dataclass(frozen=True)
class Splitter:
    """Tries splits of one model: a way to ask, which holds no state but what it found out about the model.

    `may_fill`: tiles may be written into a buffer in place, under a newer opset; else they are joined. `began` is when
    the search began that this is a part of.
    """

    whole: OneModel | Refused
    question: BudgetQuestion
    request: CompileRequest
    work: Path
    progress: Progress
    may_fill: bool = True
    began: float = field(default_factory=time.monotonic)

    def best(self) -> OneModel | Refused:
        """The better of the whole plan and the best one with splits."""
        self.progress.stage(stages.SPLITTING)
        found = self._or_known(self._least() if self.question.least else self._within(AIMS))
        if found is None:
            return self._without_splits()
        if self.request.splits.mode == "auto" and isinstance(self.whole, OneModel):
            return min(self.whole, found, key=self.rank)
        return found

    def proposed(self) -> tuple[tuple[Region, ...], tuple[RegionFacts, ...], str | None]:
        """The cheapest regions that would meet the budget (for `min`: those of least memory), by estimate."""
        if self.question.least:
            found = next(reversed(list(self._ladder())), None)
        else:
            found = next(iter(self.search.propose(self.free_bytes)), None)
        if found is None:
            obstacle = self._obstacle()
            return (), (), None if obstacle is None else obstacle.text
        return found.regions, found.facts, None

    @cached_property
    def search(self) -> SplitProposer:
        """The search for splittings, on the whole ops in the order of the baseline."""
        whole, conditions, splits = self.whole, self.request.conditions, self.request.splits
        block = whole.prepared.layout_block
        threads = conditions.intra_op_threads or available_cores()
        raised = raised_model(whole.prepared, conditions, self.work) if self.may_fill else None
        model = raised or whole.prepared.reference
        view = view_model(model, whole.prepared.graph, block, threads, splits.allow_reassociation)
        plan = self.question.baseline
        memory = tuple(held - whole.profile.fixed_bytes for held in plan.memory_bytes[0])
        limits = SplitLimits(
            most_tiles=splits.max_tiles,
            axis=splits.axis,
            may_fill=raised is not None,
            seconds=SEARCH_SHARE * self.request.search.limits.seconds,
        )
        timeline = TensorTimeline(view, tuple(plan.schedule.op_ids()), memory)
        return SplitProposer(timeline, whole.profile.ops, limits, whole.profile.fixed_bytes)

    @property
    def free_bytes(self) -> int:
        """What the budget leaves to activations and workspace."""
        return self.question.problem.memories[0].free_bytes

    def rank(self, planned: OneModel) -> int:
        """Less is better: memory for `min`, time otherwise."""
        return planned.written.plan.peak if self.question.least else planned.plan.time_ns

    def _without_splits(self) -> OneModel | Refused:
        """The whole plan, and why no split is in it; INFEASIBLE only where nothing can get around the reason."""
        obstacle, whole = None if self.progress.should_stop() else self._obstacle(), self.whole
        text = None if obstacle is None else obstacle.text
        if whole.answer.run.status is Status.INFEASIBLE and (obstacle is None or not obstacle.is_final):
            run = replace(whole.answer.run, status=Status.NOT_FOUND)
            return replace(whole, answer=replace(whole.answer, run=run), obstacle=text)
        return replace(whole, obstacle=text)

    def _obstacle(self) -> SplitObstacle | None:
        """What stands in the way; an op that the runtime made of the model's ops is no proof against the model."""
        found, view = self.search.obstacle(self.whole.answer.run.floor.op, self.free_bytes), self.search.timeline.view
        if found is None or found.op is None or has_op(self.whole.prepared.source.ir, view.nodes[found.op]):
            return found
        return replace(found, text=f"{found.text}; {MADE_BY_RUNTIME}", is_final=False)

    def _within(self, aims: Sequence[float]) -> OneModel | None:
        """The first split, by falling aims, whose plan fits the budget; where it is dear, the fastest of a few more.

        What fits a smaller budget fits this one, and may be faster: estimates err. More are tried as long as the race
        may take by its share of the time limit. Tighter ones go on at lower aims.
        """
        best: OneModel | None = None
        end = time.monotonic() + self.request.splits.race_share * self.request.search.limits.seconds
        for aim, trial in islice(self._trials(aims), self._most_trials):
            found = None if trial is None else self.plan(trial)
            if isinstance(found, OneModel):
                lower = tuple(other for other in AIMS if other < aim)[1:]
                found = replace(found, tighter=partial(self._within, lower))
                best = found if best is None else min(best, found, key=self.rank)
            if best is not None and (not self.is_dear(best) or time.monotonic() > end):
                break
        return best

    def _or_known(self, found: OneModel | None) -> OneModel | None:
        """The plan, or a better one that another budget led to in an earlier compile of the model."""
        for known in islice(self._better_known(found), MOST_KNOWN):
            proposal = next((found for found in self._propose(known.target_bytes) if found.form == known.form), None)
            trial = self.measure(proposal, None) if proposal is not None and proposal.regions else None
            other = None if trial is None else self.plan(trial)
            if isinstance(other, OneModel) and (not self.question.least or self._is_allowed(other)):
                return other if found is None else min(found, other, key=self.rank)
        return found

    def _better_known(self, found: OneModel | None) -> Iterator[KnownSplit]:
        """Known splits that this budget admits and that are better than a plan, the best first."""
        baseline, least, most_bytes = self.question.baseline, self.question.least, self.question.budget_bytes
        known = known_splits(self.whole.prepared, self.request.splits)
        for split in sorted(known, key=lambda each: each.budget_bytes) if least else known:
            time_ns = split.relative_time * baseline.time_ns
            fits = time_ns <= baseline.time_ns + self._allowed_ns if least else split.budget_bytes <= most_bytes
            rank = split.budget_bytes if least else time_ns
            if fits and (found is None or rank < self.rank(found) * (1 - LEAST_GAIN)):
                yield split

    def is_dear(self, found: OneModel) -> bool:
        """Whether a plan costs so much that another split may well be better."""
        return found.plan.time_ns > self.question.baseline.time_ns * (1 + DEAR_PERCENT / 100)

    def _trials(self, aims: Sequence[float]) -> Iterator[tuple[float, SplitTrial | None]]:
        """Splits to try, each measured when its turn comes; no proposal twice."""
        tried: set[object] = set()
        for aim in aims:
            for proposal in self._propose(int(self.free_bytes * aim)):
                if proposal.regions and proposal.key not in tried:
                    tried.add(proposal.key)
                    yield aim, self.measure(proposal, aim)

    def _propose(self, free_bytes: int) -> tuple[SplitProposal, ...]:
        return () if self.progress.should_stop() else self.search.propose(free_bytes)

    def _least(self) -> OneModel | None:
        """The split of least memory whose plan takes no longer than the overhead allows.

        Estimates err alike along the ladder: what the last trial cost, against what was estimated, says where to look.
        """
        ladder = list(self._ladder())
        fits: list[SplitTrial] = []
        low, high, error = 0, len(ladder) - 1, 1.0
        for _ in range(self._most_trials):
            if low > high:
                break
            near = (i for i, proposal in enumerate(ladder) if error * proposal.added_ns <= self._allowed_ns)
            probe = min(high, max(low, max(near, default=low)))
            trial = self.measure(ladder[probe], None)
            if trial is not None and trial.least_ns <= self.question.baseline.time_ns + self._allowed_ns:
                fits.append(trial)
                low = probe + 1
            else:
                high = probe - 1
            if trial is not None:
                error = max(0, trial.least_ns - self.question.baseline.time_ns) / max(1, ladder[probe].added_ns)
        plans = (self.plan(trial) for trial in reversed(fits))
        fit = (plan for plan in plans if isinstance(plan, OneModel))
        return next((plan for plan in fit if self._is_allowed(plan)), None)

    @property
    def _most_trials(self) -> int:
        """How many splits may be measured; fewer where that takes long."""
        return MOST_TRIALS if self.question.baseline.time_ns < LONG_NS else FEW_TRIALS

    @property
    def _allowed_ns(self) -> float:
        """By how much a plan may take longer than the baseline."""
        return self.question.baseline.time_ns * float(self.request.search.max_overhead_share)

    def _is_allowed(self, found: OneModel) -> bool:
        return found.plan.time_ns <= self.question.baseline.time_ns + self._allowed_ns

    def _ladder(self) -> Iterator[SplitProposal]:
        """Proposals for ever smaller budgets, as long as their estimated overhead is not far too large.

        Where a rung cannot be reached, or is too dear, smaller steps go on from the last one.
        """
        target = self.question.baseline.peak - self.whole.profile.fixed_bytes
        shares = list(RUNG_SHARES)
        for _ in range(RUNGS):
            proposal = next(iter(self._propose(int(target * shares[0]))), None)
            if proposal is None or proposal.added_ns > RUNG_MARGIN * self._allowed_ns:
                shares.pop(0)
                if not shares or self.progress.should_stop():
                    return
                continue
            target = int(target * shares[0])
            if proposal.regions:
                target = min(target, proposal.peak_bytes)
                yield proposal

    def measure(self, proposal: SplitProposal, aim: float | None) -> SplitTrial | None:
        """Build and measure a split; None where it cannot be used."""
        if self.progress.should_stop():
            return None
        with stages.giving_way(self.progress):
            built = self.build(proposal, aim)
            if built is None:
                return None
            proposal, prepared = built
            return SplitTrial(proposal, prepared, profile_split(prepared, self.whole, self.progress))
        return None

    def problem_of(self, trial: SplitTrial) -> Problem:
        """A split model's own problem, within the budget of the whole one; constants of tiles come on top of 100 %."""
        grown_bytes = trial.profile.fixed_bytes - self.whole.profile.fixed_bytes
        more = max(0, grown_bytes) if self.question.asks_for_all else 0
        return make_problem(trial.prepared.graph, trial.profile, self.question.budget_bytes + more)

    def plan(self, trial: SplitTrial) -> OneModel | Refused | None:
        """Plan and write a split like any model; None where one of its ops alone is beyond the budget."""
        problem = self.problem_of(trial)
        if working_set_floor(problem).bytes[0] > problem.memories[0].budget_bytes:
            return None
        names = tuple(op.name for op in trial.prepared.graph.ops)
        asked = replace(self.question, problem=problem, names=names)
        search = self.request.search.share(1 - WHOLE_SHARE - SEARCH_SHARE)
        solving, record = time.monotonic(), self.record(trial.proposal)
        first = replace(
            self.whole.refused(_lower(asked, answer(asked, search, self.progress))),
            prepared=trial.prepared,
            platform=self.whole.platform.of_model(trial.prepared.graph, trial.profile),
            splitting=record,
        )
        found = write_within_budget(first, search, self.progress).solved_since(solving).searched_since(self.began)
        if isinstance(found, Refused):
            return found
        remember_split(found, self.request.splits, trial.proposal)
        return replace(found, splitting=_as_planned(record, found))

    def build(self, proposal: SplitProposal, aim: float | None) -> tuple[SplitProposal, Prepared] | None:
        """The split model, with the bits of the whole one: ops that change bits are left whole."""
        whole, request = self.whole.prepared, self.request
        may_reassociate = request.splits.allow_reassociation
        current: SplitProposal | None = proposal
        for _ in range(MOST_CULPRITS):
            if current is None or not current.regions:
                return None
            model = in_least_opset(split_model(current.view, current.order, current.parts), whole)
            folder = Path(tempfile.mkdtemp(prefix="split_", dir=self.work))
            prepared = prepare_split(whole, model, request.conditions, folder, may_reassociate)
            if prepared is not None:
                return current, prepared
            exposed = ExposedTiles(current.view, model, current.parts, may_reassociate)
            culprit = find_culprit(exposed, whole, request.conditions, folder)
            if culprit is not None:
                self.search.forbid(current, culprit)
            elif not self.search.forbid_fills():
                return None
            if aim is None:
                return None
            others = self._propose(int(self.free_bytes * aim))
            current = next((other for other in others if other.form == proposal.form), None)
        return None

    def record(self, proposal: SplitProposal) -> Splitting:
        """What a plan file says of a split."""
        return Splitting(
            regions=proposal.regions,
            facts=proposal.facts,
            whole_sha256=self.whole.prepared.reference_sha256,
            whole_profile=self.whole.profile,
            whole_floor_bytes=self.whole.answer.run.floor.bytes,
        )


def inside_above(graph: Graph, most_bytes: int) -> tuple[LargeTensor, ...]:
    """Tensors inside a model that are larger than a cap."""
    return tuple(each for each in large_tensors(graph, most_bytes) if each.kind == "inside")


def _as_planned(splitting: Splitting, found: OneModel) -> Splitting:
    """The record of a split with peaks and times of its regions as they came out in the plan."""
    plan = found.plan
    owner = regions_of_ops(splitting, found.prepared.graph)
    peaks, times = [0] * len(splitting.regions), [0] * len(splitting.regions)
    for op, held in zip(plan.schedule.op_ids(), plan.memory_bytes[0], strict=True):
        region = owner[op]
        if region is not None:
            peaks[region] = max(peaks[region], held)
            times[region] += found.profile.ops[op].time_ns
    facts = tuple(
        msgspec.structs.replace(known, peak_after_bytes=peak, time_after_ns=time_ns)
        for known, peak, time_ns in zip(splitting.facts, peaks, times, strict=True)
    )
    return msgspec.structs.replace(splitting, facts=facts)


def _lower(question: BudgetQuestion, found: BudgetAnswer) -> BudgetAnswer:
    """The answer with the order of tiles, where that holds less and takes no longer."""
    if found.plan is None:
        return found
    tiles: Plan = baseline(question.problem)
    is_better = tiles.time_ns <= found.plan.time_ns and tiles.peak < found.plan.peak
    return found.with_plan(tiles) if is_better else found
