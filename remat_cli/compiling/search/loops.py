"""Loops in a model for all sizes of a family: which regions, in how many tiles; how they are built and planned.

Dimensions are learnt from runs at small sizes and checked at the largest. Regions that hold large tensors run in a
Loop; what they hold is estimated here.
"""

import contextlib
import itertools
import math
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.clock import SearchClock, SearchOver
from remat_cli.base.present import present
from remat_cli.base.units import format_bytes
from remat_cli.compiling.planned import OneModel, Refused
from remat_cli.compiling.prepare import Prepared, op_threads
from remat_cli.compiling.process.steady import known_dims
from remat_cli.compiling.search.family_dims import dims_of_all
from remat_cli.compiling.search.family_loops import prepare_loops
from remat_cli.compiling.search.loop import SplitTask, SplitTrial, Tighter
from remat_cli.compiling.search.rungs import Refusal, Rung, RungLadder, ladder_of
from remat_cli.compiling.search.split_model import profile_split, with_sequences
from remat_cli.compiling.search.tables import with_positions_looked_up
from remat_cli.compiling.search.tiles import inside_above
from remat_cli.core.schedule.graph import TensorType
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.splits import Region, RegionFacts, Splitting
from remat_cli.core.values.family import told
from remat_cli.core.values.profile import OpCost, Profile
from remat_cli.core.values.sizes import SizeFamily, SizeRange
from remat_cli.onnx_io.read.to_graph import to_graph
from remat_cli.onnx_io.sizes.value_lengths import value_lengths
from remat_cli.onnx_io.write.opset import BOUNDS_SINCE, opset_of, with_computed_bounds
from remat_cli.splitting.loops.batch_regions import batches_of, find_batches
from remat_cli.splitting.loops.expands import without_expands
from remat_cli.splitting.loops.flattened import without_flattening
from remat_cli.splitting.loops.handed import find_handed
from remat_cli.splitting.loops.known_numbers import with_known_numbers
from remat_cli.splitting.loops.known_shapes import with_known_shapes
from remat_cli.splitting.loops.loop_bits import (
    Tiling,
    kinds_of,
    may_be_longer,
    most_threads_of,
    ops_alike,
    proved_part,
    refusal,
    rows_together,
)
from remat_cli.splitting.loops.loop_estimate import LoopEstimate
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, find_loops
from remat_cli.splitting.loops.loops import looped
from remat_cli.splitting.loops.obstacles import what_is_whole
from remat_cli.splitting.loops.open_shapes import with_open_shapes
from remat_cli.splitting.loops.shifts import with_shifts_as_picks
from remat_cli.splitting.loops.short_sizes import short_sizes, single_sizes
from remat_cli.splitting.loops.windows.window_bits import window_refusal
from remat_cli.splitting.loops.windows.window_estimate import halo_percent
from remat_cli.splitting.loops.windows.window_regions import find_windows
from remat_cli.splitting.recast.apart_sizes import with_ops_apart
from remat_cli.splitting.recast.taken_branches import with_taken_branches
from remat_cli.splitting.recast.turns import without_turns
from remat_cli.splitting.tiles.view import ModelView, view_model

MOST_TILES = 512
LEAST_SHARE = 1 / 64  # of the peak: smaller tensors are not worth a loop
SMALL_SHARE = 1 / 64  # of that: shapes of smaller ones are computed as they were
MOST_BARRED = 6  # times that regions are found anew around ops whose bits are not proved
PROVING_SHARE = 0.6  # of the time that is left, for loops whose bits are proved: those are then built
FINDING_SHARE = 0.5  # of that time, for finding where loops may be
TELL_SECONDS = 2.0  # for finding out what to tell of why there is no plan
ROW_STEP = 64
THREADS = 8  # that files for many sizes bear, where there are loops that do


