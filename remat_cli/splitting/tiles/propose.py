"""Splittings proposed for a budget: regions of consecutive ops, and whole models in bands, the cheaper first."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Literal

import msgspec

from remat_cli.base.clock import endless
from remat_cli.base.present import present
from remat_cli.core.schedule.splits import Region, RegionFacts
from remat_cli.core.values.profile import OpCost
from remat_cli.core.values.told_names import OWN_NAMES, ToldNames
from remat_cli.splitting.bands.band_search import BandCandidate, BandSearch
from remat_cli.splitting.bands.items_apart import ItemsApart
from remat_cli.splitting.tiles.estimate import step_time_ns
from remat_cli.splitting.tiles.obstacle import SplitObstacle, explain
from remat_cli.splitting.tiles.search import Proposal, SplitLimits, SplitSearch
from remat_cli.splitting.tiles.steps import TiledRegion, op_of, region_steps
from remat_cli.splitting.tiles.timeline import NeedyTimeline, TensorTimeline
from remat_cli.splitting.tiles.view import ModelView

SplitForm = Literal["regions", "bands", "needy", "needy bands"]
"""Regions that fit as the model runs, bands, and such that fit where what waits beside them is made again."""
REGIONS_SHARE = 0.5  # of the time for a search: what they find, they mostly find soon
BANDS_SHARE, LEAST_SECONDS = 3.0, 0.5  # of the time for one search, for all together; for one of them in any case
BANDED_PER_SECOND = 5000  # ops; where less time is left than the first banding alone takes, none is begun
DOUBT = 2.0  # as many times as estimated may bands cost beside regions: they have more nodes, and estimates err more
CHEAP_SHARE = 0.02  # of the time of a run: regions that add no more need no rival


@dataclass(frozen=True)
class SplitProposal:
    """A splitting that should fit `target_bytes`: the steps in `parts`, and what they do to which ops.

    Ids of ops in the steps are those of `view`, whose ops go in `order`. `peak_bytes` is of the whole run; that and the
    target leave the fixed part out. `key` tells proposals apart. Where `apart` is given, the steps are those of
    that model, and regions tell the whole ops.
    """

    form: SplitForm
    view: ModelView
    order: tuple[int, ...]
    parts: tuple[TiledRegion, ...]
    regions: tuple[Region, ...]
    facts: tuple[RegionFacts, ...]
    peak_bytes: int
    added_ns: int
    target_bytes: int
    key: object
    apart: ItemsApart | None = None

    @property
    def doubted_ns(self) -> float:
        """What it adds to the time, as far as its form's estimates are to be believed."""
        return self.added_ns * (DOUBT if self.form == "bands" else 1.0)


