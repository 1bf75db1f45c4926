"""Which slab of which tensor each tile of a region computes: from the exits backwards, op by op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from remat_cli.splitting.op_view import Sliced
from remat_cli.splitting.slab import Slab, tile_bounds
from remat_cli.splitting.view import ModelView


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
class Work:
    """One op in one tile: the slab asked of its outputs, and how it makes it."""

    op: int
    asked: Slab
    sliced: Sliced


@dataclass(frozen=True)
class Tile:
    """One tile: ops in execution order; the slab it holds of each tensor of the region; what of it is kept.

    `kept` slabs come from the tile before, which held them.
    """

    works: tuple[Work, ...]
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
    works: list[Work] = []
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
        works.append(Work(op, rest, sliced))
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
