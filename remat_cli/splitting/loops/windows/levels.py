"""Ops that run in tiles between others that stay whole: which of them may be one loop.

An op that stays whole, such as a mean of all rows that weights each channel, has ops before it that it reads from, and
others behind it. Those before it and those behind are not one loop: levels tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView
from remat_cli.splitting.tiles.view import ModelView


def levels_of(sized: SizedView, ops: Collection[int], can_run: Callable[[int], bool]) -> dict[int, int]:
    """By op that can run in tiles behind how many others, of ops that cannot, it lies, which lie behind some of these.

    What only later ones read is made there, where what it is made from is kept anyhow, or is smaller.
    """
    view, behind, levels = sized.view, dict[int, int](), dict[int, int]()
    for op in range(min(ops, default=0), max(ops, default=-1) + 1):
        before = {sized.makers[name] for name in view.reads[op] if sized.makers.get(name) in behind}
        if op in ops or (before and can_run(op)):
            behind[op] = levels[op] = max((behind[each] for each in before), default=0)
        elif before:
            behind[op] = max(behind[each] + (each in levels) for each in before)
    for op in sorted(levels, reverse=True):
        later = [levels.get(reader, 0) for reader in _readers(view, op)]
        if later and min(later) > levels[op]:
            levels |= dict.fromkeys(_made_later(sized, op, levels), min(later))
    return levels


def _made_later(sized: SizedView, last: int, levels: Mapping[int, int]) -> set[int]:
    """Ops that may wait until the last of them is needed: little of what they read must be kept for that.

    Convolutions and products do not wait, since each reads rows around a tile, or all of what it reads.
    """
    view, level, waiting = sized.view, levels[last], set[int]()
    for op in range(last, -1, -1):
        readers = _readers(view, op)
        is_cheap = not (view.rules[op].has_windows or view.rules[op].product or view.rules[op].reads_all_channels)
        is_own = levels.get(op) == level and is_cheap and sized.kept.isdisjoint(view.makes[op])
        if op == last or (readers and readers <= waiting):
            waiting |= {op} if is_own else set()
    made = {name for op in waiting for name in view.makes[op] if name}
    read = {name for op in waiting for name in view.reads[op] if name in view.readers} - made
    ending = (name for name in read if all(each in waiting for each in view.readers[name]))
    is_less = sum(sized.sizes[name] for name in ending) <= sum(sized.sizes[name] for name in view.makes[last] if name)
    return waiting if is_less else set()


def _readers(view: ModelView, op: int) -> set[int]:
    return {reader for name in view.makes[op] if name for reader in view.readers[name]}


def between(sized: SizedView, ops: Collection[int], allowed: Collection[int]) -> set[int]:
    """Ops, and those of the allowed ones that need some of them and are needed by some."""
    after, before = set(ops), set(ops)
    span = range(min(ops, default=0), max(ops, default=-1) + 1)
    for op in span:
        if op in allowed and any(sized.makers.get(name) in after for name in sized.view.reads[op]):
            after.add(op)
    for op in reversed(span):
        if op in allowed and not before.isdisjoint(_readers(sized.view, op)):
            before.add(op)
    return after & before


def hides_some(sized: SizedView, region: LoopRegion, large: Collection[str]) -> bool:
    """Whether some large tensor is never whole: others that are read outside, all of a region, it would only join."""
    made = (name for op in region.ops for name in sized.view.makes[op] if name in large)
    return any(name not in sized.kept and region.ops.issuperset(sized.view.readers[name]) for name in made)
