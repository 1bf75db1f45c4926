"""Models split into tiles, regions or bands: how a proposal is built with the same bits, measured and planned."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.compiling.optimise import REFERENCE
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.prepare import Prepared, op_threads
from remat_cli.compiling.search.kept_curve import keep_plan, keep_tiles
from remat_cli.compiling.search.loop import SplitTask, SplitTrial, Tighter
from remat_cli.compiling.search.split_model import (
    ExposedTiles,
    differing_in_layout,
    find_culprit,
    find_fused,
    in_least_opset,
    prepare_split,
    profile_split,
    raised_model,
)
from remat_cli.compiling.solve import BudgetAnswer
from remat_cli.core.schedule.floor import working_set_bytes, working_set_floor
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan, Schedule
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline, simulate
from remat_cli.core.schedule.splits import LargeTensor, Splitting, large_tensors, regions_of_ops
from remat_cli.core.values.profile import OpCost
from remat_cli.onnx_io.write.markers import marked, with_sums_in_turn
from remat_cli.splitting.bands.items_apart import items_apart
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.propose import SplitForm, SplitProposal, SplitProposer
from remat_cli.splitting.tiles.search import SplitLimits
from remat_cli.splitting.tiles.thread_counts import least_of, most_threads
from remat_cli.splitting.tiles.timeline import NeedyTimeline, TensorTimeline
from remat_cli.splitting.tiles.view import ModelView, view_model

WHOLE_SHARE, SEARCH_SHARE = 0.3, 0.3  # of the time limit: for plans of whole ops, for the search for regions
PLAN_SHARE = 1 - WHOLE_SHARE - SEARCH_SHARE  # for the plan of a split
MOST_CAPPED = 6  # splits under a cap on tensors that are built
MOST_TRIALS, FEW_TRIALS = 4, 2  # splits that are measured, of short and long models
LONG_NS = 1_000_000_000
DEAR_PERCENT = 5.0  # a split that costs more is compared with others
MOST_CULPRITS = 8  # ops found to change bits before splitting is given up


@dataclass(frozen=True)
class Tiles:
    """Builds splits of one model; holds no state but what was found out about the model.

    `may_fill`: tiles may be written into a buffer in place, under a newer opset; else they are joined.
    """

    task: SplitTask
    may_fill: bool = True
    uncut_items: set[str] = field(default_factory=set)

    @cached_property
    def proposer(self) -> SplitProposer:
        """The search for splittings, on the whole ops in the order of the baseline."""
        task = self.task
        whole, conditions, splits = task.whole, task.request.conditions, task.request.splits
        block = whole.prepared.layout_block
        threads = op_threads(conditions)
        with task.clock.running():
            run_ns = task.question.baseline.time_ns
            raised = raised_model(whole.prepared, conditions, task.work, run_ns) if self.may_fill else None
        model = raised or whole.prepared.reference
        view = view_model(model, whole.prepared.graph, block, threads, splits.allow_reassociation)
        view = replace(view, at_one_size=conditions.family is None, is_portable=conditions.portable)
        limits = SplitLimits(
            most_tiles=splits.max_tiles,
            axis=splits.axis,
            may_fill=raised is not None,
            seconds=SEARCH_SHARE * task.request.search.limits.seconds,
        )
        return self._proposer(view, task.question.problem, task.question.baseline, whole.profile.ops, limits)

    @cached_property
    def item_proposers(self) -> list[SplitProposer | None]:
        """The same on the model whose items run one by one, once that was asked for; None where it has no items."""
        return []

    @property
    def item_proposer(self) -> SplitProposer | None:
        """The search for splittings of the model whose items run one by one."""
        if not self.item_proposers:
            self.item_proposers.append(self._of_items())
        return self.item_proposers[0]

    def _of_items(self) -> SplitProposer | None:
        whole, limits = self.proposer, self.proposer.limits
        view, order = whole.timeline.view, whole.timeline.order
        apart = items_apart(view, order, whole.costs, self.uncut_items, limits.may_fill)
        if apart is None:
            return None
        cast, profile = apart.cast, self.task.whole.profile
        problem = make_problem(cast.view.graph, msgspec.structs.replace(profile, ops=cast.costs))
        plan = simulate(problem, Schedule.of_ops(cast.order))
        return replace(self._proposer(cast.view, problem, plan, cast.costs, limits), apart=apart)

    def _proposer(
        self, view: ModelView, problem: Problem, plan: Plan, costs: Sequence[OpCost], limits: SplitLimits
    ) -> SplitProposer:
        """The search on a model that runs by a plan, its problem's ops being those of the view."""
        task, fixed_bytes = self.task, self.task.whole.profile.fixed_bytes
        memory = tuple(held - fixed_bytes for held in plan.memory_bytes[0])
        timeline = TensorTimeline(view, tuple(plan.schedule.op_ids()), memory)
        needed = (working_set_bytes(problem, op) for op in problem.ops)
        least = tuple(need + cost.workspace_bytes for need, cost in zip(needed, costs, strict=True))
        needy = NeedyTimeline(view, least, timeline.order)
        return SplitProposer(timeline, needy, costs, limits, fixed_bytes, left=lambda: task.clock.left)

    def grant(self, seconds: float) -> None:
        """Let at least so many seconds be left, and every proposal take its share of as much more."""
        self.task.clock.grant(seconds)
        for each in (self.proposer, *filter(None, self.item_proposers)):
            each.grant(SEARCH_SHARE * seconds)

    @property
    def free_bytes(self) -> int:
        """What the budget leaves to activations and workspace."""
        return self.task.question.problem.memories[0].free_bytes

    @property
    def output_bytes(self) -> int:
        """What the model's outputs take, which are all there at the end however it is split."""
        return sum(tensor.size_bytes for tensor in self.task.whole.prepared.graph.tensors if tensor.kept)

    @property
    def is_step(self) -> bool:
        """Whether the model is a training step: what its gradients wait for can be made again."""
        return any(op.phase == "backward" for op in self.task.whole.prepared.graph.ops)

    @property
    def most_trials(self) -> int:
        """How many splits may be measured; fewer where that takes long."""
        return MOST_TRIALS if self.task.baseline_ns < LONG_NS else FEW_TRIALS

    def is_cheap(self, found: OneModel) -> bool:
        """Whether a plan costs so little that no other split need be tried."""
        return self.task.share_of(found) <= DEAR_PERCENT / 100

    def propose(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[SplitProposal, ...]:
        """Proposes splittings for so many bytes; none once the user has asked to stop.

        Where nothing fits, those of the model whose items run one by one, unless there is but a glance for it.
        """
        found = () if self.task.should_stop() else self.proposer.propose(free_bytes, most_seconds)
        is_glance = math.isfinite(most_seconds) and not self.item_proposers
        if found or is_glance or self.task.should_stop() or self.item_proposer is None:
            return found
        return self.item_proposer.propose(free_bytes, most_seconds)

    def propose_needy(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[SplitProposal, ...]:
        """The same for plans that make what waits beside tiles again."""
        return () if self.task.should_stop() else self.proposer.propose_needy(free_bytes, most_seconds)

    def propose_needy_bands(self, free_bytes: int) -> tuple[SplitProposal, ...]:
        """The same in bands, whose tiles are made again one by one."""
        return () if self.task.should_stop() else self.proposer.propose_needy_bands(free_bytes)

    def _proposes(self, form: SplitForm) -> Callable[[int], Sequence[SplitProposal]]:
        """What proposes splittings of a form."""
        asked = {"needy": self.propose_needy, "needy bands": self.propose_needy_bands}
        return asked.get(form, self.propose)

    def capped(self, most_bytes: int) -> Iterator[SplitProposal]:
        """Proposes a few splittings in which no tensor inside should be larger than that, the cheaper first."""
        return islice(self.proposer.capped(most_bytes, self.free_bytes), MOST_CAPPED)

    def problem_of(self, trial: SplitTrial) -> Problem:
        """A split model's own problem, within the budget of the whole one; constants of tiles come on top of 100 %."""
        question = self.task.question
        grown_bytes = trial.profile.fixed_bytes - self.task.whole.profile.fixed_bytes
        more = max(0, grown_bytes) if question.asks_for_all else 0
        return make_problem(trial.prepared.graph, trial.profile, question.budget_bytes + more)

    def build(self, proposal: SplitProposal, aim: float | None) -> BuiltTiles | None:
        """The split model, with the bits of the whole one: ops that change bits are left whole."""
        whole, request = self.task.whole.prepared, self.task.request
        may_reassociate = request.splits.allow_reassociation
        current: SplitProposal | None = proposal
        for _ in range(MOST_CULPRITS):
            if current is None or not current.regions:
                return None
            model = in_least_opset(split_model(current.view, current.order, current.parts), whole)
            if whole.layout is not None:
                model = with_sums_in_turn(marked(model, whole.layout), whole.layout)
            folder = Path(tempfile.mkdtemp(prefix="split_", dir=self.task.work))
            unlike = differing_in_layout(whole, model)
            culprit = next((each.name for each in whole.graph.ops if each.name in unlike), None)
            if culprit is None:
                with self.task.clock.running():
                    prepared = prepare_split(whole, model, request.conditions, folder, may_reassociate)
                if prepared is not None:
                    return BuiltTiles(current, model, prepared)
                with self.task.clock.running():
                    culprit = self._culprit(current, model, folder)
            if culprit is not None:
                self._forbid(current, culprit)
            elif not self._joins(current):
                return None
            if aim is None:
                return None
            others = self._proposes(proposal.form)(int(self.free_bytes * aim))
            current = next((other for other in others if other.form == proposal.form), None)
        return None

    def _culprit(self, proposal: SplitProposal, model: Any, folder: Path) -> str | None:
        """The name of the first op of a proposal whose tiles have other bits; of items that are apart, theirs first."""
        whole, request, apart = self.task.whole.prepared, self.task.request, proposal.apart
        may_reassociate = request.splits.allow_reassociation
        exposed = [ExposedTiles(proposal.view, model, proposal.parts, may_reassociate)]
        if apart is not None:
            items = ExposedTiles(apart.whole.view, apart.model, (apart.region,), may_reassociate)
            exposed = [items, replace(exposed[0], before=apart.model)]
        for each in exposed:
            culprit = find_culprit(each, whole, request.conditions, folder)
            if culprit is not None:
                return each.view.graph.ops[culprit].name
        return find_fused(model, folder / REFERENCE)

    def _forbid(self, proposal: SplitProposal, culprit: str) -> None:
        """Never cut an op again; items are put apart anew where they cannot be cut there either."""
        apart, item_proposer = proposal.apart, None if proposal.apart is None else self.item_proposer
        if apart is None or item_proposer is None:
            self.proposer.forbid(culprit)
        elif any(culprit == op.name for op in apart.cast.view.graph.ops):
            item_proposer.forbid(culprit)
        else:
            self.uncut_items.add(culprit)
            self.item_proposers.clear()

    def _joins(self, proposal: SplitProposal) -> bool:
        """Join tiles of such proposals from now on; False if that is so already."""
        item_proposer = None if proposal.apart is None else self.item_proposer
        return (item_proposer or self.proposer).forbid_fills()

    def record(self, proposal: SplitProposal) -> Splitting:
        """What a plan file says of a split."""
        whole, apart = self.task.whole, proposal.apart
        counts = [most_threads(proposal.view, proposal.parts)]
        if apart is not None:
            counts.append(most_threads(apart.whole.view, (apart.region,)))
        return Splitting(
            regions=proposal.regions,
            facts=proposal.facts,
            whole_sha256=whole.prepared.reference_sha256,
            whole_profile=whole.profile,
            whole_floor_bytes=whole.answer.run.floor.bytes,
            most_threads=least_of(counts),
        )


@dataclass(frozen=True)
class BuiltTiles:
    """A proposal as a model, before and after the runtime has optimised it."""

    proposal: SplitProposal
    model: Any
    prepared: Prepared


@dataclass(frozen=True)
class TileCandidate:
    """A proposal of tiles; where some of them have other bits, another one for the same `aim` takes its place.

    `tighter` plans for what holds less than it does; a plan takes `plan_share` of the time limit.
    """

    tiles: Tiles
    proposal: SplitProposal
    aim: float | None = None
    is_probe: bool = False
    plan_share: float = PLAN_SHARE
    tighter: Tighter | None = field(default=None, repr=False)

    def measure(self) -> SplitTrial | None:
        """Build and measure the split; None where it cannot be used."""
        built = self.tiles.build(self.proposal, self.aim)
        if built is None:
            return None
        task, prepared = self.tiles.task, built.prepared
        with task.clock.running():
            estimate = 1 + built.proposal.added_ns / task.baseline_ns
            profile = profile_split(prepared, task.whole, task.progress, task.clock.left, estimate)
        chosen = replace(self, proposal=built.proposal)
        return SplitTrial(chosen, prepared, profile, self.tiles.record(built.proposal), tiled=built.model)

    def plan(self, trial: SplitTrial) -> OneModel | Refused | None:
        """Plan and write it, and put it on the curve of its model; None where one op alone is beyond the budget."""
        task, problem = self.tiles.task, self.tiles.problem_of(trial)
        if working_set_floor(problem).bytes[0] > problem.memories[0].budget_bytes + task.question.room_bytes:
            return None
        found = task.plan(trial, problem, task.request.search.share(self.plan_share), _lower)
        if isinstance(found, Refused):
            return found
        found = replace(found, splitting=as_planned(trial.splitting, found), tighter=self.tighter)
        if found.whole.runnable is None and keep_tiles(found, trial.tiled, trial.splitting, task.request):
            keep_plan(found, task.request)
        return found


def inside_above(graph: Graph, most_bytes: int) -> tuple[LargeTensor, ...]:
    """Tensors inside a model that are larger than a cap."""
    return tuple(each for each in large_tensors(graph, most_bytes) if each.kind == "inside")


def as_planned(splitting: Splitting, found: OneModel) -> Splitting:
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


def _lower(found: BudgetAnswer) -> BudgetAnswer:
    """The answer with the order of tiles, where that holds less and takes no longer."""
    if found.plan is None:
        return found
    tiles: Plan = baseline(found.question.problem)
    is_better = tiles.time_ns <= found.plan.time_ns and tiles.peak < found.plan.peak
    return found.with_plan(tiles) if is_better else found
