"""Slicing rules of ops that move elements without computing: shapes, joins, parts, permutations, padding."""

from dataclasses import dataclass
from math import lcm, prod

import numpy as np

from remat_cli.splitting.rules.record import COPIED, REPEATED, REST
from remat_cli.splitting.tiles.op_view import OpView, Shape, Slab, Sliced, of_first

SLICE_AXES, SLICE_STEPS = 3, 4  # inputs of a Slice
OPEN_SHAPES = "remat/open/"
"""Of the names of ops that compute shapes in which lengths are open, each put together of single numbers."""


def concatenation(op: OpView, slab: Slab) -> Sliced | None:
    """Concat cut along another axis than the one it joins along."""
    if slab.axis == op.integer("axis", 1) % len(op.output_shape):
        return None
    return Sliced((slab,) * len(op.inputs), slab)


def split(op: OpView, slab: Slab) -> Sliced | None:
    """Split cut along another axis than its own."""
    if slab.axis == op.integer("axis", 0) % len(op.input_shape(0)):
        return None
    return of_first(op, slab, slab)


def transposition(op: OpView, slab: Slab) -> Sliced | None:
    """Transpose: the cut axis as it was before."""
    order = op.integers("perm") or tuple(reversed(range(len(op.output_shape))))
    return of_first(op, Slab(order[slab.axis], slab.start, slab.stop), slab)


def reorder_to_blocked(op: OpView, slab: Slab) -> Sliced | None:
    """nchwc.ReorderInput, from channels first or last; channels are never cut."""
    order = (0, 3, 1, 2) if op.integer("channels_last", 0) else (0, 1, 2, 3)
    return None if slab.axis == 1 else of_first(op, Slab(order[slab.axis], slab.start, slab.stop), slab)


def reorder_from_blocked(op: OpView, slab: Slab) -> Sliced | None:
    """nchwc.ReorderOutput, to channels first or last; channels are never cut."""
    order = (0, 2, 3, 1) if op.integer("channels_last", 0) else (0, 1, 2, 3)
    axis = order[slab.axis]
    return None if axis == 1 else of_first(op, Slab(axis, slab.start, slab.stop), slab)


def open_axes(op: OpView) -> dict[int, int]:
    """What a shape that was put together to leave lengths open says, by axis, where that is known before the run.

    Other shapes may say nought for another axis than the one that is read there, whose length it would copy.
    """
    value = op.node.inputs[1]
    maker = None if value is None else value.producer()
    if maker is None or not (maker.name or "").startswith(OPEN_SHAPES):
        return {}
    known = [None if each is None else each.const_value for each in maker.inputs]
    return {axis: int(tensor.numpy().item()) for axis, tensor in enumerate(known) if tensor is not None}


def reshape(op: OpView, slab: Slab) -> Sliced | None:
    """Reshape, cut where the axis begins after the same number of elements on both sides."""
    is_open = open_axes(op).get(slab.axis) in (REST, COPIED)
    is_known = op.is_fixed(1) or op.at_one_size
    regrouped = _regroup(op.input_shape(0), op.output_shape, slab) if is_known or is_open else None
    if regrouped is None:
        return None
    need, makes = regrouped
    if is_open:
        return Sliced((need, None), makes) if makes == slab else None
    shape = (*op.output_shape[: slab.axis], makes.extent, *op.output_shape[slab.axis + 1 :])
    return Sliced((need, None), makes, constants={1: np.array(shape, np.int64)})


def flatten(op: OpView, slab: Slab) -> Sliced | None:
    """Flatten: the outermost axis of either group. Unsqueeze: any axis but a new one, which is never longer than 1."""
    regrouped = _regroup(op.input_shape(0), op.output_shape, slab)
    return None if regrouped is None else of_first(op, *regrouped)


