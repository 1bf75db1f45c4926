"""A model for all sizes of a family: large tensors never whole, one plan at the largest sizes, the same file for all.

Dimensions are learnt from runs at small sizes and checked at the largest. Regions that hold large tensors run in a
Loop; how many, in how many tiles, is decided by estimate, then measured.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base import progress as stages
from remat_cli.base.processes import available_cores
from remat_cli.base.progress import Progress
from remat_cli.base.units import format_bytes
from remat_cli.compiling.ask import CompileRequest
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.search.family_dims import dims_of_all
from remat_cli.compiling.search.family_loops import prepare_loops
from remat_cli.compiling.search.split_model import profile_split
from remat_cli.compiling.search.tables import with_positions_looked_up
from remat_cli.compiling.solve import BudgetQuestion, answer
from remat_cli.compiling.write import write_within_budget
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.schedule.loops import loop_name
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.solver_run import Status
from remat_cli.core.schedule.splits import Region, RegionFacts, Splitting
from remat_cli.core.values.family import told
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.core.values.sizes import SizeFamily
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.splitting.loops.expands import without_expands
from remat_cli.splitting.loops.known_shapes import with_known_shapes
from remat_cli.splitting.loops.loop_bits import Tiling, kinds_of, proved_part, refusal
from remat_cli.splitting.loops.loop_estimate import LoopEstimate
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, find_loops
from remat_cli.splitting.loops.loops import looped
from remat_cli.splitting.loops.open_shapes import with_open_shapes
from remat_cli.splitting.loops.window_bits import window_refusal
from remat_cli.splitting.loops.window_estimate import halo_percent
from remat_cli.splitting.loops.window_regions import find_windows
from remat_cli.splitting.tiles.view import ModelView, view_model

MOST_TILES = 512
LEAST_SHARE = 1 / 64  # of the peak: smaller tensors are not worth a loop
MOST_TRIALS = 3
MOST_LEAST_TRIALS = 6  # for `min`, each measured
MOST_TOLD = 4  # refused tiles for which a shorter range is looked for
LEAST_STEP_SHARE = 0.03  # less than the last trial is worth another
ROW_STEP = 64
THREADS = 8  # bits hold on up to so many, or on as many as there are


@dataclass(frozen=True)
class _Rung:
    """Regions in loops, their tiles, and what is held at the largest sizes by estimate.

    `launches` is how many ops the loops run in all, which is what tiles cost.
    """

    regions: tuple[LoopRegion, ...]
    tilings: tuple[Tiling, ...]
    peak_bytes: int
    launches: int


@dataclass(frozen=True)
class FamilyPlanner:
    """Plans one model for many sizes; `whole` is the plan without loops, `began` when the whole search began."""

    whole: OneModel | Refused
    question: BudgetQuestion
    request: CompileRequest
    work: Path
    progress: Progress
    began: float = field(default_factory=time.monotonic)

    def best(self) -> OneModel | Refused:
        """The plan with the fewest tiles that fits; for `min` the one that holds least and takes no longer than it may.

        Of plans that all take longer than the user allows, the fastest, which is for the caller to refuse.
        """
        found = self._best()
        return self._with_dims(found) if isinstance(found, OneModel) and found.splitting is None else found

    def _with_dims(self, found: OneModel) -> OneModel:
        """A plan that knows its tensors' dimensions for all sizes, beside those that it knows."""
        path = found.prepared.reference_path
        return replace(found, dims=dims_of_all(found.prepared, path, self._family, found.dims or {}))

    def _best(self) -> OneModel | Refused:
        whole, least = self.whole, self.question.least
        if isinstance(whole, OneModel) and not least and self._is_allowed(whole):
            return whole
        self.progress.stage(stages.SPLITTING)
        lowest = min((rung.peak_bytes for rung in self._rungs), default=0)
        found = self._least() if least else self._within(max(lowest, self.question.budget_bytes))
        if found is None:
            return self._not_found()
        return min(whole, found, key=self._rank) if isinstance(whole, OneModel) else found

    def _rank(self, planned: OneModel) -> int:
        """Less is better: memory for `min`, time otherwise."""
        return planned.written.plan.peak if self.question.least else planned.plan.time_ns

    def _is_allowed(self, planned: OneModel) -> bool:
        return self.request.search.allows(planned.plan.time_ns, self.question)

    def _least(self) -> OneModel | None:
        """The loops that hold least of those whose plan takes no longer than it may, by bisection from the lowest on.

        Measured, loops that hold less hardly ever take less time.
        """
        ladder = self._ladder()
        best, low, high = None, 0, len(ladder) - 1
        for probe in range(MOST_LEAST_TRIALS):
            if low > high or self.progress.should_stop():
                break
            place = (low + high) // 2 if probe else high
            found = self._plan(ladder[place])
            if isinstance(found, OneModel) and self._is_allowed(found):
                best, low = found, place + 1
            else:
                high = place - 1
        return None if best is None else self._with_dims(best)

    def _ladder(self) -> list[_Rung]:
        """Rungs that hold ever less; none of which another one holds no more and launches no more ops."""
        found: list[_Rung] = []
        for rung in sorted(self._rungs, key=lambda each: (each.peak_bytes, each.launches)):
            if not found or rung.launches < found[-1].launches:
                found.append(rung)
        return found[::-1]

    def _within(self, most_bytes: int) -> OneModel | None:
        """The plan with the fewest tiles that fits, of those that hold at most so many bytes by estimate."""
        for _ in range(MOST_TRIALS):
            if self.progress.should_stop():
                return None
            fitting = [rung for rung in self._rungs if rung.peak_bytes <= most_bytes]
            if not fitting:
                return None
            rung = min(fitting, key=lambda each: (each.launches, each.peak_bytes))
            most_bytes = int(rung.peak_bytes * (1 - LEAST_STEP_SHARE))
            found = self._plan(rung)
            if isinstance(found, OneModel):
                return replace(self._with_dims(found), tighter=partial(self._within, most_bytes))
        return None

    def _not_found(self) -> OneModel | Refused:
        """The plan without loops; that none of these fits proves nothing of loops that were not tried."""
        whole = replace(self.whole, obstacle=None if self.progress.should_stop() else self._obstacle())
        if whole.answer.run.status is not Status.INFEASIBLE:
            return whole
        return replace(whole, answer=replace(whole.answer, run=replace(whole.answer.run, status=Status.NOT_FOUND)))

    @property
    def _family(self) -> SizeFamily:
        family = self.request.conditions.family
        assert family is not None
        return family

    @cached_property
    def sized(self) -> SizedView:
        """The model at its largest sizes, with dimensions for all sizes, without what its ops can do without."""
        prepared = self.whole.prepared
        threads = max(THREADS, self.request.conditions.intra_op_threads or available_cores())
        dims = dims_of_all(prepared, prepared.reference_path, self._family)
        lean = with_known_shapes(without_expands(prepared.reference, dims), dims)
        least_bytes = LEAST_SHARE * self.question.baseline.peak
        large = {tensor.name for tensor in prepared.graph.tensors if tensor.size_bytes >= least_bytes}
        opened = with_open_shapes(lean, dims, prepared.conditions.dims, large)
        types = {**prepared.facts.types, **opened.types}
        view = self._view(opened.model, types, threads)
        tabled = with_positions_looked_up(view.model, dims, self._family, prepared, self.work)
        view = view if tabled is view.model else self._view(tabled, types, threads)
        return SizedView(view, {**dims, **opened.dims})

    def _view(self, lean: Any, types: dict[str, tuple[TensorType, ...]], threads: int) -> ModelView:
        prepared = self.whole.prepared
        graph = prepared.graph if lean is prepared.reference else to_graph(lean, types)
        return view_model(lean, graph, prepared.layout_block, threads)

    @cached_property
    def _profile(self) -> Profile:
        """What its ops cost as they are."""
        costs = {op.name: cost for op, cost in zip(self.whole.prepared.graph.ops, self.whole.profile.ops, strict=True)}
        ops = tuple(costs.get(op.name, OpCost(op.name, 0)) for op in self.sized.view.graph.ops)
        return msgspec.structs.replace(self.whole.profile, ops=ops)

    @cached_property
    def _rungs(self) -> tuple[_Rung, ...]:
        return tuple(self._all_rungs())

    def _all_rungs(self) -> Iterator[_Rung]:
        """Loops around ever smaller tensors, in ever more tiles, that hold less than the whole by estimate."""
        peak = self.question.baseline.peak
        sizes = sorted({size for size in self.sized.sizes.values() if size >= LEAST_SHARE * peak}, reverse=True)
        for least_bytes in sizes:
            if self.progress.should_stop():
                return
            loops = find_loops(self.sized, least_bytes)
            taken = {op for region in loops for op in region.ops}
            windows = find_windows(self.sized, least_bytes, taken)
            for regions in (loops, [*loops, *windows] if windows else []):
                yield from (rung for rung in self._rungs_of(regions) if rung.peak_bytes < peak)

    def _rungs_of(self, regions: Sequence[LoopRegion]) -> Iterator[_Rung]:
        """The same regions in ever more tiles."""
        before, tiles = None, 2
        while regions and tiles <= MOST_TILES:
            rung = self._rung(regions, tiles)
            if rung is not None and before is not None and rung.tilings == before.tilings:
                break  # more tiles are too short for their bits to be proved
            if rung is not None:
                yield rung
            before = rung
            tiles *= 2

    def _rung(self, regions: Sequence[LoopRegion], tiles: int) -> _Rung | None:
        chosen = [(region, self._finest(region, tiles)) for region in regions]
        proved = [(region, tiling) for region, tiling in chosen if tiling is not None]
        if not proved:
            return None
        regions, tilings = zip(*proved, strict=True)
        estimate = LoopEstimate(self.sized, tuple(regions), tuple(tilings), self._profile)
        pairs = zip(regions, tilings, strict=True)
        launches = sum(-(-self._length(region) // tiling.rows) * len(region.ops) for region, tiling in pairs)
        return _Rung(tuple(regions), tuple(tilings), estimate.peak_bytes, launches)

    def _finest(self, region: LoopRegion, tiles: int) -> Tiling | None:
        """So many tiles, or the most below that whose bits are proved."""
        counts = (tiles >> halved for halved in range(tiles.bit_length() - 1))
        return next((found for count in counts if (found := self._tiling(region, count)) is not None), None)

    def _tiling(self, region: LoopRegion, tiles: int) -> Tiling | None:
        """Tiles of as many rows as so many of the largest size have, in whole steps; None where bits may differ."""
        length = self._length(region)
        rows = -(-length // tiles)
        rows = -(-rows // ROW_STEP) * ROW_STEP if rows >= ROW_STEP else rows
        key = (self._kind(region), rows)
        if key not in self._proofs:
            is_whole = rows >= length
            is_refused = not is_whole and self._refusal(region, Tiling(rows)) is not None
            if is_refused:
                self._refused.append((region, Tiling(rows)))
            self._proofs[key] = not (is_whole or is_refused)
        return Tiling(rows) if self._proofs[key] else None

    def _refusal(self, region: LoopRegion, tiling: Tiling) -> tuple[int, Mapping[str, int]] | None:
        """The op, and a size, of which tiles may have other bits."""
        look = refusal if region.windows is None else window_refusal
        return look(self.sized, region, tiling, self._family)

    def _obstacle(self) -> str | None:
        """Which tiles were refused for their bits though they would have fitted, and for which sizes they are not.

        Where none of the refused ones would, what the others hold; None: none was refused.
        """
        if not self._refused:
            return None
        wanted = next((each for each in self._refused if self._would_fit(*each)), None)
        if wanted is None:
            lowest_bytes = min(rung.peak_bytes for rung in self._rungs)
            return f"in the tiles that were tried the model needs {format_bytes(lowest_bytes)} at least, by estimate"
        region, tiling = wanted  # the largest tensor, in the fewest tiles
        found = self._refusal(region, tiling)
        if found is None:
            return None
        op, sizes = found
        text = f"tiles of op {self.sized.view.graph.ops[op].name} may have other bits at {told(sizes)}"
        loops = [each for each in self._refused if each[0].windows is None]
        parts = (proved_part(self.sized, *refused, self._family) for refused in loops[:MOST_TOLD])
        ranges = [
            each for part in parts if part is not None for each in part.ranges if each.name == region.length.symbol
        ]
        if not ranges:
            return text
        widest = max(ranges, key=lambda each: each.high)
        return f"{text}; some are proved to have the same for --dim {widest}"

    def _would_fit(self, region: LoopRegion, tiling: Tiling) -> bool:
        """Whether refused tiles would hold little enough, by estimate, with the finest proved ones beside them.

        All regions of the same kind are cut alike.
        """
        if not self._rungs:
            return True
        rising = sorted(self._rungs, key=lambda each: each.launches)
        finest = {tuple(tuple(each.ops) for each in rung.regions): rung for rung in rising}
        needed_bytes = min(self._with_refused(rung, region, tiling) for rung in finest.values())
        lowest_bytes = min(rung.peak_bytes for rung in self._rungs)
        return needed_bytes < lowest_bytes if self.question.least else needed_bytes <= self.question.budget_bytes

    def _with_refused(self, rung: _Rung, region: LoopRegion, tiling: Tiling) -> int:
        """What regions of a rung would hold, by estimate, together with one in tiles that were refused."""
        pairs = [(region, tiling)]
        for other, proved in zip(rung.regions, rung.tilings, strict=True):
            if not set(other.ops) & set(region.ops):
                pairs.append((other, tiling if self._kind(other) == self._kind(region) else proved))
        regions, tilings = zip(*pairs, strict=True)
        return LoopEstimate(self.sized, regions, tilings, self._profile).peak_bytes

    @cached_property
    def _refused(self) -> list[tuple[LoopRegion, Tiling]]:
        return []

    def _kind(self, region: LoopRegion) -> object:
        """What regions have in common whose proofs are the same, such as those of all layers."""
        ops = frozenset(region.ops)
        if ops not in self._kinds:
            kinds = ops if region.windows is not None else frozenset(kinds_of(self.sized, region))
            self._kinds[ops] = region.length, kinds
        return self._kinds[ops]

    @cached_property
    def _kinds(self) -> dict[frozenset[int], object]:
        return {}

    @cached_property
    def _proofs(self) -> dict[object, bool]:
        return {}

    def _plan(self, rung: _Rung) -> OneModel | Refused | None:
        """Write the loops, see that bits are those of the whole, measure and plan; None where Ctrl-C ends that."""
        with stages.giving_way(self.progress):
            return self._planned(rung)
        return None

    def _planned(self, rung: _Rung) -> OneModel | Refused | None:
        whole, request = self.whole.prepared, self.request
        folder = Path(tempfile.mkdtemp(prefix="loops_", dir=self.work))
        model = looped(self.sized, rung.regions, rung.tilings)
        prepared = prepare_loops(whole, model.model, folder)
        if prepared is None:
            return None
        profile = self._with_buffers(profile_split(prepared, self.whole, self.progress), rung)
        problem = make_problem(prepared.graph, profile, self.question.problem.memories[0].budget_bytes)
        asked = replace(self.question, problem=problem, names=tuple(op.name for op in prepared.graph.ops))
        solving = time.monotonic()
        first = replace(
            self.whole.refused(answer(asked, request.search, self.progress)),
            prepared=prepared,
            platform=self.whole.platform.of_model(prepared.graph, profile),
            splitting=self._record(rung),
            dims=model.dims,
        )
        found = write_within_budget(first, request.search, self.progress)
        return found.solved_since(solving).searched_since(self.began)

    def _with_buffers(self, profile: Profile, rung: _Rung) -> Profile:
        """Costs in which tiles of windows may take what a kernel takes for itself, which counters do not see there."""
        buffers = {
            loop_name(self.sized.view.graph.ops[min(region.own)].name): max(
                self._profile.ops[op].workspace_bytes for op in region.own
            )
            for region in rung.regions
            if region.windows is not None
        }
        ops = (
            msgspec.structs.replace(cost, workspace_bytes=cost.workspace_bytes + buffers.get(cost.name, 0))
            for cost in profile.ops
        )
        return msgspec.structs.replace(profile, ops=tuple(ops))

    def _record(self, rung: _Rung) -> Splitting:
        whole = self.whole
        pairs = list(zip(rung.regions, rung.tilings, strict=True))
        return Splitting(
            regions=tuple(_region(self.sized, region, tiling, self._length(region)) for region, tiling in pairs),
            facts=tuple(self._facts(region, tiling, rung) for region, tiling in pairs),
            whole_sha256=whole.prepared.reference_sha256,
            whole_profile=whole.profile,
            whole_floor_bytes=whole.answer.run.floor.bytes,
        )

    def _facts(self, region: LoopRegion, tiling: Tiling, rung: _Rung) -> RegionFacts:
        before, halo = self.whole.answer.question.baseline.peak, halo_percent(self.sized, region, tiling)
        return RegionFacts(self._length(region), halo, before, rung.peak_bytes, 0, 0)

    def _length(self, region: LoopRegion) -> int:
        return region.length.at(self.request.conditions.dims)


def _region(sized: SizedView, region: LoopRegion, tiling: Tiling, length: int) -> Region:
    names = [name for op in sorted(region.ops) for name in sized.view.makes[op] if name]
    exits = [name for name in names if any(reader not in region.ops for reader in sized.view.readers[name])]
    exits += [name for name in names if name in sized.kept and name not in exits]
    return Region(
        ops=tuple(sized.view.graph.ops[op].name for op in sorted(region.ops)),
        exits=tuple(exits),
        axes=tuple(region.axes[name] for name in exits),
        tiles=-(-length // tiling.rows),
    )
