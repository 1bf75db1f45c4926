"""Regions of windowed ops along a spatial axis that varies: which ops, and what their tiles read of each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim, number
from remat_cli.splitting.loops.levels import between, hides_some, levels_of
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_closed
from remat_cli.splitting.loops.windows import ROWS, Demand, NotAlike, relabels_blocks, window_tiles
from remat_cli.splitting.rules.record import WindowKind
from remat_cli.splitting.rules.table import rule_of, slice_op
from remat_cli.splitting.rules.window import kernel_of, windows_of
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first

LEAST_UNITS = 6


def find_windows(sized: SizedView, least_bytes: int, taken: Collection[int]) -> list[LoopRegion]:
    """Regions around tensors of at least so many bytes, of ops that no other region has taken; they share no op."""
    found, used = list[LoopRegion](), set(taken)
    large = {name for name, size in sized.sizes.items() if size >= least_bytes and name in sized.makers}
    for name in sorted(large, key=lambda each: (-sized.sizes[each], sized.makers[each])):
        sized.look()
        region = None if sized.makers[name] in used else _grown(sized, name, large, used)
        if region is not None:
            found.append(region)
            used |= region.ops
    return found


def _grown(sized: SizedView, name: str, large: Collection[str], used: Collection[int]) -> LoopRegion | None:
    """The largest region around a tensor whose tiles are alike; ops of which they are not are left whole."""
    barred = set(used)
    while sized.makers[name] not in barred:
        sized.look()
        ops = _around(sized, name, large, barred)
        found = _region(sized, ops) if any(sized.view.rules[op].windows is not None for op in ops) else None
        if not isinstance(found, NotAlike):
            is_worth_it = found is not None and is_closed(sized, found) and hides_some(sized, found, large)
            return found if is_worth_it else None
        barred.add(found.op)
    return None


def _around(sized: SizedView, name: str, large: Collection[str], barred: Collection[int]) -> set[int]:
    """Ops that make or read large tensors in touch with one, and all that lie between them.

    Where an op that stays whole reads some of them and is read by others, those behind it are not among them.
    """
    view, makers = sized.view, sized.makers
    touching = _touching(sized, {name}, large, barred)
    levels = levels_of(sized, touching, lambda op: op not in barred and runs_in_rows(sized, op))
    own = {op for op, level in levels.items() if level == levels.get(makers[name])}
    near = _touching(sized, {name}, large, set(range(len(view.ops))) - own) & own
    return _with_cheap_entries(sized, _with_smaller_exits(sized, between(sized, near, own), barred), barred)


def _with_smaller_exits(sized: SizedView, ops: set[int], barred: Collection[int]) -> set[int]:
    """The same with ops that make of what would be joined something smaller, row by row.

    Channels of convolutions in blocks are such: 24 of them lie in memory as 32, until they are put in order.
    """
    for name in [each for op in sorted(ops) for each in sized.view.makes[op] if each]:
        behind = list(_by_rows_behind(sized, name, ops | set(barred)))
        sizes = [sized.sizes[sized.view.makes[op][0]] for op in behind]
        least = min(sizes, default=sized.sizes[name])
        more = ops.union(behind[: sizes.index(least) + 1]) if least < sized.sizes[name] else ops
        ops = more if is_closed(sized, LoopRegion(number(0), more)) else ops
    return ops


def _by_rows_behind(sized: SizedView, name: str, others: Collection[int]) -> Iterator[int]:
    """Ops that look at no windows, each the only one that reads what the one before it makes, or at first a tensor."""
    view = sized.view
    while name not in sized.kept and len(view.readers[name]) == 1:
        (op,) = view.readers[name]
        if op in others or view.rules[op].windows not in (None, WindowKind.BESIDE) or len(view.makes[op]) > 1:
            return
        if not runs_in_rows(sized, op):
            return
        yield op
        name = view.makes[op][0]


def _with_cheap_entries(sized: SizedView, ops: set[int], barred: Collection[int]) -> set[int]:
    """The same with ops that only they read from, row by row, where what those read is kept anyway, or is smaller."""
    view, waiting = sized.view, sorted(ops)
    while waiting:
        for name in view.reads[waiting.pop()]:
            op = sized.makers.get(name)
            if op is None or op in ops or op in barred or not ops.issuperset(view.readers[name]):
                continue
            read = {each for each in view.reads[op] if each in sized.makers}
            ending = [each for each in read if each not in sized.kept and max(view.readers[each]) <= max(ops)]
            is_less = sum(sized.sizes[each] for each in ending) < sized.sizes[name]
            is_cheap = view.rules[op].windows in (None, WindowKind.BESIDE) and not view.rules[op].product
            is_by_row = {_rows(sized, each) for each in read} <= {_rows(sized, name), number(1), None}
            if is_less and is_cheap and is_by_row and name not in sized.kept and runs_in_rows(sized, op):
                more = ops | {op}
                if is_closed(sized, LoopRegion(number(0), more)):
                    ops = more
                    waiting.append(op)
    return ops


def _rows(sized: SizedView, name: str) -> Dim | None:
    """How many rows a tensor has."""
    return sized.dims[name][ROWS] if len(sized.dims[name]) > ROWS else None


def _touching(sized: SizedView, names: Collection[str], large: Collection[str], barred: Collection[int]) -> set[int]:
    """Ops that can run in tiles and make or read large tensors, each in touch with one of these through others."""
    ops, waiting, seen = set[int](), list(names), set(names)
    while waiting:
        current = waiting.pop()
        near = {sized.makers[current], *sized.view.readers[current]} if current in sized.makers else set()
        more = {op for op in near - ops if op not in barred and runs_in_rows(sized, op)}
        ops |= more
        touched = {each for op in more for each in (*sized.view.reads[op], *sized.view.makes[op])} & set(large) - seen
        seen |= touched
        waiting += touched
    return ops


def runs_in_rows(sized: SizedView, op: int) -> bool:
    """Whether an op can run in tiles along rows at the largest sizes."""
    view = sized.view
    made = next((name for name in view.makes[op] if name), "")
    extents = view.tensors[made].shape if made else ()
    if len(extents) <= ROWS or not sized.dims[made][ROWS].terms or view.facts[op].why_not_repeatable:
        return False
    spec = view.ops[op]
    if spec.integer("channels_last", 0) or extents[ROWS] < LEAST_UNITS:
        return False
    third = extents[ROWS] // 3
    return sliced_part(sized, op, Slab(ROWS, third, extents[ROWS] - third)) is not None


def _region(sized: SizedView, ops: set[int]) -> LoopRegion | NotAlike | None:
    """The region of some ops, or one whose tiles are not alike; None where there are too few rows."""
    view = sized.view
    made = [name for op in sorted(ops) for name in view.makes[op] if name]
    lengths = {name: tensor.shape[ROWS] for name, tensor in view.tensors.items() if len(tensor.shape) > ROWS}
    read = (name for op in sorted(ops) for name in view.reads[op] if name in lengths and sized.dims[name][ROWS].terms)
    coarsest = min((*made, *read), key=lambda name: lengths[name])
    units = lengths[coarsest]
    exits = [name for name in made if name in sized.kept or any(each not in ops for each in view.readers[name])]
    ratios = {name: round(lengths[name] / units) for name in exits}
    if units < LEAST_UNITS or not exits:
        return None
    demand = Demand(ROWS, tuple(sorted(ops)), view.reads, view.makes, lambda op, slab: sliced_part(sized, op, slab))
    tiles = window_tiles(demand, ratios, units, lengths)
    if isinstance(tiles, NotAlike):
        return tiles
    length: Dim = sized.dims[coarsest][ROWS]
    return LoopRegion(length, ops, axes=dict.fromkeys(made, ROWS), windows=tiles)


def sliced_part(sized: SizedView, op: int, slab: Slab, at: OpView | None = None) -> Sliced | None:
    """An op cut down to rows; `at` is the op with the shapes of other sizes than the largest."""
    view, spec = sized.view, sized.view.ops[op] if at is None else at
    if relabels_blocks(spec, any(name in view.blocked for name in (*view.reads[op], *view.makes[op]) if name)):
        return of_first(spec, slab, slab)
    sliced = slice_op(spec, slab)
    is_last = slab.stop == spec.output_shape[ROWS]
    if sliced is None or not is_last or not rule_of(*spec.key).has_windows or "pads" not in sliced.attributes:
        return sliced
    # the last rows of an op with windows: it reads to the end, and pads there as the whole does. How many rows no
    # window looks at, there or in the padding, depends on the size; there are as many windows
    need, pads = present(sliced.needs[0], "a slab of what a window reads"), sliced.attributes["pads"]
    assert isinstance(pads, tuple)
    spatial = len(pads) // 2
    after = windows_of(spec, kernel_of(spec))[0].after
    changed = tuple(int(after if at == spatial else pad) for at, pad in enumerate(pads))
    longest = need._replace(stop=spec.input_shape(0)[ROWS])
    return replace(sliced, needs=(longest, *sliced.needs[1:]), attributes={**sliced.attributes, "pads": changed})