@dataclass
class SplitProposer:
    """Proposes splittings of one model for many budgets; `fixed_bytes` are held beside everything in reports.

    `banding_seconds` have gone into the search for bands. No proposal takes more seconds than are `left`. `apart` says
    what the model was made of, where that is one whose items are apart.
    """

    timeline: TensorTimeline
    needy: NeedyTimeline
    costs: Sequence[OpCost]
    limits: SplitLimits
    fixed_bytes: int
    forbidden: frozenset[str] = frozenset()
    banding_seconds: float = 0.0
    left: Callable[[], float] = endless
    apart: ItemsApart | None = None

    def propose(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[SplitProposal, ...]:
        """Proposes what fits `free_bytes` (fixed part left out): at most one of each form, likely cheaper first."""
        found = self._proposed(free_bytes, most_seconds)
        return found if self.apart is None else tuple(of_items(each, self.apart, self.costs) for each in found)

    def _proposed(self, free_bytes: int, most_seconds: float) -> tuple[SplitProposal, ...]:
        ends = time.monotonic() + min(most_seconds, self.left())
        regions = self._regions.propose(free_bytes, min(most_seconds, self.left()))
        found = [] if regions is None else [self._of_regions(regions, "regions")]
        is_cheap = regions is not None and regions.added_ns <= CHEAP_SHARE * sum(cost.time_ns for cost in self.costs)
        if is_cheap or (found and self.apart is not None):  # so many ops take long to band
            return tuple(found)
        began = time.monotonic()
        left = max(LEAST_SECONDS, BANDS_SHARE * self.limits.seconds - self.banding_seconds)
        if len(self.timeline.order) > BANDED_PER_SECOND * left:
            return tuple(found)
        banded = self._bands.propose(free_bytes, min(ends, began + min(left, self.limits.seconds)))
        self.banding_seconds += time.monotonic() - began
        if banded is not None:
            found.append(self._of_bands(banded, free_bytes))
        return tuple(sorted(found, key=attrgetter("doubted_ns")))

    def propose_needy(self, free_bytes: int, most_seconds: float = math.inf) -> tuple[SplitProposal, ...]:
        """Proposes regions around what does not fit by itself, for plans that make what waits beside them again."""
        found = self._needy.propose(free_bytes, min(most_seconds, self.left()))
        return () if found is None else (self._of_regions(found, "needy"),)

    def propose_needy_bands(self, free_bytes: int) -> tuple[SplitProposal, ...]:
        """Proposes the model in bands for plans that make tiles again, one by one; the likely best first."""
        found = self._bands.needy(free_bytes, time.monotonic() + min(self.limits.seconds, self.left()))
        return tuple(self._of_bands(each, free_bytes, "needy bands") for each in found)

    def waits_for_more(self, free_bytes: int) -> bool:
        """Whether more than that waits beside whatever runs at some time: no cut of what runs alone can help."""
        ordered = zip(self.timeline.memory_bytes, self.timeline.width_bytes, strict=False)
        return any(held > free_bytes and width > free_bytes for held, width in ordered)

    def capped(self, most_bytes: int, free_bytes: int) -> tuple[SplitProposal, ...]:
        """Splittings in which no tensor should be larger than that, the cheaper first."""
        ends = time.monotonic() + max(LEAST_SECONDS, min(self.limits.seconds, self.left()))
        return tuple(self._of_bands(found, free_bytes) for found in self._bands.capped(most_bytes, ends))

    def obstacle(self, floor_op: int | None, free_bytes: int, names: ToldNames = OWN_NAMES) -> SplitObstacle | None:
        """What stands in the way of `free_bytes`, after a search; `floor_op` is what whole ops cannot do without."""
        return explain(self.timeline, self._regions.stuck, floor_op, free_bytes, self._bands.smallest, names)

    def forbid(self, name: str) -> None:
        """Never cut an op of a proposal from now on, nor what it stands for."""
        self.forbidden |= {name}
        numbers = {each.name: number for number, each in enumerate(self.timeline.view.graph.ops)}
        found = self.limits.forbidden | ({numbers[name]} if name in numbers else frozenset())
        self._limit(replace(self.limits, forbidden=found))

    def forbid_fills(self) -> bool:
        """Join tiles from now on; False if that is so already."""
        before = self.limits.may_fill
        self._limit(replace(self.limits, may_fill=False))
        return before

    def grant(self, seconds: float) -> None:
        """Let a search take so many seconds more; what was found out is kept."""
        self.limits = replace(self.limits, seconds=self.limits.seconds + seconds)
        shorter = replace(self.limits, seconds=REGIONS_SHARE * self.limits.seconds)
        self._regions.limits = self._needy.limits = shorter
        self._bands.limits = self.limits

    def _limit(self, limits: SplitLimits) -> None:
        self.limits = limits
        self._regions.limits = self._needy.limits = replace(limits, seconds=REGIONS_SHARE * limits.seconds)
        self._bands.restrict(limits, self.forbidden)

    @cached_property
    def _regions(self) -> SplitSearch:
        seconds = REGIONS_SHARE * self.limits.seconds
        return SplitSearch(self.timeline, self.costs, replace(self.limits, seconds=seconds))

    @cached_property
    def _needy(self) -> SplitSearch:
        seconds = REGIONS_SHARE * self.limits.seconds
        return SplitSearch(self.needy, self.costs, replace(self.limits, seconds=seconds))

    @cached_property
    def _bands(self) -> BandSearch:
        return BandSearch(self.timeline.view, self.timeline.order, self.costs, self.limits)

    def _of_regions(self, proposal: Proposal, form: SplitForm) -> SplitProposal:
        timeline, view = self.timeline, self.timeline.view
        order = self.needy.order if form == "needy" else timeline.order
        tiled, regions, facts = [], [], []
        for each in proposal.regions:
            cutting = each.cutting
            tiled.append(TiledRegion(cutting.ops, region_steps(view, cutting) or ()))
            region = Region(
                ops=tuple(view.graph.ops[op].name for op in cutting.ops),
                exits=tuple(name for name, _ in cutting.exits),
                axes=tuple(axis for _, axis in cutting.exits),
                tiles=cutting.tiles,
                kept=tuple(sorted(cutting.kept)),
            )
            regions.append(region)
            name, axis = cutting.exits[0]
            found = RegionFacts(
                extent=view.tensors[name].shape[axis],
                halo_percent=100 * each.cost.added_ns / max(1, each.cost.whole_time_ns),
                peak_before_bytes=self.fixed_bytes
                + max(timeline.memory_bytes[timeline.position[op]] for op in cutting.ops),
                peak_after_bytes=self.fixed_bytes + each.peak_bytes,
                time_before_ns=each.cost.whole_time_ns,
                time_after_ns=each.cost.time_ns,
            )
            facts.append(found)
        return SplitProposal(
            form,
            view,
            order,
            tuple(tiled),
            tuple(regions),
            tuple(facts),
            proposal.peak_bytes,
            proposal.added_ns,
            proposal.target_bytes,
            tuple(each.cutting for each in proposal.regions),
        )

    def _of_bands(self, found: BandCandidate, free_bytes: int, form: SplitForm = "bands") -> SplitProposal:
        banding = found.banding
        groups = [self._group(found, number) for number in range(len(banding.tiles))] or self._apart(found)
        return SplitProposal(
            form,
            found.cast.view,
            found.cast.order,
            (TiledRegion(found.cast.order, found.steps),),
            tuple(region for region, _ in groups),
            tuple(facts for _, facts in groups),
            found.cost.peak_bytes,
            found.cost.added_ns,
            free_bytes,
            (tuple(sorted(banding.axis.items())), banding.tiles, tuple(sorted(found.cast.origin.items()))),
        )

    def _apart(self, found: BandCandidate) -> list[tuple[Region, RegionFacts]]:
        """Ops that were taken apart, each as a region of its own, where that alone is enough."""
        timeline, whole, view = self.timeline, self.timeline.view, found.cast.view
        times: dict[str, list[int]] = {}
        for op, each in enumerate(view.graph.ops):
            if each.name in found.cast.origin:
                times.setdefault(found.cast.stands_for(op), []).append(found.cast.costs[op].time_ns)
        told = []
        for op in (op for op in timeline.order if whole.graph.ops[op].name in times):
            name, made = whole.graph.ops[op].name, present(next(filter(None, whole.makes[op])), "what an op makes")
            maker = view.nodes[present(view.tensors[made].producer, f"what makes '{made}'")]
            is_joined = maker.op_type == "Concat"
            axis = maker.attributes["axis"].as_int() % len(whole.tensors[made].shape) if is_joined else 0
            tiles = len(maker.inputs) if is_joined else 1
            facts = RegionFacts(
                extent=whole.tensors[made].shape[axis],
                halo_percent=100 * (sum(times[name]) - self.costs[op].time_ns) / max(1, self.costs[op].time_ns),
                peak_before_bytes=self.fixed_bytes + timeline.memory_bytes[timeline.position[op]],
                peak_after_bytes=self.fixed_bytes + found.cost.peak_bytes,
                time_before_ns=self.costs[op].time_ns,
                time_after_ns=sum(times[name]),
            )
            told.append((Region(ops=(name,), exits=(made,), axes=(axis,), tiles=tiles), facts))
        return told

    def _group(self, found: BandCandidate, number: int) -> tuple[Region, RegionFacts]:
        """Ops cut alike as a region: its exits are what others read, or what leaves the model."""
        timeline, view, banding = self.timeline, found.cast.view, found.banding
        ops = [op for op in found.cast.order if banding.group.get(op) == number]
        made = [(name, banding.axis[op]) for op in ops for name in view.makes[op] if name]
        exits = [
            (name, axis) for name, axis in made if view.tensors[name].kept or not set(view.readers[name]) <= set(ops)
        ] or made[-1:]
        inside = {name for name, _ in made} - {name for name, _ in exits}
        region = Region(
            ops=tuple(dict.fromkeys(found.cast.stands_for(op) for op in ops)),
            exits=tuple(name for name, _ in exits),
            axes=tuple(axis for _, axis in exits),
            tiles=banding.tiles[number],
            kept=tuple(sorted(inside)),
        )
        op_at = {op.name: at for at, op in enumerate(timeline.view.graph.ops)}
        whole = {op_at[name] for name in region.ops}
        before = sum(self.costs[op].time_ns for op in whole)
        mine = set(ops)
        after = sum(step_time_ns(step, view, found.cast.costs) for step in found.steps if op_of(view, step) in mine)
        facts = RegionFacts(
            extent=view.extent(ops[-1], banding.axis[ops[-1]]),
            halo_percent=100 * (after - before) / max(1, before),
            peak_before_bytes=self.fixed_bytes + max(timeline.memory_bytes[timeline.position[op]] for op in whole),
            peak_after_bytes=self.fixed_bytes + found.cost.peak_bytes,
            time_before_ns=before,
            time_after_ns=after,
        )
        return region, facts


def of_items(proposal: SplitProposal, apart: ItemsApart, costs: Sequence[OpCost]) -> SplitProposal:
    """A splitting of a model whose items are apart, told in the names of the whole one: its items, then what is cut."""
    view, axis = apart.whole.view, apart.axis
    made = [(name, axis[op]) for op in apart.whole.order if op in axis for name in view.makes[op] if name]
    inside = {name for name, _ in made if set(view.readers[name]) <= set(axis) and not view.tensors[name].kept}
    exits = [(name, along) for name, along in made if name not in inside] or made[-1:]
    items = Region(
        ops=tuple(view.graph.ops[op].name for op in apart.whole.order if op in axis),
        exits=tuple(name for name, _ in exits),
        axes=tuple(along for _, along in exits),
        tiles=apart.items,
    )
    before, after = (sum(cost.time_ns for cost in each) for each in (apart.whole.costs, costs))
    told = RegionFacts(
        extent=view.tensors[exits[0][0]].shape[exits[0][1]],
        halo_percent=100 * (after - before) / max(1, before),
        peak_before_bytes=max((facts.peak_before_bytes for facts in proposal.facts), default=proposal.peak_bytes),
        peak_after_bytes=max((facts.peak_after_bytes for facts in proposal.facts), default=proposal.peak_bytes),
        time_before_ns=before,
        time_after_ns=after,
    )
    # what is cut of several items is told once
    inner = dict[tuple[str, ...], tuple[Region, RegionFacts]]()
    for region, facts in zip(proposal.regions, proposal.facts, strict=True):
        named = _of_whole(region, apart)
        before_it = inner.get(named.ops)
        inner[named.ops] = (named, facts) if before_it is None else _both(before_it, (named, facts))
    return replace(
        proposal,
        regions=(items, *(region for region, _ in inner.values())),
        facts=(told, *(facts for _, facts in inner.values())),
        added_ns=proposal.added_ns + after - before,
        key=("items", proposal.key),
        apart=apart,
    )


def _both(one: tuple[Region, RegionFacts], other: tuple[Region, RegionFacts]) -> tuple[Region, RegionFacts]:
    """A region and its facts where two items are cut by it, one after the other; the most tiles of both."""
    (region, facts), (others, more) = one, other
    before, after = facts.time_before_ns + more.time_before_ns, facts.time_after_ns + more.time_after_ns
    both = RegionFacts(
        extent=facts.extent,
        halo_percent=100 * (after - before) / max(1, before),
        peak_before_bytes=max(facts.peak_before_bytes, more.peak_before_bytes),
        peak_after_bytes=max(facts.peak_after_bytes, more.peak_after_bytes),
        time_before_ns=before,
        time_after_ns=after,
    )
    return max(region, others, key=lambda each: each.tiles), both


def _of_whole(region: Region, apart: ItemsApart) -> Region:
    """A region of the model whose items are apart, in the names of the whole model."""
    origin, tensor_of = apart.cast.origin, apart.tensor_of
    return msgspec.structs.replace(
        region,
        ops=tuple(dict.fromkeys(origin.get(name, name) for name in region.ops)),
        exits=tuple(tensor_of.get(name, name) for name in region.exits),
        kept=tuple(sorted({tensor_of.get(name, name) for name in region.kept})),
    )
