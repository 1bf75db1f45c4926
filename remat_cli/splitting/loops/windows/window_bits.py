"""Proof by enumeration that tiles of windowed ops have the bits of the whole op, for every size of a family.

At each size every kind of tile is asked of the rules, with the shapes of that size: what they say must be what the tile
does there. Blocked convolutions, pooling and the like look at rows only, so that how wide a picture is matters by its
ends; plain convolutions are products of matrices, of which all sizes are asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from remat_cli.base.present import present
from remat_cli.core.values.sizes import SizeFamily
from remat_cli.splitting.loops.loop_bits import SizedOp, Tiling, kind_of
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.loops.short_sizes import short_sizes
from remat_cli.splitting.loops.windows.forms import ROWS, Changed, Part, PartOp, TileForm
from remat_cli.splitting.loops.windows.parts import sliced_part
from remat_cli.splitting.rules.record import ElementKind, Scope, SliceRule, Why, WindowKind
from remat_cli.splitting.rules.table import rule_of
from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab

MOST_ASKED = 50_000  # sizes of one op, of which each takes some fifty microseconds
Sizes = Mapping[str, int]


def window_refusal(
    sized: SizedView, region: LoopRegion, tiling: Tiling, family: SizeFamily, most_asked: int = MOST_ASKED
) -> tuple[int, Sizes] | None:
    """Finds an op, and a size, of which some tile may have other bits than the whole; None where there is none."""
    whole = present(short_sizes(sized, region, tiling), "the sizes at which tiles of windows are one")
    for kind, op in _told_apart(sized, region).items():
        asked = kind, region.length, tiling.rows, whole.factors
        if sized.proved_above.get(asked, math.inf) <= whole.most:
            continue
        known, is_by_place = SizedOp.of(sized, region, op), _minds_place(sized.view.rules[op])
        choices = _choices(known, region, family)
        if math.prod(map(len, choices)) > most_asked:
            return op, dict(family.corners[0])  # asking for all, in vain, would take long
        for chosen in itertools.product(*choices):
            sized.look()
            sizes = {**family.fixed, **{each.name: size for each, size in zip(family.ranges, chosen, strict=True)}}
            units = region.length.at(sizes)
            if whole.holds(sizes) or units <= tiling.rows:
                continue  # it runs whole
            view, tiles = known.at(sizes), _tiles(region, tiling, units, by_place=is_by_place)
            works = ((work, form, bounds) for form, bounds in tiles for work in form.ops if work.op == op)
            if not all(_is_part_same(sized, region, view, *each) for each in works):
                return op, sizes
        sized.proved_above[asked] = whole.most
    return None


def _told_apart(sized: SizedView, region: LoopRegion) -> dict[object, int]:
    """Ops of the region, but of those that rules look at alike, of which tiles read and make the same rows, only one.

    Of ops that do the same to each element the rules say the same.
    """
    windows = present(region.windows, "the windows of a loop")
    works: dict[int, list[PartOp]] = {}
    for form in windows.forms:
        for work in form.ops:
            works.setdefault(work.op, []).append(work)
    found: dict[object, int] = {}
    for op in sorted(region.ops):
        known = SizedOp.of(sized, region, op)
        parts = tuple((tuple(sorted(w.needs.items())), w.makes, w.asked, w.attributes, w.constants) for w in works[op])
        axes = tuple(windows.axes.get(name) for name in (*sized.view.reads[op], *sized.view.makes[op]))
        rule = sized.view.rules[op]
        is_by_element = rule.elements is not None and rule.scope is Scope.EVERY_SIZE
        kind = rule.cut if is_by_element else kind_of(sized, op)
        found.setdefault((kind, known.inputs, known.outputs, str(parts), axes, op in sized.longer), op)
    return found


def _choices(op: SizedOp, region: LoopRegion, family: SizeFamily) -> list[tuple[int, ...]]:
    """Sizes that decide: all of those that say how many rows there are, and the ends of others that do not matter.

    How wide a picture is matters to products of matrices, to means, which may be of all of it, and where the runtime
    chooses the padding; and how high it is, to columns.
    """
    rule, auto_pad = rule_of(*op.op.key), op.op.text("auto_pad", "NOTSET")
    is_by_rows = rule.scope is Scope.EVERY_SIZE or (
        op.axis == ROWS and rule.windows in (WindowKind.BESIDE, WindowKind.ROWS)
    )
    minds_width = not is_by_rows or auto_pad not in ("NOTSET", "VALID")
    return [
        tuple(each.sizes)
        if each.name in region.length.names or (minds_width and op.depends_on(each.name))
        else tuple(dict.fromkeys((each.low, each.high)))
        for each in family.ranges
    ]


def _minds_place(rule: SliceRule) -> bool:
    """Whether what a rule says of one inner tile may differ from what it says of another one as long."""
    is_asked = rule.why is Why.ASKED and rule.scope is Scope.ONE_TILE
    return is_asked and rule.windows is None and rule.elements is not ElementKind.PACKETS


def _tiles(region: LoopRegion, tiling: Tiling, units: int, *, by_place: bool) -> list[tuple[TileForm, tuple[int, int]]]:
    """The tiles at a size, but of inner ones only those at the ends and one of each length, unless it is `by_place`."""
    windows = present(region.windows, "the windows of a loop")
    first, *inner, last = tiling.bounds(units)
    chosen = {stop - start: (start, stop) for start, stop in inner}
    ends = inner if by_place else (*inner[:1], *inner[-1:])
    return [
        (windows.first, first),
        *((windows.inner, each) for each in dict.fromkeys((*ends, *chosen.values()))),
        (windows.last, last),
    ]


def _is_part_same(
    sized: SizedView, region: LoopRegion, view: OpView, work: PartOp, form: TileForm, units: tuple[int, int]
) -> bool:
    """Whether the rules say of an op, for one tile, what the tile does."""
    axes, reads = present(region.windows, "the windows of a loop").axes, sized.view.reads[work.op]
    axis = axes[next(name for name in sized.view.makes[work.op] if name)]
    asked = _fitting(work.asked, axis, units, view.output_shape)
    if asked is None:
        return False
    sliced = sliced_part(sized, work.op, asked, view)
    if sliced is None or tuple(sorted(sliced.attributes.items())) != work.attributes:
        return False
    if Changed.all_of(sliced) != work.constants:
        return False
    needs = {
        at: None if shape is None or at not in work.needs else _fitting(work.needs[at], axes[reads[at]], units, shape)
        for at, shape in enumerate(view.inputs)
    }
    made = _fitting(work.makes, axis, units, view.output_shape)
    return sliced.makes == made and all(need == needs[at] for at, need in enumerate(sliced.needs))


def _fitting(part: Part, axis: int, units: tuple[int, int], shape: Shape) -> Slab | None:
    """The rows, or columns, of a part, where there are such."""
    slab = part.slab(axis, units, shape[axis])
    return slab if 0 <= slab.start < slab.stop <= shape[axis] else None
