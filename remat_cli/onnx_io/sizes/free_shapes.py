"""Chooses the shapes to declare for runs of any size, such that the runtime knows as little as possible of them.

ONNX Runtime keeps a dead buffer for a later tensor of the same declared shape, which raises the peak. Two shapes with
differently named dimensions are never the same, so every buffer gets names of its own. Tensors that share a buffer by
working in place must agree in all dimensions, so they share the names. A dimension that shape inference proves
(channels, mostly, which come from weights) cannot be hidden, and is declared as the number it is. What is proved, the
runtime itself says: it has inference of its own for its own ops, and knows more than ONNX does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import helper

from remat_cli.core.schedule.graph import TensorType
from remat_cli.onnx_io.read.interface import DATA_TYPES
from remat_cli.onnx_io.write.assemble import Draft, light_copy

Dims = tuple[int | str | None, ...]
Infer = Callable[[bytes], Mapping[str, Dims]]
"""What the runtime knows of the shapes of a serialised model's outputs when it has loaded it."""


@dataclass(frozen=True)
class Canvas:
    """A model without shapes inside, and what is known of its values.

    `types` are those of all values by name; `groups` numbers the values made by ops such that those in one group have
    one shape, known or not. Dimensions but those on `open_axes` are to be declared as they are (None: none is), and
    none of groups that are `unsure`, whose lengths depend on values.
    """

    model: ir.Model
    types: Mapping[str, TensorType]
    groups: Mapping[str, int]
    open_axes: frozenset[int] | None = None
    unsure: frozenset[int] = frozenset()


def free_shapes(canvas: Canvas, infer: Infer) -> tuple[dict[str, Dims], dict[str, Dims]]:
    """Shape to declare for each value in `groups`: numbers where the runtime proves them, else names of the group.

    Also what the runtime then knows of every tensor that an op makes.
    """
    proved: dict[int, frozenset[int]] = {}
    bare = _exposed(canvas)
    while True:
        shapes: dict[str, Dims] = {}
        for name, group in canvas.groups.items():
            dims, axes = canvas.types[name].shape, proved.get(group, frozenset())
            is_all_hidden = canvas.open_axes is None or group in canvas.unsure
            hidden = range(len(dims)) if is_all_hidden else canvas.open_axes or ()
            told = (axis in axes or axis not in hidden for axis in range(len(dims)))
            shapes[name] = tuple(
                dim if is_told else f"r{group}d{axis}"
                for axis, (dim, is_told) in enumerate(zip(dims, told, strict=True))
            )
        known = _of_known_rank(canvas, infer(_declaring(bare, canvas, shapes).SerializeToString()))
        # Axes of each group that the runtime knows of one of its members.
        found: dict[int, frozenset[int]] = {}
        for name, group in canvas.groups.items():
            numbers = frozenset(axis for axis, dim in enumerate(known.get(name, ())) if isinstance(dim, int))
            found[group] = found.get(group, frozenset()) | numbers
        grown = {group: axes | proved.get(group, frozenset()) for group, axes in found.items()}
        if all(axes == proved.get(group, frozenset()) for group, axes in grown.items()):
            return shapes, known
        proved = {**proved, **grown}


def dims_at_load(model: ir.Model, types: Mapping[str, TensorType], infer: Infer) -> dict[str, Dims]:
    """What the runtime knows of the shape of every value of a model that an op makes, before a run.

    `types` are those of all values by name.
    """
    canvas = Canvas(model, types, {})
    shapes: dict[str, Dims] = {}
    for value in (value for node in model.graph for value in node.outputs):
        if value.shape is not None:
            shapes[value.name or ""] = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return _of_known_rank(canvas, infer(_declaring(_exposed(canvas), canvas, shapes).SerializeToString()))


SHAPE_INPUTS: Mapping[str, int] = {"Expand": 1, "Reshape": 1, "Resize": 3, "ConstantOfShape": 0}
"""Which input of an op says the shape of its result, or a part of it, whatever else it reads."""


def known_shapes(
    drafts: Sequence[Draft], shapes: Mapping[str, Dims], least_bytes: int, sizes: Mapping[str, int]
) -> list[str]:
    """Values whose readers should not see their shape, because it makes the shape of a large tensor known.

    They are the values of known shape that the maker of such a tensor reads, else those whose shape is known in part,
    or the tensor itself if there are none; and a constant that says the shape.
    """
    known = {name for name, dims in shapes.items() if dims and all(isinstance(dim, int) for dim in dims)}
    partly = {name for name, dims in shapes.items() if any(isinstance(dim, int) for dim in dims)}
    targets: dict[str, None] = {}
    for draft in drafts:
        makes = [name for name in draft.makes if name in known]
        if any(sizes.get(name, 0) >= least_bytes for name in makes):
            position = SHAPE_INPUTS.get(draft.op_type) if draft.domain in ("", "ai.onnx") else None
            said_by = () if position is None else draft.reads[position : position + 1]
            sources = [name for name in draft.all_reads if name in known or name in said_by]
            sources = sources or [name for name in draft.all_reads if name in partly]
            targets.update(dict.fromkeys(sources or makes))
    return list(targets)


def _of_known_rank(canvas: Canvas, told: Mapping[str, Dims]) -> dict[str, Dims]:
    """What is told of tensors of known rank: of others the runtime says what it says of scalars."""
    kinds = canvas.types
    return {name: dims for name, dims in told.items() if name in kinds and len(dims) == len(kinds[name].shape)}


def _exposed(canvas: Canvas) -> onnx.ModelProto:
    """The model without large weights; every tensor inside is to be an output, since only of these shapes are told."""
    proto = ir.to_proto(light_copy(canvas.model))
    del proto.graph.value_info[:]
    of_any_rank = {value.name for value in canvas.model.graph.outputs if value.shape is None}
    for value in proto.graph.output:
        if value.name in of_any_rank and value.HasField("type"):  # asking for what is not there makes an empty one
            value.type.tensor_type.ClearField("shape")  # the copy says that they are scalars
    return proto


def _declaring(bare: onnx.ModelProto, canvas: Canvas, shapes: Mapping[str, Dims]) -> onnx.ModelProto:
    """A copy with every tensor that an op makes as an output of the declared shape, or of none."""
    proto = onnx.ModelProto()
    proto.CopyFrom(bare)
    told = {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        for name in node.output:
            if name in canvas.types and name not in told:
                kind = int(DATA_TYPES[canvas.types[name].dtype])
                proto.graph.output.append(helper.make_tensor_value_info(name, kind, shapes.get(name)))
    return proto
