"""Models split into tiles, regions or bands: how a proposal is built with the same bits, measured and planned."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.prepare import Prepared, op_threads
from remat_cli.compiling.search.kept_curve import keep_plan, keep_tiles
from remat_cli.compiling.search.loop import SplitTask, SplitTrial, Tighter
from remat_cli.compiling.search.split_model import (
    ExposedTiles,
    differing_in_layout,
    find_culprit,
    in_least_opset,
    prepare_split,
    profile_split,
    raised_model,
)
from remat_cli.compiling.solve import BudgetAnswer
from remat_cli.core.schedule.floor import working_set_bytes, working_set_floor
from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.schedule.problem import Problem, make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.schedule.splits import LargeTensor, Splitting, large_tensors, regions_of_ops
from remat_cli.onnx_io.write.markers import marked, with_sums_in_turn
from remat_cli.splitting.tiles.build import split_model
from remat_cli.splitting.tiles.propose import SplitProposal, SplitProposer
from remat_cli.splitting.tiles.search import SplitLimits
from remat_cli.splitting.tiles.timeline import NeedyTimeline, TensorTimeline
from remat_cli.splitting.tiles.view import view_model

WHOLE_SHARE, SEARCH_SHARE = 0.3, 0.3  # of the time limit: for plans of whole ops, for the search for regions
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
        plan = task.question.baseline
        memory = tuple(held - whole.profile.fixed_bytes for held in plan.memory_bytes[0])
        limits = SplitLimits(
            most_tiles=splits.max_tiles,
            axis=splits.axis,
            may_fill=raised is not None,
            seconds=SEARCH_SHARE * task.request.search.limits.seconds,
        )
        timeline = TensorTimeline(view, tuple(plan.schedule.op_ids()), memory)
        problem, costs = task.question.problem, whole.profile.ops
        needed = (working_set_bytes(problem, op) for op in problem.ops)
        least = tuple(need + cost.workspace_bytes for need, cost in zip(needed, costs, strict=True))
        needy, fixed_bytes = NeedyTimeline(view, least, timeline.order), whole.profile.fixed_bytes
        return SplitProposer(timeline, needy, costs, limits, fixed_bytes, left=lambda: task.clock.left)

    @property
    def free_bytes(self) -> int:
        """What the budget leaves to activations and workspace."""
        return self.task.question.problem.memories[0].free_bytes

    @property
    def output_bytes(self) -> int:
        """What the model's outputs take, which are all there at the end however it is split."""
        return sum(tensor.size_bytes for tensor in self.task.whole.prepared.graph.tensors if tensor.kept)

    @property
    def most_trials(self) -> int:
        """How many splits may be measured; fewer where that takes long."""
        return MOST_TRIALS if self.task.question.baseline.time_ns < LONG_NS else FEW_TRIALS

    def is_cheap(self, found: OneModel) -> bool:
        """Whether a plan costs so little that no other split need be tried."""
        return found.plan.time_ns <= self.task.question.baseline.time_ns * (1 + DEAR_PERCENT / 100)

    def propose(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[SplitProposal, ...]:
        """Proposes splittings for so many bytes; none once the user has asked to stop."""
        return () if self.task.should_stop() else self.proposer.propose(free_bytes, most_seconds)

    def propose_needy(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[SplitProposal, ...]:
        """The same for plans that make what waits beside tiles again."""
        return () if self.task.should_stop() else self.proposer.propose_needy(free_bytes, most_seconds)

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
            culprit = min((op for op, each in enumerate(whole.graph.ops) if each.name in unlike), default=None)
            if culprit is None:
                with self.task.clock.running():
                    prepared = prepare_split(whole, model, request.conditions, folder, may_reassociate)
                if prepared is not None:
                    return BuiltTiles(current, model, prepared)
                exposed = ExposedTiles(current.view, model, current.parts, may_reassociate)
                with self.task.clock.running():
                    culprit = find_culprit(exposed, whole, request.conditions, folder)
            if culprit is not None:
                self.proposer.forbid(current, culprit)
            elif not self.proposer.forbid_fills():
                return None
            if aim is None:
                return None
            others = (self.propose_needy if proposal.form == "needy" else self.propose)(int(self.free_bytes * aim))
            current = next((other for other in others if other.form == proposal.form), None)
        return None

    def record(self, proposal: SplitProposal) -> Splitting:
        """What a plan file says of a split."""
        whole = self.task.whole
        return Splitting(
            regions=proposal.regions,
            facts=proposal.facts,
            whole_sha256=whole.prepared.reference_sha256,
            whole_profile=whole.profile,
            whole_floor_bytes=whole.answer.run.floor.bytes,
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

    `tighter` plans for what holds less than it does.
    """

    tiles: Tiles
    proposal: SplitProposal
    aim: float | None = None
    is_probe: bool = False
    tighter: Tighter | None = field(default=None, repr=False)

    def measure(self) -> SplitTrial | None:
        """Build and measure the split; None where it cannot be used."""
        built = self.tiles.build(self.proposal, self.aim)
        if built is None:
            return None
        task, prepared = self.tiles.task, built.prepared
        with task.clock.running():
            profile = profile_split(prepared, task.whole, task.progress, task.clock.left)
        chosen = replace(self, proposal=built.proposal)
        return SplitTrial(chosen, prepared, profile, self.tiles.record(built.proposal), tiled=built.model)

    def plan(self, trial: SplitTrial) -> OneModel | Refused | None:
        """Plan and write it, and put it on the curve of its model; None where one op alone is beyond the budget."""
        task, problem = self.tiles.task, self.tiles.problem_of(trial)
        if working_set_floor(problem).bytes[0] > problem.memories[0].budget_bytes + task.question.room_bytes:
            return None
        found = task.plan(trial, problem, task.request.search.share(1 - WHOLE_SHARE - SEARCH_SHARE), _lower)
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
