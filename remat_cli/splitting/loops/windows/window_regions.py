"""Regions of windowed ops along an axis that varies: which ops, and what their tiles read of each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_closed, is_read_whole
from remat_cli.splitting.loops.windows.along import LEAST_UNITS, Along
from remat_cli.splitting.loops.windows.edges import with_cheap_entries, with_smaller_exits, without_whole
from remat_cli.splitting.loops.windows.forms import COLUMNS, ROWS, Demand, NotAlike, window_tiles
from remat_cli.splitting.loops.windows.levels import between, hides_some, levels_of
from remat_cli.splitting.loops.windows.parts import sliced_part
from remat_cli.splitting.rules.record import WindowKind

MOST_AGAIN = 32  # ops that run again for one skip connection


def find_windows(
    sized: SizedView, least_bytes: int, taken: Collection[int], *, again: bool = False
) -> list[LoopRegion]:
    """Regions around tensors of at least so many bytes, of ops that no other region has taken; they share no op.

    They are cut along rows, or along columns where there are always as many rows, as in pictures of a sound, or along
    any axis where both are the same for all sizes, as in spectra. With `again` they make again what they read of such
    tensors that others read long before, where rules allow.
    """
    found, plain, used = list[tuple[LoopRegion, Along]](), list[LoopRegion](), set(taken)
    large = {name for name, size in sized.sizes.items() if size >= least_bytes and name in sized.makers}
    for name in sorted(large, key=lambda each: (-sized.sizes[each], sized.makers[each])):
        sized.look()
        for along in _ways(sized, name) if sized.makers[name] not in used else ():
            region = _grown(sized, name, along, large, used)
            if region is None or not (along.start in (ROWS, COLUMNS) or _moves_windows(sized, region)):
                continue
            plain.append(region)
            others = set(taken).union(*(each.ops for each, _ in found if each.copies))
            if again and others.isdisjoint(region.ops):
                region = _making_again(sized, region, along, large, others)
            found.append((region, along))
            used |= region.own
            break
    return _read_by_copies(sized, found) or plain


def _read_by_copies(sized: SizedView, found: Sequence[tuple[LoopRegion, Along]]) -> list[LoopRegion]:
    """The regions, of which what copies elsewhere read is an exit too; none where one cannot make that."""
    regions, whole = [region for region, _ in found], list[LoopRegion]()
    for region, along in found:
        made = {name for op in region.own for name in sized.view.makes[op] if name}
        more = {name for name in made - _exits(region) if is_read_whole(sized.view, regions, region, name)}
        made_whole = _region(sized, region.ops, along, region.copies, more) if more else region
        if not isinstance(made_whole, LoopRegion):
            return []
        whole.append(made_whole)
    return whole


def _exits(region: LoopRegion) -> set[str]:
    return set(present(region.windows, "the windows of a loop").inner.exits)


def _ways(sized: SizedView, name: str) -> Iterator[Along]:
    """How a tensor may be cut, with all others around it: along other axes of these, or all along the same one."""
    varying = [axis for axis, dim in enumerate(sized.dims[name]) if dim.terms and axis]
    for axis in [axis for axis in varying if axis in (ROWS, COLUMNS)][:1] or varying:
        yield (along := Along.around(sized, name, axis))
        if any(each != axis for each in along.axes.values()):
            yield Along(axis)


def _moves_windows(sized: SizedView, region: LoopRegion) -> bool:
    """Whether some op of a region looks at windows: others run in plain loops along axes that are none of pictures."""
    kinds = {sized.view.rules[op].windows for op in region.ops}
    return not kinds <= {None, WindowKind.BESIDE}


def _making_again(
    sized: SizedView, region: LoopRegion, along: Along, wanted: Collection[str], barred: Collection[int]
) -> LoopRegion:
    """The region with copies of ops that make what it reads of skip connections, or as it was.

    They are made from what is there whole: nothing that is `wanted` in tiles. Ops that are `barred` are not copied.
    """
    view = sized.view
    for name in sorted({name for op in region.ops for name in view.reads[op] if name in wanted} - sized.kept):
        others = set(view.readers[name]) - region.ops
        if sized.makers[name] in region.ops or not others or not all(along.runs(sized, op) for op in others):
            continue  # what an op reads whole must be there anyway
        copies = region.copies | _from_whole(sized, name, along, wanted, region.own.union(barred))
        found = _region(sized, region.ops | copies, along, copies) if len(copies) > len(region.copies) else None
        if isinstance(found, LoopRegion) and is_closed(sized, found):
            region = found
    return region


def _from_whole(
    sized: SizedView, name: str, along: Along, wanted: Collection[str], barred: Collection[int]
) -> set[int]:
    """Few ops that make a tensor of others that are not wanted in tiles; none where one of them cannot run again."""
    found, waiting = set[int](), [name]
    while waiting:
        op = sized.makers.get(waiting.pop())
        if op is None or op in found:
            continue
        if op in barred or len(found) == MOST_AGAIN or not along.runs(sized, op):
            return set()
        found.add(op)
        waiting += [each for each in sized.view.reads[op] if each in wanted]
    return found


def _grown(
    sized: SizedView, name: str, along: Along, large: Collection[str], used: Collection[int]
) -> LoopRegion | None:
    """The largest region around a tensor whose tiles are alike; ops of which they are not are left whole."""
    barred = set(used)
    while sized.makers[name] not in barred:
        sized.look()
        ops = _around(sized, name, along, large, barred)
        found = _region(sized, ops, along) if any(sized.view.rules[op].windows is not None for op in ops) else None
        if not isinstance(found, NotAlike):
            is_worth_it = found is not None and is_closed(sized, found) and hides_some(sized, found, large)
            return found if is_worth_it else None
        barred.add(found.op)
    return None


def _around(sized: SizedView, name: str, along: Along, large: Collection[str], barred: Collection[int]) -> set[int]:
    """Ops that make or read large tensors in touch with one, and all that lie between them.

    Where an op that stays whole reads some of them and is read by others, those behind it are not among them.
    """
    view, makers = sized.view, sized.makers
    touching = _touching(sized, {name}, along, large, barred)

    def can_run(op: int) -> bool:
        return op not in barred and along.runs(sized, op)

    levels = levels_of(sized, touching, can_run)
    own = {op for op, level in levels.items() if level == levels.get(makers[name])}
    near = _touching(sized, {name}, along, large, set(range(len(view.ops))) - own) & own
    ops = with_smaller_exits(sized, between(sized, near, own), can_run)
    return without_whole(sized, with_cheap_entries(sized, ops, along, can_run))


def _touching(
    sized: SizedView, names: Collection[str], along: Along, large: Collection[str], barred: Collection[int]
) -> set[int]:
    """Ops that can run in tiles and make or read large tensors, each in touch with one of these through others."""
    ops, waiting, seen = set[int](), list(names), set(names)
    while waiting:
        current = waiting.pop()
        near = {sized.makers[current], *sized.view.readers[current]} if current in sized.makers else set()
        more = {op for op in near - ops if op not in barred and along.runs(sized, op)}
        ops |= more
        touched = {each for op in more for each in (*sized.view.reads[op], *sized.view.makes[op])} & set(large) - seen
        seen |= touched
        waiting += touched
    return ops


def _region(
    sized: SizedView, ops: set[int], along: Along, copies: Collection[int] = (), more: Collection[str] = ()
) -> LoopRegion | NotAlike | None:
    """The region of some ops, or one whose tiles are not alike; None where there are too few rows, or columns.

    `copies` are those of them that run outside too; `more` is read outside beside what ops of the model read there.
    """
    view, own = sized.view, ops.difference(copies)
    made = [name for op in sorted(ops) for name in view.makes[op] if name]
    axes = {name: along.axis_of(name) for op in sorted(ops) for name in (*view.reads[op], *view.makes[op]) if name}
    axes = {name: axis for name, axis in axes.items() if len(sized.dims.get(name, ())) > axis}
    lengths = {name: view.tensors[name].shape[axis] for name, axis in axes.items()}
    read = (
        name for op in sorted(ops) for name in view.reads[op] if name in axes and sized.dims[name][axes[name]].terms
    )
    coarsest = min((*made, *read), key=lambda name: lengths[name])
    units = lengths[coarsest]
    ends = (name for op in sorted(own) for name in view.makes[op] if name)
    outside = sized.kept.union(more)
    exits = [name for name in ends if name in outside or any(each not in own for each in view.readers[name])]
    ratios = {name: round(lengths[name] / units) for name in exits}
    if units < LEAST_UNITS or not exits:
        return None
    demand = Demand(axes, tuple(sorted(ops)), view.reads, view.makes, lambda op, slab: sliced_part(sized, op, slab))
    tiles = window_tiles(demand, ratios, units, lengths)
    if isinstance(tiles, NotAlike):
        return tiles
    length: Dim = sized.dims[coarsest][axes[coarsest]]
    return LoopRegion(length, ops, set(copies), axes={name: axes[name] for name in made}, windows=tiles)
