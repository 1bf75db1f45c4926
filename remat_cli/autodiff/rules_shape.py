"""Gradients of ops that cut, join, repeat and rearrange, and that read or write at indices."""

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import Literal

import numpy as np
import onnx_ir as ir

from remat_cli.autodiff.pieces import (
    AxisCut,
    pad,
    positive,
    reshape,
    scatter_add,
    sum_to,
    ungather,
    unslice,
    window,
    zeros,
)
from remat_cli.autodiff.tape import FIRST, Call, Found, Grads, Rule, Rules, Tape, constant_of, only, shape_of
from remat_cli.base.errors import ModelError

PAD_MODES: Mapping[str, Literal["reflect", "edge", "wrap"]] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def same_elements(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient in the input's shape: only the shape was changed."""
    return {0: reshape(tape, only(grads), call.shape())}


def transpose(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient with its axes put back where they were."""
    perm = call.integers("perm", range(len(call.shape()))[::-1])
    back = [int(place) for place in np.argsort(perm)]
    return {0: tape.op("Transpose", grads[0], perm=back) if perm else only(grads)}


def concat(tape: Tape, call: Call, grads: Grads) -> Found:
    """One Split where all parts are wanted, a Slice for each where some are."""
    axis = positive(call.integer("axis"), len(call.shape()))
    places = range(len(call.inputs))
    sizes = [call.shape(place)[axis] for place in places]
    grad = only(grads)
    if len(sizes) == 1:
        return {0: grad}
    if len(call.wanted) == len(sizes):
        return dict(enumerate(tape.ops("Split", (grad, tape.ints(*sizes)), len(sizes), {"axis": axis})))
    ends = list(accumulate(sizes))
    return {place: window(tape, grad, {axis: (ends[place] - sizes[place], ends[place])}) for place in call.wanted}


def split(tape: Tape, call: Call, grads: Grads) -> Found:
    """Parts that no gradient flows back from are padding of their neighbour."""
    rank = len(call.shape())
    axis = positive(call.integer("axis"), rank)
    if call.has(1):
        sizes = [int(size) for size in constant_of(call, 1, "sizes")]
    else:
        total, count = call.shape()[axis], len(call.outputs)
        size = -(-total // count)
        sizes = [min(size, max(0, total - size * place)) for place in range(count)]
    ends = list(accumulate(sizes))
    flowing = [(place, grad) for place, grad in enumerate(grads) if grad is not None]
    parts: list[ir.Value] = []
    for (place, grad), following in zip(flowing, [*(place for place, _ in flowing[1:]), len(sizes)], strict=True):
        before, after = [0] * rank, [0] * rank
        before[axis] = 0 if parts else ends[place] - sizes[place]
        after[axis] = ends[following - 1] - ends[place]
        parts.append(pad(tape, grad, before, after))
    return {0: parts[0] if len(parts) == 1 else tape.ops("Concat", parts, 1, {"axis": axis})[0]}


def slice_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient where elements were read, zeros elsewhere."""
    shape = call.shape()
    starts, ends = (constant_of(call, place, "bounds").tolist() for place in (1, 2))
    axes = constant_of(call, 3, "axes").tolist() if call.has(3) else range(len(starts))
    steps = constant_of(call, 4, "steps").tolist() if call.has(4) else [1] * len(starts)
    cuts = []
    for start, end, axis, step in zip(starts, ends, (positive(a, len(shape)) for a in axes), steps, strict=True):
        # Python clamps bounds as ONNX does, but for those before the first element when it goes backwards.
        first = max(start, -shape[axis])
        last = None if step < 0 and end < -shape[axis] else end
        read = range(shape[axis])[first:last:step]
        cuts.append(AxisCut(axis, read.start, read.step, len(read)))
    return {0: unslice(tape, only(grads), shape, cuts)}


def pad_gradient(tape: Tape, call: Call, grads: Grads) -> Found:
    """Constant padding is cut off again; what was copied into the padding adds up where it was read."""
    grad, shape = only(grads), call.shape()
    given = constant_of(call, 1, "pads").tolist()
    axes = constant_of(call, 3, "axes").tolist() if call.has(3) else range(len(shape))
    pairs = zip(given[: len(given) // 2], given[len(given) // 2 :], strict=True)  # before and after
    sides = {positive(axis, len(shape)): pair for axis, pair in zip(axes, pairs, strict=True)}
    mode = call.text("mode", "constant")
    if mode == "constant":
        # What was added is cut off, what was cut off is zero; what was added is the sum that the filling gets.
        wide, found = shape_of(grad), dict[int, ir.Value]()
        core = window(tape, grad, {axis: (max(0, b), wide[axis] - max(0, a)) for axis, (b, a) in sides.items()})
        if 2 in call.wanted:
            everything, inside = (tape.op("ReduceSum", value, keepdims=0) for value in (grad, core))
            found[2] = reshape(tape, tape.op("Sub", everything, inside), call.shape(2))
        if 0 in call.wanted:
            before, after = ([max(0, -sides.get(a, (0, 0))[side]) for a in range(len(wide))] for side in (0, 1))
            found[0] = pad(tape, core, before, after)
        return found
    for axis, (before, after) in sides.items():
        kept = np.arange(shape[axis])[max(0, -before) : shape[axis] - max(0, -after)]
        places = np.pad(kept, (max(0, before), max(0, after)), PAD_MODES[mode])
        grad = ungather(tape, grad, axis, places, shape[axis])
    return {0: grad}


def expand(tape: Tape, call: Call, grads: Grads) -> Found:
    """Sum over the axes along which the input was repeated."""
    return {0: sum_to(tape, only(grads), call.shape())}


def tile(tape: Tape, call: Call, grads: Grads) -> Found:
    """Sum over the copies, an axis of its own before each axis that was repeated."""
    grad, shape = only(grads), call.shape()
    repeats = [1 if not old else new // old for new, old in zip(shape_of(grad), shape, strict=True)]
    parts = [
        dim for times, size in zip(repeats, shape, strict=True) for dim in ((times, size) if times > 1 else (size,))
    ]
    copies = [sum(1 + (times > 1) for times in repeats[:axis]) for axis, times in enumerate(repeats) if times > 1]
    if not copies:
        return {0: grad if prod(shape_of(grad)) == prod(shape) else zeros(tape, shape, grad)}  # not one copy was made
    return {0: tape.op("ReduceSum", reshape(tape, grad, tuple(parts)), tape.ints(*copies), keepdims=0)}


def space_to_depth(tape: Tape, call: Call, grads: Grads) -> Found:
    """DepthToSpace of the gradient."""
    return {0: tape.op("DepthToSpace", grads[0], blocksize=call.integer("blocksize"))}


def depth_to_space(tape: Tape, call: Call, grads: Grads) -> Found:
    """SpaceToDepth of the gradient; column-row-depth order, which it lacks, is written out."""
    size = call.integer("blocksize")
    if call.text("mode", "DCR") == "DCR":
        return {0: tape.op("SpaceToDepth", grads[0], blocksize=size)}
    batch, depth, height, width = call.shape()
    blocks = reshape(tape, only(grads), (batch, depth // size**2, height, size, width, size))
    return {0: reshape(tape, tape.op("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4]), call.shape())}


def trilu(tape: Tape, call: Call, grads: Grads) -> Found:
    """The same triangle of the gradient."""
    diagonal = call.inputs[1] if call.has(1) else None
    return {0: tape.ops("Trilu", (grads[0], diagonal)[: 1 + call.has(1)], 1, {"upper": call.integer("upper", 1)})[0]}


def reverse_sequence(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient turned as the sequences were: turning them twice gives them back."""
    return {0: tape.ops("ReverseSequence", (grads[0], call.input(1)), 1, dict(call.attributes))[0]}


def gather(tape: Tape, call: Call, grads: Grads) -> Found:
    """Gradients add up at the places that were read."""
    shape = call.shape()
    axis = positive(call.integer("axis"), len(shape))
    count = prod(call.shape(1))
    grad = reshape(tape, only(grads), (*shape[:axis], count, *shape[axis + 1 :]))
    places = call.constant(1)
    if places is not None:
        return {0: ungather(tape, grad, axis, places.reshape(-1), shape[axis])}
    return {0: scatter_add(tape, grad, axis, reshape(tape, call.input(1), (count,)), shape[axis])}


def gather_elements(tape: Tape, call: Call, grads: Grads) -> Found:
    """Gradients add up at the elements that were read."""
    grad = only(grads)
    indices = call.input(1)
    start = zeros(tape, call.shape(), grad)
    return {0: tape.op("ScatterElements", start, indices, grad, axis=call.integer("axis"), reduction="add")}


def top_k(tape: Tape, call: Call, grads: Grads) -> Found:
    """The gradient of each number that was chosen goes back to where it stood; no place is chosen twice."""
    grad = only(grads)
    start, axis = zeros(tape, call.shape(), grad), call.integer("axis", -1)
    return {0: tape.op("ScatterElements", start, call.output(1), grad, axis=axis)}


def gather_nd(tape: Tape, call: Call, grads: Grads) -> Found:
    """Gradients add up at the rows that were read; the dimensions that are indexed are made one."""
    shape, batch_dims = call.shape(), call.integer("batch_dims")
    indexed = shape[batch_dims : batch_dims + call.shape(1)[-1]]
    rows = prod(shape[:batch_dims]) * prod(indexed)
    grad = reshape(tape, only(grads), (prod(call.shape(1)[:-1]), prod(shape[batch_dims + len(indexed) :])))
    # The first row of each element of the batch, to be broadcast against indices.
    ones = [1] * (len(call.shape(1)) - 1 - batch_dims)
    offsets = (np.arange(prod(shape[:batch_dims])) * prod(indexed)).reshape(*shape[:batch_dims], *ones)
    strides = np.array([prod(indexed[place + 1 :]) for place in range(len(indexed))], np.int64)
    places = call.constant(1)
    if places is not None:
        found = (places % np.array(indexed) * strides).sum(-1) + offsets
        return {0: reshape(tape, ungather(tape, grad, 0, found.reshape(-1), rows), shape)}
    steps = tape.op("Mul", tape.op("Mod", call.input(1), tape.ints(*indexed)), tape.constant(strides))
    flat = tape.op("ReduceSum", steps, tape.ints(-1), keepdims=0)
    flat = tape.op("Add", flat, tape.constant(offsets)) if batch_dims else flat
    flat = reshape(tape, flat, (prod(call.shape(1)[:-1]),))
    return {0: reshape(tape, scatter_add(tape, grad, 0, flat, rows), shape)}


def scatter(tape: Tape, call: Call, grads: Grads) -> Found:
    """Updates read the gradient where they were written; data gets the rest, or all of it if they were added."""
    reduction = call.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise ModelError(
            f"op '{call.name}' ({call.op_type}): no gradient is known for reduction '{reduction}' (only none and add)"
        )
    grad, indices = only(grads), call.input(1)
    axis = call.integer("axis") if call.op_type == "ScatterElements" else None
    found: dict[int, ir.Value] = {}
    if 2 in call.wanted:
        found[2] = tape.op(call.op_type.replace("Scatter", "Gather"), grad, indices, axis=axis)
    if 0 in call.wanted and reduction == "add":
        found[0] = grad
    elif 0 in call.wanted:
        nothing = zeros(tape, call.shape(2), grad)
        found[0] = tape.op(call.op_type, grad, indices, nothing, axis=axis)
    return found


RULES: Rules = {
    **{name: Rule(same_elements, needs=FIRST) for name in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")},
    "Transpose": Rule(transpose),
    "Concat": Rule(concat),
    "Split": Rule(split, needs=FIRST),
    "Slice": Rule(slice_gradient, needs=FIRST),
    "Pad": Rule(pad_gradient, needs=frozenset({0, 2})),
    "Expand": Rule(expand, needs=FIRST),
    "Tile": Rule(tile, needs=FIRST),
    "SpaceToDepth": Rule(space_to_depth),
    "DepthToSpace": Rule(depth_to_space),
    "Trilu": Rule(trilu, needs=FIRST),
    "ReverseSequence": Rule(reverse_sequence, needs=FIRST),
    "Gather": Rule(gather, needs=FIRST),
    "GatherElements": Rule(gather_elements, needs=FIRST),
    "TopK": Rule(top_k, needs=FIRST),
    "GatherND": Rule(gather_nd, needs=FIRST),
    "ScatterND": Rule(scatter, needs=frozenset({0, 2})),
    "ScatterElements": Rule(scatter, needs=frozenset({0, 2})),
}
