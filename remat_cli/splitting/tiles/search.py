"""Which regions to split, into how many tiles, so that a budget is met at the least extra time.

A shortest path over the positions of an order: a step that fits is taken as it is, a step that does not must lie in a
region of consecutive ops that fits in tiles. Regions share nothing but the tensors between them, so a path's cost is
the sum of its regions' added time.
"""

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product

from remat_cli.core.schedule.splits import SplitAxis
from remat_cli.core.values.profile import OpCost
from remat_cli.splitting.tiles.estimate import Estimate, estimate
from remat_cli.splitting.tiles.op_view import Slab
from remat_cli.splitting.tiles.steps import region_steps
from remat_cli.splitting.tiles.tiling import Cutting, cut_tiles, exit_axes, overwritten
from remat_cli.splitting.tiles.timeline import Timeline, owner_of

LONGEST_REGION = 120  # ops; longer ones are mostly halo
TILE_COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128)
SHARED_SHARE = 0.01  # of what is free: a constant of so many bytes is cut alike wherever it is cut
NEAREST = 4  # cuts tried on either side of what does not fit, whatever their width
MORE_RUNS = 3  # of steps that do not fit, which one region may take in where nothing else is found


@dataclass(frozen=True)
class SplitLimits:
    """What a splitting may do: `axis` says along which axes exits may be cut, `forbidden` are ops never to be cut.

    `may_fill` tells that tiles can be written into a buffer in place (`tiling.Cutting.fills`).
    """

    axis: SplitAxis
    most_tiles: int = 32
    seconds: float = 10.0
    forbidden: frozenset[int] = frozenset()
    may_fill: bool = False


@dataclass(frozen=True)
class SplitCandidate:
    """A region at positions `start` to `stop`, how it is cut, and its estimated cost; peak includes all beside it."""

    start: int
    stop: int
    cutting: Cutting
    peak_bytes: int
    cost: Estimate


@dataclass(frozen=True)
class Proposal:
    """Regions, least estimated time first found for `target_bytes`; `peak_bytes` is of the whole run.

    Both leave the fixed part out.
    """

    regions: tuple[SplitCandidate, ...]
    peak_bytes: int
    added_ns: int
    target_bytes: int


