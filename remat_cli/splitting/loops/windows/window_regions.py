"""Regions of windowed ops along a spatial axis that varies: which ops, and what their tiles read of each other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_closed
from remat_cli.splitting.loops.windows.edges import with_cheap_entries, with_smaller_exits, without_whole
from remat_cli.splitting.loops.windows.forms import COLUMNS, ROWS, Demand, NotAlike, relabels_blocks, window_tiles
from remat_cli.splitting.loops.windows.levels import between, hides_some, levels_of
from remat_cli.splitting.rules.table import rule_of, slice_op
from remat_cli.splitting.rules.window import kernel_of, windows_of
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first

LEAST_UNITS = 6
MOST_AGAIN = 32  # ops that run again for one skip connection


def find_windows(
    sized: SizedView, least_bytes: int, taken: Collection[int], *, again: bool = False
) -> list[LoopRegion]:
    """Regions around tensors of at least so many bytes, of ops that no other region has taken; they share no op.

    They are cut along rows, or along columns where there are always as many rows, as in pictures of a sound. With
    `again` they make again what they read of such tensors that others read long before, where rules allow.
    """
    found, used = list[LoopRegion](), set(taken)
    large = {name for name, size in sized.sizes.items() if size >= least_bytes and name in sized.makers}
    for name in sorted(large, key=lambda each: (-sized.sizes[each], sized.makers[each])):
        sized.look()
        varying = [axis for axis, dim in enumerate(sized.dims[name]) if dim.terms and axis in (ROWS, COLUMNS)]
        is_free = sized.makers[name] not in used
        region = _grown(sized, name, varying[0], large, used) if varying and is_free else None
        if region is not None and again:
            others = set(taken).union(*(each.ops for each in found if each.copies))
            region = _making_again(sized, region, large, others) if others.isdisjoint(region.ops) else region
        if region is not None:
            found.append(region)
            used |= region.own
    return found


def _making_again(sized: SizedView, region: LoopRegion, large: Collection[str], barred: Collection[int]) -> LoopRegion:
    """The region with copies of ops that make what it reads of skip connections, from what is small; or as it was.

    Ops that are `barred` are not copied.
    """
    view, axis = sized.view, present(region.windows, "the windows of a loop").axis
    for name in sorted({name for op in region.ops for name in view.reads[op] if name in large} - sized.kept):
        others = set(view.readers[name]) - region.ops
        if sized.makers[name] in region.ops or not others or not all(runs_along(sized, op, axis) for op in others):
            continue  # what an op reads whole must be there anyway
        copies = region.copies | _from_small(sized, name, axis, large, region.own.union(barred))
        found = _region(sized, region.ops | copies, axis, copies) if len(copies) > len(region.copies) else None
        if isinstance(found, LoopRegion) and is_closed(sized, found):
            region = found
    return region


def _from_small(sized: SizedView, name: str, axis: int, large: Collection[str], barred: Collection[int]) -> set[int]:
    """The ops that make a tensor of others that are not large, few enough to run again; none where one cannot."""
    found, waiting = set[int](), [name]
    while waiting:
        op = sized.makers.get(waiting.pop())
        if op is None or op in found:
            continue
        if op in barred or len(found) == MOST_AGAIN or not runs_along(sized, op, axis):
            return set()
        found.add(op)
        waiting += [each for each in sized.view.reads[op] if each in large]
    return found


def _grown(sized: SizedView, name: str, axis: int, large: Collection[str], used: Collection[int]) -> LoopRegion | None:
    """The largest region around a tensor whose tiles are alike; ops of which they are not are left whole."""
    barred = set(used)
    while sized.makers[name] not in barred:
        sized.look()
        ops = _around(sized, name, axis, large, barred)
        found = _region(sized, ops, axis) if any(sized.view.rules[op].windows is not None for op in ops) else None
        if not isinstance(found, NotAlike):
            is_worth_it = found is not None and is_closed(sized, found) and hides_some(sized, found, large)
            return found if is_worth_it else None
        barred.add(found.op)
    return None


def _around(sized: SizedView, name: str, axis: int, large: Collection[str], barred: Collection[int]) -> set[int]:
    """Ops that make or read large tensors in touch with one, and all that lie between them.

    Where an op that stays whole reads some of them and is read by others, those behind it are not among them.
    """
    view, makers = sized.view, sized.makers
    touching = _touching(sized, {name}, axis, large, barred)

    def can_run(op: int) -> bool:
        return op not in barred and runs_along(sized, op, axis)

    levels = levels_of(sized, touching, can_run)
    own = {op for op, level in levels.items() if level == levels.get(makers[name])}
    near = _touching(sized, {name}, axis, large, set(range(len(view.ops))) - own) & own
    ops = with_smaller_exits(sized, between(sized, near, own), can_run)
    return without_whole(sized, with_cheap_entries(sized, ops, axis, can_run))


def _touching(
    sized: SizedView, names: Collection[str], axis: int, large: Collection[str], barred: Collection[int]
) -> set[int]:
    """Ops that can run in tiles and make or read large tensors, each in touch with one of these through others."""
    ops, waiting, seen = set[int](), list(names), set(names)
    while waiting:
        current = waiting.pop()
        near = {sized.makers[current], *sized.view.readers[current]} if current in sized.makers else set()
        more = {op for op in near - ops if op not in barred and runs_along(sized, op, axis)}
        ops |= more
        touched = {each for op in more for each in (*sized.view.reads[op], *sized.view.makes[op])} & set(large) - seen
        seen |= touched
        waiting += touched
    return ops


def runs_along(sized: SizedView, op: int, axis: int) -> bool:
    """Whether an op can run in tiles along rows, or columns, at the largest sizes."""
    view = sized.view
    made = next((name for name in view.makes[op] if name), "")
    extents = view.tensors[made].shape if made else ()
    if len(extents) <= axis or not sized.dims[made][axis].terms or view.facts[op].why_not_repeatable:
        return False
    spec = view.ops[op]
    if spec.integer("channels_last", 0) or extents[axis] < LEAST_UNITS:
        return False
    third = extents[axis] // 3
    return sliced_part(sized, op, Slab(axis, third, extents[axis] - third)) is not None


def _region(sized: SizedView, ops: set[int], axis: int, copies: Collection[int] = ()) -> LoopRegion | NotAlike | None:
    """The region of some ops, or one whose tiles are not alike; None where there are too few rows, or columns.

    `copies` are those of them that run outside too.
    """
    view, own = sized.view, ops.difference(copies)
    made = [name for op in sorted(ops) for name in view.makes[op] if name]
    lengths = {name: tensor.shape[axis] for name, tensor in view.tensors.items() if len(tensor.shape) > axis}
    read = (name for op in sorted(ops) for name in view.reads[op] if name in lengths and sized.dims[name][axis].terms)
    coarsest = min((*made, *read), key=lambda name: lengths[name])
    units = lengths[coarsest]
    ends = (name for op in sorted(own) for name in view.makes[op] if name)
    exits = [name for name in ends if name in sized.kept or any(each not in own for each in view.readers[name])]
    ratios = {name: round(lengths[name] / units) for name in exits}
    if units < LEAST_UNITS or not exits:
        return None
    demand = Demand(axis, tuple(sorted(ops)), view.reads, view.makes, lambda op, slab: sliced_part(sized, op, slab))
    tiles = window_tiles(demand, ratios, units, lengths)
    if isinstance(tiles, NotAlike):
        return tiles
    length: Dim = sized.dims[coarsest][axis]
    return LoopRegion(length, ops, set(copies), axes=dict.fromkeys(made, axis), windows=tiles)


def sliced_part(sized: SizedView, op: int, slab: Slab, at: OpView | None = None) -> Sliced | None:
    """An op cut down to rows, or columns; `at` is the op with the shapes of other sizes than the largest."""
    view, spec = sized.view, sized.view.ops[op] if at is None else at
    if relabels_blocks(spec, any(name in view.blocked for name in (*view.reads[op], *view.makes[op]) if name)):
        return of_first(spec, slab, slab)
    sliced = slice_op(spec, slab)
    is_last = slab.stop == spec.output_shape[slab.axis]
    if sliced is None or not is_last or not rule_of(*spec.key).has_windows or "pads" not in sliced.attributes:
        return sliced
    # the last rows of an op with windows: it reads to the end, and pads there as the whole does. How many rows no
    # window looks at, there or in the padding, depends on the size; there are as many windows
    need, pads = present(sliced.needs[0], "a slab of what a window reads"), sliced.attributes["pads"]
    assert isinstance(pads, tuple)
    place = slab.axis - ROWS
    after = windows_of(spec, kernel_of(spec))[place].after
    changed = tuple(int(after if at == len(pads) // 2 + place else pad) for at, pad in enumerate(pads))
    longest = need._replace(stop=spec.input_shape(0)[slab.axis])
    return replace(sliced, needs=(longest, *sliced.needs[1:]), attributes={**sliced.attributes, "pads": changed})