def squeeze(op: OpView, slab: Slab) -> Sliced | None:
    """Squeeze of named axes, or of all of extent 1 as long as the cut one is not made so."""
    regrouped = _regroup(op.input_shape(0), op.output_shape, slab)
    if regrouped is None or (regrouped[1].extent == 1 and not op.integers("axes") and not op.has_input(1)):
        return None
    return of_first(op, *regrouped)


def expansion(op: OpView, slab: Slab) -> Sliced | None:
    """Expand to a known shape: the cut axis is read in part, or repeated."""
    source, target = op.input_shape(0), op.output_shape
    axis = slab.axis - (len(target) - len(source))
    is_read = axis >= 0 and source[axis] > 1
    wanted = op.constant(1)
    said = (1,) * len(target) if wanted is None else (*(1,) * (len(target) - wanted.size), *map(int, wanted.ravel()))
    is_left_open = wanted is not None and said[slab.axis] == REPEATED
    if is_read and (is_left_open or open_axes(op).get(slab.axis) == REPEATED):
        return Sliced((Slab(axis, slab.start, slab.stop), None), slab)
    if not (op.is_fixed(1) or op.at_one_size):
        return None
    shape = (*target[: slab.axis], slab.extent, *target[slab.axis + 1 :])
    need = Slab(axis, slab.start, slab.stop) if is_read else None
    return Sliced((need, None), slab, constants={1: np.array(shape, np.int64)})


def gather(op: OpView, slab: Slab) -> Sliced | None:
    """Gather: along other axes the data is cut, along those of the indices the indices are.

    Where positions are known and rise, as those of a Resize do, a slab of them reads a slab of the data.
    """
    axis, indices = op.integer("axis", 0) % len(op.input_shape(0)), len(op.input_shape(1))
    if axis <= slab.axis < axis + indices:
        places = op.constant(1) if indices == 1 and not op.weights[0] else None
        known = None if places is None else places.astype(np.int64)
        if places is not None and known is not None and known.size and known[0] >= 0 and np.all(np.diff(known) >= 0):
            own = known[slab.start : slab.stop]
            need = Slab(axis, int(own[0]), int(own[-1]) + 1)
            return Sliced((need, None), slab, constants={1: (own - need.start).astype(places.dtype)})
        return Sliced((None, Slab(slab.axis - axis, slab.start, slab.stop)), slab)
    source = slab.axis if slab.axis < axis else slab.axis - indices + 1
    return Sliced((Slab(source, slab.start, slab.stop), None), slab)


def gather_elements(op: OpView, slab: Slab) -> Sliced | None:
    """GatherElements: each index stands where its result does; along its own axis all data may be read."""
    axis = op.integer("axis", 0) % len(op.input_shape(0))
    return Sliced((None if slab.axis == axis else slab, slab), slab)