@dataclass
class SplitSearch:
    """Searches splittings of one model for many budgets; what was learnt about a region is kept."""

    timeline: Timeline
    costs: Sequence[OpCost]
    limits: SplitLimits
    known: dict[tuple[Cutting, int, int], SplitCandidate | None] = field(default_factory=dict)
    axes: dict[tuple[int, int], tuple[tuple[tuple[str, int], ...], ...]] = field(default_factory=dict)
    halos: dict[tuple[object, ...], frozenset[str]] = field(default_factory=dict)
    ends: float = 0.0
    stuck: int | None = None

    def propose(self, free_bytes: int, most_seconds: float = math.inf) -> Proposal | None:
        """Finds regions that fit `free_bytes` (fixed part left out) at the least added time; None where none do.

        `stuck` is then the position of the step that neither fits nor lies in any region that does.
        """
        self.ends = time.monotonic() + min(self.limits.seconds, most_seconds)
        path = self._shortest_path(free_bytes, 0)
        if path is None:
            path = self._shortest_path(free_bytes, MORE_RUNS)
        if path is None:
            return None
        regions = []
        for region in path:
            best = region
            for name in sorted(self._all_halos(region.cutting)):  # keep fewer halos, or more, where that is cheaper
                cutting = replace(best.cutting, kept=best.cutting.kept ^ {name})
                other = self._judge(region.start, region.stop, cutting)
                if other is not None and other.peak_bytes <= free_bytes and other.cost.added_ns < best.cost.added_ns:
                    best = other
            regions.append(best)
        self._cut_alike(regions, free_bytes)
        added_ns = sum(region.cost.added_ns for region in regions)
        inside = {position for region in regions for position in range(region.start, region.stop)}
        outside = (m for position, m in enumerate(self.timeline.memory_bytes) if position not in inside)
        peak_bytes = max([*outside, *(region.peak_bytes for region in regions)], default=0)
        return Proposal(tuple(regions), peak_bytes, added_ns, free_bytes)

    def _cut_alike(self, regions: list[SplitCandidate], free_bytes: int) -> None:
        """Cut regions that cut the same large constant, such as a mask, in as many tiles: its parts are there once.

        Parts of a constant are weights, which are held all the time; a region alone knows nothing of others'.
        """
        sharing: dict[str, list[int]] = {}
        for number, region in enumerate(regions):
            for name in self._cut_constants(region.cutting, SHARED_SHARE * free_bytes):
                sharing.setdefault(name, []).append(number)
        for numbers in sharing.values():
            most = max(regions[number].cutting.tiles for number in numbers)
            for number in numbers:
                start, stop, cutting = regions[number].start, regions[number].stop, regions[number].cutting
                finer = replace(cutting, tiles=most)
                if cutting.fills:
                    dying = self.timeline.surroundings(start, stop).dying
                    finer = replace(finer, over=overwritten(self.timeline.view, finer, dying))
                found = self._judge(start, stop, finer)
                if found is not None and found.peak_bytes <= free_bytes:
                    regions[number] = found

    def _cut_constants(self, cutting: Cutting, least_bytes: float) -> set[str]:
        """Constants of so many bytes of which tiles read parts."""
        view = self.timeline.view
        weights = {weight.name: weight.size_bytes for weight in view.graph.weights}
        tiles, found = cut_tiles(view, replace(cutting, kept=frozenset())), set[str]()
        for work in tiles[0].works if tiles is not None else ():
            names, needs = view.reads[work.op], work.sliced.needs
            found |= {name for name, need in zip(names, needs, strict=False) if need and name in weights}
        return {name for name in found if weights[name] >= least_bytes}

    def _shortest_path(self, free_bytes: int, more_runs: int) -> tuple[SplitCandidate, ...] | None:
        memory = self.timeline.memory_bytes
        count = len(memory)
        best: list[tuple[int, tuple[SplitCandidate, ...]] | None] = [None] * (count + 1)
        best[0] = (0, ())
        ends = self._ends(free_bytes, more_runs)
        for position in range(count):
            here = best[position]
            if here is None:
                continue
            if memory[position] <= free_bytes:
                _improve(best, position + 1, here[0], here[1])
            for stop in ends.get(position, ()) if time.monotonic() < self.ends else ():
                region = self._cheapest(position, stop, free_bytes)
                if region is not None:
                    _improve(best, stop, here[0] + region.cost.added_ns, (*here[1], region))
        last, reached = best[count], max(position for position, path in enumerate(best) if path is not None)
        self.stuck = next((at for at in range(reached, count) if memory[at] > free_bytes), None)
        return None if last is None else last[1]

    def _ends(self, free_bytes: int, more_runs: int) -> Mapping[int, tuple[int, ...]]:
        """By start, the ends of regions worth trying: around every run of steps that do not fit, at narrow cuts.

        Further out only cuts narrower than all nearer ones are tried: a longer region costs more, and may pay only
        by a smaller boundary; and those just behind so many further runs, between which a step or two fit.
        """
        widths, memory = self.timeline.width_bytes, self.timeline.memory_bytes
        around = [*widths[:1], *widths, *widths[-1:]]
        wider = [max(around[cut], around[cut + 2]) for cut in range(len(widths))]  # of the two neighbours
        narrow = [cut for cut, width in enumerate(widths) if width <= min(free_bytes, wider[cut])]
        critical = _next_where([held > free_bytes for held in memory])
        fitting = _next_where([held <= free_bytes for held in memory])
        found: dict[int, tuple[int, ...]] = {}
        for first, group in groupby((cut for cut in narrow if critical[cut] < len(memory)), key=critical.__getitem__):
            beyond = bisect_left(narrow, fitting[first])
            for start in sorted(_nearest_and_lowest(tuple(group)[::-1], widths)):
                end = bisect_right(narrow, start + LONGEST_REGION)
                after = narrow[bisect_right(narrow, first) : end]
                near, run = {*_nearest_and_lowest(after, widths), *narrow[beyond:end][:2]}, fitting[first]
                for _ in range(more_runs):
                    if critical[run] == len(memory):
                        break
                    run = fitting[critical[run]]
                    near.update(narrow[bisect_left(narrow, run) : end][:2])
                found[start] = tuple(sorted(near))
        return found

    def _cheapest(self, start: int, stop: int, free_bytes: int) -> SplitCandidate | None:
        """The cheapest way found to cut a region that fits."""
        if self.limits.forbidden.intersection(self.timeline.order[start:stop]):
            return None
        around = self.timeline.surroundings(start, stop)
        sizes = [self.timeline.view.tensors[name].size_bytes for name in around.exits]
        joined = 0 if self.limits.may_fill else max(sizes, default=0)
        # joined tile by tile, exits that lie in one storage would each take its own
        owners = {owner_of(self.timeline.view, name).name for name in around.exits}
        if not sizes or len(owners) < len(around.exits) or around.context_bytes + sum(sizes) + joined > free_bytes:
            return None
        best, blocked = None, self.timeline.view.blocked
        if (start, stop) not in self.axes:
            view, ops = self.timeline.view, self.timeline.order[start:stop]
            leaving = self.timeline.surroundings(start, stop).exits
            shape = view.tensors[leaving[0]].shape
            long = (axis for axis in self.limits.axis.axes(len(shape)) if shape[axis] > 1)
            ways = (tuple(way.items()) for axis in long if (way := exit_axes(view, ops, leaving, axis)) is not None)
            self.axes[start, stop] = tuple(way for way in ways if cut_tiles(view, Cutting(ops, way, 2)) is not None)
        for exits in self.axes[start, stop]:
            if best is not None and best.cutting.exits[0][1] == exits[0][1] - 1 and exits[0][0] in blocked:
                continue  # images are as well cut along their height as along their width
            for found in self._fitting(start, stop, exits, free_bytes):
                best = found if best is None else min(best, found, key=lambda c: (c.cost.added_ns, c.cutting.tiles))
        return best

    def _fitting(
        self, start: int, stop: int, exits: tuple[tuple[str, int], ...], free_bytes: int
    ) -> Iterator[SplitCandidate]:
        """The fewest tiles that fit, with halos computed again and with halos kept.

        By bisection: more tiles need less memory, until halos take over.
        """
        cutting = Cutting(self.timeline.order[start:stop], exits, 2)
        extent = min(self.timeline.view.tensors[name].shape[axis] for name, axis in exits)
        counts = [count for count in TILE_COUNTS if count <= min(extent, self.limits.most_tiles)]
        # model outputs, which get a buffer of their own in the end, are not filled in place
        fillable = [name for name, _ in exits if self.limits.may_fill and not self.timeline.view.tensors[name].kept]
        ways = product(
            dict.fromkeys((frozenset[str](), self._all_halos(cutting))),
            dict.fromkeys((frozenset[str](), frozenset(fillable))),
        )
        dying = self.timeline.surroundings(start, stop).dying
        for kept, fills in ways:
            over = overwritten(self.timeline.view, replace(cutting, fills=fills), dying) if fills else ()
            low, high, best = 0, len(counts) - 1, None
            while low <= high and time.monotonic() < self.ends:
                middle = (low + high) // 2
                candidate = self._judge(
                    start, stop, replace(cutting, tiles=counts[middle], kept=kept, fills=fills, over=over)
                )
                if candidate is not None and candidate.peak_bytes <= free_bytes:
                    best, high = candidate, middle - 1
                elif candidate is None:
                    high = middle - 1
                else:
                    low = middle + 1
            if best is not None:
                yield best

    def _judge(self, start: int, stop: int, cutting: Cutting) -> SplitCandidate | None:
        key = (cutting, start, stop)
        if key not in self.known:
            self.known[key] = None
            steps = region_steps(self.timeline.view, cutting)
            if steps is not None:
                around = self.timeline.surroundings(start, stop)
                cost = estimate(self.timeline.view, self.costs, steps, around.dying, cutting.ops)
                peak_bytes = around.context_bytes + cost.peak_bytes
                self.known[key] = SplitCandidate(start, stop, cutting, peak_bytes, cost)
        return self.known[key]

    def _all_halos(self, cutting: Cutting) -> frozenset[str]:
        """Tensors whose rows two tiles in a row may both need: those read by windows, and those read twice."""
        key = (cutting.ops, cutting.exits)
        if key in self.halos:
            return self.halos[key]
        view, found = self.timeline.view, set[str]()
        tiles = cut_tiles(view, replace(cutting, tiles=2, kept=frozenset()))
        made_inside = {name for op in cutting.ops for name in view.makes[op] if name}
        holds = {} if tiles is None else tiles[0].holds
        for op in cutting.ops if tiles is not None else ():
            for name in made_inside.intersection(view.reads[op]):
                is_read_twice = sum(reader in cutting.ops for reader in view.readers.get(name, ())) > 1
                if is_read_twice or self._is_window(op, name, holds.get(name)):
                    found.add(name)
        self.halos[key] = frozenset(found)
        return self.halos[key]

    def _is_window(self, op: int, name: str, held: Slab | None) -> bool:
        """Whether neighbouring rows of what the op makes need some of the same rows of what it reads."""
        view = self.timeline.view
        makes = view.makes[op][0]
        if held is None or makes not in view.tensors:
            return False
        shape = view.tensors[makes].shape
        for axis in range(len(shape)):
            half = shape[axis] // 2
            if half < 1:
                continue
            first, second = view.slice(op, Slab(axis, 0, half)), view.slice(op, Slab(axis, half, shape[axis]))
            if first is None or second is None:
                continue
            index = view.reads[op].index(name)
            a, b = first.needs[index], second.needs[index]
            if a is not None and b is not None and a.axis == held.axis and a.stop > b.start:
                return True
        return False


def _next_where(is_it: Sequence[bool]) -> list[int]:
    """By position, and one past the last, the first position from there on at which it is so; their number if none."""
    found = [len(is_it)] * (len(is_it) + 1)
    for position in range(len(is_it) - 1, -1, -1):
        found[position] = position if is_it[position] else found[position + 1]
    return found


def _nearest_and_lowest(cuts: Sequence[int], widths: Sequence[int]) -> set[int]:
    """Of cuts from near to far: the first few, and those narrower than all before."""
    found = set(cuts[:NEAREST])
    lowest = min((widths[cut] for cut in found), default=0)
    for cut in cuts[NEAREST:]:
        if widths[cut] < lowest:
            lowest = widths[cut]
            found.add(cut)
    return found


def _improve(
    best: list[tuple[int, tuple[SplitCandidate, ...]] | None],
    position: int,
    cost: int,
    path: tuple[SplitCandidate, ...],
) -> None:
    known = best[position]
    if known is None or (cost, len(path)) < (known[0], len(known[1])):
        best[position] = (cost, path)
