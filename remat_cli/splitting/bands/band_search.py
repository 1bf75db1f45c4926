"""Which tensors to keep in bands, and how many, so that a budget is met at the least extra time.

A family of whole-model splittings, from cheap to small: every tensor from some size on is kept in bands, in so many
that none is larger than some size. A member takes a moment to judge, so many are; the best one is then tried with
other numbers of tiles, group by group.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from remat_cli.core.values.profile import OpCost
from remat_cli.splitting.bands.again import copies_at_peak, small_sources_again, waited_for_again
from remat_cli.splitting.bands.bands import LEANS, Banding, BandRules, BandSize, Lean, band_axes, band_ops, most_cut
from remat_cli.splitting.bands.demands import UncutOp, band_works
from remat_cli.splitting.bands.items import LEAST_TILES, doubled_bandings, item_axes, item_bandings, light_sums
from remat_cli.splitting.bands.lowering import lower
from remat_cli.splitting.recast.directions import ways_apart
from remat_cli.splitting.recast.dropouts import dropouts_apart
from remat_cli.splitting.recast.dynamic import ranges_apart
from remat_cli.splitting.recast.grouped import groups_apart
from remat_cli.splitting.recast.norms import norms_apart
from remat_cli.splitting.recast.recast import Copied, Recast, layouts_apart, with_copies
from remat_cli.splitting.recast.resize import resizes_apart
from remat_cli.splitting.recast.shifts_flat import rows_apart
from remat_cli.splitting.recast.steps import steps_apart
from remat_cli.splitting.rules.conv_channels import ITEMS
from remat_cli.splitting.tiles.estimate import Estimate, estimate, most_needed, piece_bytes
from remat_cli.splitting.tiles.op_view import SUMMED
from remat_cli.splitting.tiles.schedule import in_order
from remat_cli.splitting.tiles.search import TILE_COUNTS, SplitLimits
from remat_cli.splitting.tiles.steps import CutStep, FillStep, JoinStep, Step, results_of
from remat_cli.splitting.tiles.view import ModelView

MOST_SIZES = 16  # sizes from which tensors are kept in bands
SHARES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of the largest tensor: how large a band may be
CROSSINGS: tuple[float, ...] = (1.0, 4.0, 0.5)  # how much larger tiles may be that read across bands
MOST_NODES, NODES_PER_OP = 3_000, 20  # in the written model, which else is slow to load and to plan
FEW_OPS = 50  # a model of fewer may have nodes as one of so many
MORE_NODES = 3  # times as many where nothing else fits
GATE_NODES = 1.2  # per step: what holds the steps in place takes nodes too (measured: 0.9 to 1.4)
MOST_STARTS, MOST_COPIES = 3, 8  # bandings in which ops are made again, and how many times over
KEPT_SHARES = (0.75, 0.625, 0.5, 0.375, 0.25)  # of the bands of what is made again, that are not
AGAIN_SHARE = 0.2  # of a run: what is made again where a step alone fills what is free
LARGE_SHARES = (1, 2, 4, 8, 16)  # of the largest tensor: from which size on others are cut by items as well
CAP_PARTS = (1, 2, 4)  # of a cap on tensors: how large bands may be
MOST_UNCUT = 64  # ops found not to be cut as asked before a banding is given up
LEAST_SHARE = 32  # tensors smaller than such a part of the largest are no burden


@dataclass(frozen=True)
class BandCandidate:
    """A model in bands: in which ops, by which rules, how these cut it, and what its steps cost.

    `nodes` is about how many the written model has; each step needs at most `needed_bytes` by itself. Steps are made
    anew when they are asked for: there are many candidates, of thousands of steps each.
    """

    cast: Recast
    rules: BandRules
    size: BandSize
    banding: Banding
    may_fill: bool
    nodes: int
    cost: Estimate
    needed_bytes: int

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order."""
        works = band_works(self.cast, self.banding)
        assert not isinstance(works, UncutOp)
        return tuple(in_order(self.cast.view, lower(self.cast, self.banding, works, self.may_fill)))


