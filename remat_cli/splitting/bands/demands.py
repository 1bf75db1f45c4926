"""Which slab of its output each tile of a banded op makes: what its readers ask for, less what earlier tiles made."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from remat_cli.base.present import present
from remat_cli.splitting.bands.bands import Banding
from remat_cli.splitting.recast.recast import Recast
from remat_cli.splitting.tiles.op_view import SUMMED, Slab, Sliced, hull, tile_bounds
from remat_cli.splitting.tiles.tiling import TileWork
from remat_cli.splitting.tiles.view import ModelView

JOINED_SHARE = 0.5  # of what an op reads and makes: so much at most may tiles hold that are made together for it


@dataclass(frozen=True)
class BandedOps:
    """What tiles do: by op its work per tile (None where nothing is left to make), and tensors that are joined.

    Bands of a tensor are the slabs asked of its maker. `whole` are tensors made in bands that some reader, or the
    model's output, needs whole. `kept` gives by op that runs again the slabs that it does not make, by tile.
    """

    works: Mapping[int, tuple[TileWork | None, ...]]
    whole: frozenset[str]
    kept: Mapping[int, Mapping[int, Slab]]


@dataclass(frozen=True)
class UncutOp:
    """An op that cannot be cut as asked of it."""

    op: int


def band_works(cast: Recast, banding: Banding) -> BandedOps | UncutOp:
    """Works out, from the last op backwards, what is asked of each op and what it then needs."""
    demands = _Demands(cast.view, cast.twins, banding)
    for op in reversed(cast.order):
        if op not in banding.group:
            demands.read_whole(op)
        elif not demands.read_in_tiles(op):
            return UncutOp(op)
    return BandedOps(demands.works, frozenset(demands.whole), demands.kept)


@dataclass
class _Demands:
    """What is asked: by tensor a slab per tile of its maker's group; `entire` are those of which nothing may miss."""

    view: ModelView
    twins: Mapping[str, str]
    banding: Banding
    works: dict[int, tuple[TileWork | None, ...]] = field(default_factory=dict)
    asked: dict[str, dict[int, Slab]] = field(default_factory=lambda: defaultdict(dict))
    entire: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    kept: dict[int, dict[int, Slab]] = field(default_factory=lambda: defaultdict(dict))

    def read_whole(self, op: int) -> None:
        """Asks for all that an op in one piece reads, and its bodies do."""
        for name in self.view.needs[op]:
            self._want_whole(name)

    def read_in_tiles(self, op: int) -> bool:
        """Asks for what each tile of an op reads; False where some tile cannot be cut so."""
        for name in self.view.makes[op]:
            if name and self.view.tensors[name].kept:
                self._want_whole(name, is_made=True)
        asked = self._slabs(op)
        slabs = None if asked is None else self._joined(op, asked)
        if slabs is None:
            return False
        works: list[TileWork | None] = []
        first_times = self._first_times(op)
        kept_tiles = int(self.banding.kept_share * len(slabs)) if first_times else 0
        for tile, slab in enumerate(slabs):
            if tile >= len(slabs) - kept_tiles:  # the last ones: those whose readers before come last
                works.append(None)
                if slab is not None:
                    self.kept[op][tile] = slab
                    for name in first_times:
                        self.asked[name][tile] = slab.hull(self.asked[name].get(tile))
                continue
            if slab is None:
                works.append(None)
            else:
                sliced = present(self._cut(op, slab), "an op cut to a slab that it can be cut to")
                works.append(TileWork(op, slab, sliced))
                self._want(op, tile, sliced)
        self.works[op] = tuple(works)
        return any(work is not None for work in works)

    def _cut(self, op: int, slab: Slab) -> Sliced | None:
        sliced = self.view.slice(op, slab)
        return sliced if sliced is not None and sliced.makes.contains(slab) else None

    def _joined(self, op: int, slabs: list[Slab | None]) -> list[Slab | None] | None:
        """The slabs, those that an op cannot be cut to made with the ones before them; None where that brings nothing.

        Products have the bits of the whole in slabs of some rows, and not in the few that a last tile is left with.
        """
        found, waiting = slabs[:], None
        for tile in reversed(range(len(slabs))):
            slab = slabs[tile]
            if slab is None:
                continue
            wanted = slab.hull(waiting)
            waiting = wanted if self._cut(op, wanted) is None else None
            found[tile] = None if waiting else wanted
        if waiting:  # the first ones, with the first of those that can be made
            first = next(tile for tile, slab in enumerate(slabs) if slab is not None)
            later = next((tile for tile, slab in enumerate(found) if slab is not None), None)
            if later is None:
                return None
            found[first], found[later] = waiting.hull(found[later]), None
            if self._cut(op, present(found[first], "the first slab")) is None:
                return None
        return found if found == slabs or self._is_worth(op, found) else None

    def _is_worth(self, op: int, slabs: Sequence[Slab | None]) -> bool:
        """Whether such slabs, for which others of the group make as much at once, are far less than the op whole."""
        longest = max(slab.extent for slab in slabs if slab is not None) / self.view.extent(op, self.banding.axis[op])
        return longest * self._largest[self.banding.group[op]] <= JOINED_SHARE * self._bytes_around(op)

    @cached_property
    def _largest(self) -> Mapping[int, int]:
        """By group the bytes around that of its ops which has the largest tensors."""
        found: dict[int, int] = defaultdict(int)
        for op, group in self.banding.group.items():
            found[group] = max(found[group], self._bytes_around(op))
        return found

    def _bytes_around(self, op: int) -> int:
        """All that an op reads and makes, constants left out."""
        names = {name for name in (*self.view.reads[op], *self.view.makes[op]) if name in self.view.tensors}
        return sum(self.view.tensors[name].size_bytes for name in names)

    def _first_times(self, op: int) -> tuple[str, ...]:
        """The tensors that an op makes again, if all are cut alike both times and there is nothing else it makes.

        No tensor where it runs before the op of which it is the copy.
        """
        made = [name for name in self.view.makes[op] if name and self.banding.axis[op] != SUMMED]
        found = tuple(self.twins.get(name, "") for name in made)
        for name in found:
            maker = self.view.tensors[name].producer if name else None
            # what was looked at already comes later in the order
            if maker is None or maker in self.works or self.banding.group.get(maker) != self.banding.group[op]:
                return ()
            if self.banding.axis[maker] != self.banding.axis[op]:
                return ()
        return found

    def _want(self, op: int, tile: int, sliced: Sliced) -> None:
        for name, need in zip(self.view.reads[op], sliced.needs, strict=True):
            maker = self.view.tensors[name].producer if name in self.view.tensors else None
            if maker is None or maker not in self.banding.group:
                continue
            if need is None:
                self._want_whole(name)
            elif is_alike(self.banding, maker, op, need):
                self.asked[name][tile] = need.hull(self.asked[name].get(tile))
            else:
                self.entire.add(name)

    def _want_whole(self, name: str, is_made: bool = False) -> None:
        maker = self.view.tensors[name].producer if name in self.view.tensors else None
        if is_made or (maker is not None and maker in self.banding.group):
            self.whole.add(name)
            self.entire.add(name)

    def _slabs(self, op: int) -> list[Slab | None] | None:
        """The slab each tile adds to those before; None where tiles would have to go back."""
        axis, tiles = self.banding.axis[op], self.banding.tiles[self.banding.group[op]]
        made = [name for name in self.view.makes[op] if name]
        extent = self.view.extent(op, axis)
        is_asked = axis != SUMMED and any(self.asked[name] for name in made)
        is_entire = any(name in self.entire for name in made) or not is_asked
        bounds = tile_bounds(extent, tiles)
        slabs: list[Slab | None] = []
        first: int | None = 0 if is_entire else None
        reached = 0
        for tile in range(tiles):
            wanted = hull(self.asked[name][tile] for name in made if tile in self.asked[name])
            if is_entire and bounds[tile] < bounds[tile + 1]:
                wanted = Slab(axis, bounds[tile], bounds[tile + 1]).hull(wanted)
            if wanted is None or (first is not None and wanted.stop <= reached and wanted.start >= first):
                slabs.append(None)
                continue
            if first is None:
                first = reached = wanted.start
            if wanted.start < first:
                return None
            slabs.append(Slab(axis, reached, wanted.stop))
            reached = wanted.stop
        return slabs


def is_alike(banding: Banding, maker: int, reader: int, need: Slab) -> bool:
    """Whether a reader's tiles take slabs as its maker's tiles make them."""
    return banding.group[maker] == banding.group.get(reader) and banding.axis[maker] == need.axis