def depth_to_space(op: OpView, slab: Slab) -> Sliced | None:
    """DepthToSpace: each row of the input makes `blocksize` rows."""
    if slab.axis < 2:
        return of_first(op, slab, slab) if slab.axis == 0 else None
    block = op.integer("blocksize", 1)
    need = Slab(slab.axis, slab.start // block, -(-slab.stop // block))
    return of_first(op, need, Slab(slab.axis, need.start * block, need.stop * block))


def space_to_depth(op: OpView, slab: Slab) -> Sliced | None:
    """SpaceToDepth: `blocksize` rows of the input make one."""
    if slab.axis < 2:
        return of_first(op, slab, slab) if slab.axis == 0 else None
    block = op.integer("blocksize", 1)
    return of_first(op, Slab(slab.axis, slab.start * block, slab.stop * block), slab)


def tile(op: OpView, slab: Slab) -> Sliced | None:
    """Tile along other axes."""
    is_repeated = op.input_shape(0)[slab.axis] != op.output_shape[slab.axis]
    return None if is_repeated else of_first(op, slab, slab)


def strided_slice(op: OpView, slab: Slab) -> Sliced | None:
    """Slice with known bounds and a forward step; along a cut axis it then takes all it is given, by its step.

    Along an axis of which it takes all, bounds need not be known: whatever they are, they take all of a part too.
    """
    axes = _slice_axes(op)
    takes_all = op.input_shape(0)[slab.axis] == op.output_shape[slab.axis] and not op.has_input(SLICE_STEPS)
    if axes is not None and (slab.axis not in axes or takes_all):
        return of_first(op, slab, slab)
    parts = _slice_parameters(op)
    if parts is None:
        return _from_first(op, slab) if axes == (slab.axis,) else None
    starts, ends, axes, steps = parts
    extent = op.input_shape(0)[slab.axis]
    place = axes.index(slab.axis)
    step = steps[place]
    if step < 1:
        return None
    first = min(extent, max(0, starts[place] + (extent if starts[place] < 0 else 0)))
    need = Slab(slab.axis, first + slab.start * step, first + (slab.stop - 1) * step + 1)
    starts = (*starts[:place], 0, *starts[place + 1 :])
    ends = (*ends[:place], need.extent, *ends[place + 1 :])
    if len(op.inputs) == 1:
        return Sliced((need,), slab, {"starts": starts, "ends": ends})
    dtype = np.asarray(op.constant(1)).dtype
    constants = {1: np.array(starts, dtype), 2: np.array(ends, dtype)}
    return Sliced((need, *[None] * (len(op.inputs) - 1)), slab, constants=constants)


def _from_first(op: OpView, slab: Slab) -> Sliced | None:
    """A Slice from the first position on, step by step, to an end that is not known before the run.

    Its last part reads to the end, of which it leaves what the whole leaves.
    """
    steps = _integers_of(op, SLICE_STEPS) if op.has_input(SLICE_STEPS) else (1,)
    if _integers_of(op, 1) != (0,) or steps != (1,):
        return None
    read, made = (shape[slab.axis] for shape in (op.input_shape(0), op.output_shape))
    is_last, dtype = slab.stop == made, np.asarray(op.constant(1)).dtype
    end = made - read if is_last and made < read else np.iinfo(dtype).max
    need = slab._replace(stop=read) if is_last else slab
    return Sliced((need, *[None] * (len(op.inputs) - 1)), slab, constants={2: np.array([end], dtype)})


def _slice_axes(op: OpView) -> Shape | None:
    """The axes that a Slice cuts; None where they are not known before the run."""
    rank, axes = len(op.input_shape(0)), _integers_of(op, SLICE_AXES) if op.has_input(SLICE_AXES) else None
    if len(op.inputs) == 1:
        axes = op.integers("axes") or tuple(range(len(op.integers("starts"))))
    elif not op.has_input(SLICE_AXES):
        (count,) = op.input_shape(1)
        axes = tuple(range(count))
    return None if axes is None else tuple(axis % rank for axis in axes)


def _slice_parameters(op: OpView) -> tuple[Shape, Shape, Shape, Shape] | None:
    """Starts, ends, axes and steps of a Slice; None where one is not known before the run."""
    axes = _slice_axes(op)
    if len(op.inputs) == 1:
        starts, ends = op.integers("starts"), op.integers("ends")
        return starts, ends, axes or (), (1,) * len(starts)
    lists = [_integers_of(op, position) for position in range(1, len(op.inputs))]
    if axes is None or any(op.has_input(i + 1) and values is None for i, values in enumerate(lists)):
        return None
    starts, ends = lists[0] or (), lists[1] or ()
    steps = (lists[3] if len(lists) > 3 else None) or (1,) * len(starts)
    return starts, ends, axes, steps


def _integers_of(op: OpView, position: int) -> Shape | None:
    constant = op.constant(position) if op.has_input(position) and op.weights[position] else None
    return None if constant is None else tuple(int(value) for value in np.ravel(constant))


def _regroup(source: Shape, target: Shape, slab: Slab) -> tuple[Slab | None, Slab] | None:
    """What a slab of `target` is in a tensor of the same elements shaped `source`, and what that makes.

    Both axes must start after the same outer axes; then positions count in steps of the elements inside, and the
    slab grows to where both have a boundary.
    """
    if 0 in target:
        return None
    if target[slab.axis] == 1:
        return None, slab
    outer, inner = prod(target[: slab.axis]), prod(target[slab.axis + 1 :])
    axes = [axis for axis in range(len(source)) if prod(source[:axis]) == outer]
    if not axes:
        return None
    axis = axes[-1]
    source_inner = prod(source[axis + 1 :])
    step = lcm(inner, source_inner)
    start, stop = slab.start * inner // step * step, -(-slab.stop * inner // step) * step
    return (
        Slab(axis, start // source_inner, stop // source_inner),
        Slab(slab.axis, start // inner, stop // inner),
    )


def counting(op: OpView, slab: Slab) -> Sliced | None:
    """Range of whole numbers: each counted from the first one; a slab begins and ends elsewhere."""
    start, step = (op.constant(at) if op.weights[at] else None for at in (0, 2))
    if start is None or step is None or not np.issubdtype(start.dtype, np.integer):
        return None
    first, each = int(start.ravel()[0]), int(step.ravel()[0])
    bounds = (np.array(first + at * each, start.dtype) for at in (slab.start, slab.stop))
    return Sliced((None,) * len(op.inputs), slab, constants=dict(enumerate(bounds)))


_PADS, _AXES = 1, 3  # input positions


@dataclass(frozen=True)
class Padded:
    """A part of the input, the rows put before and after it, and the part of the output they make."""

    need: Slab
    before: int
    after: int
    makes: Slab


def padding(op: OpView, slab: Slab) -> Sliced | None:
    """Pad with known amounts: along other axes in any mode; along a padded one by constants, edges or reflection."""
    rank = len(op.output_shape)
    pads = _integers_of(op, _PADS) if len(op.inputs) > 1 else op.integers("pads") or None
    axes = _integers_of(op, _AXES) if op.has_input(_AXES) else tuple(range(rank))
    if pads is None or axes is None:
        return None
    axes = tuple(axis % rank for axis in axes)
    others = (None,) * (len(op.inputs) - 1)
    place = axes.index(slab.axis) if slab.axis in axes else -1
    before, after = (pads[place], pads[place + len(axes)]) if place >= 0 else (0, 0)
    if before == after == 0:
        return Sliced((slab, *others), slab)
    padded = _part(op, slab, before, after)
    if padded is None:
        return None
    changed = list(pads)
    changed[place], changed[place + len(axes)] = padded.before, padded.after
    if len(op.inputs) == 1:
        return Sliced((padded.need,), padded.makes, {"pads": tuple(changed)})
    return Sliced((padded.need, *others), padded.makes, constants={_PADS: np.array(changed, np.int64)})


def _part(op: OpView, slab: Slab, before: int, after: int) -> Padded | None:
    size, mode = op.input_shape(0)[slab.axis], op.text("mode", "constant")
    if mode in ("constant", "edge"):
        # padding that does not look into the input; at least one row of the input comes with it
        first, last = max(0, before), max(0, before) + size - max(0, -before) - 1
        start, stop = min(slab.start, last), max(slab.stop, first + 1)
        need = Slab(slab.axis, max(0, start - before), min(size, stop - before))
        makes = Slab(slab.axis, start, stop)
        return Padded(need, need.start - (start - before), stop - before - need.stop, makes)
    if mode != "reflect" or min(before, after) < 0:
        return None
    # padding that mirrors the input: all of it, with the rows it mirrors, or none
    start, stop = slab.start - before, slab.stop - before
    has_before, has_after = start < 0, stop > size
    first = 0 if has_before else start
    last = size if has_after else stop
    last = max(last, min(size, before + 1)) if has_before else last
    first = min(first, max(0, size - after - 1)) if has_after else first
    kept_before, kept_after = before if has_before else 0, after if has_after else 0
    makes = Slab(slab.axis, first + before - kept_before, last + before + kept_after)
    return Padded(Slab(slab.axis, first, last), kept_before, kept_after, makes)