@dataclass(frozen=True)
class _Family:
    """Bandings that differ in how large bands are; `is_again` tells that small sources are made again."""

    least_bytes: int
    lean: Lean
    crossing: float
    is_again: bool


@dataclass
class BandSearch:
    """Searches bandings of one model for many budgets; all that were judged are kept."""

    view: ModelView
    order: tuple[int, ...]
    costs: Sequence[OpCost]
    limits: SplitLimits
    forbidden: frozenset[str] = frozenset()
    judged: dict[object, BandCandidate | None] = field(default_factory=dict)
    known: dict[object, BandCandidate | UncutOp | None] = field(default_factory=dict)
    axes: dict[tuple[int, BandRules], Mapping[int, int]] = field(default_factory=dict)
    casts: dict[tuple[int, bool], Recast] = field(default_factory=dict)
    copied: dict[tuple[int, tuple[Copied, ...]], Recast] = field(default_factory=dict)
    item_casts: dict[frozenset[str], Recast] = field(default_factory=dict)

    def propose(self, free_bytes: int, ends: float) -> BandCandidate | None:
        """Finds what fits `free_bytes` and adds least time, until `ends` on the clock; None where nothing fits."""
        self._by_items(free_bytes, ends)
        # what late readers wait for is made again, and not, where there is such
        has_any = any(self._cast(least, True) is not self._cast(least) for least in self._sizes)
        for crossing, again, lean in product(CROSSINGS, (False, True) if has_any else (False,), LEANS):
            for least in self._sizes:
                self._fewest_tiles(_Family(least, lean, crossing, again), free_bytes, ends)
        best = self._cheapest(free_bytes)
        if best is None or self._is_long(best):
            # Judge the smallest bandings with more and more ops made again, as long as the peak falls.
            found = sorted(self._candidates(), key=_peak)
            starts: dict[int, BandCandidate] = {}
            for candidate in found:
                starts.setdefault(candidate.rules.least_bytes, candidate)
            for start in list(starts.values())[:MOST_STARTS]:
                current: BandCandidate | None = start
                for _ in range(MOST_COPIES):
                    if current is None or current.cost.peak_bytes <= free_bytes or time.monotonic() > ends:
                        break
                    current = self._with_copies(current, ends)
            best = self._cheapest(free_bytes)
        return None if best is None else self._joined(self._refined(best, free_bytes, ends))

    def needy(self, free_bytes: int, ends: float) -> list[BandCandidate]:
        """Finds those that add least time for what a step of theirs needs at most by itself; the likely best first.

        All that waits beside a step is for a plan to make again, which takes the less time the more room is left.
        """
        self._large_by_items(ends)
        front = list[BandCandidate]()
        for each in sorted(self._candidates(), key=self._price):
            needs = min((other.needed_bytes for other in front), default=free_bytes + 1)
            if each.needed_bytes < needs:
                front.append(each)
        return sorted(front, key=lambda each: (self._is_long(each), self._needy_price(each, free_bytes)))

    def _needy_price(self, candidate: BandCandidate, free_bytes: int) -> float:
        """What tiles cost as a share of the run, and what is made again as far as so little room is left for it."""
        whole_ns = max(1, candidate.cost.whole_time_ns)
        return candidate.cost.added_ns / whole_ns + AGAIN_SHARE * candidate.needed_bytes / max(1, free_bytes)

    def _large_by_items(self, ends: float) -> None:
        """Judge what reads or makes large tensors by items of the batch: the rest runs whole, between."""
        cast = self._whole_cast()
        view = cast.view
        uncut = {op for op, each in enumerate(view.graph.ops) if each.name in self.forbidden}
        for share in LARGE_SHARES:
            least = self._largest // share
            small = {op for op in cast.order if self._largest_at(view, op) < least}
            axes = light_sums(view, item_axes(view, cast.order, uncut | small, goes_on=True))
            rules = BandRules(least, "outer", self.limits.axis)
            for banding in doubled_bandings(view, axes, self.limits.most_tiles):
                if time.monotonic() > ends:
                    return
                found = self._judged(cast, rules, self._size(banding.tiles[0], 1.0), banding, self.limits.may_fill)
                if not isinstance(found, BandCandidate):
                    break

    def _largest_at(self, view: ModelView, op: int) -> int:
        """The largest tensor that an op reads or makes, weights and inputs left aside."""
        made = (view.tensors[name] for name in (*view.reads[op], *view.makes[op]) if name in view.tensors)
        return max((each.size_bytes for each in made if each.producer is not None), default=0)

    def _by_items(self, free_bytes: int, ends: float) -> None:
        """Judge the whole model by items of its batch, in ever more tiles until they fit or are too many.

        Ops that cannot be cut at all stay whole, and at first sums over the batch that hold more than they add up.
        """
        cast = self._whole_cast()
        more: Collection[int] | None = {
            op for op, each in enumerate(cast.view.graph.ops) if each.name in self.forbidden
        }

        def is_enough(found: BandCandidate | None) -> bool:
            return found is None or found.cost.peak_bytes <= free_bytes or time.monotonic() > ends

        while more is not None and ITEMS in self.limits.axis.axes(1) and time.monotonic() < ends:
            uncut, axes = more, item_axes(cast.view, cast.order, more)
            light, more = light_sums(cast.view, axes), None
            for way in (light,) if len(light) == len(axes) else (light, axes):
                more = more or self._ever_more(cast, way, uncut, is_enough)

    def _whole_cast(self) -> Recast:
        """The model as it is cut by items."""
        if self.forbidden not in self.item_casts:
            plain = Recast(self.view, self.order, tuple(self.costs), {}, {})
            self.item_casts[self.forbidden] = dropouts_apart(plain, self.forbidden)
        return self.item_casts[self.forbidden]

    def _ever_more(
        self,
        cast: Recast,
        axes: Mapping[int, int],
        uncut: Collection[int],
        is_enough: Callable[[BandCandidate | None], bool],
    ) -> Collection[int] | None:
        """Judge such ops by items in ever more tiles; with one more op left whole where one cannot be cut so."""
        rules = BandRules(1, "outer", self.limits.axis)
        for banding in item_bandings(cast.view, axes, self.limits.most_tiles):
            found = self._judged(cast, rules, self._size(banding.tiles[0], 1.0), banding, self.limits.may_fill)
            if isinstance(found, UncutOp):
                return {*uncut, found.op} if banding.tiles[0] == LEAST_TILES else None
            if is_enough(found):
                break
        return None

    def capped(self, most_bytes: int, ends: float) -> list[BandCandidate]:
        """Bandings in which no tensor should be larger than that, the cheapest first; those that fail last."""
        found: dict[int, BandCandidate] = {}
        has_large_output = any(each.kept and each.size_bytes > most_bytes for each in self.view.graph.tensors)
        spares = (True, False) if has_large_output else (False,)
        for part, crossing, lean, spared in product(CAP_PARTS, CROSSINGS, LEANS, spares):
            size = BandSize(most_bytes // part, int(crossing * most_bytes) // part)
            candidate = self.banded(BandRules(most_bytes + 1, lean, self.limits.axis, spares_outputs=spared), size)
            if candidate is not None:
                found[id(candidate)] = candidate
            if found and time.monotonic() > ends:
                break
        return sorted(found.values(), key=lambda each: (_largest_made(each) > most_bytes, each.cost.added_ns))

    @property
    def smallest(self) -> BandCandidate | None:
        """The candidate that held least of all that were judged; None where nothing could be cut."""
        return min(self._candidates(), key=_peak, default=None)

    def _candidates(self) -> list[BandCandidate]:
        return [found for found in self.known.values() if isinstance(found, BandCandidate)]

    def _cheapest(self, free_bytes: int) -> BandCandidate | None:
        """Picks the cheapest candidate that fits and is not too long; of long ones the shortest."""
        fits = [c for c in self._candidates() if c.cost.peak_bytes <= free_bytes]
        return min(fits, key=self._price, default=None)

    def _price(self, candidate: BandCandidate) -> tuple[int, int]:
        if self._is_long(candidate):
            return candidate.nodes, candidate.cost.added_ns
        return 0, candidate.cost.added_ns

    def _is_long(self, candidate: BandCandidate) -> bool:
        return candidate.nodes > self._most_nodes

    def _with_copies(self, start: BandCandidate, ends: float) -> BandCandidate | None:
        """Finds the smallest of a few candidates in which ops run again; None where none holds less."""
        at = min(range(len(SHARES)), key=lambda index: abs(SHARES[index] - self._largest / start.size.bytes))
        crossings = tuple(dict.fromkeys((1.0, start.size.crossing_bytes / start.size.bytes)))
        sizes = [self._size(*each) for each in product(SHARES[max(0, at - 1) : at + 2], crossings)]
        best: BandCandidate | None = None
        for copied in copies_at_peak(start.cast, start.steps, self._lasting):
            if (id(start.cast), copied) not in self.copied:
                self.copied[id(start.cast), copied] = with_copies(start.cast, copied)
            cast = self.copied[id(start.cast), copied]
            found = [self._of_cast(cast, start.rules, size) for size in sizes]
            smallest = min((other for other in found if other is not None), key=_peak, default=None)
            if smallest is not None:
                # of what is made again parts may be kept: what those would be made from may go
                parts = (replace(smallest.banding, kept_share=share) for share in KEPT_SHARES)
                for other in (smallest, *(self._variant(smallest, banding) for banding in parts)):
                    if other is not None and other.cost.peak_bytes < _peak(best or start):
                        best = other
            if time.monotonic() > ends:
                break
        return best

    def _of_cast(self, cast: Recast, rules: BandRules, size: BandSize) -> BandCandidate | None:
        key = (id(cast), rules, size)
        if key not in self.judged:
            self.judged[key] = self._banded(cast, rules, size)
        return self.judged[key]

    def _size(self, share: int, crossing: float) -> BandSize:
        # a model of a few bytes has no such share
        return BandSize(max(1, self._largest // share), int(crossing * self._largest / share))

    def _within(self, candidate: BandCandidate | None, free_bytes: int) -> BandCandidate | None:
        """A candidate; with its tiles joined in the end, not each filled in at once, where that alone fits.

        What is filled in is there whole as soon as its first tile is.
        """
        if candidate is None or not candidate.may_fill or candidate.cost.peak_bytes <= free_bytes:
            return candidate
        joined = self._without_fills(candidate)
        return candidate if joined is None or joined.cost.peak_bytes > free_bytes else joined

    def _without_fills(self, candidate: BandCandidate) -> BandCandidate | None:
        return self._variant(replace(candidate, may_fill=False), candidate.banding)

    def _variant(self, candidate: BandCandidate, banding: Banding) -> BandCandidate | None:
        found = self._judged(candidate.cast, candidate.rules, candidate.size, banding, candidate.may_fill)
        return None if isinstance(found, UncutOp) else found

    def _judged(
        self, cast: Recast, rules: BandRules, size: BandSize, banding: Banding, may_fill: bool
    ) -> BandCandidate | UncutOp | None:
        """What `judge` says, which is asked once about each banding."""
        key = (id(cast), tuple(banding.axis.items()), banding.tiles, banding.kept_share, may_fill)
        if key not in self.known:
            self.known[key] = self.judge(cast, rules, size, banding, may_fill)
        return self.known[key]

    def restrict(self, limits: SplitLimits, forbidden: frozenset[str]) -> None:
        """Keep to other limits from now on, and never cut ops of these names."""
        self.limits, self.forbidden = limits, forbidden
        self.judged.clear()
        self.known.clear()
        self.axes.clear()
        self.casts.clear()
        self.copied.clear()

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """Sizes of tensors, a few of them where there are many, in an order in which the first few are of all kinds."""
        made = {t.size_bytes for t in self.view.graph.tensors if t.producer is not None}
        sizes = [size for size in sorted(made, reverse=True) if size * LEAST_SHARE >= max(made)]
        step = max(1, -(-len(sizes) // MOST_SIZES))
        sizes = sizes[step - 1 :: step]
        return (*sizes[::4], *sizes[2::4], *sizes[1::2])

    def _fewest_tiles(self, family: _Family, free_bytes: int, ends: float) -> None:
        """Judge bandings of a family by bisection: more tiles need less memory, until there are too many."""
        low, high = 0, len(SHARES) - 1
        while low <= high and time.monotonic() < ends:
            middle = (low + high) // 2
            key = (family, SHARES[middle])
            if key not in self.judged:
                rules = BandRules(family.least_bytes, family.lean, self.limits.axis)
                cast = self._cast(family.least_bytes, family.is_again)
                self.judged[key] = self._banded(cast, rules, self._size(SHARES[middle], family.crossing))
            found = self._within(self.judged[key], free_bytes)
            if found is None or found.cost.peak_bytes <= free_bytes:
                high = middle - 1
            else:
                low = middle + 1

    @cached_property
    def _largest(self) -> int:
        return max((t.size_bytes for t in self.view.graph.tensors if t.producer is not None), default=0)

    def banded(self, rules: BandRules, size: BandSize) -> BandCandidate | None:
        """The banding of some rules; ops that cannot be cut as asked stay whole."""
        return self._banded(self._cast(rules.least_bytes), rules, size)

    def _banded(self, cast: Recast, rules: BandRules, size: BandSize) -> BandCandidate | None:
        names = {op.name: number for number, op in enumerate(cast.view.graph.ops)}
        uncut = frozenset(names[name] for name in self.forbidden if name in names)
        taken = {op: cost.workspace_bytes for op, cost in enumerate(cast.costs)}
        workspaces = {op: count for op, count in taken.items() if count >= rules.least_bytes}
        most_tiles = dict[int, int]()
        for _ in range(MOST_UNCUT):
            here = replace(rules, forbidden=uncut, also=cast.sources, workspaces=workspaces, most_tiles=most_tiles)
            banding = band_ops(cast.view, self._axes(cast, here), here, size, self.limits.most_tiles)
            if not (banding.group or cast.origin):
                return None
            found = self._judged(cast, rules, size, banding, self.limits.may_fill)
            if not isinstance(found, UncutOp):
                return found
            # in fewer tiles, of its own, if it has its bits then; else whole
            axis, tiles = banding.axis[found.op], banding.tiles[banding.group[found.op]]
            fewer = 0 if found.op in most_tiles or axis == SUMMED else most_cut(cast.view, found.op, axis, tiles)
            most_tiles = {op: most for op, most in most_tiles.items() if op != found.op}
            if fewer:
                most_tiles[found.op] = fewer
            else:
                uncut |= {found.op}
        return None

    def _axes(self, cast: Recast, rules: BandRules) -> Mapping[int, int]:
        """Along which axes ops are cut by some rules, which is found once for bands of all sizes."""
        key = (id(cast), replace(rules, most_tiles={}))
        if key not in self.axes:
            self.axes[key] = band_axes(cast.view, cast.order, key[1])
        return self.axes[key]

    def _cast(self, least_bytes: int, is_again: bool = False) -> Recast:
        """Rewrites the model in ops that suit bands of tensors from some size on; repeats some where asked."""
        if (least_bytes, is_again) not in self.casts:
            if is_again:
                cast = small_sources_again(self._cast(least_bytes))
                found = waited_for_again(cast, self._largest // LEAST_SHARE)
            else:
                plain = Recast(self.view, self.order, tuple(self.costs), {}, {})
                # ways through time cost no time to take apart
                apart = ways_apart(plain, self._largest // LEAST_SHARE, self.forbidden)
                for take_apart in (steps_apart, ranges_apart, groups_apart, norms_apart, resizes_apart, rows_apart):
                    apart = take_apart(apart, least_bytes, self.forbidden)
                found = layouts_apart(apart, least_bytes)
            same = (cast for cast in self.casts.values() if cast.origin == found.origin)
            self.casts[least_bytes, is_again] = next(same, found)
        return self.casts[least_bytes, is_again]

    def judge(
        self, cast: Recast, rules: BandRules, size: BandSize, banding: Banding, may_fill: bool | None = None
    ) -> BandCandidate | UncutOp | None:
        """A banding with all its steps and their cost; None where they are too many.

        Tiles are filled in where limits admit it, unless `may_fill` says otherwise.
        """
        fills = self.limits.may_fill if may_fill is None else may_fill
        works = band_works(cast, banding)
        if isinstance(works, UncutOp):
            return works
        steps = lower(cast, banding, works, fills)
        nodes = nodes_of(cast.view, steps)
        if nodes > MORE_NODES * self._most_nodes:
            return None
        ordered = in_order(cast.view, steps)
        cost = estimate(cast.view, cast.costs, ordered, frozenset(), cast.order, self._lasting)
        cost = replace(cost, whole_time_ns=sum(each.time_ns for each in self.costs))
        needed_bytes = most_needed(cast.view, cast.costs, ordered, self._lasting)
        return BandCandidate(cast, rules, size, banding, fills, nodes, cost, needed_bytes)

    def _joined(self, best: BandCandidate) -> BandCandidate:
        """Joins tiles where filling them in place brings nothing: older runtimes cannot fill."""
        if not best.may_fill:
            return best
        other = self._without_fills(best)
        if other is None or other.cost.peak_bytes > best.cost.peak_bytes:
            return best
        return other if self._price(other) <= self._price(best) else best

    @property
    def _most_nodes(self) -> int:
        return min(MOST_NODES, NODES_PER_OP * max(FEW_OPS, len(self.order)))

    @cached_property
    def _lasting(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.view.graph.tensors if tensor.kept)

    def _refined(self, best: BandCandidate, free_bytes: int, ends: float) -> BandCandidate:
        """Keeps more of what is made again, and takes fewer tiles or none, group by group, where that is cheaper."""
        for share in KEPT_SHARES if best.cast.twins else ():
            if share > best.banding.kept_share:
                best = self._better(best, replace(best.banding, kept_share=share), free_bytes)
        group = 0
        while group < len(best.banding.tiles) and time.monotonic() < ends:
            banding, before, after = best.banding, best.banding.tiles[:group], best.banding.tiles[group + 1 :]
            stays = {op: number - (number > group) for op, number in banding.group.items() if number != group}
            uncut = Banding({op: banding.axis[op] for op in stays}, stays, (*before, *after), banding.kept_share)
            whole = self._better(best, uncut, free_bytes)
            if whole is not best:
                best = whole
                continue
            counts = [count for count in TILE_COUNTS if count < best.banding.tiles[group]]
            while counts and time.monotonic() < ends:
                middle = len(counts) // 2
                fewer = self._better(best, replace(banding, tiles=(*before, counts[middle], *after)), free_bytes)
                counts = counts[middle + 1 :] if fewer is best else counts[:middle]
                best = fewer
            group += 1
        return best

    def _better(self, best: BandCandidate, banding: Banding, free_bytes: int) -> BandCandidate:
        """Another banding of the same ops, if that fits and costs less."""
        other = self._variant(best, banding)
        if other is None or other.cost.peak_bytes > free_bytes or self._price(other) >= self._price(best):
            return best
        return other


def _peak(candidate: BandCandidate) -> int:
    return candidate.cost.peak_bytes


def nodes_of(view: ModelView, steps: Sequence[Step]) -> int:
    """Estimates how many nodes so many steps become; those that cut or join what lies in blocks need views."""
    views = sum(
        isinstance(step, CutStep | JoinStep | FillStep) and results_of(step)[0].tensor in view.blocked for step in steps
    )
    return int(len(steps) * (1 + GATE_NODES) + views)


def _largest_made(candidate: BandCandidate) -> int:
    """The largest value that a step makes, outputs of the model excepted."""
    view = candidate.cast.view
    pieces = (piece for step in candidate.steps for piece in results_of(step))
    inside = (piece for piece in pieces if piece.slab is not None or not view.tensors[piece.tensor].kept)
    return max((int(piece_bytes(view, piece)) for piece in inside), default=0)
