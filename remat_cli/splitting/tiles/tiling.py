"""Which slab of which tensor each tile of a region computes: from the exits backwards, op by op."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from remat_cli.splitting.tiles.op_view import Slab, Sliced, tile_bounds
from remat_cli.splitting.tiles.view import ModelView


@dataclass(frozen=True)
class Cutting:
    """A region to be cut: op ids ascending, its exits with the axis each is cut along, and into how many tiles.

    Rows of `kept` tensors that the next tile needs too are kept for it; others are computed again. `fills` are the
    exits whose tiles are written one by one into a buffer of full size, instead of being joined in the end.
    """

    ops: tuple[int, ...]
    exits: tuple[tuple[str, int], ...]
    tiles: int
    kept: frozenset[str] = frozenset()
    fills: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TileWork:
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
        asked = _asked(view, op, wanted)
        if asked is None:
            continue
        rest: Slab | None = asked
        output = _kept_output(view, op, cutting)
        if before is not None and output in before.holds:
            rest, old = _divide(asked, before.holds[output])
            if old is not None:
                kept[output] = old
        if rest is None:
            continue
        sliced = view.slice(op, rest)
        if sliced is None or not sliced.makes.contains(rest) or not _demand(view, op, sliced, made_inside, wanted):
            return None
        works.append(TileWork(op, rest, sliced))
    holds = {name: slab for name, slab in wanted.items() if name in made_inside}
    return Tile(tuple(reversed(works)), holds, kept)


def _kept_output(view: ModelView, op: int, cutting: Cutting) -> str:
    """The output of which rows are kept, if it is an op's only one: rows of the others would be missing; else ""."""
    made = [name for name in view.makes[op] if name]
    return made[0] if len(made) == 1 and made[0] in cutting.kept else ""


def _asked(view: ModelView, op: int, wanted: Mapping[str, Slab]) -> Slab | None:
    """What is wanted of an op's outputs together; all are cut alike."""
    asked: Slab | None = None
    for name in view.makes[op]:
        if name in wanted:
            asked = wanted[name].hull(asked)
    return asked


def _divide(asked: Slab, held: Slab) -> tuple[Slab | None, Slab | None]:
    """What must be computed of a slab, and what the tile before holds of it; tiles move upwards."""
    if asked.axis != held.axis or asked.start < held.start or asked.start >= held.stop:
        return asked, None
    if asked.stop <= held.stop:
        return None, asked
    return Slab(asked.axis, held.stop, asked.stop), Slab(asked.axis, asked.start, held.stop)


def _demand(view: ModelView, op: int, sliced: Sliced, made_inside: frozenset[str], wanted: dict[str, Slab]) -> bool:
    """Add what an op needs to what is wanted; False where it needs a tensor of the region in another way."""
    for name, need in zip(view.reads[op], sliced.needs, strict=True):
        if name not in made_inside:
            continue
        known = wanted.get(name)
        if need is None or (known is not None and known.axis != need.axis):
            return False
        wanted[name] = need.hull(known)
    return True


def exit_axes(view: ModelView, ops: Sequence[int], exits: Sequence[str], axis: int) -> Mapping[str, int] | None:
    """The axis of every exit when the first is cut along `axis`; None where some exit is not cut by that.

    Axes spread from the first exit to what it is made of, and from there to all that is made of the same.
    """
    known = {exits[0]: axis}
    made_inside = {name for op in ops for name in view.makes[op] if name}
    grown = True
    while grown and not all(name in known for name in exits):
        before = len(known)
        for op in reversed(ops):
            _spread_back(view, op, known, made_inside)
        for op in ops:
            _spread_on(view, op, known)
        grown = len(known) > before
    if not all(name in known for name in exits):
        return None
    return {name: known[name] for name in exits}


def _spread_back(view: ModelView, op: int, known: dict[str, int], made_inside: set[str]) -> None:
    """From what an op makes to what it reads."""
    axis = next((known[name] for name in view.makes[op] if name in known), None)
    if axis is None:
        return
    for name, need_axis in _axes_read(view, op, axis).items():
        if name in view.tensors:
            known.setdefault(name, need_axis)


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
    extent = view.ops[op].output_shape[axis]
    if extent < 2:
        return {}
    sliced = view.slice(op, Slab(axis, 0, extent // 2))
    if sliced is None:
        return {}
    needs = zip(view.reads[op], sliced.needs, strict=True)
    return {name: need.axis for name, need in needs if need is not None and name}
