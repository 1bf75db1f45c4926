"""Why splitting cannot help: the tensor, or the op, that must exist whole."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.base.units import format_bytes
from remat_cli.splitting.op_view import Slab
from remat_cli.splitting.timeline import Timeline, owner_of
from remat_cli.splitting.view import ModelView


@dataclass(frozen=True)
class Obstacle:
    """One line that names the reason; `is_final` where no splitting of these kinds whatever could get around it."""

    text: str
    is_final: bool


def explain(timeline: Timeline, position: int | None, floor_op: int | None, free_bytes: int) -> Obstacle | None:
    """What stands in the way of `free_bytes` (fixed part left out).

    `position` is the step at which the search for regions was stuck, `floor_op` the op that whole ops cannot do
    without, None where either is not known.
    """
    view = timeline.view
    return (
        _outputs(view, free_bytes)
        or (None if floor_op is None else _op(view, floor_op, free_bytes))
        or (None if position is None else _step(view, timeline.order[position]))
    )


def is_cuttable(view: ModelView, op: int) -> bool:
    """Whether there is an axis along which the op can be cut."""
    shapes = [shape for shape in view.ops[op].outputs if shape is not None]
    shape = shapes[0] if shapes else ()
    return any(extent > 1 and _is_cut_along(view, op, axis, extent) for axis, extent in enumerate(shape))


def _is_cut_along(view: ModelView, op: int, axis: int, extent: int) -> bool:
    """Whether some half, third or quarter of the output can be made by itself."""
    return any(
        view.slice(op, Slab(axis, 0, max(1, extent // parts))) is not None for parts in (2, 3, 4) if extent >= parts
    )


def _outputs(view: ModelView, free_bytes: int) -> Obstacle | None:
    kept = [tensor for tensor in view.graph.tensors if tensor.kept]
    if sum(tensor.size_bytes for tensor in kept) <= free_bytes:
        return None
    largest = max(kept, key=lambda tensor: tensor.size_bytes)
    return Obstacle(
        f"'{largest.name}' ({format_bytes(largest.size_bytes)}) is a model output and must exist whole", is_final=True
    )


def _op(view: ModelView, op: int, free_bytes: int) -> Obstacle | None:
    """An op that does not fit and cannot be cut."""
    name, size = _largest(view, op)
    if not name or is_cuttable(view, op) or _working_set(view, op) <= free_bytes:
        return None
    node = view.graph.ops[op]
    condition = "" if view.may_reassociate else " so that its bits stay the same"
    return Obstacle(
        f"'{name}' ({format_bytes(size)}) must exist whole: op '{node.name}' ({node.op_type}) cannot be cut{condition}",
        is_final=True,
    )


def _step(view: ModelView, op: int) -> Obstacle | None:
    """A step that no region found makes small enough."""
    name, size = _largest(view, op)
    node = view.graph.ops[op]
    if not name:
        return None
    reason = "cannot be cut" if not is_cuttable(view, op) else "was in no region that fits"
    return Obstacle(
        f"'{name}' ({format_bytes(size)}) is too large, and op '{node.name}' ({node.op_type}) {reason}", False
    )


def _largest(view: ModelView, op: int) -> tuple[str, int]:
    """The largest tensor an op reads or makes; model inputs are the caller's."""
    spec = view.graph.ops[op]
    tensors = [view.graph.tensors[i] for i in (*spec.inputs, *spec.outputs)]
    made = [tensor for tensor in tensors if tensor.producer is not None]
    largest = max(made, key=lambda tensor: tensor.size_bytes, default=None)
    return ("", 0) if largest is None else (largest.name, largest.size_bytes)


def _working_set(view: ModelView, op: int) -> int:
    """What an op must hold at least: what it reads, and of what it makes only what no input's storage can take."""
    spec, tensors = view.graph.ops[op], view.graph.tensors
    shared = {result for _, result in spec.in_place}
    held = (*spec.inputs, *(i for i in spec.outputs if i not in shared))
    owners = {owner.name: owner for i in held if (owner := owner_of(view, tensors[i].name)).producer is not None}
    return sum(owner.size_bytes for owner in owners.values())
