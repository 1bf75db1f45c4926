"""Regions that run a few items of a batch at a time: of all ops that treat items apart, as many as can be together.

Along the batch nothing is computed twice and whole models are one loop, so that a region need not end at a large
tensor, as those along other axes do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from remat_cli.core.values.sizes import Dim
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_closed
from remat_cli.splitting.loops.windows.levels import between, hides_some, levels_of

BATCH = 0  # its axis in what the model reads


def find_batches(sized: SizedView, least_bytes: int, barred: Collection[int] = ()) -> list[LoopRegion]:
    """Regions that keep tensors of at least so many bytes from being whole, cut along the batch; they share no op.

    Ops that are `barred` stay whole.
    """
    large = {name for name, size in sized.sizes.items() if size >= least_bytes and name in sized.makers}
    found, used = list[LoopRegion](), set[int]()
    for length in batches_of(sized.view.model, sized.dims):
        axes, reads = _items(sized, length, barred)
        ops = {sized.makers[name] for name in axes} - used
        levels = levels_of(sized, ops, ops.__contains__)
        for part in _together(sized, levels):
            made = {name: axes[name] for op in part for name in sized.view.makes[op] if name}
            own = {place: axis for place, axis in reads.items() if place[0] in part}
            region = LoopRegion(length, part, axes=made, reads=own)
            if hides_some(sized, region, large) and is_closed(sized, region):
                found.append(region)
                used |= part
    return sorted(found, key=lambda region: min(region.ops))


def batches_of(model: ir.Model, dims: Mapping[str, tuple[Dim, ...]]) -> list[Dim]:
    """Lengths that vary of the first axis of model inputs, each once."""
    inputs = (dims.get(value.name or "", ()) for value in model.graph.inputs)
    return list(dict.fromkeys(each[BATCH] for each in inputs if each and each[BATCH].terms))


def _items(sized: SizedView, length: Dim, barred: Collection[int]) -> tuple[dict[str, int], dict[tuple[int, int], int]]:
    """The axis of items of each tensor whose op makes them apart, and of what such ops read in part."""
    view, axes, reads = sized.view, dict[str, int](), dict[tuple[int, int], int]()
    for op, made in enumerate(view.makes):
        names = [name for name in made if name]
        if op in barred or not names or names[0] not in sized.dims or view.facts[op].why_not_repeatable:
            continue
        for at in sorted(axis for dim, axis in sized.axes_of(names[0]) if dim == length):
            needs = sized.needs(op, at, length)
            inside = [(place, name) for place, name in enumerate(view.reads[op]) if name in axes]
            if needs is not None and all(needs.get(place) == axes[name] for place, name in inside):
                axes |= dict.fromkeys(names, at)
                reads |= {(op, place): axis for place, axis in needs.items()}
                break
    return axes, reads


def _together(sized: SizedView, levels: dict[int, int]) -> Iterator[set[int]]:
    """Ops of one level that share what they make or read, and all between them."""
    view, left = sized.view, set(levels)
    while left:
        first = min(left)
        found, waiting = {first}, [first]
        while waiting:
            op = waiting.pop()
            shared = {name for name in (*view.reads[op], *view.makes[op]) if name in view.readers}
            near = {reader for name in shared for reader in view.readers[name]}
            near |= {sized.makers[name] for name in shared if name in sized.makers}
            more = {each for each in near & left - found if levels[each] == levels[first]}
            found |= more
            waiting += more
        own = {op for op, level in levels.items() if level == levels[first]}
        yield between(sized, found, own & left)
        left -= found
