"""Along which axis each tensor is cut in tiles around one that is cut along a given axis: as the ops between say.

A Transpose moves the axis, a Reshape or an STFT goes on along another one. What no op that can run in tiles leads to is
cut along an axis of the same number, as pictures are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from remat_cli.splitting.loops.loop_regions import SizedView
from remat_cli.splitting.loops.windows.forms import COLUMNS, ROWS
from remat_cli.splitting.loops.windows.parts import sliced_part
from remat_cli.splitting.tiles.op_view import Slab

LEAST_UNITS = 6


@dataclass(frozen=True)
class Along:
    """The axis of each tensor around one, by name; `start` is that of all others."""

    start: int
    axes: Mapping[str, int] = field(default_factory=dict)

    def axis_of(self, name: str) -> int:
        """Along which axis a tensor is cut."""
        return self.axes.get(name, self.start)

    def runs(self, sized: SizedView, op: int) -> bool:
        """Whether an op can run in tiles along these axes, at the largest sizes."""
        made = next((name for name in sized.view.makes[op] if name), "")
        read = reads_along(sized, op, self.axis_of(made))
        return read is not None and all(self.axis_of(name) == axis for name, axis in read.items())

    @classmethod
    def around(cls, sized: SizedView, name: str, axis: int) -> Along:
        """Axes as they spread from one tensor; where two ways lead to one tensor along two axes, the shorter counts."""
        axes, waiting = {name: axis}, deque([name])
        while waiting:
            sized.look()
            for found in _next(sized, waiting.popleft(), axes):
                if all(axes.get(each, at) == at for each, at in found.items()):
                    waiting.extend(each for each in found if each not in axes and each in sized.dims)
                    axes |= found
        return cls(axis, axes)


def _next(sized: SizedView, name: str, axes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """By op that makes or reads a tensor the axes around it that fit."""
    view = sized.view
    maker = sized.makers.get(name)
    if maker is not None:
        yield _around_op(sized, maker, axes[name]) or {}
    for op in view.readers.get(name, ()):
        made = next((each for each in view.makes[op] if each), "")
        known = [axes[made]] if made in axes else range(len(sized.dims.get(made, ())))
        ways = (_around_op(sized, op, at) for at in known)
        yield next((way for way in ways if way is not None and way.get(name) == axes[name]), {})


def _around_op(sized: SizedView, op: int, axis: int) -> dict[str, int] | None:
    """The axes of what an op makes, cut along an axis, and of what it then reads in part; None where it cannot be."""
    read = reads_along(sized, op, axis)
    return None if read is None else {**dict.fromkeys((name for name in sized.view.makes[op] if name), axis), **read}


def reads_along(sized: SizedView, op: int, axis: int) -> Mapping[str, int] | None:
    """The axes along which an op reads in part what it reads, where it runs in tiles along one of what it makes.

    None where it cannot, at the largest sizes, or where that would be along a length that does not vary.
    """
    asked = op, axis
    if asked not in sized.known_axes:
        sized.known_axes[asked] = _reads_along(sized, op, axis)
    return sized.known_axes[asked]


def _reads_along(sized: SizedView, op: int, axis: int) -> dict[str, int] | None:
    view = sized.view
    made = next((name for name in view.makes[op] if name), "")
    extents = view.tensors[made].shape if made in sized.dims else ()
    if len(extents) <= axis or not sized.dims[made][axis].terms or view.facts[op].why_not_repeatable:
        return None
    is_other = view.ops[op].integer("channels_last", 0) and view.rules[op].layout is None
    if is_other or extents[axis] < LEAST_UNITS or not _may_be_cut(sized, made, axis):
        return None
    third = extents[axis] // 3
    sliced = sliced_part(sized, op, Slab(axis, third, extents[axis] - third))
    if sliced is None:
        return None
    found: dict[str, int] = {}
    for name, need in zip(view.reads[op], sliced.needs, strict=True):
        if need is None:
            continue
        dims = sized.dims.get(name, ())
        if len(dims) <= need.axis or not dims[need.axis].terms or not _may_be_cut(sized, name, need.axis):
            return None
        if found.setdefault(name, need.axis) != need.axis:
            return None
    return found


def _may_be_cut(sized: SizedView, name: str, axis: int) -> bool:
    """Whether a tensor may be cut along an axis: in blocks of channels along rows and columns only."""
    return name not in sized.view.blocked or axis in (ROWS, COLUMNS)
