"""Which slab of which tensor each tile of a region computes: from the exits backwards, op by op."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from remat_cli.splitting.tiles.op_view import Slab, Sliced, hull, tile_bounds
from remat_cli.splitting.tiles.view import ModelView


@dataclass(frozen=True)
class Cutting:
    """A region to be cut: op ids ascending, its exits with the axis each is cut along, and into how many tiles.

    Rows of `kept` tensors that the next tile needs too are kept for it; others are computed again. `fills` are the
    exits whose tiles are written one by one into a buffer of full size, instead of being joined in the end. `over`
    gives to some of these the entry whose storage is that buffer: each tile overwrites just what it alone has read.
    """

    ops: tuple[int, ...]
    exits: tuple[tuple[str, int], ...]
    tiles: int
    kept: frozenset[str] = frozenset()
    fills: frozenset[str] = frozenset()
    over: tuple[tuple[str, str], ...] = ()


class TileWork(msgspec.Struct, frozen=True):
    """One op in one tile: the slab asked of its outputs, and how it makes it."""

    op: int
    asked: Slab
    sliced: Sliced


@dataclass(frozen=True)
class Tile:
    """One tile: ops in execution order; the slab it holds of each tensor of the region; what of it is kept.

    `kept` slabs come from the tile before, which held them.
    """

    works: tuple[TileWork, ...]
    holds: Mapping[str, Slab]
    kept: Mapping[str, Slab] = field(default_factory=dict)


def cut_tiles(view: ModelView, cutting: Cutting) -> tuple[Tile, ...] | None:
    """All tiles of a region, in the order they run; None where some op cannot be cut so."""
    bounds = {name: tile_bounds(view.tensors[name].shape[axis], cutting.tiles) for name, axis in cutting.exits}
    if any(a >= b for limits in bounds.values() for a, b in pairwise(limits)):
        return None
    made_inside = frozenset(name for op in cutting.ops for name in view.makes[op] if name)
    tiles: list[Tile] = []
    for index in range(cutting.tiles):
        wanted = {name: Slab(axis, *bounds[name][index : index + 2]) for name, axis in cutting.exits}
        tile = _cut(view, cutting, made_inside, wanted, tiles[-1] if tiles else None)
        if tile is None:
            return None
        tiles.append(tile)
    return tuple(tiles)


def _cut(
    view: ModelView, cutting: Cutting, made_inside: frozenset[str], wanted: dict[str, Slab], before: Tile | None
) -> Tile | None:
    """One tile: demands grow from the exits to the entries; `wanted` grows with them."""
    works: list[TileWork] = []
    kept: dict[str, Slab] = {}
    for op in reversed(cutting.ops):
        asked = hull(wanted[name] for name in view.makes[op] if name in wanted)
        if asked is None:
            continue
        rest: Slab | None = asked
        # rows are kept of an op's only output: those of others would be missing
        made = [name for name in view.makes[op] if name]
        output = made[0] if len(made) == 1 and made[0] in cutting.kept else ""
        held = None if before is None else before.holds.get(output)
        if held is not None and asked.axis == held.axis and held.start <= asked.start < held.stop:
            # what the tile before holds of it need not be computed; tiles move upwards
            kept[output] = asked._replace(stop=min(asked.stop, held.stop))
            rest = None if asked.stop <= held.stop else asked._replace(start=held.stop)
        if rest is None:
            continue
        sliced = view.slice(op, rest)
        if sliced is None or not sliced.makes.contains(rest):
            return None
        for name, need in zip(view.reads[op], sliced.needs, strict=True):
            known = wanted.get(name)
            if name in made_inside and (need is None or (known is not None and known.axis != need.axis)):
                return None
            if name in made_inside and need is not None:
                wanted[name] = need.hull(known)
        works.append(TileWork(op, rest, sliced))
    holds = {name: slab for name, slab in wanted.items() if name in made_inside}
    return Tile(tuple(reversed(works)), holds, kept)


def overwritten(view: ModelView, cutting: Cutting, dying: Collection[str]) -> tuple[tuple[str, str], ...]:
    """To exits that are filled, entries that die inside and that they may overwrite, one each; none for some."""
    tiles = cut_tiles(view, cutting)
    made = {name for op in cutting.ops for name in view.makes[op]}
    entries = dict.fromkeys(name for op in cutting.ops for name in view.reads[op] if name in view.tensors)
    found = dict[str, str]()
    for exit_name, _ in cutting.exits if tiles is not None else ():
        for entry in entries:
            is_free = entry not in made and entry not in found.values() and entry in dying
            if exit_name in cutting.fills and is_free and is_overwritable(view, cutting, tiles or (), exit_name, entry):
                found[exit_name] = entry
                break
    return tuple(found.items())


def is_overwritable(view: ModelView, cutting: Cutting, tiles: Sequence[Tile], exit_name: str, entry: str) -> bool:
    """Whether each tile reads of an entry just what it makes of an exit, which is of the same kind."""
    one, other = view.tensors[exit_name], view.tensors[entry]
    if one.dtype != other.dtype or one.shape != other.shape or not view.blocked.isdisjoint((exit_name, entry)):
        return False
    axis = dict(cutting.exits)[exit_name]
    bounds = tile_bounds(one.shape[axis], cutting.tiles)
    for number, tile in enumerate(tiles):
        own = Slab(axis, *bounds[number : number + 2])
        needs = (zip(view.reads[work.op], work.sliced.needs, strict=True) for work in tile.works)
        if any(need != own for pairs in needs for name, need in pairs if name == entry):
            return False
    return True


def exit_axes(view: ModelView, ops: Sequence[int], exits: Sequence[str], axis: int) -> Mapping[str, int] | None:
    """The axis of every exit when the first is cut along `axis`; None where some exit is not cut by that.

    Axes spread from the first exit to what it is made of, and from there to all that is made of the same.
    """
    known = {exits[0]: axis}
    grown = True
    while grown and not all(name in known for name in exits):
        before = len(known)
        for op in reversed(ops):  # from what an op makes to what it reads
            made = next((known[name] for name in view.makes[op] if name in known), None)
            for name, need in ({} if made is None else _axes_read(view, op, made)).items():
                if name in view.tensors:
                    known.setdefault(name, need)
        for op in ops:
            _spread_on(view, op, known)
        grown = len(known) > before
    return {name: known[name] for name in exits} if all(name in known for name in exits) else None


def _spread_on(view: ModelView, op: int, known: dict[str, int]) -> None:
    """From what an op reads to what it makes."""
    makes = [name for name in view.makes[op] if name]
    if not makes or makes[0] in known:
        return
    for axis in range(len(view.ops[op].output_shape)):
        read = _axes_read(view, op, axis)
        if any(known.get(name) == need for name, need in read.items()):
            known.update(dict.fromkeys(makes, axis))
            return


def _axes_read(view: ModelView, op: int, axis: int) -> dict[str, int]:
    """By name of what an op reads, the axis it is cut along when the output is cut along `axis`."""
    shape = view.ops[op].output_shape
    extent = shape[axis] if axis < len(shape) else 1  # other outputs may have more axes
    sliced = view.slice(op, Slab(axis, 0, extent // 2)) if extent > 1 else None
    needs = zip(view.reads[op], sliced.needs, strict=True) if sliced is not None else ()
    return {name: need.axis for name, need in needs if need is not None and name}
