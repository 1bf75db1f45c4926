"""Regions that run some steps of a sequence at a time, whose recurrent ops hand their states on from tile to tile.

Such an op holds the gates of all steps at once, unless it runs a few steps at a time. Tiles run in the order of time,
or against it, so that no other tile is needed but the one before. What follows step by step joins the loop, as does
what only changes the order of what is read, so that less of it is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from remat_cli.splitting.loops.loop_regions import PROBE, LoopRegion, SizedView, is_closed, is_op_on_parts
from remat_cli.splitting.rules.recurrent import TIME, HandedOn
from remat_cli.splitting.rules.table import slice_in_turn
from remat_cli.splitting.tiles.op_view import Slab


def find_handed(sized: SizedView, least_bytes: int, barred: Collection[int] = ()) -> list[LoopRegion]:
    """Regions around recurrent ops that read or make so many bytes, along a time that varies; they share no op.

    Ops that are `barred` stay whole.
    """
    view, found, used = sized.view, list[LoopRegion](), set(barred)
    in_turn = ops_in_turn(sized)
    for op, handed in sorted(in_turn.items()):
        sized.look()
        around = (name for name in (*view.reads[op], *view.makes[op]) if name in sized.sizes)
        if op in used or max(sized.sizes[name] for name in around) < least_bytes:
            continue
        made = view.makes[op][0]
        region = LoopRegion(sized.dims[made][TIME], {op}, axes={made: TIME}, reads={(op, 0): TIME}, handed={op: handed})
        if not is_closed(sized, region):
            continue
        region = _with_readers(sized, region, in_turn, used)
        region = _with_sources(sized, _with_least_exits(sized, region), used)
        found.append(region)
        used |= region.ops
    return found


def ops_in_turn(sized: SizedView) -> dict[int, HandedOn]:
    """Ops that can hand states on along a time that varies, where nothing else of them is read."""
    view, found = sized.view, dict[int, HandedOn]()
    for op, rule in enumerate(view.rules):
        names = view.makes[op]
        if rule.hands_on is None or view.facts[op].why_not_repeatable or op in view.of_value_lengths:
            continue
        handed = rule.hands_on(view.ops[op])
        is_rest_unread = all(name in sized.kept or not view.readers.get(name) for name in names[1:] if name)
        if handed is None or not is_rest_unread or sized.kept.intersection(names[1:]):
            continue
        length, read = sized.dims.get(names[0], ()), sized.dims.get(view.reads[op][0], ())
        steps = view.tensors[names[0]].shape[TIME]
        slab = Slab(TIME, steps // PROBE, steps)
        is_varying = bool(length and read) and bool(length[TIME].terms) and length[TIME] == read[TIME]
        if is_varying and steps >= PROBE and is_op_on_parts(view.ops[op], slice_in_turn(view.ops[op], slab), slab):
            found[op] = handed
    return found


def _with_readers(
    sized: SizedView, region: LoopRegion, in_turn: Mapping[int, HandedOn], barred: Collection[int]
) -> LoopRegion:
    """The region with all ops behind it that run step by step on what it makes."""
    for op in range(min(region.ops) + 1, len(sized.view.ops)):
        if op in barred or op in region.ops or not region.axes.keys() & set(sized.view.reads[op]):
            continue
        joined = _joined(sized, region, op, in_turn.get(op))
        if joined is not None and is_closed(sized, joined):
            region = joined
    return region


def _joined(sized: SizedView, region: LoopRegion, op: int, handed: HandedOn | None) -> LoopRegion | None:
    """The region with an op more, that reads what it makes as it is cut; None where it cannot."""
    view, names = sized.view, [name for name in sized.view.makes[op] if name]
    if handed is not None:
        names, needs = names[:1], {0: TIME}
        axis = TIME if handed.is_backwards == region.is_backwards and _is_along(sized, region, op) else None
    else:
        along = [axis for axis, dim in enumerate(sized.dims.get(names[0], ())) if dim == region.length]
        axis = next((each for each in along if _fits(sized, region, op, each)), None)
        needs = {} if axis is None else sized.needs(op, axis, region.length) or {}
    if axis is None or view.facts[op].why_not_repeatable:
        return None
    reads = {(op, place): need for place, need in needs.items()}
    more = {} if handed is None else {op: handed}
    return replace(
        region,
        ops=region.ops | {op},
        axes=region.axes | dict.fromkeys(names, axis),
        reads=region.reads | reads,
        handed=region.handed | more,
    )


def _is_along(sized: SizedView, region: LoopRegion, op: int) -> bool:
    """Whether a recurrent op goes along the region's time, of which it reads all else whole from outside."""
    first, *others = sized.view.reads[op]
    is_same = sized.dims[sized.view.makes[op][0]][TIME] == region.length and region.axes.get(first, TIME) == TIME
    return is_same and region.axes.keys().isdisjoint(others)


