"""Along which axis every tensor of a region is cut, once it is chosen for one of its exits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remat_cli.splitting.slab import Slab
from remat_cli.splitting.view import ModelView


def exit_axes(view: ModelView, ops: Sequence[int], exits: Sequence[str], axis: int) -> Mapping[str, int] | None:
    """The axis of every exit when the first is cut along `axis`; None where some exit is not cut by that.

    Axes spread from the first exit to what it is made of, and from there to all that is made of the same.
    """
    known = {exits[0]: axis}
    made_inside = {name for op in ops for name in view.makes[op] if name}
    grown = True
    while grown and not all(name in known for name in exits):
        before = len(known)
        for op in reversed(ops):
            _spread_back(view, op, known, made_inside)
        for op in ops:
            _spread_on(view, op, known)
        grown = len(known) > before
    if not all(name in known for name in exits):
        return None
    return {name: known[name] for name in exits}


def _spread_back(view: ModelView, op: int, known: dict[str, int], made_inside: set[str]) -> None:
    """From what an op makes to what it reads."""
    axis = next((known[name] for name in view.makes[op] if name in known), None)
    if axis is None:
        return
    for name, need_axis in _axes_read(view, op, axis).items():
        if name in view.tensors:
            known.setdefault(name, need_axis)


def _spread_on(view: ModelView, op: int, known: dict[str, int]) -> None:
    """From what an op reads to what it makes."""
    makes = [name for name in view.makes[op] if name]
    if not makes or makes[0] in known:
        return
    for axis in range(len(view.ops[op].output_shape)):
        read = _axes_read(view, op, axis)
        if any(known.get(name) == need for name, need in read.items()):
            known.update(dict.fromkeys(makes, axis))
            return


def _axes_read(view: ModelView, op: int, axis: int) -> dict[str, int]:
    """By name of what an op reads, the axis it is cut along when the output is cut along `axis`."""
    extent = view.ops[op].output_shape[axis]
    if extent < 2:
        return {}
    sliced = view.slice(op, Slab(axis, 0, extent // 2))
    if sliced is None:
        return {}
    needs = zip(view.reads[op], sliced.needs, strict=True)
    return {name: need.axis for name, need in needs if need is not None and name}
