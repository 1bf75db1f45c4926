"""Ops at the edges of a region in tiles that make less whole: behind it what is joined, before it what is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from remat_cli.core.values.sizes import Dim, number
from remat_cli.onnx_io.read.op_facts import NCHWC
from remat_cli.splitting.loops.loop_regions import LoopRegion, SizedView, is_closed
from remat_cli.splitting.loops.windows.along import Along
from remat_cli.splitting.rules.record import WindowKind

CanRun = Callable[[int], bool]
"""Whether an op can run in tiles along the axis of a region."""


def with_smaller_exits(sized: SizedView, ops: set[int], can_run: CanRun) -> set[int]:
    """The same with ops that make of what would be joined something smaller, row by row.

    Channels of convolutions in blocks are such: 24 of them lie in memory as 32, until they are put in order.
    """
    for name in [each for op in sorted(ops) for each in sized.view.makes[op] if each]:
        behind = list(_behind(sized, name, ops, can_run))
        sizes = [sized.sizes[sized.view.makes[op][0]] for op in behind]
        least = min(sizes, default=sized.sizes[name])
        more = ops.union(behind[: sizes.index(least) + 1]) if least < sized.sizes[name] else ops
        ops = more if is_closed(sized, LoopRegion(number(0), more)) else ops
    return ops


def without_whole(sized: SizedView, ops: set[int]) -> set[int]:
    """The same without ops that read and make only what is whole anyhow: a loop would join that, which takes it twice.

    Such is the op that makes a skip connection of what other loops made. An op that takes room for itself stays, as it
    takes less in tiles.
    """
    view = sized.view
    for op in sorted(ops):
        made, read = ([name for name in names[op] if name] for names in (view.makes, view.reads))
        inner = [name for name in (*made, *read) if sized.makers.get(name) in ops]
        is_whole = all(name in sized.kept or not ops.issuperset(view.readers[name]) for name in inner)
        rest, takes_room = ops - {op}, view.rules[op].reads_all_channels and view.ops[op].key[0] != NCHWC
        if rest and is_whole and not takes_room and is_closed(sized, LoopRegion(number(0), rest)):
            ops = rest
    return ops


def _behind(sized: SizedView, name: str, region: Collection[int], can_run: CanRun) -> Iterator[int]:
    """Ops that look at no windows, each the only one that reads what the one before it makes, or at first a tensor."""
    view = sized.view
    while name not in sized.kept and len(view.readers[name]) == 1:
        (op,) = view.readers[name]
        if op in region or not _looks_at_no_window(sized, op) or len(view.makes[op]) > 1 or not can_run(op):
            return
        yield op
        name = view.makes[op][0]


def with_cheap_entries(sized: SizedView, ops: set[int], along: Along, can_run: CanRun) -> set[int]:
    """The same with ops that only they read from, row by row, where what those read is kept anyway, or is smaller."""
    view, waiting = sized.view, sorted(ops)
    while waiting:
        for name in view.reads[waiting.pop()]:
            op = sized.makers.get(name)
            if op is None or op in ops or name in sized.kept or not ops.issuperset(view.readers[name]):
                continue
            read = {each for each in view.reads[op] if each in sized.makers}
            ending = [each for each in read if each not in sized.kept and max(view.readers[each]) <= max(ops)]
            is_less = sum(sized.sizes[each] for each in ending) < sized.sizes[name]
            is_cheap = _looks_at_no_window(sized, op) and not view.rules[op].product
            is_by_row = {_length(sized, each, along) for each in read} <= {_length(sized, name, along), number(1), None}
            more = ops | {op}
            if is_less and is_cheap and is_by_row and can_run(op) and is_closed(sized, LoopRegion(number(0), more)):
                ops = more
                waiting.append(op)
    return ops


def _looks_at_no_window(sized: SizedView, op: int) -> bool:
    return sized.view.rules[op].windows in (None, WindowKind.BESIDE)


def _length(sized: SizedView, name: str, along: Along) -> Dim | None:
    """How long a tensor is along its axis, if it has one."""
    axis = along.axis_of(name)
    return sized.dims[name][axis] if len(sized.dims[name]) > axis else None
