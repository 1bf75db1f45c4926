"""Regions of windowed ops along a spatial axis that varies: which ops, and what their tiles read of each other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from remat_cli.base.present import present
from remat_cli.core.values.sizes import Dim
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_closed
from remat_cli.splitting.loops.windows import ROWS, Demand, relabels_blocks, window_tiles
from remat_cli.splitting.rules.table import rule_of, slice_op
from remat_cli.splitting.tiles.op_view import OpView, Slab, Sliced, of_first

LEAST_UNITS = 6


def find_windows(sized: SizedView, least_bytes: int, taken: Collection[int]) -> list[LoopRegion]:
    """Regions around tensors of at least so many bytes, of ops that no other region has taken; they share no op."""
    found, used = list[LoopRegion](), set(taken)
    large = {name for name, size in sized.sizes.items() if size >= least_bytes and name in sized.makers}
    for name in sorted(large, key=lambda each: (-sized.sizes[each], sized.makers[each])):
        sized.look()
        if sized.makers[name] in used:
            continue
        ops = _around(sized, name, large, used)
        region = None if ops is None else _region(sized, ops)
        if region is not None and is_closed(sized, region):
            found.append(region)
            used |= region.ops
    return found


def _around(sized: SizedView, name: str, large: Collection[str], used: Collection[int]) -> set[int] | None:
    """Ops that make or read large tensors in touch with one, and all that lie between them; None where some cannot."""
    ops, waiting = set[int](), [name]
    while waiting:
        current = waiting.pop()
        near = {sized.makers[current], *sized.view.readers[current]} if current in sized.makers else set()
        more = {op for op in near if op not in used and _runs_in_tiles(sized, op)} - ops
        ops |= more
        touched = {each for op in more for each in (*sized.view.reads[op], *sized.view.makes[op])}
        waiting += [each for each in touched & set(large) if each != current]
    # ops that need some of these and are needed by some
    view, after, before = sized.view, set(ops), set(ops)
    span = range(min(ops, default=0), max(ops, default=-1) + 1)
    for op in span:
        if any(sized.makers.get(name) in after for name in view.reads[op]):
            after.add(op)
    for op in reversed(span):
        if any(reader in before for name in view.makes[op] if name for reader in view.readers[name]):
            before.add(op)
    between = (after & before) - ops
    if any(op in used or not _runs_in_tiles(sized, op) for op in between):
        return None
    return ops | between or None


def _runs_in_tiles(sized: SizedView, op: int) -> bool:
    """Whether an op can run in tiles along rows at the largest sizes."""
    view = sized.view
    made = next((name for name in view.makes[op] if name), "")
    extents = view.tensors[made].shape if made else ()
    if len(extents) <= ROWS or not sized.dims[made][ROWS].terms or view.facts[op].why_not_repeatable:
        return False
    spec = view.ops[op]
    if rule_of(*spec.key).windows is None and not relabels_blocks(spec, made in view.blocked):
        return False
    is_told = spec.text("auto_pad", "NOTSET") == "NOTSET" and not spec.integer("ceil_mode", 0)
    if not is_told or spec.integer("channels_last", 0) or extents[ROWS] < LEAST_UNITS:
        return False
    third = extents[ROWS] // 3
    return sliced_part(sized, op, Slab(ROWS, third, extents[ROWS] - third)) is not None


def _region(sized: SizedView, ops: set[int]) -> LoopRegion | None:
    """The region of some ops; None where its tiles are not alike."""
    view = sized.view
    made = [name for op in sorted(ops) for name in view.makes[op] if name]
    lengths = {name: tensor.shape[ROWS] for name, tensor in view.tensors.items() if len(tensor.shape) > ROWS}
    coarsest = min(made, key=lambda name: lengths[name])
    units = lengths[coarsest]
    exits = [name for name in made if name in sized.kept or any(each not in ops for each in view.readers[name])]
    ratios = {name: round(lengths[name] / units) for name in exits}
    if units < LEAST_UNITS or not exits:
        return None
    demand = Demand(ROWS, tuple(sorted(ops)), view.reads, view.makes, lambda op, slab: sliced_part(sized, op, slab))
    tiles = window_tiles(demand, ratios, units, lengths)
    if tiles is None:
        return None
    length: Dim = sized.dims[coarsest][ROWS]
    return LoopRegion(length, ops, axes=dict.fromkeys(made, ROWS), windows=tiles)


def sliced_part(sized: SizedView, op: int, slab: Slab, at: OpView | None = None) -> Sliced | None:
    """An op cut down to rows; `at` is the op with the shapes of other sizes than the largest."""
    view, spec = sized.view, sized.view.ops[op] if at is None else at
    if relabels_blocks(spec, any(name in view.blocked for name in (*view.reads[op], *view.makes[op]) if name)):
        return of_first(spec, slab, slab)
    sliced = slice_op(spec, slab)
    if sliced is None or not rule_of(*spec.key).has_windows or slab.stop < spec.output_shape[ROWS]:
        return sliced
    # the last rows of an op with windows: it reads to the end, and pads there as the whole does. How many rows no
    # window looks at, there or in the padding, depends on the size; there are as many windows
    need, pads = present(sliced.needs[0], "a slab of what a window reads"), sliced.attributes["pads"]
    assert isinstance(pads, tuple)
    spatial = len(pads) // 2
    after = (spec.integers("pads") or (0,) * len(pads))[spatial]
    changed = tuple(int(after if at == spatial else pad) for at, pad in enumerate(pads))
    longest = need._replace(stop=spec.input_shape(0)[ROWS])
    return replace(sliced, needs=(longest, *sliced.needs[1:]), attributes={**sliced.attributes, "pads": changed})