def _fits(sized: SizedView, region: LoopRegion, op: int, axis: int) -> bool:
    """Whether an op that is cut along an axis reads what the region makes as that is cut."""
    needs = sized.needs(op, axis, region.length)
    inside = [(place, name) for place, name in enumerate(sized.view.reads[op]) if name in region.axes]
    return needs is not None and all(needs.get(place) == region.axes[name] for place, name in inside)


def _with_least_exits(sized: SizedView, region: LoopRegion) -> LoopRegion:
    """The region without ops at its end that make more than they read: what is joined is held several times."""
    view, first = sized.view, min(region.ops)
    for op in sorted(region.ops, reverse=True):
        made = [name for name in view.makes[op] if name]
        read = {name for name in view.reads[op] if name in region.axes}
        is_last = region.ops.isdisjoint(reader for name in made for reader in view.readers.get(name, ()))
        saved = sum(sized.sizes[name] for name in made if view.readers.get(name) or name in sized.kept)
        new = (name for name in read if region.ops.issuperset(view.readers[name]) and name not in sized.kept)
        if is_last and op != first and sum(sized.sizes[name] for name in new) < saved:
            region = replace(
                region,
                ops=region.ops - {op},
                axes={name: axis for name, axis in region.axes.items() if name not in made},
                reads={place: axis for place, axis in region.reads.items() if place[0] != op},
                handed={each: handed for each, handed in region.handed.items() if each != op},
            )
    return region


def _reads_all_alike(sized: SizedView, region: LoopRegion, name: str, axis: int) -> bool:
    """Whether only the region reads a tensor, and cuts it along this axis wherever it does."""
    places = [
        (op, at) for op in sized.view.readers[name] for at, each in enumerate(sized.view.reads[op]) if each == name
    ]
    return all(region.reads.get(place) == axis and place[0] in region.ops for place in places)


def _with_sources(sized: SizedView, region: LoopRegion, barred: Collection[int]) -> LoopRegion:
    """The region with cheap ops before it of which only it reads, that read no more than they make."""
    view, waiting = sized.view, sorted(region.reads)
    while waiting:
        place = waiting.pop()
        name, axis = view.reads[place[0]][place[1]], region.reads[place]
        op = sized.makers.get(name)
        if op is None or op in region.ops or op in barred or name in sized.kept or not view.rules[op].is_cheap:
            continue
        needs = sized.needs(op, axis, region.length)
        read = {each for each in view.reads[op] if each in sized.sizes}
        is_own = _reads_all_alike(sized, region, name, axis) and len([each for each in view.makes[op] if each]) == 1
        if needs is None or not is_own or sum(sized.sizes[each] for each in read) > sized.sizes[name]:
            continue
        reads = {(op, each): need for each, need in needs.items()}
        more = replace(region, ops=region.ops | {op}, axes=region.axes | {name: axis}, reads=region.reads | reads)
        if is_closed(sized, more):
            region = more
            waiting += reads
    return region
