"""What one tile of windowed ops holds at the largest sizes, before it is written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from remat_cli.base.present import present
from remat_cli.core.values.profile import Profile
from remat_cli.splitting.loops.loop_bits import Tiling
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.loops.windows.forms import Part, PartOp, TileForm

Piece = tuple[str, Part]
SHORT_SHARE = 1 / 4  # of the largest size


def window_bytes(sized: SizedView, region: LoopRegion, tiling: Tiling, profile: Profile | None = None) -> int:
    """The most that a tile of the largest size holds, in the order of the ops; what shares a buffer counts once.

    Without a profile what ops take inside does not count.
    """
    windows = present(region.windows, "the windows of a loop")
    units = sized.units_of(region)
    rows = min(tiling.rows, units)
    middle = (units - rows) // 2
    kinds = zip(windows.forms, ((0, rows), (middle, middle + rows), (units - rows, units)), strict=True)
    return max(_Tile(sized, windows.axes, form, bounds).most(profile) for form, bounds in kinds)


def kernel_bytes(sized: SizedView, region: LoopRegion, tiling: Tiling, profile: Profile) -> int:
    """The most that a kernel takes for itself in a tile of the largest size: as much of what it takes for all rows."""
    windows = present(region.windows, "the windows of a loop")
    rows = min(tiling.rows, sized.units_of(region))
    made = ((work, sized.view.makes[work.op][0]) for work in windows.inner.ops)
    works = ((work, sized.view.tensors[name].shape[windows.axes[name]]) for work, name in made)
    shares = ((work.op, work.makes.extent((0, rows), length) / length) for work, length in works)
    return max(int(profile.ops[op].workspace_bytes * min(1.0, share)) for op, share in shares)


def whole_up_to(sized: SizedView, region: LoopRegion, tiling: Tiling) -> int:
    """The most units for which the ops as they are hold no more than a tile, with what is around it, of the largest.

    Around it is all that tiles are cut of, and what they are joined to, which is there until the last op has run. Few
    of all units, so that other regions that run whole at the same sizes hold less than tiles of the largest too.
    """
    windows, view = present(region.windows, "the windows of a loop"), sized.view
    units, all_rows = sized.units_of(region), Part(None, None)
    ops = [PartOp(work.op, dict.fromkeys(work.needs, all_rows), all_rows, all_rows, ()) for work in windows.inner.ops]
    whole = TileForm(tuple(ops), dict.fromkeys(windows.inner.holds, all_rows))
    made = {name for op in region.ops for name in view.makes[op]}
    around = {view.reads[work.op][at] for work in ops for at in work.needs}.difference(made).union(windows.inner.exits)
    whole_bytes = _Tile(sized, windows.axes, whole, (0, units), around).most()
    held_bytes = window_bytes(sized, region, tiling) + sum(sized.sizes[name] for name in around)
    return max(tiling.rows, min(units * held_bytes // max(1, whole_bytes), int(units * SHORT_SHARE)))


def halo_percent(sized: SizedView, region: LoopRegion, tiling: Tiling) -> float:
    """How many bytes the tiles of the largest size make beyond those of the whole ops, in percent."""
    windows = region.windows
    if windows is None:
        return 0.0
    first, *inner, last = tiling.bounds(sized.units_of(region))
    pairs = [(windows.first, first), *((windows.inner, each) for each in inner), (windows.last, last)]
    made = sum(_Tile(sized, windows.axes, form, units).made_bytes for form, units in pairs)
    whole = sum(sized.sizes[name] for op in region.ops for name in sized.view.makes[op] if name)
    return 100 * (made / max(1, whole) - 1)


class _Tile:
    """The pieces of tensors that one tile holds, one after the other."""

    def __init__(
        self,
        sized: SizedView,
        axes: Mapping[str, int],
        form: TileForm,
        units: tuple[int, int],
        kept: Collection[str] = (),
    ) -> None:
        self._sized = sized
        self._axes = axes
        self._form = form
        self._units = units
        self._kept = kept  # tensors that are there until the last op has run
        self._last = {piece: at for at, work in enumerate(form.ops) for piece in self._reads(work)}
        self._views = {
            each.name: sized.view.graph.tensors[each.view_of].name
            for each in sized.view.graph.tensors
            if each.view_of is not None
        }

    @property
    def made_bytes(self) -> float:
        """All that its ops make."""
        makes = self._sized.view.makes
        return sum(self._bytes(name, work.makes) for work in self._form.ops for name in makes[work.op] if name)

    def most(self, profile: Profile | None = None) -> int:
        """The most held at once."""
        held: dict[Piece, float] = {}
        most, view = 0.0, self._sized.view
        for at, work in enumerate(self._form.ops):
            for name, part in self._reads(work):
                held.setdefault((name, part), self._bytes(name, part))
            most = max(most, sum(held.values()))
            for name in (each for each in view.makes[work.op] if each):
                sources = {a for a, b in view.in_place if b == name} | {self._views.get(name, "")}
                merged = [
                    each
                    for each in held
                    if each[0] in sources and each[0] not in self._kept and self._last.get(each) == at
                ]
                for piece in merged[:1]:
                    del held[piece]
                held[name, self._form.holds.get(name, work.asked)] = self._bytes(name, work.makes)
            made = next(name for name in view.makes[work.op] if name)
            share = self._bytes(made, work.makes) / max(1, self._sized.sizes[made])
            inside = 0.0 if profile is None else profile.ops[work.op].workspace_bytes * share
            if work.op in self._sized.longer:
                inside += self._bytes(made, work.makes)
            most = max(most, sum(held.values()) + inside)
            over = [piece for piece in held if self._last.get(piece, len(self._form.ops)) <= at]
            for piece in (each for each in over if each[0] not in self._kept):
                del held[piece]
        return int(most)

    def _reads(self, work: PartOp) -> Iterator[Piece]:
        reads = self._sized.view.reads[work.op]
        return ((reads[at], part) for at, part in work.needs.items())

    def _bytes(self, name: str, part: Part) -> float:
        length = self._sized.view.tensors[name].shape[self._axes[name]]
        return self._sized.sizes[name] * part.extent(self._units, length) / length