@dataclass(frozen=True)
class Loops:
    """Finds and builds loops of one model for many sizes; tiles bear so many `threads`, or as many as are here."""

    task: SplitTask
    threads: int = THREADS

    def ladder(self) -> list[Rung]:
        """Rungs that hold ever less; none of which another one holds no more and takes no longer."""
        return self._proved(ladder_of)

    def fitting(self, most_bytes: int) -> Rung | None:
        """Of the rungs that hold so little the one that takes the least time."""
        found = self._proved(lambda rungs: [each for each in rungs if each.peak_bytes <= most_bytes][:1], most_bytes)
        return next(iter(found), None)

    def lowest(self) -> Rung | None:
        """The rung that holds least."""
        return next(iter(self._proved(lambda rungs: sorted(rungs, key=lambda each: each.peak_bytes)[:1])), None)

    def with_dims(self, found: OneModel) -> OneModel:
        """A plan that knows its tensors' dimensions for all sizes, beside those that it knows."""
        path = found.prepared.reference_path
        return replace(found, dims=dims_of_all(found.prepared, path, self._family, found.dims or {}))

    @property
    def cap_bytes(self) -> float:
        """How large a tensor that an op makes may be, outputs apart."""
        most = self.task.request.splits.max_tensor_bytes
        return math.inf if most is None else most

    def keeps_cap(self, found: OneModel | Refused) -> bool:
        """Whether no tensor of a plan's model is above the cap on them."""
        return self.cap_bytes == math.inf or not inside_above(found.prepared.graph, int(self.cap_bytes))

    @property
    def most_bytes(self) -> float:
        """How much a plan may hold on this machine, which must run it; any number where that runs the whole model."""
        runnable = self.task.whole.prepared.runnable
        return math.inf if runnable is None else runnable.most_bytes

    def _cuts_all_large(self, rung: Rung) -> bool:
        """Whether loops leave no tensor above the cap, whole or in a tile."""
        view, owner = self.sized.view, {op: at for at, region in enumerate(rung.regions) for op in region.own}
        for name, size in self.sized.sizes.items():
            if size <= self.cap_bytes or name not in self.sized.makers or name in self.sized.kept:
                continue
            at = owner.get(self.sized.makers[name])
            if at is None or not rung.regions[at].ops.issuperset(view.readers[name]):
                return False
            if size * rung.tilings[at].rows > self.cap_bytes * self._length(rung.regions[at]):
                return False
        return True

    def twin(self, rung: Rung | None) -> Path | None:
        """A file of the same model in other tiles than these, or in any, that this machine runs at the largest sizes.

        None where that runs the original itself, or where there is none.
        """
        whole = self.task.whole.prepared
        if whole.runnable is None:
            return None
        for other in self._other_tiles(rung):
            key = tuple(
                (frozenset(each.ops), tiling) for each, tiling in zip(other.regions, other.tilings, strict=True)
            )
            if key not in self._twins:
                folder = Path(tempfile.mkdtemp(prefix="twin_", dir=self.task.work))
                model = looped(self.sized, other.regions, other.tilings).model
                with self.task.clock.running():
                    self._twins[key] = prepare_loops(whole, model, folder)
            if (found := self._twins[key]) is not None:
                return found.reference_path
        return None

    @cached_property
    def _twins(self) -> dict[object, Prepared | None]:
        """Tiles that were built to be compared with, by what they are."""
        return {}

    def _other_tiles(self, rung: Rung | None) -> Iterator[Rung]:
        """Half the rows, then twice as many, as far as bits are proved; without tiles those in the fewest that fit."""
        if rung is None:
            fitting = self.fitting(int(self.most_bytes))
            yield from () if fitting is None else (fitting,)
            return
        sized = replace(self.sized, look=SearchClock(TELL_SECONDS).look)  # of their own: that of the search may be over
        for multiple in (Fraction(1, 2), Fraction(2)):
            with contextlib.suppress(SearchOver):
                pairs = list(zip(rung.regions, rung.tilings, strict=True))
                tilings = tuple(self._other_rows(sized, region, tiling, multiple) for region, tiling in pairs)
                peak_bytes = LoopEstimate(sized, rung.regions, tilings, self._profile).peak_bytes
                if tilings != rung.tilings and peak_bytes <= self.most_bytes:
                    yield Rung(rung.regions, tilings, peak_bytes, rung.extra_ns)

    def _other_rows(self, sized: SizedView, region: LoopRegion, tiling: Tiling, multiple: Fraction) -> Tiling:
        """Tiles of a multiple of the rows, or the same where these are not proved to have the same bits."""
        rows = _in_steps(max(1, int(tiling.rows * multiple)), tiling.together)
        other = Tiling(rows, tiling.together)
        is_tiled = other.rows < self._length(region)
        return other if is_tiled and self._other_bits(sized, region, other) is None else tiling

    @property
    def _family(self) -> SizeFamily:
        return present(self.task.request.conditions.family, "the sizes of a model for many")

    @cached_property
    def sized(self) -> SizedView:
        """The model at its largest sizes, with dimensions for all sizes, without what its ops can do without."""
        prepared = self.task.whole.prepared
        with self.task.clock.running():
            dims = dims_of_all(prepared, prepared.reference_path, self._family)
            reference = with_sequences(prepared, self.task.request.conditions, self.task.work)
        reference = reference or with_computed_bounds(prepared.reference, prepared.graph) or prepared.reference
        from_values = value_lengths(reference, prepared.graph.shapes)
        sure = {name: each for name, each in dims.items() if name not in from_values}
        lean = with_known_numbers(with_known_shapes(without_expands(reference, sure), sure, self._family), sure)
        least_bytes, tensors = LEAST_SHARE * self.task.question.baseline.peak, prepared.graph.tensors
        large = {tensor.name for tensor in tensors if tensor.size_bytes >= least_bytes}
        most = prepared.conditions.dims
        flat = without_flattening(with_taken_branches(lean), dims, prepared.facts.types, most)
        dims, types = {**dims, **flat.dims}, {**prepared.facts.types, **flat.types}
        straight = without_turns(flat.model, dims, types)
        dims, types = {**dims, **straight.dims}, {**types, **straight.types}
        picked = with_shifts_as_picks(straight.model, dims, self._family, most, large)
        if batches_of(picked.model, dims):  # loops along these are of ops around any tensor
            large = {tensor.name for tensor in tensors if tensor.size_bytes >= least_bytes * SMALL_SHARE}
        dims, types = {**dims, **picked.dims}, {**types, **picked.types}
        view = self._view(picked.model, types)
        apart = with_ops_apart(view, dims, self._known_costs, int(least_bytes), self._family.least)
        dims, types = {**dims, **apart.dims}, {**types, **apart.types}
        sure = {name: each for name, each in dims.items() if name not in from_values}
        opened = with_open_shapes(apart.model, sure, self._family, large)
        types = {**types, **opened.types}
        view = self._view(opened.model, types)
        with self.task.clock.running():
            tabled = with_positions_looked_up(view.model, dims, self._family, prepared, self.task.work)
        view = view if tabled is view.model else self._view(tabled, types)
        with self.task.clock.running():
            told = known_dims(prepared.reference, prepared.graph, prepared.conditions)
        return SizedView(view, {**dims, **opened.dims}, self._clock.look, told, apart.costs)

    def _view(self, lean: Any, types: dict[str, tuple[TensorType, ...]]) -> ModelView:
        prepared, threads = self.task.whole.prepared, op_threads(self.task.request.conditions)
        graph = prepared.graph if lean is prepared.reference else to_graph(lean, types)
        view = view_model(lean, graph, prepared.layout_block, max(self.threads, threads), own_threads=threads)
        return replace(view, is_portable=self.task.request.conditions.portable)

    @cached_property
    def _profile(self) -> Profile:
        """What its ops cost as they are."""
        costs = {**self._known_costs, **self.sized.costs}
        ops = tuple(costs.get(op.name, OpCost(op.name, 0)) for op in self.sized.view.graph.ops)
        return msgspec.structs.replace(self.task.whole.profile, ops=ops)

    @property
    def _known_costs(self) -> dict[str, OpCost]:
        """What ops of the whole model cost, by name."""
        whole = self.task.whole
        return {op.name: cost for op, cost in zip(whole.prepared.graph.ops, whole.profile.ops, strict=True)}

    @property
    def rungs(self) -> list[Rung]:
        """All that are proved so far."""
        return [rung for rung in self._rungs() if self._is_proved(rung)]

    def _proved(self, choose: Callable[[list[Rung]], list[Rung]], most_bytes: int = -1) -> list[Rung]:
        """What is chosen of the rungs once the bits of its tiles are proved; where some are refused it is chosen anew.

        Proofs take most of the time, so that only what is chosen is proved. When time is over it is chosen of the
        rungs that are proved by then.
        """
        with contextlib.suppress(SearchOver):
            for ladder in self._new_ladders:
                self._ladders.append(ladder)
        with contextlib.suppress(SearchOver):
            while True:
                chosen = choose(self._rungs(most_bytes))
                if all(self._holds(rung) for rung in chosen):
                    return chosen
        return choose([rung for rung in self._rungs(most_bytes) if self._is_proved(rung)])

    def _rungs(self, most_bytes: int = -1) -> list[Rung]:
        """Rungs of which no tiles are refused so far, those first that take the least time.

        Of each ladder none after the first one that holds so little.
        """
        found = list[Rung]()
        for ladder in self._ladders:
            for rung in self._rungs_of(ladder):
                found.append(rung)
                if rung.peak_bytes <= most_bytes:
                    break
        return sorted(found, key=lambda each: (each.extra_ns, each.peak_bytes))

    def _is_proved(self, rung: Rung) -> bool:
        """Whether the bits of all its tiles are proved, without finding out."""
        pairs = zip(rung.regions, rung.tilings, strict=True)
        return all(self._proofs.get((self._kind(region), tiling.rows)) for region, tiling in pairs)

    def _holds(self, rung: Rung) -> bool:
        """Whether the bits of all its tiles are proved, which is found out.

        Where some of a region's are not, regions around fewer of its ops are a ladder from now on.
        """
        refused = [
            region
            for region, tiling in zip(rung.regions, rung.tilings, strict=True)
            if not self._has_same_bits(region, tiling)
        ]
        for region in refused:
            ladders = [each for each in self._ladders if any(region is other for other in each.regions)]
            for ladder in ladders:
                self._ladders.extend(RungLadder(each, ladder.others) for each in itertools.islice(ladder.others, 1))
        return not refused

    @cached_property
    def _clock(self) -> SearchClock:
        """The time for finding loops and proving their bits: what is left is for building some of them."""
        return self.task.clock.share(PROVING_SHARE)

    @property
    def is_cut(self) -> bool:
        """Whether the search ended before it had tried all."""
        return self.task.progress.should_stop() or self.task.clock.has_cut

    @cached_property
    def _ladders(self) -> list[RungLadder]:
        """Those that were met so far."""
        return []

    @cached_property
    def _new_ladders(self) -> Iterator[RungLadder]:
        return self._all_ladders()

    def _all_ladders(self) -> Iterator[RungLadder]:
        """Loops along the batch, which are few, then loops around ever smaller tensors."""
        if opset_of(self.sized.view.model) < BOUNDS_SINCE:
            return
        sized, peak = self.sized, self.task.question.baseline.peak
        finding = replace(sized, look=self._clock.share(FINDING_SHARE).look)
        sizes = sorted({size for size in sized.sizes.values() if size >= LEAST_SHARE * peak}, reverse=True)
        batches = find_batches(finding, least := int(LEAST_SHARE * peak))
        yield RungLadder(batches, self._around_fewer([], batches, partial(find_batches, sized, least)))
        for least_bytes in sizes:
            if self.task.progress.should_stop():
                return
            finding.look()
            loops = find_loops(finding, least_bytes)
            windows = find_windows(finding, least_bytes, _ops_of(loops))
            yield RungLadder(loops)
            if handed := find_handed(finding, least_bytes):
                # Regions along time, and others that share no op with them.
                taken = _ops_of(handed)
                apart = [*handed, *(each for each in loops if taken.isdisjoint(each.ops))]
                yield RungLadder([*apart, *find_windows(finding, least_bytes, _ops_of(apart))])
            if windows:
                fewer = self._around_fewer(loops, windows, partial(find_windows, sized, least_bytes))
                yield RungLadder([*loops, *windows], fewer)
            again = find_windows(finding, least_bytes, _ops_of(loops), again=True) if windows else []
            if any(region.copies for region in again):
                yield RungLadder([*loops, *again])
        # along lengths that do not vary, for tensors that are large even at one position of each that does
        names = [name for name in sized.makers if sized.part_bytes(name) >= LEAST_SHARE * peak]
        for least_bytes in sorted({sized.sizes[name] for name in names}, reverse=True):
            finding.look()
            yield RungLadder(find_loops(finding, least_bytes, fixed=True))

    def _around_fewer(
        self, loops: list[LoopRegion], found: list[LoopRegion], find: Callable[[set[int]], list[LoopRegion]]
    ) -> Iterator[list[LoopRegion]]:
        """The loops, and beside them regions like those found, but without ops whose tiles may have other bits."""
        barred = _ops_of(loops)
        for _ in range(MOST_BARRED - 1):
            tried = {frozenset(region.ops) for region in found}
            refused = [each for each in self._refused if frozenset(each.region.ops) in tried]
            if not refused:
                return
            barred = barred.union(*(ops_alike(self.sized, each.region, each.op) for each in refused))
            found = find(barred)
            if found:
                yield [*loops, *found]

    def _rungs_of(self, ladder: RungLadder) -> Iterator[Rung]:
        """The same regions in ever more tiles, as far as these hold less than the whole and are not refused.

        Once the time of the search is over, those that were looked at before.
        """
        before, tiles = None, 2
        while ladder.regions and tiles <= MOST_TILES:
            chosen, tiles = [self._finest(region, tiles) for region in ladder.regions], tiles * 2
            if chosen == before:
                continue  # these are refused; still more may not be
            before = chosen
            key = tuple(None if each is None else each.rows for each in chosen)
            if key not in ladder.known:
                if self.task.clock.ends():
                    return
                ladder.known[key] = self._rung(ladder.regions, chosen)
            rung = ladder.known[key]
            if rung is not None:
                yield rung

    def _rung(self, regions: Sequence[LoopRegion], chosen: Sequence[Tiling | None]) -> Rung | None:
        """The regions that have tiles, if by estimate they hold less than the whole, and no tensor too large.

        Of them those whose loops are worth it: what a loop joins is held twice, so that one may hold more than its ops.
        """
        pairs = [(region, tiling) for region, tiling in zip(regions, chosen, strict=True) if tiling is not None]
        best: Rung | None = None
        while pairs and not (best is not None and self._clock.is_over):
            kept, tilings = zip(*pairs, strict=True)
            estimate = LoopEstimate(self.sized, kept, tilings, self._profile)
            rung = Rung(kept, tilings, estimate.peak_bytes, estimate.extra_ns)
            if best is not None and best.peak_bytes < rung.peak_bytes:
                break
            best = rung if self._cuts_all_large(rung) else best
            at_peak = estimate.loop_at_peak
            if at_peak is None or best is None:
                break
            del pairs[at_peak]
        return None if best is None or best.peak_bytes >= self.task.question.baseline.peak else best

    def _finest(self, region: LoopRegion, tiles: int) -> Tiling | None:
        """So many tiles, or the most below that are not refused, of halves and of three quarters."""
        halves = (tiles >> halved for halved in range(tiles.bit_length() - 1))
        counts = (count for half in halves for count in (half, half * 3 // 4) if count > 1)
        return next((found for count in counts if (found := self._tiling(region, count)) is not None), None)

    def _tiling(self, region: LoopRegion, tiles: int) -> Tiling | None:
        """Tiles of as many rows as so many of the largest size have, in whole steps; None where they are refused."""
        length = self._length(region)
        together = rows_together(self.sized, region)
        rows = _in_steps(-(-length // tiles), together)
        is_refused = self._proofs.get((self._kind(region), rows)) is False
        return None if rows >= length or is_refused else Tiling(rows, together)

    def _has_same_bits(self, region: LoopRegion, tiling: Tiling) -> bool:
        """Whether the bits of a region's tiles are proved."""
        key = self._kind(region), tiling.rows
        if key not in self._proofs:
            refused = self._other_bits(self.sized, region, tiling)
            while refused is not None and may_be_longer(self.sized, region, *refused):
                self.sized.longer.update(ops_alike(self.sized, region, refused[0]))
                refused = self._other_bits(self.sized, region, tiling)
            if refused is not None:
                self._refused.append(Refusal(region, tiling, *refused))
            self._proofs[key] = refused is None
        return self._proofs[key]

    def _other_bits(self, sized: SizedView, region: LoopRegion, tiling: Tiling) -> tuple[int, Mapping[str, int]] | None:
        """An op, and a size, of which some tile of the region may have other bits; None where there is none."""
        if region.windows is not None:
            return window_refusal(sized, region, tiling, self._family)
        whole = short_sizes(sized, region, tiling) or single_sizes(sized, region, tiling)
        return refusal(sized, region, tiling, self._family, whole=whole)

    def obstacle(self) -> str | None:
        """Which tiles were refused for their bits though they would have fitted, and for which sizes they are not.

        Where none of the refused ones would, what is whole in those that hold least, and why. What takes long to find
        out is not told.
        """
        if not self._refused:
            return self._largest_held()
        clock, wanted = SearchClock(TELL_SECONDS), self._refused[0]  # the largest tensor, in the fewest tiles
        with contextlib.suppress(SearchOver):
            fitting = next((each for each in self._refused if self._would_fit(each, clock)), None)
            if fitting is None:
                return self._largest_held()
            wanted = fitting
        name, spec = self.sized.view.graph.ops[wanted.op].name, self.sized.view.ops[wanted.op]
        text = f"tiles of op {name} may have other bits at {told(wanted.sizes)}"
        if (auto_pad := spec.text("auto_pad", "NOTSET")).startswith("SAME"):
            text = f"op {name} pads by auto_pad={auto_pad}, otherwise at {told(wanted.sizes)}: try sizes in steps"
        # For which sizes some of the refused tiles are proved, as far as that is found out in time.
        symbol = wanted.region.length.symbol
        sized, found = replace(self.sized, look=clock.look), list[SizeRange]()
        with contextlib.suppress(SearchOver):
            for each in (refused for refused in self._refused if refused.region.windows is None):
                part = proved_part(sized, each.region, each.tiling, self._family)
                found += [] if part is None else [proved for proved in part.ranges if proved.name == symbol]
        widest = max(found, key=lambda each: each.high, default=None)
        proved = None if widest is None else shlex.quote(str(widest))
        return text if proved is None else f"{text}; some are proved to have the same for --dim {proved}"

    def _largest_held(self) -> str | None:
        """What is whole in the loops that hold least, or without any, and why."""
        lowest = self.lowest()
        rung = lowest or Rung((), (), 0, 0)
        reason = what_is_whole(self.estimate(rung))
        if lowest is None:
            return reason
        needs = f"in the tiles that were tried the model needs {format_bytes(rung.peak_bytes)} at least, by estimate"
        return needs if reason is None else f"{needs}; {reason}"

    def _would_fit(self, refused: Refusal, clock: SearchClock) -> bool:
        """Whether refused tiles would hold little enough, by estimate, with the finest proved ones beside them.

        All regions of the same kind are cut alike.
        """
        if not self.rungs:
            return True
        rising = sorted(self.rungs, key=lambda each: each.extra_ns)
        finest = {tuple(tuple(each.ops) for each in rung.regions): rung for rung in rising}
        needed_bytes = min(self._with_refused(rung, refused, clock) for rung in finest.values())
        lowest_bytes = min(rung.peak_bytes for rung in self.rungs)
        return (
            needed_bytes < lowest_bytes if self.task.question.least else needed_bytes <= self.task.question.most_bytes
        )

    def _with_refused(self, rung: Rung, refused: Refusal, clock: SearchClock) -> int:
        """What regions of a rung would hold, by estimate, together with one in tiles that were refused."""
        clock.look()
        region, tiling = refused.region, refused.tiling
        pairs = [(region, tiling)]
        for other, proved in zip(rung.regions, rung.tilings, strict=True):
            if not set(other.ops) & set(region.ops):
                pairs.append((other, tiling if self._kind(other) == self._kind(region) else proved))
        regions, tilings = zip(*pairs, strict=True)
        return LoopEstimate(self.sized, regions, tilings, self._profile).peak_bytes

    @cached_property
    def _refused(self) -> list[Refusal]:
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

    def estimate(self, rung: Rung) -> LoopEstimate:
        """What loops hold and cost, by rule."""
        return LoopEstimate(self.sized, rung.regions, rung.tilings, self._profile)

    def record(self, rung: Rung) -> Splitting:
        """What a plan file says of the loops."""
        whole = self.task.whole
        pairs, before = list(zip(rung.regions, rung.tilings, strict=True)), whole.answer.question.baseline.peak
        return Splitting(
            regions=tuple(_region(self.sized, region, tiling, self._length(region)) for region, tiling in pairs),
            facts=tuple(
                RegionFacts(self._length(r), halo_percent(self.sized, r, tiling), before, rung.peak_bytes, 0, 0)
                for r, tiling in pairs
            ),
            whole_sha256=whole.prepared.reference_sha256,
            whole_profile=whole.profile,
            whole_floor_bytes=whole.answer.run.floor.bytes,
            most_threads=most_threads_of(self.sized, pairs, self._family),
        )

    def _length(self, region: LoopRegion) -> int:
        return region.length.at(self.task.request.conditions.dims)


@dataclass(frozen=True)
class LoopCandidate:
    """A rung that is built and planned; `tighter` plans for what holds less than it does."""

    loops: Loops
    rung: Rung
    tighter: Tighter | None = field(default=None, repr=False)
    is_probe: bool = False

    def measure(self) -> SplitTrial | None:
        """Write the loops, see that bits are those of the whole, and measure; None where they are not."""
        loops, task = self.loops, self.loops.task
        folder = Path(tempfile.mkdtemp(prefix="loops_", dir=task.work))
        model = looped(loops.sized, self.rung.regions, self.rung.tilings)
        with task.clock.running():
            prepared = prepare_loops(task.whole.prepared, model.model, folder)
            if prepared is None:
                return None
            seen = profile_split(prepared, task.whole, task.progress, task.clock.left)
            profile = loops.estimate(self.rung).with_hidden(seen)
        return SplitTrial(self, prepared, profile, loops.record(self.rung), model.dims)

    def plan(self, trial: SplitTrial) -> OneModel | Refused | None:
        """Plan and write the loops."""
        task = self.loops.task
        problem = make_problem(trial.prepared.graph, trial.profile, task.question.budget_bytes)
        found = task.plan(trial, problem, task.request.search)
        return replace(found, tighter=self.tighter, twin=partial(self.loops.twin, self.rung))


def _ops_of(regions: Sequence[LoopRegion]) -> set[int]:
    return {op for region in regions for op in region.ops}


def _in_steps(rows: int, together: int) -> int:
    """So many rows, or as many more as make whole steps, or whole packets of those that are computed together."""
    step = ROW_STEP if rows >= ROW_STEP else together
    return -(-rows // step) * step


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
